"""Putting a page on the disk, complete or not at all, and never over what plait did not write."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from plait.errors import RefusedInput
from plait.report.page import wrote
from plait.store.files import failing, temporary

_START = 4096
"""Bytes of a file that are looked at to tell whether it is a report."""


def refuse(out: Path, line: Path, *, force: bool) -> None:
    """RefusedInput where no page may be written at `out`: it lies in the line, it is a folder, or it exists and is
    not to be replaced. With `force` only a report of plait is replaced."""
    place = Path(os.path.realpath(out))
    if place == line or line in place.parents:
        raise RefusedInput(
            f"{out} lies inside the line {line}, which holds nothing but its own; give another place"
        )
    if out.is_dir():
        raise RefusedInput(
            f"{out} is a folder, a report is one file; give a path such as {out / 'report.html'}"
        )
    if not os.path.lexists(out):
        return
    if not force:
        raise RefusedInput(f"{out} exists; give another place, or --force (force=True) to replace it")
    if out.is_symlink() or not _ours(out):
        raise RefusedInput(f"{out} is not a report that plait wrote; it is not replaced, even with --force")


def write(text: str, out: Path) -> int:
    """Write the page in one step; folders on the way are made. Returns its bytes. PlaitError where the disk fails."""
    data = text.encode("utf-8")
    with failing("writing the report", out):
        out.parent.mkdir(parents=True, exist_ok=True)
        fresh = temporary(out.parent, out.name)
        try:
            with fresh.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, out)
        finally:
            with suppress(OSError):
                os.unlink(fresh)
    return len(data)


def _ours(path: Path) -> bool:
    if not path.is_file():
        return False
    with failing("reading", path), path.open("rb") as file:
        return wrote(file.read(_START).decode("utf-8", "replace"))
