"""What is left of a member that went: receipts, purging, collecting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plait.errors import RefusedInput
from plait.line.member import Member
from plait.line.views import event
from plait.store import Store, audit


def receipt(gone: Member, after: Sequence[Member], how: str, digest: str) -> dict[str, Any]:
    """What `unmerge` certifies. `never_merged` is the digest that never having merged the task gives; the line
    is a pure function of its members, so `verify --replay` proves it by making that model again.

    Where a member was trained from a version that held the task, its influence stays in that member: the
    receipt then says so and `exact` is false.
    """
    carriers = [m.task for m in after if m.descends and gone.task in m.descends["tasks"]]
    row: dict[str, Any] = {
        "removed": gone.task,
        "weight": gone.weight,
        "digest": gone.digest,
        "how": how,
        "exact": not carriers,
        "never_merged": digest,
    }
    if carriers:
        row["descends"] = carriers
        row["note"] = (
            f"not exact: {', '.join(carriers)} descend{'s' if len(carriers) == 1 else ''} from a version that "
            f"held {gone.task}; unmerge {'it' if len(carriers) == 1 else 'them'} too to remove its influence"
        )
    return row


def purge(store: Store, task: str) -> dict[str, Any]:
    """Delete a former member's objects and every version and snapshot that contains it."""
    entries = store.ledger.entries()
    head = entries[-1]
    if any(m["task"] == task for m in head["members"]):
        raise RefusedInput(f"task {task} is still a member; unmerge it first, then purge")
    held = [e for e in entries if any(m["task"] == task for m in e["members"])]
    if not held:
        raise RefusedInput(f"task {task!r} was never a member of this line; nothing to purge (see plait log)")
    needed = _needed_objects(head)
    objects: set[str] = set()
    for entry in held:
        objects |= {d for m in entry["members"] if m["task"] == task for d in (m["object"], m["config"]) if d}
        objects |= set((entry["state"] or {}).values())
        for state in (entry["snapshots"] or {}).values():
            objects |= set(state.values())
    clean = {e["version"] for e in entries if not any(m["task"] == task for m in e["members"])}
    versions = {e["version"] for e in held} - clean
    freed = 0
    removed: dict[str, list[str]] = {"objects": [], "versions": []}
    exports = [
        {"sequence": e["sequence"], "time": e["time"], "version": e["version"], "out": e["receipt"]["out"]}
        for e in entries
        if e["verb"] == "export" and e["receipt"]["version"] in versions
    ]
    entry = {
        key: head[key]
        for key in ("method", "options", "seed", "members", "version", "tensors", "state", "snapshots")
    }
    plan = {
        "objects": sorted(d for d in objects - needed if store.objects.has(d)),
        "versions": sorted(v for v in versions if store.versions.has(v)),
    }
    for digest in plan["versions"]:
        freed += store.versions.size(digest)
        store.versions.delete(digest)
        removed["versions"].append(digest)
    for digest in plan["objects"]:
        freed += store.objects.size(digest)
        store.objects.delete(digest)
        removed["objects"].append(digest)
    store.clear_workspaces()
    written = store.ledger.append(
        {
            **entry,
            "verb": "purge",
            "task": task,
            "receipt": {**removed, "bytes": freed, "exports": exports},
        }
    )
    return event(written)


def _needed_objects(head: dict[str, Any]) -> set[str]:
    """Objects without which the current version could not be kept, changed or proven."""
    return set(audit.needed([head], keep_versions=1)[0])


def retire(store: Store) -> None:
    """After a commit: drop the versions and states beyond what the line keeps, and its workspaces."""
    store.clear_workspaces()
    audit.gc(store, keep_versions=store.settings["keep"], dry_run=False, grace_seconds=0.0)


def collect(store: Store, *, dry_run: bool, grace_seconds: float) -> dict[str, Any]:
    removed = audit.gc(
        store, keep_versions=store.settings["keep"], dry_run=dry_run, grace_seconds=grace_seconds
    )
    return {"dry_run": dry_run, **removed}
