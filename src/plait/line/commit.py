"""How a change becomes part of a line: objects, then the version, then the ledger entry, which is the commit."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plait.errors import PlaitError
from plait.line import removal, views
from plait.line.build import Built, StateObjects, software, stack_of, write_json
from plait.line.member import Member
from plait.store import Store


def commit(
    store: Store,
    verb: str,
    task: str,
    built: Built,
    work: Path,
    began: float,
    *,
    fresh: bool = False,
    receipt: dict[str, Any] | None = None,
    accounting: dict[str, Any] | None = None,
    notes: Sequence[str] = (),
    more: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Record a change; returns what the user is told. `fresh`: the state was made from nothing. more: fields of the
    entry that only this kind of change has.

    Killed anywhere before the entry is written, the line is as it was, and `resume` finds again what had been
    put away; a failure after it is only a note.
    """
    head = views.last(store)
    if built.folder is not None:
        store.versions.publish(built.folder, built.digest)
    state = _put_state(store, built, built.state) if built.state else None
    entry = store.ledger.append(
        {
            "verb": verb,
            "task": task,
            "method": store.settings["method"],
            "options": store.settings["options"],
            "seed": store.settings["seed"],
            "members": [m.plain() for m in built.members],
            "version": built.digest,
            "tensors": store.objects.put_file(write_json(work / "tensors.json", built.tensors)),
            "state": state,
            "snapshots": _snapshots(store, head, built, state),
            "stack": stack_of([] if fresh else head["stack"], built.ran),
            "accounting": accounting,
            "counts": built.counts,
            "notes": [*notes, *built.notes],
            "receipt": receipt,
            "software": {**software(), **built.ran},
            "seconds": round(time.monotonic() - began, 3),
            **({"fitted": built.fitted} if built.fitted else {}),
            **(more or {}),
        }
    )
    row = {**views.event(entry), "path": str(store.versions.path(built.digest))}
    try:
        removal.retire(store, work)
    except (PlaitError, OSError) as error:  # the change is made and recorded; only tidying up failed
        row["notes"] = [*row["notes"], f"old files could not be removed ({error}); plait gc tries again"]
    return row


def _put_state(store: Store, built: Built, folder: Path) -> StateObjects:
    def put(path: Path) -> str:
        if path in built.stored:
            return store.objects.keep(built.stored[path])
        return store.objects.put_file(path)

    return {name: put(folder / name) for name in sorted(built.sums[folder])}


def _snapshots(
    store: Store, head: Mapping[str, Any], built: Built, state: StateObjects | None
) -> dict[str, StateObjects]:
    """States of prefixes of the member list: those that stay true, and those that were just made."""
    rows = {c: kept for c, kept in head["snapshots"].items() if same_prefix(head, built, int(c))}
    for count, folder in built.snapshots.items():
        rows[str(count)] = state if state and folder == built.state else _put_state(store, built, folder)
    return rows


def same_prefix(head: Mapping[str, Any], built: Built, count: int) -> bool:
    """Whether the first `count` members are what they were."""
    before = [Member.of(row).identity for row in head["members"][:count]]
    return len(before) == count and before == [member.identity for member in built.members[:count]]
