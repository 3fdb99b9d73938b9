"""The algebra of what an algebraic removal leaves, in the weights of lines, and its figure."""

from __future__ import annotations

import importlib.util
import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent.parent
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("negative_copy", ROOT / "benchmarks" / "negative_copy.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["negative_copy"] = module
    spec.loader.exec_module(module)
    return module


def test_a_negative_copy_stays(script: ModuleType) -> None:
    """Of 4 members the first, second, third and last are taken out; at cosine 0 all of these are exact."""
    rows = script.run(4, 8, (0.0, 0.4))["rows"]
    for row in rows:
        assert row["formula_error"] < 1e-13
        assert row["receipt"]["remaining"] == pytest.approx(row["remaining"], abs=1e-13)
        assert row["receipt"]["distance"] == pytest.approx(row["distance"], abs=1e-13)
    left = [row["remaining"] for row in rows if row["rho"] == 0.4]
    assert left[0] < left[1] < left[2] - 0.01 < left[2] < -0.01
    assert left[3] == pytest.approx(0, abs=1e-13)
    assert all(abs(row["distance"]) < 1e-13 for row in rows if row["rho"] == 0.0)


def test_the_figure_is_drawn_of_the_results(script: ModuleType) -> None:
    """What is committed is what the script makes of the committed numbers."""
    found = json.loads((ROOT / "benchmarks" / "results" / "negative_copy.json").read_text())
    drawn = script.figure(found["rows"], found["members"])
    assert (ROOT / "docs" / "figures" / "negative_copy.svg").read_text() == drawn + "\n"
    tree = ElementTree.fromstring(drawn)
    assert tree.tag == f"{SVG}svg"
    assert len(tree.findall(f"{SVG}polyline")) == 2 * len({row["removed"] for row in found["rows"]})
