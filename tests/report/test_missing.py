"""What a page says is missing is missing, and what it says would fill it in can."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from plait.evaluation.rows import Rows
from plait.report.facts import gather
from plait.report.page import page
from tests.report.lines import make, measure, row
from tests.report.parsing import parse


def words(found: dict[str, Any]) -> str:
    return " ".join(parse(page(found)).text.split())


def stream(found: dict[str, Any]) -> str:
    return words(found).split("Over the stream")[-1].split("Task vectors")[0]


def test_all_is_named_where_versions_of_arrival_lack(tmp_path: Path) -> None:
    line = make(tmp_path, "ab")
    measure(line, "ab", entries=[2])
    assert "--tasks tasks.yaml --all" in stream(gather(line))
    measure(line, "ab")
    assert "plait eval" not in stream(gather(line))


def test_no_command_is_named_where_none_helps(tmp_path: Path) -> None:
    line = make(tmp_path, "ab", retention="none")
    Rows(line.store).put([row(line, line.digest, task, 0.8) for task in "ab"])
    told = stream(gather(line))
    assert "They cannot be had any more." in told
    assert "plait eval" not in told


def test_empty_cells_are_gaps(tmp_path: Path) -> None:
    line = make(tmp_path, "abc")
    measure(line, "abc")
    found = gather(line)
    assert [g for g in found["gaps"] if "cells" in g["about"]] == []
    version = line.store.ledger.entry(1)["version"]
    rows = Rows(line.store)
    rows.forget(version, lambda one: one.task in "bc")
    (gap,) = [g for g in gather(line)["gaps"] if "cells" in g["about"]]
    assert gap["about"] == "cells of earlier versions, of tasks that were no members then"
    assert gap["found"] == "not evaluated: after entries 1"
    assert gap["fill"].endswith(" --all")
    rows.forget(line.store.ledger.entry(2)["version"], lambda one: one.task == "a")
    assert [g["about"].split(", ")[1] for g in gather(line)["gaps"] if "cells" in g["about"]] == [
        "of tasks that were members then",
        "of tasks that were no members then",
    ]


def test_measurements_on_other_data_are_counted(tmp_path: Path) -> None:
    line = make(tmp_path, "ab")
    measure(line, "ab")
    assert gather(line)["evaluation"]["other"] == 0
    old = replace(row(line, line.digest, "a", 0.5), data="f" * 64, time="2025-01-31T12:00:00.000Z")
    Rows(line.store).put([old])
    found = gather(line)
    assert found["evaluation"]["other"] == 1
    assert "1 measurement made otherwise" in words(found)


def test_one_task_has_no_transfer(tmp_path: Path) -> None:
    line = make(tmp_path, "ab")
    line.unmerge("b")
    measure(line, "ab")
    found = gather(line)
    assert found["evaluation"]["steps"][-1]["figures"]["backward"] is not None
    assert "BWT / plasticity gap \u2013 / " in words(found)


def test_the_distance_says_over_what(tmp_path: Path) -> None:
    assert "over tensors of two and more dimensions" in words(gather(make(tmp_path, "a")))
