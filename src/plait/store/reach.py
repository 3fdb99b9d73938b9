"""Which objects and versions the ledger needs, read from its entries.

An entry names objects in the fields below, at its top level, in "members" and in "snapshots", at any depth:

    "object", "private", "calibration", "statistics"    a digest or null
    "state", "objects"                                   a map of names to digests, or a list of digests

A map or list under one of the first four is searched for these fields again. "version" is a root digest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from plait.errors import PlaitError
from plait.store.ledger import Entry
from plait.store.objects import checked, is_digest

ONE = ("object", "private", "calibration", "statistics")
MANY = ("state", "objects")
SEARCHED = ("members", "snapshots")


class Needed(NamedTuple):
    """Digests of objects and of versions."""

    objects: set[str]
    versions: set[str]


def needed(entries: Sequence[Entry], keep_versions: int = 1) -> Needed:
    """What must be there: objects of the last entry, and the last `keep_versions` versions (at least one).

    Versions that a later entry lists as removed under "purged" do not count. Raises VerificationError if a
    field that should hold a digest holds something else.
    """
    if not entries:
        return Needed(set(), set())
    objects = set(_objects(entries[-1]))
    purged: set[str] = set()
    versions: list[str] = []
    for entry in reversed(entries):
        version = entry.get("version")
        if version is not None and version not in versions and (version not in purged or not versions):
            versions.append(checked(version))
        purged |= _purged(entry)
        if len(versions) >= max(1, keep_versions):
            break
    return Needed(objects, set(versions))


def mentioned(entry: Entry) -> set[str]:
    """Every digest in the parts that describe the present: `gc` keeps rather too much than too little."""
    parts = [entry.get(name) for name in (*SEARCHED, *ONE, *MANY)]
    return {digest for part in parts for digest in _digests(part)}


def holding(entries: Sequence[Entry], task: str) -> Needed:
    """What holds `task` and may go when it is purged.

    Objects: those of the member in any entry, and the state and snapshots that were made while it was in.
    Versions: those made while it was in. What the last entry needs is never among them.
    """
    objects: set[str] = set()
    versions: set[str] = set()
    for entry in entries:
        mine = [m for m in _records(entry.get("members")) if m.get("task") == task]
        for member in mine:
            objects |= set(_objects(member))
        for snapshot in _records(entry.get("snapshots")):
            if _names(snapshot, task, inside=bool(mine)):
                objects |= set(_objects(snapshot))
        if mine:
            objects |= set(_objects({name: entry.get(name) for name in (*ONE, *MANY)}))
            if entry.get("version") is not None:
                versions.add(checked(entry["version"]))
    if entries:
        present = needed(entries)
        objects -= present.objects
        versions -= present.versions
    return Needed(objects, versions)


def _names(snapshot: dict[str, Any], task: str, inside: bool) -> bool:
    """Does the snapshot hold the task? One that does not list its members holds all of its entry's."""
    for field in ("tasks", "members"):
        if isinstance(snapshot.get(field), list):
            return any(m == task or (isinstance(m, dict) and m.get("task") == task) for m in snapshot[field])
    return inside


def _objects(value: object) -> Iterator[str]:
    """The digests in the fields named above; SEARCHED parts and every container below them are searched."""
    if isinstance(value, list):
        for item in value:
            yield from _objects(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name in ONE and isinstance(item, str):
                yield checked(item)
            elif name in MANY and isinstance(item, dict | list):
                for digest in item.values() if isinstance(item, dict) else item:
                    yield checked(digest)
            elif name in (*ONE, *SEARCHED):
                yield from _objects(item)


def _digests(value: object) -> Iterator[str]:
    if isinstance(value, str):
        if is_digest(value):
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _digests(item)
    elif isinstance(value, list):
        for item in value:
            yield from _digests(item)


def _purged(entry: Entry) -> set[str]:
    purged = entry.get("purged")
    return set(_digests(purged.get("versions"))) if isinstance(purged, dict) else set()


def _records(value: object) -> Iterator[dict[str, Any]]:
    if value is None:
        return
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise PlaitError(
            f"a ledger entry holds {type(value).__name__}, expected a list of objects; upgrade plait"
        )
    yield from value
