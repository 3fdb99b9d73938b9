"""The printed page and the plain subtraction."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from plait.demo.screen import Screen
from plait.demo.subtraction import Gap, compare, subtract_again, undo_average, undo_task_arithmetic


def test_a_table_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    Screen().table(
        ["name", "right", "text"], [["a", "1", "x"], ["long name", "1000", "yy"]], (1,), left=(0, 2)
    )
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert lines == [
        "  name       right  text",
        "  ----------------------",
        "  a              1  x",
        "  ----------------------",
        "  long name   1000  yy",
    ]


def test_a_claim_is_kept_and_counted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    screen = Screen()
    screen.claim("good", True, "This holds.")
    screen.claim("bad", False, "This does not.")
    with screen.timed("something"):
        pass
    screen.finish(tmp_path / "results.json")
    out = capsys.readouterr().out
    assert "[holds] This holds." in out
    assert "[FAILS] This does not." in out
    assert "1 of 2 claims hold" in out
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert results["failed"] == ["bad"]
    assert set(results["seconds"]) == {"something", "total"}


def test_compare_counts_bits() -> None:
    want = torch.tensor([0.0, 1.0, 2.0])
    assert compare(torch.tensor([-0.0, 1.0, 2.5]), want) == Gap(3, 2, 0.5)
    assert compare(want.clone(), want) == Gap(3, 0, 0.0)


def test_the_formulas_undo_themselves_where_nothing_is_rounded() -> None:
    base = {"w": torch.tensor([1.0, 2.0, 3.0])}
    one, two = {"w": torch.tensor([2.0, 2.0, 5.0])}, {"w": torch.tensor([1.0, 4.0, 3.0])}
    scaled = {"w": base["w"] + 0.5 * (one["w"] - base["w"]) + 0.5 * (two["w"] - base["w"])}
    never = {"w": base["w"] + 0.5 * (two["w"] - base["w"])}
    gap = subtract_again(scaled, base, one, never, undo_task_arithmetic(0.5), torch.float32)
    assert gap == Gap(3, 0, 0.0)
    mean = {"w": (one["w"] + two["w"]) / 2}
    assert subtract_again(mean, base, one, two, undo_average(2), torch.float32) == Gap(3, 0, 0.0)
    assert subtract_again(mean, base, one, one, undo_average(2), torch.float32).differing == 3
