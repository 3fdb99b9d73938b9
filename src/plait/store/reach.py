"""Which objects and versions the ledger needs, read from its entries.

An entry names objects in these fields, at its top level and in each of its "members":

    "object", "config", "known", "tensors", "calibration", "statistics"    a digest or null
    "state", "snapshots", "objects"    maps or lists, at any depth, of digests; null for none

and its model in "version", a root digest. The first entry describes the base, which is always needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from plait.errors import VerificationError
from plait.store.ledger import Entry
from plait.store.objects import checked, is_digest

ONE = ("object", "config", "known", "tensors", "calibration", "statistics")
MANY = ("state", "snapshots", "objects")
MEMBERS = "members"


class Needed(NamedTuple):
    """Digests of objects and of versions."""

    objects: set[str]
    versions: set[str]


def needed(entries: Sequence[Entry], keep_versions: int = 1) -> Needed:
    """What the line lives on, plus its last `keep_versions` versions.

    Objects and versions of the first entry (the base) and of the last one; then, walking back, the versions
    of earlier entries until `keep_versions` different ones are found. Raises VerificationError if a field
    that should hold a digest holds something else.
    """
    if not entries:
        return Needed(set(), set())
    ends = (entries[0], entries[-1])
    objects = {digest for entry in ends for digest in _objects(entry)}
    return Needed(objects, set(_versions(ends)) | set(_latest(entries, keep_versions)))


def kept(entries: Sequence[Entry], keep_versions: int = 1) -> Needed:
    """What `gc` must not remove: rather too much than too little.

    All that is needed, every other digest in those parts of the first and last entry that describe the
    present, and the tensor digests of the last `keep_versions` versions.
    """
    if not entries:
        return Needed(set(), set())
    objects, versions = needed(entries, keep_versions)
    for entry in (entries[0], entries[-1]):
        objects |= {d for name in (MEMBERS, *ONE, *MANY) for d in _digests(entry.get(name))}
    objects |= {
        d for entry in entries if entry.get("version") in versions for d in _digests(entry.get("tensors"))
    }
    return Needed(objects, versions)


def _latest(entries: Sequence[Entry], count: int) -> list[str]:
    found: list[str] = []
    for version in _versions(reversed(entries)):
        if len(found) >= max(1, count):
            break
        if version not in found:
            found.append(version)
    return found


def _versions(entries: Sequence[Entry] | Iterator[Entry]) -> Iterator[str]:
    for entry in entries:
        if entry.get("version") is not None:
            yield checked(entry["version"])


def _objects(entry: Entry) -> Iterator[str]:
    members = entry.get(MEMBERS) or []
    if not isinstance(members, list) or not all(isinstance(member, dict) for member in members):
        raise VerificationError(
            f"entry {entry.get('sequence')}: its members are no list of records; upgrade plait"
        )
    for record in (entry, *members):
        for name in ONE:
            if record.get(name) is not None:
                yield checked(record[name])
        for name in MANY:
            for digest in _leaves(record.get(name)):
                yield checked(digest)


def _leaves(value: object) -> Iterator[object]:
    """Everything in nested maps and lists that is neither; null is nothing."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)
    elif value is not None:
        yield value


def _digests(value: object) -> Iterator[str]:
    for leaf in _leaves(value):
        if isinstance(leaf, str) and is_digest(leaf):
            yield leaf
