"""Tables, from results made by hand."""

from __future__ import annotations

from math import sqrt
from typing import Any

import pytest

from plait.bench import table
from tests.bench import made


def two_orders() -> dict[str, Any]:
    other = made.cell(43)
    other["figures"] = {**other["figures"], "acc": 0.8, "backward": None}
    other["cpu"], other["seconds"], other["memory"] = [3.0, 4.0], [5.0, 5.0], [None, 4_000_000]
    other["bytes"] = {"members": [0, 3_000_000], "state": [0, 2_000_000]}
    other["order"], other["values"] = ["two", "one"], [[0.7, None], [0.5, 0.9]]
    worse = made.cell(42, "ties", figures={**made.cell()["figures"], "acc": 0.6})
    return made.results(made.cell(42), other, worse, average=made.told(tuning={
        "option": None, "tried": [], "chosen": None, "edge": False,
    }))  # fmt: skip


def test_a_row_for_each_method_best_first() -> None:
    best, worst = table.summary(two_orders())
    assert (best["method"], worst["method"]) == ("average", "ties")
    assert best["seeds"] == [42, 43]
    assert best["figures"]["acc"]["mean"] == pytest.approx(0.75)
    assert best["figures"]["acc"]["deviation"] == pytest.approx(0.1 / sqrt(2))
    assert best["figures"]["backward"] == {"mean": None, "deviation": None}
    assert best["cpu"] == pytest.approx(2.5)  # of 1, 2, 3, 4
    assert best["seconds"] == pytest.approx(3.5)
    assert best["kept"] == pytest.approx(4_000_000)  # of 3 and 5 million at the end
    assert best["memory"] == 5_000_000
    assert worst["figures"]["acc"] == {"mean": 0.6, "deviation": None}


def test_rows_in_words() -> None:
    best, worst = (table.cells(row) for row in table.summary(two_orders()))
    assert best == ["average", "2", "75.0 ± 7.1", "80.0", "-", "+10.0", "10.0", "2.5", "4", "5"]
    assert worst == ["ties scale 0.5*", "1", "60.0", "80.0", "-10.0", "+10.0", "10.0", "1.5", "3", "5"]
    assert len(best) == len(table.HEAD)


def test_a_row_for_each_model() -> None:
    head, rows = table.by_task(two_orders())
    assert head == ["model", "one", "two"]
    assert rows == [
        ["base", "50.0", "40.0"],
        ["experts", "90.0", "75.0"],
        ["average", "85.0", "55.0"],
        ["ties", "80.0", "60.0"],
    ]


def test_the_title() -> None:
    assert table.title(two_orders()) == "tiny: 2 tasks, 2 orders (42-43), base 45.0 %, experts 82.5 %"
    assert table.title(made.results()) == "tiny: 2 tasks, no order yet, base 45.0 %, experts 82.5 %"


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([4], "4"), ([1, 2, 3, 7, 9, 10], "1-3,7,9-10"), ([42, 44], "42,44")]
)
def test_ranges(numbers: list[int], text: str) -> None:
    assert table.ranges(numbers) == text


def test_markdown_has_tables_of_equal_width() -> None:
    lines = table.markdown(two_orders())
    assert lines[0] == "## Suite tiny"
    assert "10 to 20 test examples a task" in lines[2]
    assert "2 cores (a processor)" in lines[2]
    rows = [line for line in lines if line.startswith("|")]
    widths = [line.count("|") for line in rows]
    assert widths == [11] * 4 + [4] * 6
    assert table.markdown(made.results(made.cell()))


def test_a_method_without_a_finished_cell_has_no_row() -> None:
    found = made.results(made.cell(), ties=made.told())
    assert [row["method"] for row in table.summary(found)] == ["average"]
    assert table.summary(made.results(ties=made.told())) == []


def test_cosines_and_models_that_were_merged_at_once_are_told() -> None:
    found = two_orders()
    assert "Cosines" not in table.markdown(found)[2]
    cells = [{**cell, "last": True, "bytes": None} for cell in found["cells"]]
    told = {**found, "cells": cells, "cosines": [[1.0, 0.25, 0.5], [0.25, 1.0, 0.0], [0.5, 0.0, 1.0]]}
    text = table.markdown(told)[2]
    assert "task vectors: 0.000 to 0.500, 0.250 in the mean" in text
    assert "merged at once in memory" in text
    assert table.cells(table.summary(told)[0])[-2] == "-"
