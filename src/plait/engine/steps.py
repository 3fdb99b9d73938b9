"""How far a merge by steps over whole models has come: the state after its last whole step, and what steps found."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plait.checkpoint.format import fsync_folder
from plait.engine.desk import Desk
from plait.methods.base import Known

STATE = "state.safetensors"
_NOTE = "steps.json"
_INSIDE = "inside.json"


class Steps:
    """A folder in which the state is noted after each step. The caller deletes it with the rest of its workspace.

    folder, known: where the last state lies that an interrupted run of the same merge left whole, and what its steps
    had found, by task in order; None and nothing where there is none.
    """

    def __init__(self, root: Path, fingerprint: Any) -> None:
        """fingerprint: all that decides which bytes the steps give, as JSON values."""
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        text = json.dumps(fingerprint, sort_keys=True, separators=(",", ":"), default=str)
        self.fingerprint = hashlib.sha256(text.encode()).hexdigest()
        self.folder: Path | None = None
        self.known: dict[str, Known] = {}
        found = _read(root / _NOTE, self.fingerprint)
        if found is not None:
            self.folder, self.known = found[0], dict(found[1])

    def place(self, count: int) -> Path:
        """Where the state after so many steps goes."""
        return self.root / f"step-{count}"

    def keep(self, folder: Path, known: Mapping[str, Known]) -> None:
        """Note that the state after the steps of `known` lies whole in `folder`; what was noted before is removed."""
        _write(self.root / _NOTE, self.fingerprint, folder, list(known.items()))
        (self.root / _INSIDE).unlink(missing_ok=True)
        for old in (*self.root.glob("step-*"), *self.root.glob("inside-*")):
            if old != folder:
                shutil.rmtree(old)

    def inside(self, task: str, done: int) -> Inside:
        """How far the step has come that takes `task` in, after `done` whole steps."""
        return Inside(self.root, f"{self.fingerprint} {done} {task}")


class Inside:
    """How far one step has come.

    found: where the tensors lie that an interrupted run of the same step kept last, and its note; None where there
    is nothing, or not all of it.
    """

    def __init__(self, root: Path, fingerprint: str) -> None:
        self.root, self.fingerprint = root, fingerprint
        self.found: tuple[Path, Known] | None = _read(root / _INSIDE, fingerprint)
        held = self.found[0] if self.found is not None else None
        self._next = 1 if held == root / "inside-0" else 0

    def place(self) -> Path:
        """Where the next tensors go: an empty place that is not that of the last."""
        folder = self.root / f"inside-{self._next}"
        shutil.rmtree(folder, ignore_errors=True)
        return folder

    def keep(self, folder: Path, note: Known) -> None:
        """Note that the tensors that belong to `note` lie whole in `folder`, the last place."""
        _write(self.root / _INSIDE, self.fingerprint, folder, note)
        self._next = 1 - self._next
        shutil.rmtree(self.root / f"inside-{self._next}", ignore_errors=True)


def _write(file: Path, fingerprint: str, folder: Path, known: Any) -> None:
    """Put a note on the disk, in one step. known: JSON values."""
    size = os.stat(folder / STATE).st_size
    note = {
        "plan": fingerprint,
        "folder": str(folder),
        "size": size,
        "crc": _checksum(folder, size),
        "known": known,
    }
    fresh = file.with_suffix(".new")
    with fresh.open("w", encoding="utf-8") as handle:
        json.dump(note, handle)
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(fresh, file)
    fsync_folder(file.parent)


def _read(file: Path, fingerprint: str) -> tuple[Path, Any] | None:
    """The folder and what is known, where the note is of this very plan and the folder's file is whole."""
    try:
        note = json.loads(file.read_text(encoding="utf-8"))
        folder = Path(note["folder"])
        same = note["plan"] == fingerprint and os.stat(folder / STATE).st_size == note["size"]
        whole = same and _checksum(folder, note["size"]) == note["crc"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return (folder, note["known"]) if whole else None


def _checksum(folder: Path, size: int) -> int:
    desk = Desk()
    try:
        return desk.checksum(str(folder / STATE), 0, size)
    finally:
        desk.close()
