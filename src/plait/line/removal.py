"""What is left of a member that went: receipts, purging, collecting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plait.errors import RefusedInput
from plait.line.member import Member
from plait.line.views import event
from plait.store import Store, gc, holding, needed


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
    if not any(m["task"] == task for e in entries for m in e["members"]):
        raise RefusedInput(f"task {task!r} was never a member of this line; nothing to purge (see plait log)")
    held = holding(entries, task)
    base = store.settings["base"]["digest"]
    clean = {e["version"] for e in entries if not any(m["task"] == task for m in e["members"])}
    versions = sorted(v for v in held.versions - clean - {base} if store.versions.has(v))
    objects = sorted(d for d in held.objects if store.objects.has(d))
    exports = [
        {"sequence": e["sequence"], "time": e["time"], "version": e["version"], "out": e["receipt"]["out"]}
        for e in entries
        if e["verb"] == "export" and task in e["receipt"]["tasks"]
    ]
    freed = sum(map(store.versions.size, versions)) + sum(map(store.objects.size, objects))
    for digest in versions:
        store.versions.delete(digest)
    for digest in objects:
        store.objects.delete(digest)
    store.clear_workspaces()
    receipt = {"purged": task, "objects": objects, "versions": versions, "bytes": freed, "exports": exports}
    return event(
        store.ledger.append(
            {
                **carried(head),
                "verb": "purge",
                "task": task,
                "receipt": receipt,
                "purged": {"versions": sorted(held.versions - clean - {base}), "objects": objects},
            }
        )
    )


def carried(head: Mapping[str, Any]) -> dict[str, Any]:
    """What an event that changes no model takes over from the entry before."""
    keys = ("method", "options", "seed", "members", "version", "objects", "state", "snapshots")
    return {key: head[key] for key in keys}


def _kept(store: Store) -> tuple[set[str], set[str]]:
    """Objects and versions that stay beside what the ledger needs: the base, and the tensor digests of the
    versions that are kept, which `diff` reads."""
    entries = store.ledger.entries()
    versions = needed(entries, store.settings["keep"]).versions | {store.settings["base"]["digest"]}
    objects = {d for e in entries if e["version"] in versions for d in e["objects"].values()}
    return objects, versions


def retire(store: Store) -> None:
    """After a commit: drop the versions and states beyond what the line keeps, and its workspaces."""
    collect(store, dry_run=False, grace_seconds=0.0)


def collect(store: Store, *, dry_run: bool, grace_seconds: float) -> dict[str, Any]:
    objects, versions = _kept(store)
    removed = gc(
        store,
        keep_versions=store.settings["keep"],
        objects=objects,
        versions=versions,
        dry_run=dry_run,
        grace_seconds=grace_seconds,
    )
    return {
        "dry_run": dry_run,
        "removed": [row._asdict() for row in removed],
        "bytes": sum(row.bytes for row in removed),
    }
