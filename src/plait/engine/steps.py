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
        self._load()

    def place(self, count: int) -> Path:
        """Where the state after so many steps goes."""
        return self.root / f"step-{count}"

    def keep(self, folder: Path, known: Mapping[str, Known]) -> None:
        """Note that the state after the steps of `known` lies whole in `folder`; the one before is removed."""
        size = os.stat(folder / STATE).st_size
        note = {
            "plan": self.fingerprint,
            "folder": str(folder),
            "size": size,
            "crc": _checksum(folder, size),
            "known": list(known.items()),
        }
        fresh = self.root / f"{_NOTE}.new"
        with fresh.open("w", encoding="utf-8") as handle:
            json.dump(note, handle)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(fresh, self.root / _NOTE)
        fsync_folder(self.root)
        for old in self.root.glob("step-*"):
            if old != folder:
                shutil.rmtree(old)

    def _load(self) -> None:
        try:
            note = json.loads((self.root / _NOTE).read_text(encoding="utf-8"))
            folder = Path(note["folder"])
            same = note["plan"] == self.fingerprint and os.stat(folder / STATE).st_size == note["size"]
            whole = same and _checksum(folder, note["size"]) == note["crc"]
        except (OSError, ValueError, KeyError, TypeError):
            return
        if whole:
            self.folder, self.known = folder, dict(note["known"])


def _checksum(folder: Path, size: int) -> int:
    desk = Desk()
    try:
        return desk.checksum(str(folder / STATE), 0, size)
    finally:
        desk.close()
