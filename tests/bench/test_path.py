"""The way to the last expert of the suite `tiny`: its points against merges that end there, its table and figure."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

from plait.bench import at_once, path
from plait.bench.suites import Sources, find
from plait.bench.worker import Setup
from plait.errors import UsageError

ROOT = Path(__file__).parent.parent.parent
SVG = "{http://www.w3.org/2000/svg}"
OPTIONS = {"h": 0.2, "samples": 24, "budget": 0.0}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ode_path", ROOT / "benchmarks" / "ode_path.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ode_path"] = module
    spec.loader.exec_module(module)
    return module


def asked(place: Path, *methods: str, **words: Any) -> path.AskedPath:
    return path.AskedPath("tiny", methods, (42,), place / "r.json", place / "cache", workers=1, **words)


def test_points_are_the_merges_that_end_there_and_a_second_run_measures_nothing(
    tmp_path: Path, base: Path, script: ModuleType
) -> None:
    words = " ".join(f"{key}={value}" for key, value in OPTIONS.items())
    said: list[str] = []
    want = asked(tmp_path, f"ode_m {words}", places=(0.0, 1 / 3, 1.0))
    found = path.run(want, said.append)
    (cell,) = found["cells"]
    assert [row["t"] for row in cell["path"]] == [row["t"] for row in cell["line"]] == [0.0, 1 / 3, 1.0]
    assert cell["path"][0] == cell["line"][0]
    experts = {
        task: next((tmp_path / "cache").rglob(f"{task}*/model.safetensors")).parent for task in cell["order"]
    }
    setup = Setup("tiny", Sources(), base, find("tiny").test)

    def merged(name: str, options: Mapping[str, Any]) -> dict[str, float]:
        scores = at_once.merge_and_measure(setup, experts, cell["order"], name, options, "test")["scores"]
        return {task: score.value for task, score in scores.items()}

    assert cell["path"][1]["values"] == merged("ode_m", OPTIONS)
    before, straight = cell["line"][0]["losses"], cell["line"][1]["losses"]
    assert cell["path"][1]["losses"] != straight  # it was held back
    assert before != straight
    new = cell["order"][-1]
    assert cell["line"][2]["values"][new] == found["rows"]["experts"][new]["value"]
    for row in cell["path"]:
        old = [row["values"][task] for task in cell["order"][:-1]]
        assert row["accuracy"]["old"] == pytest.approx(sum(old) / 2)
        assert row["loss"]["all"] == pytest.approx(sum(row["losses"].values()) / 3)
    del said[:]
    assert path.run(want, said.append)["cells"] == found["cells"]
    assert not any("order 42" in line for line in said)
    table = script.table(found["cells"])
    assert [row[0] for row in table] == ["0", "0.3333", "1"]
    assert table[1][3] == f"{100 * cell['path'][1]['values'][new]:.2f}"
    tree = ElementTree.fromstring(script.figure(found["cells"], "a title"))
    assert tree.tag == f"{SVG}svg"
    assert len(tree.findall(f"{SVG}polyline")) == 2
    texts = [one.text for one in tree.iter(f"{SVG}text")]
    assert {"0", "0.333"} < set(texts)


@pytest.mark.parametrize(
    ("method", "words", "message"),
    [
        ("average", {}, "method average follows no path"),
        ("ode_m variant=control_refine", {}, "follows no path"),
        ("ode_m", {"members": 4}, "members is 4, expected 2 to 3"),
    ],
)
def test_what_has_no_path(tmp_path: Path, method: str, words: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        path.run(asked(tmp_path, method, **words))


def test_places_of_equal_tasks() -> None:
    assert path.default_places(4) == (0.0, 0.125, 0.25, 0.5, 0.75, 1.0)
