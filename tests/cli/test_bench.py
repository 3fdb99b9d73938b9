"""What `plait bench` prints and reads, without a run."""

from __future__ import annotations

import json
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any

import pytest

from plait.bench.results import read
from plait.cli import bench
from tests.bench import made
from tests.cli.conftest import Plait


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "r.json"
    path.write_text(json.dumps(made.results(made.cell())))
    return path


def test_the_table(plait: Plait, file: Path) -> None:
    done = plait("bench", "table", file)
    assert done.code == 0
    assert done.err == ""
    lines = done.out.splitlines()
    assert lines[0] == "tiny: 2 tasks, 1 order (42), base 45.0 %, experts 82.5 %"
    assert lines[2].split()[:4] == ["method", "orders", "ACC", "normalised"]
    assert lines[3].split() == [
        "average",
        "scale",
        "0.5*",
        "1",
        "70.0",
        "80.0",
        "-10.0",
        "+10.0",
        "10.0",
        "1.5",
        "3",
        "5",
    ]
    assert lines[5].split() == ["model", "one", "two"]
    assert lines[6].split() == ["base", "50.0", "40.0"]
    assert lines[8].split()[:2] == ["average", "80.0"]
    assert lines[-1].strip().startswith("* the best of the values tried")


def test_the_table_as_json(plait: Plait, file: Path) -> None:
    found = plait("bench", "table", file, "--json").json
    assert found["action"] == "table"
    assert found["file"] == str(file)
    assert found["results"] == read(file)
    assert found["rows"][0]["figures"]["acc"] == {"mean": 0.7, "deviation": None}
    assert found["suites"] is None


def test_the_list(plait: Plait) -> None:
    lines = plait("bench", "list").out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "suite", "text8", "text12", "vision8", "clip8", "clip14", "clip20", "tiny", "cil-text",
        "cil-images", "cil-tiny",
    ]  # fmt: skip
    found = plait("bench", "list", "--json").json
    assert found["suites"][0]["tasks"][0] == "trec6"
    assert found["results"] is None


def test_names_in_a_file_of_results_are_printed_safely(plait: Plait, tmp_path: Path) -> None:
    found = made.results(made.cell())
    found["suite"] = "a\x1b[2Jb"
    path = tmp_path / "r.json"
    path.write_text(json.dumps(found))
    assert "\x1b" not in plait("bench", "table", path).out


@pytest.mark.parametrize(
    ("text", "found"),
    [("42", (42,)), ("42-44", (42, 43, 44)), ("42-43,50, 42", (42, 43, 50)), ("7-7", (7,)), ("0", (0,))],
)
def test_seeds(text: str, found: tuple[int, ...]) -> None:
    assert bench.seeds(text) == found


@pytest.mark.parametrize("text", ["", "x", "44-42", "1-", "-3", "1--2", "0-5000", "1.5"])
def test_what_is_no_list_of_seeds(text: str) -> None:
    with pytest.raises(ArgumentTypeError):
        bench.seeds(text)


def test_a_run_is_asked_for_as_the_words_say(
    plait: Plait, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def run(words: Any, say: Any) -> Any:
        asked.append(words)
        say("half\nway")
        return made.results(made.cell())

    monkeypatch.setattr("plait.bench.run.run", run)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PLAIT_DATA", "data")
    words = ("bench", "run", "tiny", "--methods", "average, ties,average")
    done = plait(*words)
    assert (done.code, done.err) == (0, "half way\n")
    assert "70.0" in done.out
    one = asked.pop()
    assert one.methods == ("average", "ties")
    assert one.seeds == (42, 43, 44, 45, 46)
    assert (one.budget, one.test, one.workers, one.device) == (5, None, 2, "cpu")
    assert (one.out, one.cache) == (Path("tiny.json"), tmp_path / "plait" / "bench")
    assert one.sources.data == Path("data")
    more = (
        "--orders",
        "7,9",
        "--budget",
        "3",
        "--examples",
        "10",
        "--workers",
        "1",
        "--out",
        "o",
        "--cache",
        "c",
    )
    done = plait(*words, *more, "--data", "d", "--models", "m", "--quiet", "--json")
    assert done.err == ""
    assert done.json["file"] == "o"
    one = asked.pop()
    assert (one.seeds, one.budget, one.test, one.workers) == ((7, 9), 3, 10, 1)
    assert (one.out, one.cache) == (Path("o"), Path("c"))
    assert (one.sources.data, one.sources.models) == (Path("d"), Path("m"))


def test_the_table_of_removals(plait: Plait, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps(made.removals()))
    lines = plait("bench", "table", path).out.splitlines()
    assert lines[2].split()[:4] == ["method", "equal", "bytes", "distance"]
    assert lines[3].split()[:5] == ["mdm_oc", "2", "of", "2", "0"]
    found = plait("bench", "table", path, "--json").json
    assert [row["equal"] for row in found["rows"]] == [2, 0]
    assert found["results"] == made.removals()


def test_removals_are_asked_for_as_the_words_say(
    plait: Plait, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from plait.bench.removal import METHODS

    asked: list[Any] = []

    def run(words: Any, say: Any) -> Any:
        asked.append(words)
        return made.removals()

    monkeypatch.setattr("plait.bench.removal.run", run)
    done = plait("bench", "removal", "tiny", "--cache", "c")
    assert (done.code, "2 of 2" in done.out) == (0, True)
    one = asked.pop()
    assert (one.methods, one.seeds, one.out) == (METHODS, (42,), Path("tiny-removal.json"))
    words = ("--methods", "mdm_oc algebraic alpha=1,opcm", "--orders", "43", "--examples", "7", "--out", "o")
    assert plait("bench", "removal", "tiny", *words, "--json").json["action"] == "removal"
    one = asked.pop()
    assert (one.methods, one.seeds) == (("mdm_oc algebraic alpha=1", "opcm"), (43,))
    assert (one.test, one.out) == (7, Path("o"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("removal",), "a suite is needed: plait bench removal SUITE"),
        (("removal", "tiny", "--budget", "3"), "--budget is for `plait bench run`; leave it out of removal"),
        (("removal", "tiny", "--last"), "--last is for `plait bench run`; leave it out of removal"),
        (("removal", "tiny", "--methods", "opcm algebraic"), "opcm has no algebraic removal"),
    ],
)
def test_wrong_words_of_removals(plait: Plait, words: tuple[str, ...], message: str) -> None:
    done = plait("bench", *words)
    assert done.code != 0
    assert message in done.err
