"""What a step cost stands in the ledger."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plait import Line
from plait.engine import fold
from tests.line.models import base_tensors, expert_tensors, write_folder


@pytest.mark.parametrize(("method", "settings"), [("average", {}), ("magmax", {"snapshots": 1})])
def test_bytes_read_and_written_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, settings: dict[str, Any]
) -> None:
    """As many as all folds of the step moved: with snapshots there are several."""
    moved: list[tuple[int, int]] = []

    def watched(*words: Any, **named: Any) -> Any:
        folded = fold(*words, **named)
        moved.append((folded.bytes_read, folded.bytes_written))
        return folded

    monkeypatch.setattr("plait.engine.fold", watched)
    base = base_tensors()
    write_folder(tmp_path / "base", base)
    line = Line.create(tmp_path / "line", tmp_path / "base", method, **settings)
    for number, task in enumerate("abc"):
        line.merge(write_folder(tmp_path / task, expert_tensors(base, number)))
    changes: list[Callable[[], dict[str, Any]]] = [
        lambda: line.unmerge("a"),
        lambda: line.reweight("c", 2.0),
    ]
    for change in changes:
        moved.clear()
        row = change()
        read, written = (sum(column) for column in zip(*moved, strict=True))
        assert read > 0
        assert written > 0
        assert (row["counts"]["bytes_read"], row["counts"]["bytes_written"]) == (read, written)
