"""What is left of a member that went: receipts, purging, collecting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plait.errors import RefusedInput
from plait.evaluation.rows import Row, Rows
from plait.line.member import Member
from plait.line.views import event
from plait.store import Store, gc, needed, tidy


def receipt(
    gone: Member, after: Sequence[Member], how: str, digest: str, stack: Sequence[str]
) -> dict[str, Any]:
    """What `unmerge` certifies. `never_merged` is the digest that never having merged the task gives; the line
    is a pure function of its members, so `verify --replay` proves it by making that model again.

    Where a member was trained from a version that held the task, its influence stays in that member: the
    receipt then says so and `exact` is false. Where several stacks had a hand in a fold's state, a line made
    anew on one of them may differ in last bits: the receipt names them.
    """
    carriers = [m.task for m in after if m.descends and gone.task in m.descends["tasks"]]
    row: dict[str, Any] = {
        "removed": gone.task,
        "weight": gone.weight,
        "digest": gone.digest,
        "how": how,
        "exact": not carriers and (how == "subtraction" or len(stack) < 2),
        "never_merged": digest,
    }
    if gone.examples is not None:
        row["examples"] = gone.examples
    notes = []
    if carriers:
        row["descends"] = carriers
        notes.append(_told(carriers, gone.task))
    if how == "refold" and len(stack) > 1:
        row["stack"] = list(stack)
        notes.append(
            f"the state that was folded on was made by {len(stack)} stacks of software; a line made anew may "
            "differ from it in last bits"
        )
    if notes:
        row["note"] = "; ".join(notes)
    return row


def _told(carriers: Sequence[str], task: str) -> str:
    one = len(carriers) == 1
    return (
        f"not exact: {', '.join(carriers)} descend{'s' if one else ''} from a version that held {task}; "
        f"unmerge {'it' if one else 'them'} too to remove its influence"
    )


def purge(store: Store, task: str) -> dict[str, Any]:
    """Delete a former member's objects, every version and snapshot that contains it, and the rows measured on them.

    What interrupted commands left behind goes first: it may hold the task though the ledger does not say so.
    """
    collect(store, dry_run=False, grace_seconds=0.0)
    entries = store.ledger.entries()
    head = entries[-1]
    if any(m["task"] == task for m in head["members"]):
        raise RefusedInput(f"task {task} is still a member; unmerge it first, then purge")
    if not any(_has(e, task) for e in entries):
        raise RefusedInput(f"task {task!r} was never a member of this line; nothing to purge (see plait log)")
    versions, objects = _holding(store, entries, task)
    exports = [
        {
            "sequence": e["sequence"],
            "time": e["time"],
            "version": e["receipt"]["version"],
            "out": e["receipt"]["out"],
        }
        for e in entries
        if e["verb"] == "export" and task in e["receipt"]["tasks"]
    ]
    freed = sum(map(store.versions.size, versions)) + sum(map(store.objects.size, objects))
    for digest in versions:
        store.versions.delete(digest)
    for digest in objects:
        store.objects.delete(digest)
    rows = _forget_rows(store, entries, task)
    collect(store, dry_run=False, grace_seconds=0.0)
    receipt = {
        "purged": task,
        "objects": objects,
        "versions": versions,
        "rows": rows,
        "bytes": freed,
        "exports": exports,
    }
    carriers = [m["task"] for m in head["members"] if task in (m["descends"] or {}).get("tasks", ())]
    if carriers:
        receipt |= {"descends": carriers, "note": _told(carriers, task)}
    inexact = head.get("inexact") or {}
    if inexact.get("task") == task:
        more = f"; {receipt['note']}" if "note" in receipt else ""
        receipt["note"] = f"the deployed version still holds part of it ({inexact['note']}){more}"
    done = {**carried(_released(head, task)), "verb": "purge", "task": task, "receipt": receipt}
    return event(store.ledger.append(done))


def _holding(store: Store, entries: Sequence[dict[str, Any]], task: str) -> tuple[list[str], list[str]]:
    """Versions and objects on disk that exist because of `task` and that the line can live without."""
    inside = [e for e in entries if _has(e, task)]
    clean = {e["version"] for e in entries if e not in inside} | {entries[-1]["version"]}
    live = needed([*entries[:-1], _released(entries[-1], task)]).objects
    objects: set[str] = set()
    for entry in inside:
        mine = [m for m in entry["members"] if m["task"] == task]
        objects |= {
            d for m in mine for d in (m["object"], m["config"], m["known"], *m.get("objects", ())) if d
        }
        for state in (entry["state"] or {}, *entry["snapshots"].values(), entry.get("objects") or {}):
            objects |= set(state.values())
        if entry["version"] not in clean:
            objects.add(entry["tensors"])
    versions = {e["version"] for e in inside} - clean
    return (
        sorted(v for v in versions if store.versions.has(v)),
        sorted(d for d in objects - live if store.objects.has(d)),
    )


def _has(entry: Mapping[str, Any], task: str) -> bool:
    """Whether the model of an entry holds a task: as a member, or as what an algebraic removal has left of it."""
    left = (entry.get("inexact") or {}).get("task") == task
    return left or any(m["task"] == task for m in entry["members"])


def _released(head: Mapping[str, Any], task: str) -> dict[str, Any]:
    """The last entry without what it needs of a task that was removed from it by algebra."""
    left = (head.get("inexact") or {}).get("task") == task
    return {key: value for key, value in head.items() if not (left and key == "objects")}


def _forget_rows(store: Store, entries: Sequence[dict[str, Any]], task: str) -> int:
    """Remove what was measured on the task's expert, on versions that contain it, and with its private tensors."""
    inside = [e for e in entries if _has(e, task)]
    versions = {e["version"] for e in inside} - {e["version"] for e in entries if e not in inside}
    versions -= {entries[-1]["version"]}
    mine = {m["digest"] for e in inside for m in e["members"] if m["task"] == task}
    private = mine - {m["digest"] for m in entries[-1]["members"]}

    def gone(row: Row) -> bool:
        on_it = row.member == task if row.role == "expert" else row.digest in versions
        return on_it or row.own in private

    rows = Rows(store)
    return sum(rows.forget(digest, gone) for digest in rows.digests())


def carried(head: Mapping[str, Any]) -> dict[str, Any]:
    """What an event that changes no model takes over from the entry before."""
    keys = ("method", "options", "seed", "members", "version", "tensors", "state", "snapshots", "stack")
    extra = ("objects", "inexact")  # of a model that is no function of its members
    return {key: head[key] for key in keys} | {key: head[key] for key in extra if key in head}


def retire(store: Store, work: Path) -> None:
    """After a commit: drop the versions and states beyond what the line keeps, and workspaces. Where a killed command
    has left one beside `work`, everything that nothing needs goes."""
    if any(name != work.name for name in store.workspaces()):
        collect(store, dry_run=False, grace_seconds=0.0)
    else:
        tidy(store, keep_versions=store.settings["keep"])


def collect(store: Store, *, dry_run: bool, grace_seconds: float) -> dict[str, Any]:
    entries = store.ledger.entries()
    found = gc(
        store,
        keep_versions=store.settings["keep"],
        objects={e["tensors"] for e in entries},  # small, and what `diff` compares
        dry_run=dry_run,
        grace_seconds=grace_seconds,
    )
    known = {e["version"] for e in entries} | {m["digest"] for e in entries for m in e["members"]}
    rows = Rows(store).collect(known, dry_run=dry_run, grace_seconds=grace_seconds)
    removed = {**found["removed"], "rows": sorted(rows)}
    return {"dry_run": dry_run, "removed": removed, "bytes": found["bytes"] + sum(rows.values())}
