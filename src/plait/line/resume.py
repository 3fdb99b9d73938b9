"""A build that was finished when its command was killed is not made again: the same command finds it.

`built.json` in the workspace tells of the build: what it was asked for, the digests of its tensors and the
checksums of its states. A commit moves these files into the store one by one, so each may lie at either place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from plait.errors import PlaitError
from plait.line.build import (
    Built,
    Operand,
    Setting,
    StateObjects,
    build,
    engine_settings,
    open_version,
    software,
    write_json,
)
from plait.line.member import Member
from plait.store import Store

NOTE = "built.json"


def build_or_find(
    setting: Setting,
    after: Sequence[Member],
    work: Path,
    *,
    enter: Sequence[Operand],
    leave: Sequence[Operand] = (),
    state: StateObjects | None = None,
) -> Built:
    """`build`, or what an interrupted run of the same command had built, if every byte of it is still there."""
    asked = _asked(setting, after, enter, leave, state)
    found = _find(setting, after, work, asked)
    if found is not None:
        return found
    built = build(setting, after, work, enter=enter, leave=leave, state=state)
    if built.folder is not None:
        write_json(work / NOTE, {"asked": asked, **_plain(built)})
    return built


def _asked(
    setting: Setting,
    after: Sequence[Member],
    enter: Sequence[Operand],
    leave: Sequence[Operand],
    state: StateObjects | None,
) -> str:
    """A hash of all that decides which bytes a build makes, beside what stays the same over a line's life."""

    def row(operand: Operand) -> list[Any]:
        refs = [[name, ref.dtype, list(ref.shape)] for name, ref in sorted(operand.refs.items())]
        return [*_identity(operand.member), refs]

    words = [
        software(),
        asdict(setting.compute),
        [_identity(member) for member in after],
        [[row(operand) for operand in group] for group in (enter, leave)],
        state,
        *([] if setting.points is None else [setting.points.plain()]),
    ]
    return sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()


def _identity(member: Member) -> list[Any]:
    return [member.task, *member.identity, member.object, member.known]


def _plain(built: Built) -> dict[str, Any]:
    return {
        "version": built.digest,
        "tensors": built.tensors,
        "known": {m.task: m.known for m in built.members},
        "sums": {folder.name: files for folder, files in built.sums.items()},
        "snapshots": {str(count): folder.name for count, folder in built.snapshots.items()},
        "counts": built.counts,
        "notes": built.notes,
        "ran": built.ran,
        "fitted": built.fitted,
    }


def _find(setting: Setting, after: Sequence[Member], work: Path, asked: str) -> Built | None:
    """The build that was asked for, wherever its files lie; None where there is none, or a byte is missing."""
    try:
        noted = json.loads((work / NOTE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if noted["asked"] != asked:
        return None
    members = tuple(replace(m, known=noted["known"][m.task]) for m in after)
    if not all(m.known is None or setting.store.objects.has(m.known) for m in members):
        return None
    stored = _states(setting, work, noted["sums"])
    folder = _version(setting.store, work / "version", noted)
    if stored is None or folder is None:
        return None
    return Built(
        folder,
        noted["version"],
        noted["tensors"],
        members,
        work / "state",
        {int(count): work / name for count, name in noted["snapshots"].items()},
        noted["counts"],
        tuple(noted["notes"]),
        {work / name: files for name, files in noted["sums"].items()},
        stored,
        noted["ran"],
        noted["fitted"],
    )


def _version(store: Store, folder: Path, noted: Mapping[str, Any]) -> Path | None:
    """The folder of the version: in the workspace, or published already."""
    digest = noted["version"]
    try:
        if not folder.is_dir():
            folder = store.versions.path(digest)
            if store.versions.damage(digest):
                return None
        return folder if open_version(folder).digests() == noted["tensors"] else None
    except (PlaitError, OSError):
        return None


def _states(
    setting: Setting, work: Path, sums: Mapping[str, Mapping[str, list[list[int]]]]
) -> dict[Path, str] | None:
    """Those files of the states that are objects already; None where one is neither there nor in its place."""
    from plait import engine

    workers = engine_settings(setting.workers, setting.chunk, True).workers
    objects = setting.store.objects
    stored = {}
    for folder, files in sums.items():
        for name, ranges in files.items():
            place = work / folder / name
            if engine.holds(place, ranges, workers):
                continue
            held = (d for d in objects.all() if engine.holds(objects.path(d), ranges, workers))
            digest = next(held, None)
            if digest is None:
                return None
            stored[place] = digest
    return stored
