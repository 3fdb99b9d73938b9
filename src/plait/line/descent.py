"""What a checkpoint was trained from, as `plait finetune` and `plait.training` leave it beside the weights.

The file is data of whoever made the checkpoint: it can add tasks to what a receipt warns of, and a line that takes
only experts of its last model goes by it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.checkpoint.header import read_small
from plait.checkpoint.sidecars import TRAINING
from plait.errors import FormatError, RefusedInput
from plait.line import views
from plait.store import Store
from plait.store.objects import is_digest
from plait.types import is_task_name

if TYPE_CHECKING:
    from plait.line.member import Member

FORMAT = 1
DESCENTS = ("any", "last")
"""What a line asks of an expert that comes in: nothing, or that it was trained from the line's last model."""

_LIMIT = 10_000_000


@dataclass(frozen=True)
class Record:
    """task: what the checkpoint was trained on. start: root digest of what training started from. tasks: those whose
    influence was in the start already."""

    task: str
    start: str
    tasks: tuple[str, ...]


def read_record(checkpoint: str | Path) -> Record | None:
    """The record in a checkpoint's folder, None where there is none. FormatError for one that makes no sense."""
    path = os.path.join(os.fspath(checkpoint), TRAINING)
    if not os.path.isfile(path):
        return None
    try:
        found: Any = json.loads(read_small(path, _LIMIT))
    except (ValueError, RecursionError):
        found = None
    record = _understood(found) if isinstance(found, Mapping) else None
    if record is None:
        raise FormatError(
            f"{path}: is no record of format {FORMAT}, and it should tell what the checkpoint was trained from; "
            "remove it, and name a version of the line with --from where there is one"
        )
    return record


def _understood(found: Mapping[str, Any]) -> Record | None:
    start = found.get("start")
    if found.get("format") != FORMAT or not isinstance(start, Mapping):
        return None
    task, digest, tasks = found.get("task"), start.get("digest"), start.get("tasks")
    if not isinstance(tasks, list) or not all(isinstance(t, str) and is_task_name(t) for t in [task, *tasks]):
        return None
    return Record(str(task), str(digest), tuple(tasks)) if is_digest(digest) else None


def descent_of(
    store: Store, checkpoint: str | Path, given: str | None
) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """What a checkpoint descends from, {"version", "tasks"} as in `views.descent`, and notes on it.

    given: a version of the line, as the user tells it. Where it is None the checkpoint's own record is asked: the
    version is then whatever training started from, and the tasks are those that the record names and those that the
    line knows of this version. None where nothing is told, or where training started from the line's base.
    Errors: RefusedInput for an unknown version; FormatError for a record that cannot be understood.
    """
    if given is not None:
        return views.descent(store, given), ()
    record = read_record(checkpoint)
    if record is None or record.start == store.settings["base"]["digest"]:
        return None, ()
    tasks = set(record.tasks)
    for entry in store.ledger.entries():
        if entry["version"] == record.start:
            tasks |= views.holds(entry)
    if not tasks:
        return None, ()
    listed = ", ".join(sorted(tasks))
    note = f"{TRAINING} says that it was trained from {record.start[:12]}, which holds {listed}: recorded as descent"
    return {"version": record.start, "tasks": sorted(tasks)}, (note,)


def check_last(store: Store, checkpoint: str | Path, given: str | None, old: Member | None = None) -> None:
    """RefusedInput where the line takes only what was trained from its last model, and this was not, or does not say
    so. While a line has no members its last model is the base, and so is the start of a checkpoint that says nothing.

    given: a version of the line, as the user tells it, in place of the checkpoint's own record. old: the member in
    whose place it comes; it may then start where that one did.
    """
    head = views.last(store)
    if store.settings.get("descent", "any") != "last":
        return
    if given is not None:
        start: str | None = views.find(store, given)["version"]
    else:
        record = read_record(checkpoint)
        start = None if record is None else record.start
    base = store.settings["base"]["digest"]
    starts = {head["version"]}
    if old is not None:
        starts.add(old.descends["version"] if old.descends else base)
    silent = base if base in starts else None
    if (start or silent) in starts:
        return
    found = "has no record of what it was trained from" if start is None else f"was trained from {start[:12]}"
    raise RefusedInput(
        f"{checkpoint}: {found}, and this line takes only experts of its last model, {head['version'][:12]}; "
        "train from that one (plait finetune --from, or plait.training.MergeEachTask), or say so with --from"
    )
