"""What a step leaves behind, and what tidying up after it costs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from plait import Line
from plait.store.ledger import Ledger
from tests.line.models import base_tensors, expert_tensors, write_folder


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("average", {}),
        ("average", {"retention": "statistics"}),
        ("average", {"keep": 1}),
        ("ties", {"keep": 4}),
        ("magmax", {"snapshots": 1}),
    ],
)
def test_every_step_leaves_what_gc_would_leave(tmp_path: Path, method: str, settings: dict[str, Any]) -> None:
    base = base_tensors()
    write_folder(tmp_path / "base", base)
    folders = {t: write_folder(tmp_path / t, expert_tensors(base, n)) for n, t in enumerate("abcd")}
    line = Line.create(tmp_path / "line", tmp_path / "base", method, **settings)
    own = settings.get("retention") == "statistics"
    steps: list[Callable[[], Any]] = [
        lambda: line.merge(folders["a"]),
        lambda: line.merge(folders["b"]),
        lambda: line.merge(folders["c"]),
        lambda: line.unmerge("b", checkpoint=folders["b"]) if own else line.unmerge("b"),
        lambda: line.merge(folders["b"], "d", weight=2.0),
        lambda: line.reweight("d", 1.0) if not own else line.merge(folders["d"], "e"),
        lambda: line.unmerge("a", checkpoint=folders["a"]) if own else line.unmerge("a"),
    ]
    for number, step in enumerate(steps):
        step()
        removed = line.gc(grace=0, dry_run=True)["removed"]
        assert not any(removed.values()), (number, removed)
        assert line.verify()["ok"]


def test_a_step_reads_few_entries_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = base_tensors()
    write_folder(tmp_path / "base", base)
    line = Line.create(tmp_path / "line", tmp_path / "base", "average")
    reads: list[Path] = []
    real = Ledger._read

    def read(self: Ledger, path: Path) -> bytes:
        reads.append(path)
        return real(self, path)

    monkeypatch.setattr(Ledger, "_read", read)
    counts = []
    for number in range(12):
        expert = write_folder(tmp_path / f"t{number}", expert_tensors(base, number))
        reads.clear()
        line.merge(expert)
        counts.append(len(reads))
    assert counts[-1] == counts[4]


def test_what_a_killed_command_left_goes_with_the_next(tmp_path: Path) -> None:
    base = base_tensors()
    write_folder(tmp_path / "base", base)
    line = Line.create(tmp_path / "line", tmp_path / "base", "average")
    orphan = tmp_path / "orphan.safetensors"
    save_file({"w": base[next(iter(base))]}, orphan)
    digest = line.store.objects.put_file(orphan)
    line.store.workspace("merge-x").joinpath("half").write_text("made")
    line.merge(write_folder(tmp_path / "a", expert_tensors(base, 1)))
    assert not line.store.objects.has(digest)
    assert line.store.workspaces() == []
