"""What the ledger needs, whether it is all there byte for byte, and removal of what nothing needs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from plait.errors import PlaitError
from plait.store.files import discard, failing, is_temporary, tree_size
from plait.store.ledger import Entry
from plait.store.objects import is_digest
from plait.store.reach import Needed, mentioned, needed
from plait.store.store import Store, read_settings

DAY = 86400.0


class Report(NamedTuple):
    """What `verify` found: all problems, one line each, and what it looked at."""

    problems: list[str]
    entries: int
    objects: int
    versions: int
    bytes: int
    tip: str  # sha256 of the last ledger entry: note it elsewhere, and a rewritten history shows

    @property
    def ok(self) -> bool:
        return not self.problems


class Removed(NamedTuple):
    """One thing that `gc` removed, or would remove."""

    kind: str  # "object", "version", "workspace" or "leftover"
    name: str
    bytes: int


def verify(
    store: Store,
    version_digest: Callable[[Path], str],
    *,
    keep_versions: int = 1,
    workers: int | None = None,
) -> Report:
    """Hash everything again and compare; nothing is changed, no lock is needed.

    version_digest: gives the root digest of a version's folder (the store knows no checkpoints).
    keep_versions: how many of the last versions must be there.
    """
    problems: list[str] = []
    try:
        read_settings(store.path)
    except PlaitError as error:
        problems.append(str(error))
    digests, strays = store.objects.scan()
    versions, more = store.versions.scan()
    problems += strays + more
    sound, total, damage = _hash_objects(store, digests, workers)
    problems += damage
    for digest in versions:
        problems += _version_damage(store, digest, version_digest)
        total += tree_size(store.versions.folder / digest)[0]
    # The ledger comes last: what an entry needs is there before the entry, so a running merge shows no holes.
    entries, wrong = store.ledger.scan()
    problems += wrong
    problems += _missing(store, entries, keep_versions)
    tip = store.ledger.tip() if not wrong else ""
    return Report(problems, len(entries), sound, len(versions), total, tip)


def gc(
    store: Store,
    *,
    keep_versions: int = 2,
    objects: Collection[str] = (),
    versions: Collection[str] = (),
    dry_run: bool = False,
    grace_seconds: float = DAY,
) -> list[Removed]:
    """Remove what nothing needs; returns what was removed (`dry_run`: would be). The caller holds the lock.

    Kept: what the last entry needs, the last `keep_versions` versions, the `objects` and `versions` named
    here, and everything that was written less than `grace_seconds` ago. The ledger is never touched. Raises
    VerificationError, before anything is removed, if the ledger is damaged; removes nothing if it is empty.
    """
    entries = store.ledger.entries()
    if not entries:
        return []
    kept_objects = mentioned(entries[-1]) | set(objects)
    kept_versions = needed(entries, keep_versions).versions | set(versions)
    limit = time.time() - grace_seconds
    doomed: list[tuple[Removed, Path]] = []
    for kind, paths in (
        ("object", [store.objects.path(d) for d in store.objects.all() if d not in kept_objects]),
        ("version", [store.versions.path(d) for d in store.versions.all() if d not in kept_versions]),
        ("workspace", [store.scratch / name for name in store.workspaces()]),
        ("leftover", _leftovers(store)),
    ):
        for path in paths:
            size, newest = tree_size(path)
            if newest <= limit:
                doomed.append((Removed(kind, path.name, size), path))
    if not dry_run:
        for removed, path in doomed:
            _remove(store, removed, path)
    return [removed for removed, _ in doomed]


def _remove(store: Store, removed: Removed, path: Path) -> None:
    if removed.kind == "object":
        store.objects.delete(removed.name)
    elif removed.kind == "version":
        store.versions.delete(removed.name)
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


def _hash_objects(store: Store, digests: Sequence[str], workers: int | None) -> tuple[int, int, list[str]]:
    """How many objects, how many bytes, and one line for each that is damaged."""
    from concurrent.futures import (
        ThreadPoolExecutor,
    )  # late: it costs milliseconds that most commands do not need

    def check(digest: str) -> tuple[int, str | None]:
        try:
            return store.objects.size(digest), store.objects.damage(digest)
        except FileNotFoundError:
            return 0, None  # removed while we looked; if it is needed, it is reported as missing
        except PlaitError as error:
            return 0, str(error) if store.objects.has(digest) else None

    with ThreadPoolExecutor(workers or min(8, os.cpu_count() or 1)) as pool:
        results = list(pool.map(check, digests))
    return len(results), sum(size for size, _ in results), [line for _, line in results if line]


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


def _missing(store: Store, entries: Sequence[Entry], keep_versions: int) -> Iterable[str]:
    try:
        want: Needed = needed(entries, keep_versions)
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
