"""Removals of the suite `tiny` from end to end, and the words and figures of the comparison."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from plait.bench import removal, results
from plait.bench.pool import Pool
from plait.bench.removal import METHODS, figures, read
from plait.bench.suites import find
from plait.cli import main
from plait.errors import NotRemovable, PlaitError, UsageError

RUN = ("mdm_oc", "mdm_oc algebraic alpha=1", "subtraction bf16", "magmax")


@pytest.mark.parametrize(
    ("text", "label", "name", "how"),
    [
        ("mdm_oc", "mdm_oc", "mdm_oc", "exact"),
        ("mdm_oc exact", "mdm_oc", "mdm_oc", "exact"),
        ("mdm_oc algebraic", "mdm_oc algebraic", "mdm_oc", "algebraic"),
        (
            "mdm_oc  algebraic granularity=layer alpha=0.5",
            "mdm_oc algebraic alpha=0.5 granularity=layer",
            "mdm_oc",
            "algebraic",
        ),
        ("ties density=0.1", "ties density=0.1", "ties", "exact"),
        ("subtraction fp32", "subtraction fp32", "task_arithmetic", "fp32"),
        ("subtraction bf16 scale=0.7", "subtraction bf16 scale=0.7", "task_arithmetic", "bf16"),
    ],
)
def test_methods_in_words(text: str, label: str, name: str, how: str) -> None:
    found = read(text)
    assert (found.label, found.spec.name, found.how) == (label, name, how)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("subtraction", UsageError, "'subtraction' says no dtype; expected 'subtraction fp32' or"),
        ("subtraction fp16", UsageError, "'subtraction fp16' says no dtype"),
        ("subtraction fp32 sparsify=dare", UsageError, "'sparsify' in .* is no option of subtraction"),
        ("opcm algebraic", NotRemovable, "method opcm has no algebraic removal"),
        ("regmean", UsageError, "regmean looks at data of the tasks"),
        ("task_arithmetic fit=cmaes", UsageError, "fit=cmaes looks at data of the tasks"),
        ("tise", UsageError, "method 'tise' is not known"),
        ("mdm_oc somehow", UsageError, "'somehow' in 'mdm_oc somehow' is no option"),
    ],
)
def test_what_cannot_be_compared(text: str, error: type[PlaitError], message: str) -> None:
    with pytest.raises(error, match=message):
        read(text)


def test_the_default_methods_can_be_read() -> None:
    assert [read(text).label for text in METHODS] == list(METHODS)


def test_figures() -> None:
    values = {"merged": [0.9, 0.8, 0.7], "unmerged": [0.8, 0.5, 0.8], "never": [0.6, 0.4, 0.8]}
    assert figures(values, 0.3, gone=1) == {
        "retain": pytest.approx(0.0),  # one lost 10 points, the other won them
        "fidelity": pytest.approx(0.1),  # 20 points and none
        "forget": pytest.approx(0.2),
        "left": pytest.approx(0.1),
    }


def bench(place: Path, methods: tuple[str, ...] = RUN) -> int:
    words = ["--methods", ",".join(methods), "--cache", str(place / "cache"), "--out", str(place / "r.json")]
    return main(["bench", "removal", "tiny", *words, "--quiet"])


@pytest.fixture(scope="module")
def place(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of one order, and the cache of the run."""
    place = tmp_path_factory.mktemp("removal")
    assert bench(place) == 0
    return place


@pytest.mark.slow
def test_every_method_and_place(place: Path) -> None:
    found = results.read(place / "r.json", results.REMOVAL)
    order = find("tiny").order(42)
    cells = {(c["method"], c["place"]): c for c in found["cells"]}
    assert list(cells) == [(m, k) for m in RUN for k in range(3)]
    assert all(c["order"] == order and c["gone"] == order[c["place"]] for c in cells.values())
    assert not list((place / "cache").glob("*.work"))
    equal = {m: [cells[m, k]["equal"] for k in range(3)] for m in RUN}
    assert equal["mdm_oc"] == equal["magmax"] == [True] * 3
    assert equal["mdm_oc algebraic alpha=1"][:2] == [False, False]
    assert equal["subtraction bf16"] == [False] * 3
    for cell in cells.values():
        check(found, cell)
    told = found["methods"]["mdm_oc algebraic alpha=1"]
    assert (told["how"], told["options"]["alpha"]) == ("algebraic", 1.0)
    assert "budget" not in found["setting"]


def check(found: dict[str, Any], cell: dict[str, Any]) -> None:
    """Equal bytes are distance 0 and equal scores; an exact receipt is kept; algebra tells of its own distance."""
    versions, distance = cell["versions"], cell["figures"]["distance"]
    assert cell["equal"] == (versions["unmerged"] == versions["never"])
    assert versions["merged"] not in (versions["unmerged"], versions["never"])
    assert cell["values"]["merged"] == [right / 24 for right in cell["right"]["merged"]]
    assert (distance == 0) == cell["equal"]
    if cell["equal"]:
        assert cell["right"]["unmerged"] == cell["right"]["never"]
        assert cell["figures"]["fidelity"] == cell["figures"]["left"] == 0
    if cell["receipt"].get("how") == "algebraic":
        assert distance == pytest.approx(cell["receipt"]["distance"], rel=1e-3)
    base = found["rows"]["base"][cell["gone"]]["value"]
    assert cell["figures"] == {**figures(cell["values"], base, cell["place"]), "distance": distance}
    assert cell["bytes"]["members"] > 1e6


@pytest.mark.slow
def test_nothing_in_the_file_tells_where_it_was_made(place: Path) -> None:
    text = (place / "r.json").read_text()
    assert str(place) not in text
    assert not re.search(r"/(tmp|home|root|work)/", text)


@pytest.mark.slow
def test_an_interrupted_run_goes_on_and_measures_no_model_twice(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = place / "r.json"
    whole = results.read(path, results.REMOVAL)
    cut = {**whole, "cells": whole["cells"][:4]}
    path.write_text(json.dumps(cut))
    begun: list[tuple[str, list[str]]] = []
    asked: list[tuple[str, str]] = []
    begin, submit = removal.Removal.begin, Pool.submit

    def beginning(self: Any, stock: Any, order: Any, work: Path) -> Any:
        begun.append((self.label, order))
        return begin(self, stock, order, work)

    def submitting(self: Any, job: Any, *words: Any) -> Any:
        if job.__name__ == "measure":
            asked.append((words[0].folder, words[1]))
        return submit(self, job, *words)

    monkeypatch.setattr(removal.Removal, "begin", beginning)
    monkeypatch.setattr(Pool, "submit", submitting)
    assert bench(place) == 0
    again = results.read(path, results.REMOVAL)
    assert [label for label, _ in begun] == list(RUN[1:])
    assert [timeless(c) for c in again["cells"]] == [timeless(c) for c in whole["cells"]]
    new = again["cells"][4:]
    digests = {v for c in new for v in c["versions"].values()}
    known = {v for c in again["cells"][:4] for v in c["versions"].values()}
    assert len(asked) == 3 * len(digests - known)
    assert again["cells"][-1]["run"] == 1


def timeless(cell: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in cell.items() if key not in ("seconds", "cpu", "run")}


@pytest.mark.slow
def test_a_file_of_removals_is_no_file_of_streams(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--methods", "average", "--cache", str(place / "cache"), "--out", str(place / "r.json")]
    assert main(["bench", "run", "tiny", *words]) == 5
    assert "was it made by plait bench run?" in capsys.readouterr().err
