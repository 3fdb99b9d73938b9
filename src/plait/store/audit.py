"""What the ledger needs, whether it is all there byte for byte, and removal of what nothing needs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple, TypedDict

from plait.errors import PlaitError
from plait.store.files import discard, failing, is_temporary, tree_size
from plait.store.ledger import Entry
from plait.store.objects import is_digest
from plait.store.reach import kept, needed
from plait.store.store import Store, read_settings

DAY = 86400.0

_KINDS = ("objects", "versions", "workspaces", "leftovers")

__all__ = ["Collected", "Report", "gc", "kept", "needed", "tidy", "verify"]


class Report(NamedTuple):
    """What `verify` found: all problems, one line each, and what it looked at."""

    problems: list[str]
    counted: dict[str, int]  # "entries", "objects", "versions"
    bytes: int  # of the objects and versions
    tip: str  # sha256 of the last ledger entry: note it elsewhere, and a rewritten history shows

    @property
    def ok(self) -> bool:
        return not self.problems


class Collected(TypedDict):
    """What `gc` removed, or would remove: names by kind, and their bytes."""

    removed: dict[str, list[str]]  # "objects", "versions", "workspaces", "leftovers" (of killed commands)
    bytes: int


def verify(
    store: Store,
    version_digest: Callable[[Path], str],
    *,
    workers: int | None = None,
) -> Report:
    """Hash everything again and compare; nothing is changed, no lock is needed.

    version_digest: gives the root digest of a version's folder (the store knows no checkpoints).
    The base and the current version must be there; earlier versions are checked if they are.
    """
    problems: list[str] = []
    try:
        read_settings(store.path)
    except PlaitError as error:
        problems.append(str(error))
    digests, strays = store.objects.scan()
    versions, more = store.versions.scan()
    problems += strays + more
    total, damage = _hash_objects(store, digests, workers)
    problems += damage
    for digest in versions:
        problems += _version_damage(store, digest, version_digest)
        total += tree_size(store.versions.folder / digest)[0]
    # The ledger comes last: what an entry needs is there before the entry, so a running merge shows no holes.
    entries, wrong = store.ledger.scan()
    problems += wrong
    problems += _missing(store, entries)
    tip = store.ledger.tip() if not wrong else ""
    counted = {"entries": len(entries), "objects": len(digests), "versions": len(versions)}
    return Report(problems, counted, total, tip)


def gc(
    store: Store,
    *,
    keep_versions: int = 2,
    objects: Collection[str] = (),
    versions: Collection[str] = (),
    dry_run: bool = False,
    grace_seconds: float = DAY,
) -> Collected:
    """Remove what nothing needs; returns what was removed (`dry_run`: would be). The caller holds the lock.

    Kept: what the last entry needs, the last `keep_versions` versions, the `objects` and `versions` named
    here, and everything that was written less than `grace_seconds` ago. The ledger is never touched. Raises
    VerificationError, before anything is removed, if the ledger is damaged; removes nothing if it is empty.
    """
    entries = store.ledger.entries()
    result: Collected = {"removed": {kind: [] for kind in _KINDS}, "bytes": 0}
    if not entries:
        return result
    keep = kept(entries, keep_versions)
    found = {
        "objects": [
            store.objects.path(d) for d in store.objects.all() if d not in keep.objects | set(objects)
        ],
        "versions": [
            store.versions.path(d) for d in store.versions.all() if d not in keep.versions | set(versions)
        ],
        "workspaces": [store.scratch / name for name in store.workspaces()],
        "leftovers": _leftovers(store),
    }
    limit = time.time() - grace_seconds
    for kind, paths in found.items():
        for path in paths:
            size, newest = tree_size(path)
            if newest > limit:
                continue
            if not dry_run:
                _remove(store, kind, path)
            result["removed"][kind].append(path.name)
            result["bytes"] += size
    return result


def tidy(store: Store, *, keep_versions: int = 2, apart: Sequence[str] = ("tensors",)) -> None:
    """Remove what the last entry has made superfluous: objects of the entries before it that nothing needs, versions
    beyond the last `keep_versions`, and workspaces. The caller holds the lock.

    Costs as much as the last entries are long, however many there are: what killed commands or other hands left is
    found by `gc`. Objects in the fields named by `apart` stay.
    """
    entries = store.ledger.ends(keep_versions)
    keep = kept(entries, keep_versions)
    before = [{k: v for k, v in entry.items() if k not in apart} for entry in entries[:-1]]
    for digest in sorted({d for entry in before for d in needed([entry]).objects} - keep.objects):
        if store.objects.has(digest):
            store.objects.delete(digest)
    for digest in store.versions.all():
        if digest not in keep.versions:
            store.versions.delete(digest)
    store.clear_workspaces()


def _remove(store: Store, kind: str, path: Path) -> None:
    if kind == "objects":
        store.objects.delete(path.name)
    elif kind == "versions":
        store.versions.delete(path.name)
    else:
        with failing("removing", path):
            discard(path, store.scratch)


def _leftovers(store: Store) -> list[Path]:
    """Temporary files of commands that were killed, and file lists of versions that are gone."""
    folders = [store.path, store.scratch, store.ledger.folder, store.versions.folder, store.objects.folder]
    groups = [path for path in store.objects.folder.iterdir() if path.is_dir()]
    found = [
        path
        for folder in folders + groups
        if folder.is_dir()
        for path in folder.iterdir()
        if is_temporary(path.name) and path.name.endswith(".tmp")
    ]
    lists = [p for p in store.versions.folder.glob("*.json") if is_digest(p.stem)]
    return sorted(found + [p for p in lists if not p.with_suffix("").is_dir()])


def _hash_objects(store: Store, digests: Sequence[str], workers: int | None) -> tuple[int, list[str]]:
    """How many bytes, and one line for each that is damaged."""
    # Imported late: it costs milliseconds that most commands do not need.
    from concurrent.futures import ThreadPoolExecutor

    def check(digest: str) -> tuple[int, str | None]:
        try:
            return store.objects.size(digest), store.objects.damage(digest)
        except FileNotFoundError:
            return 0, None  # removed while we looked; if it is needed, it is reported as missing
        except PlaitError as error:
            return 0, str(error) if store.objects.has(digest) else None

    with ThreadPoolExecutor(workers or min(8, os.cpu_count() or 1)) as pool:
        results = list(pool.map(check, digests))
    return sum(size for size, _ in results), [line for _, line in results if line]


def _version_damage(store: Store, digest: str, version_digest: Callable[[Path], str]) -> list[str]:
    folder = store.versions.folder / digest
    problems = store.versions.damage(digest)
    try:
        found = version_digest(folder)
        if found != digest:
            problems.append(
                f"{folder}: its tensors give the digest {found}; restore the version from a backup"
            )
    except (PlaitError, OSError, ValueError) as error:
        problems.append(f"{folder}: cannot be read as a model ({error}); restore the version from a backup")
    return problems if folder.is_dir() else []  # removed while we looked


def _missing(store: Store, entries: Sequence[Entry]) -> list[str]:
    try:
        want = needed(entries)
    except PlaitError as error:
        return [str(error)]
    lost = [
        f"{store.objects.folder / d[:2] / d}: missing, the ledger needs it; restore it from a backup"
        for d in sorted(want.objects)
        if not store.objects.has(d)
    ]
    lost += [
        f"{store.versions.folder / d}: missing, the ledger needs it; build it again from the members"
        for d in sorted(want.versions)
        if not store.versions.has(d)
    ]
    return lost
