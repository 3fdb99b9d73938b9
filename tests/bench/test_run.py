"""The suite `tiny` from end to end, by the command: experts, base, tuning, streams; interrupted, and gone on with."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from plait.bench import results, run, worker
from plait.bench.cells import measure_stream
from plait.bench.run import Asked
from plait.bench.specs import parse
from plait.bench.suites import Sources, find
from plait.bench.worker import Model, Setup
from plait.cli import main
from plait.errors import LockedError, RefusedInput, UsageError
from plait.store.lock import hold
from tests.bench import made

METHODS = ("average", "task_arithmetic", "opcm")


@pytest.fixture(scope="module")
def place(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of three methods in two orders, and the cache of the run."""
    place = tmp_path_factory.mktemp("run")
    assert bench(place, ",".join(METHODS), "42-43") == 0
    return place


def bench(place: Path, methods: str, orders: str, *more: str) -> int:
    words = ["--methods", methods, "--orders", orders, "--cache", str(place / "cache")]
    return main(
        ["bench", "run", "tiny", *words, "--out", str(place / "r.json"), "--budget", "2", "--quiet", *more]
    )


@pytest.mark.slow
def test_a_whole_suite(place: Path, base: Path) -> None:
    found = results.read(place / "r.json")
    assert [(c["method"], c["seed"]) for c in found["cells"]] == [(m, s) for s in (42, 43) for m in METHODS]
    assert not list((place / "cache").glob("*.work"))
    orders = {seed: find("tiny").order(seed) for seed in (42, 43)}
    assert orders[42] != orders[43], "the seeds of this test must differ in their orders"
    for cell in found["cells"]:
        check_cell(found, cell, orders[cell["seed"]])
    ends = {m: {c["versions"][-1] for c in found["cells"] if c["method"] == m} for m in METHODS}
    assert {m: len(versions) for m, versions in ends.items()} == {
        "average": 1,
        "task_arithmetic": 1,
        "opcm": 2,
    }
    assert {name: told["order"] for name, told in found["methods"].items()} == {
        "average": False, "task_arithmetic": False, "opcm": True,
    }  # fmt: skip
    assert {n: len(told["tuning"]["tried"]) for n, told in found["methods"].items()} == {
        "average": 0, "task_arithmetic": 2, "opcm": 2,
    }  # fmt: skip
    experts = found["rows"]["experts"]
    assert sum(row["value"] for row in experts.values()) > sum(
        row["value"] for row in found["rows"]["base"].values()
    ), "training has made no experts"


def check_cell(found: dict[str, Any], cell: dict[str, Any], order: list[str]) -> None:
    assert cell["order"] == order
    for k, row in enumerate(cell["right"]):
        assert [right is None for right in row] == [i > k for i in range(3)]
    assert cell["values"][2] == [right / 24 for right in cell["right"][2]]
    assert all(
        low <= value <= high
        for low, value, high in zip(cell["low"][2], cell["values"][2], cell["high"][2], strict=True)
    )
    assert cell["figures"] == results.figures(cell["order"], cell["values"], found["rows"])
    if cell["method"] == "average":  # its first model is the first expert
        expert = found["experts"][order[0]]["digest"]
        assert cell["versions"][0] == expert
        assert cell["right"][0][0] == found["rows"]["experts"][order[0]]["right"]


@pytest.mark.slow
def test_nothing_in_the_file_tells_where_it_was_made(place: Path) -> None:
    text = (place / "r.json").read_text()
    assert str(place) not in text
    assert not re.search(r"/(tmp|home|root|work)/", text)
    run_ = json.loads(text)["runs"][0]
    assert run_["machine"].keys() == {"cores", "memory", "processor", "system", "architecture"}
    assert {"plait", "python", "torch", "cpu", "numpy", "tokenizers"} <= run_["software"].keys()


@pytest.mark.slow
def test_an_interrupted_run_goes_on_and_ends_with_the_same_figures(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = place / "r.json"
    whole = results.read(path)
    cut = {
        **whole,
        "cells": whole["cells"][:4],
        "methods": {m: whole["methods"][m] for m in ("average", "opcm")},
    }
    path.write_text(json.dumps(cut))
    merged: list[Any] = []
    inner = measure_stream

    def counting(*words: Any) -> Any:
        merged.append(words[0])
        return inner(*words)

    monkeypatch.setattr(run, "measure_stream", counting)
    assert bench(place, ",".join(METHODS), "42-43") == 0
    again = results.read(path)
    assert merged == ["task_arithmetic", "opcm"]
    assert again["methods"] == whole["methods"]
    assert [figures(c) for c in again["cells"]] == [figures(c) for c in whole["cells"]]
    assert len(again["runs"]) == 2
    assert again["cells"][-1]["run"] == 1


def figures(cell: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on the clock."""
    timed = ("seconds", "cpu", "memory", "run")
    return {key: value for key, value in cell.items() if key not in timed}


@pytest.mark.slow
def test_accuracies_are_those_of_the_version(place: Path, tmp_path: Path) -> None:
    """A line that is made by hand has the digest and the right answers that the results tell of."""
    from plait.line import Line

    found = results.read(place / "r.json")
    cell = found["cells"][-1]
    assert cell["method"] == "opcm"
    find("tiny").lay_base(Sources(), tmp_path / "base")
    line = Line.create(tmp_path / "line", tmp_path / "base", "opcm", **found["methods"]["opcm"]["options"])
    for task in cell["order"]:
        (expert,) = (p for p in (place / "cache" / "experts").glob(f"{task}-*") if p.is_dir())
        line.merge(expert, task)
    assert line.digest == cell["versions"][-1]
    setup = Setup("tiny", Sources(), tmp_path / "base", None)
    scores = [worker.measure(setup, Model(line.model), task, "test").right for task in cell["order"]]
    assert scores == cell["right"][-1]


@pytest.mark.slow
def test_another_budget_does_not_go_on(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (place / "r.json").read_bytes()
    capsys.readouterr()
    assert bench(place, "average", "42", "--examples", "7") == 5
    said = capsys.readouterr().err
    assert "holds results with setting.test 1000, this run has 7" in said
    assert (place / "r.json").read_bytes() == before


def asked(tmp_path: Path, **changes: Any) -> Asked:
    words = {"suite": "tiny", "methods": ("average",), "seeds": (42,), "out": tmp_path / "r.json"}
    return Asked(**{**words, "cache": tmp_path / "cache", **changes})


def test_two_runs_of_a_suite_do_not_share_a_cache(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    with hold(tmp_path / "cache" / "tiny.lock", "test"), pytest.raises(LockedError, match="locked by `test`"):
        run.run(asked(tmp_path))


def test_wrong_words_and_files_are_told_before_anything_is_done(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="method 'tise' is not known"):
        run.run(asked(tmp_path, methods=("average", "tise")))
    with pytest.raises(UsageError, match="device is tpu, expected cpu or cuda"):
        run.run(asked(tmp_path, device="tpu"))
    (tmp_path / "r.json").write_text(json.dumps(made.results()))
    (tmp_path / "data").mkdir()
    for task in find("text8").tasks:
        (tmp_path / "data" / f"{task}.parquet").touch()
    with pytest.raises(RefusedInput, match="holds results of suite tiny, expected text8"):
        run.run(asked(tmp_path, suite="text8", sources=Sources(tmp_path / "data")))
    assert not (tmp_path / "cache").exists()


@pytest.mark.slow
def test_streams_of_methods_that_look_at_data(place: Path, tmp_path: Path) -> None:
    """Tasks are handed to the line with each expert; the model at the end is the one that is merged at once."""
    out = tmp_path / "looking.json"
    looking = "regmean,task_arithmetic fit=gradient fit.evaluations=12,ode_m h=0.5 samples=12"
    assert bench_at(out, place, looking, "42") == 0
    found = results.read(out)
    assert {cell["figures"]["backward"] is None for cell in found["cells"]} == {False}
    path = results.cell_of(found, "ode_m h=0.5 samples=12", 42)
    assert path is not None
    assert [round(step["t_end"], 2) for step in path["known"]] == [1.0, 0.5, 0.33]
    assert [len(step.get("gamma", ())) for step in path["known"]] == [0, 1, 1]
    assert bench_at(tmp_path / "last.json", place, "regmean", "42", "--last") == 0
    alone = results.cell_of(results.read(tmp_path / "last.json"), "regmean", 42, last=True)
    stream = results.cell_of(found, "regmean", 42)
    assert alone is not None
    assert stream is not None
    assert alone["right"][-1] == stream["right"][-1]


LOOKING = (
    "average",
    "opcm",
    "regmean",
    "task_arithmetic fit=gradient fit.evaluations=12",
    "ties fit=cmaes fit.evaluations=4",
)


@pytest.mark.slow
def test_the_last_model_alone(place: Path, tmp_path: Path) -> None:
    """Merged at once in memory it is the model that the streams end with; fits and statistics are at hand."""
    out = tmp_path / "last.json"
    words = [
        "--methods",
        ",".join(LOOKING),
        "--orders",
        "42-43",
        "--cache",
        str(place / "cache"),
        "--budget",
        "2",
    ]
    assert main(["bench", "run", "tiny", "--last", "--out", str(out), "--quiet", *words]) == 0
    found, streams = results.read(out), results.read(place / "r.json")
    assert len(found["cells"]) == 2 * len(LOOKING)
    for name in ("average", "opcm"):
        for seed in (42, 43):
            cell, stream = results.cell_of(found, name, seed, last=True), results.cell_of(streams, name, seed)
            assert cell is not None
            assert stream is not None
            assert cell["versions"][-1] == stream["versions"][-1]
            assert cell["right"][-1] == stream["right"][-1]
            assert cell["figures"]["acc"] == stream["figures"]["acc"]
            assert cell["figures"]["backward"] is None
    fitted = [c for c in found["cells"] if "fit" in c]
    assert {c["method"] for c in fitted} == {parse(m).label for m in LOOKING if "fit" in m}
    for cell in fitted:
        assert cell["fit"]["loss"] <= cell["fit"]["start"]
        assert cell["fit"]["evaluations"] in (4, 12)
    cosines = found["cosines"]
    assert [cosines[i][i] for i in range(3)] == pytest.approx([1, 1, 1])
    assert cosines[0][1] == cosines[1][0]
    # streams take the place of what says less, and are not undone by it
    assert bench_at(out, place, "average", "42") == 0
    again = results.read(out)
    stream = results.cell_of(again, "average", 42)
    assert stream is not None
    assert stream["figures"]["backward"] is not None
    assert len(again["cells"]) == 2 * len(LOOKING)


def bench_at(out: Path, place: Path, methods: str, orders: str, *more: str) -> int:
    words = [
        "--methods",
        methods,
        "--orders",
        orders,
        "--cache",
        str(place / "cache"),
        "--budget",
        "2",
        *more,
    ]
    return main(["bench", "run", "tiny", "--out", str(out), "--quiet", *words])


@pytest.mark.slow
def test_streams_side_by_side_give_the_same(place: Path, tmp_path: Path) -> None:
    whole = results.read(place / "r.json")
    words = ["--cache", str(place / "cache"), "--budget", "2", "--quiet", "--streams", "3"]
    out = tmp_path / "r.json"
    asked = ["bench", "run", "tiny", "--methods", ",".join(METHODS), "--orders", "42-43", "--out", str(out)]
    assert main([*asked, *words]) == 0

    def of(found: dict[str, Any]) -> dict[Any, Any]:
        return {(c["method"], c["seed"]): figures(c) for c in found["cells"]}

    assert of(results.read(out)) == of(whole)


@pytest.mark.slow
def test_weights_of_tasks(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.json"
    asked = [
        "bench",
        "run",
        "tiny",
        "--methods",
        "average,task_arithmetic",
        "--orders",
        "42",
        "--out",
        str(out),
    ]
    words = [*asked, "--cache", str(place / "cache"), "--budget", "2", "--weights", "zipf"]
    assert main([*words, "--last", "--quiet"]) == 0
    once = results.read(out)
    assert main(words) == 0
    found = results.read(out)
    shares = {task: 1 / number for number, task in enumerate(find("tiny").tasks, 1)}
    assert found["setting"]["weights"] == shares
    for early, cell in zip(once["cells"], found["cells"], strict=True):
        assert early["versions"][-1] == cell["versions"][-1], "a line and a merge at once give other bytes"
        ends = dict(zip(cell["order"], cell["values"][-1], strict=True))
        wanted = sum(shares[t] * ends[t] for t in ends) / sum(shares.values())
        assert cell["figures"]["weighted"] == pytest.approx(wanted)
    equal = results.read(place / "r.json")
    held = {c["versions"][-1] for c in equal["cells"]}
    assert not held & {c["versions"][-1] for c in found["cells"]}, "weights changed nothing"
    assert "ACC_w" in capsys.readouterr().out
    with pytest.raises(RefusedInput, match="weights"):
        results.go_on(out, {key: equal[key] for key in results.SAME})
