"""Where training starts: a base on disk, or a version of a line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from plait.checkpoint import Checkpoint, open_checkpoint, root_digest
from plait.errors import RefusedInput, UsageError
from plait.types import TensorRef

if TYPE_CHECKING:
    from plait.line import Line


@dataclass(frozen=True)
class Start:
    """What is known before training.

    base: the base, opened; the expert gets its layout. name, base_digest: what it is called, and its root digest.
    tensors: where the tensors lie that training starts from. digest: their root digest. tasks: those whose influence
    they carry. inputs: folders that nothing may be written into.
    """

    base: Checkpoint
    name: str
    base_digest: str
    tensors: Mapping[str, TensorRef]
    digest: str
    tasks: tuple[str, ...] = ()
    inputs: tuple[Path, ...] = field(default=())

    @property
    def is_base(self) -> bool:
        return self.digest == self.base_digest

    def plain(self) -> dict[str, Any]:
        """What the record says of it."""
        return {
            "base": {"name": self.name, "digest": self.base_digest},
            "start": {"digest": self.digest, "tasks": list(self.tasks)},
        }


def check_start(base: object, line: object) -> None:
    """UsageError where both a base and a line are named, or neither."""
    if base is not None and line is not None:
        raise UsageError(
            "--base and --from are both given; a line brings its own base: leave one of the two out"
        )
    if base is None and line is None:
        raise UsageError("no start is given; name a base with --base DIR, or a line with --from LINE")


def find_start(base: str | Path | None, line: str | Path | Line | None, version: str | None) -> Start:
    """The start that a call names: a base, or a line and one of its versions (the current one by default).

    UsageError where both or neither are named; RefusedInput where the version is not on disk any more; FormatError
    for a broken checkpoint.
    """
    check_start(base, line)
    if line is not None:
        return _of_line(line, version)
    if version is not None:
        raise UsageError(f"version {version} needs the line that it is of; give it as --from LINE@VERSION")
    assert base is not None
    return _of_base(Path(base))


def _of_base(path: Path) -> Start:
    from plait.line.descent import read_record

    opened = open_checkpoint(path)
    digest = root_digest(opened.digests())
    record = read_record(path)
    carried = () if record is None else tuple(sorted({record.task, *record.tasks}))
    return Start(opened, path.resolve().name, digest, opened.tensors, digest, carried, (path,))


def _of_line(line: str | Path | Line, version: str | None) -> Start:
    from plait.line import Line
    from plait.line.build import open_version
    from plait.line.opening import open_setting
    from plait.line.views import find, holds, last

    if isinstance(line, (str, os.PathLike)) and not Path(line).exists():
        raise RefusedInput(
            f"{line}: there is no line here; make one with `plait init {quote(str(line))} --base DIR`"
        )
    store = (line if isinstance(line, Line) else Line.open(line)).store
    entry = last(store) if version is None else find(store, version)
    digest = str(entry["version"])
    if not store.versions.has(digest):
        raise RefusedInput(
            f"version {digest[:12]} is not on disk any more (this line keeps {store.settings['keep']}); train from "
            "the current one, or make a line with a larger --keep"
        )
    setting = open_setting(store)
    return Start(
        setting.base,
        setting.base_name,
        setting.base_digest,
        open_version(store.versions.path(digest)).tensors,
        digest,
        tuple(sorted(holds(entry))) if digest != setting.base_digest else (),
        (store.path,),
    )
