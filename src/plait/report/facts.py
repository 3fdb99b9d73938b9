"""What a report tells of a line: recorded facts as one plain value. `page` draws it and never sees the line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plait.line import vectors
from plait.report.gaps import gaps
from plait.report.measured import Measured, evaluation, removals
from plait.report.paths import kind_of
from plait.report.purged import purged, without

if TYPE_CHECKING:
    from plait.line import Line

SCHEMA = 1
"""A key is never taken away and never changes its meaning under the same number; new ones may come."""

SOFTWARE = ("plait", "torch", "python", "cpu")


def gather(line: Line, *, read: bool = True) -> dict[str, Any]:
    """All that a report tells, as JSON values. The same line gives the same value; there is no clock in it.

    read: False to read no tensors; cosines and norms are then there only if an earlier report kept them.

    schema     number of this form, 1
    plait      version of plait
    line       {name, path, tip (sha256 of the newest ledger entry), entries, changed (time of the newest)}
    deployed   {version, model, base: {name, digest}, method, options, seed, retention, private, removal, versions
               (on disk), bytes: {members, state}, same_as (earlier ledger entries that left the same version)}
    members    list of {task, weight, digest, source, private, descends, since (ledger entry in which its checkpoint
               came), time, distance (from the base, in base norms, over tensors
               of two and more dimensions), changed (tensors), bytes (kept, null for none)}
    purged     what the purged tasks are called: their names, and digests of their checkpoints, stand nowhere
    ledger     list of {sequence, time, verb, task, version, members, weights, accounting, counts, notes, receipt,
               seconds, software, kept (bytes of its members' tensors, null where some are gone)}, oldest first
    evaluation see `measured.evaluation`
    vectors    see `line.vectors.compare`; null where they were not measured
    removals   see `measured.removals`
    paths      list of {task, kind, trace}, of members now that whole-model methods took in step by step: kind "path"
               (ode_m) or "descent" (trm), trace what the step found
    gaps       list of {about, found, fill}: what is missing, and the command that would fill it (null: none would)
    """
    from plait import __version__

    store = line.store
    entries = store.ledger.entries()
    status = line.status()
    compared = vectors.compare(store, workers=line.workers, quiet=line.quiet, read=read)
    measured = Measured.of(store, entries)
    found = {
        "schema": SCHEMA,
        "plait": __version__,
        "line": {
            "name": store.path.name,
            "path": status["path"],
            "tip": store.ledger.tip(),
            "entries": len(entries),
            "changed": status["changed"],
        },
        "deployed": _deployed(status, entries),
        "members": [_member(line, entries, row) for row in entries[-1]["members"]],
        "ledger": [_entry(line, entry) for entry in entries],
        "evaluation": evaluation(measured),
        "vectors": compared,
        "removals": removals(entries, measured),
        "paths": _paths(line, entries[-1]["members"]),
    }
    names = purged(entries)
    kept = frozenset(m["task"] for e in entries for m in e["members"]) - set(names)
    clean: dict[str, Any] = without(found, {**names, **_digests(entries, names)}, kept)
    return {**clean, "purged": list(names.values()), "gaps": gaps(clean)}


def _paths(line: Line, members: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    objects = line.store.objects
    found = []
    for row in members:
        if row["known"] is not None and objects.has(row["known"]):
            known = json.loads(objects.get(row["known"]))
            if (kind := kind_of(known)) is not None:
                found.append({"task": row["task"], "kind": kind, "trace": known})
    return found


def _digests(entries: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> dict[str, str]:
    """What checkpoints of purged tasks are called, unless another task has the same checkpoint."""
    rows = [m for e in entries for m in e["members"]]
    others = {m["digest"] for m in rows if m["task"] not in names}
    return {
        m["digest"]: f"checkpoint of {names[m['task']]}"
        for m in rows
        if m["task"] in names and m["digest"] not in others
    }


def _deployed(status: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    keys = ("version", "model", "base", "method", "options", "seed", "retention", "private", "removal")
    row = {key: status[key] for key in (*keys, "versions", "bytes")}
    same = [e["sequence"] for e in _changes(entries)[:-1] if e["version"] == status["version"]]
    return {**row, "same_as": same}


def _changes(entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The entries that left another version than the one before."""
    return [e for i, e in enumerate(entries) if not i or entries[i - 1]["version"] != e["version"]]


def _member(line: Line, entries: Sequence[Mapping[str, Any]], row: Mapping[str, Any]) -> dict[str, Any]:
    """A member now. `row` is what the newest entry keeps of it."""
    came = entries[-1]
    for entry in reversed(entries):
        if not any((m["task"], m["digest"]) == (row["task"], row["digest"]) for m in entry["members"]):
            break
        came = entry
    told = came["accounting"] or {}
    objects = line.store.objects
    kept = row["object"] is not None and objects.has(row["object"])
    return {
        **{key: row.get(key) for key in ("task", "weight", "digest", "source", "private", "descends")},
        "since": came["sequence"],
        "time": came["time"],
        "distance": told.get("distance"),
        "changed": told.get("merged"),
        "bytes": objects.size(row["object"]) if kept else None,
    }


def _entry(line: Line, entry: Mapping[str, Any]) -> dict[str, Any]:
    keys = (
        "sequence",
        "time",
        "verb",
        "task",
        "version",
        "accounting",
        "counts",
        "notes",
        "receipt",
        "seconds",
    )
    objects = line.store.objects
    kept = [m["object"] for m in entry["members"]]
    whole = all(k is not None and objects.has(k) for k in kept)
    return {
        **{key: entry.get(key) for key in keys},
        "members": [m["task"] for m in entry["members"]],
        "weights": [m["weight"] for m in entry["members"]],
        "software": {key: (entry.get("software") or {}).get(key) for key in SOFTWARE},
        "kept": sum(map(objects.size, set(kept))) if whole else None,
    }
