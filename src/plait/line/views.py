"""What a line says of itself. Reads the ledger only: no tensors, no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from plait.errors import RefusedInput
from plait.store import Store

EVENT = ("sequence", "time", "verb", "task", "version", "accounting", "counts", "notes", "receipt", "seconds")


def event(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A ledger entry as the user sees it: what happened, and the members after it."""
    row = {key: entry.get(key) for key in EVENT}
    row["members"] = [_member(m) for m in entry["members"]]
    return row


def _member(row: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("task", "weight", "digest", "source", "private", "descends", "examples")
    return {key: row.get(key) for key in keys}


def last(store: Store) -> dict[str, Any]:
    """The latest entry: the present. RefusedInput where there is none."""
    head = store.ledger.head()
    if head is None:
        raise RefusedInput(f"{store.path}: the ledger is empty; this is not a line")
    return head


def status(store: Store) -> dict[str, Any]:
    head, settings = last(store), store.settings
    sizes = {
        "members": _size(store, {m["object"] for m in head["members"] if m["object"]}),
        "state": _size(store, set((head["state"] or {}).values())),
        "data": _size(store, {d for m in head["members"] for d in m.get("objects", ())}),
    }
    return {
        "path": str(store.path),
        "version": head["version"],
        "model": str(store.versions.path(head["version"])),
        "base": {k: settings["base"][k] for k in ("digest", "name")},
        "method": settings["method"],
        "options": settings["options"],
        "retention": settings["retention"],
        "descent": settings.get("descent", "any"),
        "seed": settings["seed"],
        "private": settings["private"],
        "members": [_member(m) for m in head["members"]],
        "events": head["sequence"] + 1,
        "changed": head["time"],
        "versions": sorted(store.versions.all()),
        "bytes": sizes,
        "state_bytes": settings.get("state_bytes"),
        "removal": removal_of(settings),
        "note": (head.get("inexact") or {}).get("note"),
        "data": data_of(settings),
    }


def data_of(settings: Mapping[str, Any]) -> str:
    """What a merge needs of a task: none, unlabelled, labelled new or labelled all."""
    from plait.line.data import need_of
    from plait.methods.registry import make

    need = need_of(make(settings["method"], settings["options"]))
    return "none" if need is None else need.data


def removal_of(settings: Mapping[str, Any]) -> str:
    """How a member would be taken out of this line."""
    from plait.methods.registry import make

    if settings["retention"] == "none":
        return "never"
    return str(make(settings["method"], settings["options"]).facts.removal)


def _size(store: Store, digests: set[str]) -> int:
    return sum(store.objects.size(d) for d in digests if store.objects.has(d))


def log(store: Store) -> list[dict[str, Any]]:
    return [event(e) for e in store.ledger.entries()]


def find(store: Store, what: str) -> dict[str, Any]:
    """The entry that `what` names: its number, the word base, or a version's digest or its first
    characters (at least 4; the latest entry with that version)."""
    entries = store.ledger.entries()
    if what == "base":
        return entries[0]
    if what.isdigit() and len(what) <= 8:
        if int(what) < len(entries):
            return entries[int(what)]
    elif len(what) >= 4:
        hits = {e["version"] for e in entries if e["version"].startswith(what.lower())}
        if len(hits) > 1:
            raise RefusedInput(f"{what!r} names {len(hits)} versions; give more characters of the digest")
        if hits:
            return [e for e in entries if e["version"] in hits][-1]
    raise RefusedInput(
        f"{what!r} is no entry and no version of this line; give a number from 0 to {len(entries) - 1}, "
        "the first characters of a digest, or base (see plait log)"
    )


def show(store: Store, what: str) -> dict[str, Any]:
    entries = store.ledger.entries()
    for row in entries[-1]["members"]:
        if row["task"] == what:
            history = [event(e) for e in entries if e["task"] == what]
            known = json.loads(store.objects.get(row["known"])) if row["known"] else {}
            digests = {key: row.get(key) for key in ("data", "side")}
            return {"kind": "member", **_member(row), **digests, "known": known, "history": history}
    entry = find(store, what)
    full = {key: value for key, value in entry.items() if key != "members"}
    present = store.versions.has(entry["version"])
    return {"kind": "entry", **full, "members": [_member(m) for m in entry["members"]], "on_disk": present}


def descent(store: Store, what: str) -> dict[str, Any]:
    """The version that a checkpoint was trained from, with every task whose influence it carries."""
    entry = find(store, what)
    return {"version": entry["version"], "tasks": sorted(holds(entry))}


def holds(entry: Mapping[str, Any]) -> set[str]:
    """Every task whose influence is in a version: its members and what they were trained from."""
    tasks: set[str] = set()
    for member in entry["members"]:
        tasks.add(member["task"])
        tasks.update((member["descends"] or {}).get("tasks", ()))
    if entry.get("inexact"):
        tasks.add(entry["inexact"]["task"])
    return tasks


def tensors(store: Store, entry: Mapping[str, Any]) -> dict[str, str]:
    """Digest of every tensor of a version, as recorded when it was made."""
    digest = entry["tensors"]
    if not store.objects.has(digest):
        raise RefusedInput(
            f"the tensor digests of entry {entry['sequence']} are gone: a task of that version was purged"
        )
    rows: dict[str, str] = json.loads(store.objects.path(digest).read_text(encoding="utf-8"))
    return rows


def diff(store: Store, a: str, b: str) -> dict[str, Any]:
    one, two = find(store, a), find(store, b)
    left, right = tensors(store, one), tensors(store, two)
    tasks = [{m["task"]: m for m in e["members"]} for e in (one, two)]
    both = tasks[0].keys() & tasks[1].keys()
    return {
        "a": one["version"],
        "b": two["version"],
        "equal": one["version"] == two["version"],
        "tensors": {
            "differ": sorted(n for n in left.keys() & right.keys() if left[n] != right[n]),
            "only_a": sorted(left.keys() - right.keys()),
            "only_b": sorted(right.keys() - left.keys()),
            "same": sum(left[n] == right[n] for n in left.keys() & right.keys()),
        },
        "members": {
            "only_a": sorted(tasks[0].keys() - tasks[1].keys()),
            "only_b": sorted(tasks[1].keys() - tasks[0].keys()),
            "weight": sorted(t for t in both if tasks[0][t]["weight"] != tasks[1][t]["weight"]),
            "checkpoint": sorted(t for t in both if tasks[0][t]["digest"] != tasks[1][t]["digest"]),
        },
    }
