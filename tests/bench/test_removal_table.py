"""Tables of removals, from results made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from plait.bench import removal_table as table
from tests.bench import made


def test_a_row_for_each_method_in_their_order() -> None:
    line, script = table.summary(made.removals())
    assert (line["method"], script["method"]) == ("mdm_oc", "subtraction bf16")
    assert (line["equal"], line["places"], line["seeds"]) == (2, 2, [42])
    assert line["figures"]["distance"] == {"mean": 0.0, "worst": 0.0}
    assert line["cpu"] == {"mean": pytest.approx(1.5), "worst": 2.0}
    assert line["kept"] == 2_000_000
    figures = script["figures"]
    assert script["equal"] == 0
    assert figures["retain"] == {"mean": pytest.approx(-0.01), "worst": 0.01}  # a gain is not the worst
    assert figures["forget"] == {"mean": pytest.approx(-0.02), "worst": -0.05}  # the farthest from the base
    assert figures["fidelity"] == {"mean": None, "worst": None}  # one of them is not defined


def test_rows_in_words() -> None:
    line, script = (table.cells(row) for row in table.summary(made.removals()))
    assert line == [
        "mdm_oc", "2 of 2", "0 (0)", "0 (0)", "0 (0)", "0 (0)", "0 (0)", "1.50 (2.00)", "3.00 (4.00)", "2",
    ]  # fmt: skip
    assert script == [
        "subtraction bf16", "0 of 2", "1.5e-01 (2.0e-01)", "-1.00 (+1.00)", "-", "-2.00 (-5.00)", "+0.50 (+1.00)",
        "1.50 (2.00)", "3.00 (4.00)", "2",
    ]  # fmt: skip
    assert len(script) == len(table.HEAD)


def test_markdown() -> None:
    lines = table.markdown(made.removals())
    assert lines[0] == "## Removal on suite tiny"
    assert "2 tasks, 1 order (42)" in lines[2]
    rows = [line for line in lines if line.startswith("|")]
    assert [line.count("|") for line in rows] == [len(table.HEAD) + 1] * 4


def test_a_method_without_a_finished_cell_has_no_row() -> None:
    found: dict[str, Any] = made.removals()
    found["cells"] = found["cells"][:1]
    assert [(row["method"], row["places"]) for row in table.summary(found)] == [("mdm_oc", 1)]
