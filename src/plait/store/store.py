"""The store: a folder that holds one line. The format is described in docs/format-store.md."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from plait.errors import PlaitError, RefusedInput, UsageError
from plait.store import lock
from plait.store.canonical import decode, seal, unseal
from plait.store.files import (
    discard,
    failing,
    is_temporary,
    make_folder,
    no_links,
    read_file,
    sync_folder,
    temporary,
    write_new,
)
from plait.store.ledger import Ledger
from plait.store.objects import Objects
from plait.store.versions import Versions

FORMAT = 1
SETTINGS = "plait.json"
FOLDERS = ("ledger", "objects", "versions", "tmp")
RESERVED = ("format", "checksum")

_WORKSPACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", re.ASCII)


class Store:
    """One line on disk: `settings`, `ledger`, `objects`, `versions` and workspaces.

    Readers need no lock. Writers hold `lock` for the whole of their command.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        self.settings = settings
        self.scratch = path / "tmp"
        self.ledger = Ledger(path / "ledger")
        self.objects = Objects(path / "objects")
        self.versions = Versions(path / "versions", self.scratch)

    @classmethod
    def create(cls, path: Path | str, settings: dict[str, Any]) -> Store:
        """Make a new, empty store at `path`; see `creating`."""
        with cls.creating(path, settings):
            pass
        return cls.open(path)

    @classmethod
    @contextmanager
    def creating(cls, path: Path | str, settings: dict[str, Any]) -> Iterator[Store]:
        """Make a new store and fill it before it appears: `with Store.creating(path, settings) as store:`.

        path: must not exist, or be an empty folder. settings: JSON values; they never change. The store of
        the block lies, locked, in a temporary folder beside `path`. The folder gets its name when the block
        ends, and is removed if the block fails: the line appears whole or not at all. What a killed process
        left there is removed by the next attempt. Raises RefusedInput if there is something at `path`;
        PlaitError if the disk fails or has no locks or links.
        """
        place = Path(os.path.realpath(path))
        taken = [name for name in RESERVED if name in settings]
        if taken:
            raise UsageError(f"{taken[0]!r} is not a setting; plait writes this field itself")
        data = seal({**settings, "format": FORMAT})
        _refuse_existing(place)
        fresh = temporary(place.parent, place.name)
        try:
            with failing("creating the line", place):
                os.makedirs(place.parent, exist_ok=True)
                _sweep(place)
                _build(fresh, data)
            with lock.hold(fresh / "lock", "init"):
                _probe(fresh)
                yield cls(fresh, read_settings(fresh))
                with failing("creating the line", place):
                    _appear(fresh, place)
        finally:
            if fresh.exists():
                with suppress(OSError):
                    discard(fresh, fresh.parent)

    @classmethod
    def open(cls, path: Path | str) -> Store:
        """The store at `path`. RefusedInput if there is none, or one of a newer format."""
        place = Path(os.path.realpath(path))
        return cls(place, read_settings(place))

    def lock(self, verb: str) -> AbstractContextManager[None]:
        """Hold the store for writing: `with store.lock("merge"):`. LockedError names the owner, if any."""
        return lock.hold(self.path / "lock", verb)

    def workspace(self, name: str) -> Path:
        """The folder tmp/<name>, made if needed. The same name is the same folder: a command can resume."""
        if not _WORKSPACE.fullmatch(name):
            raise UsageError(
                f"{name!r} cannot name a workspace: letters, digits, '.', '_' and '-', at most 128"
            )
        folder = self.scratch / name
        with failing("making a workspace", folder):
            make_folder(self.scratch)
            make_folder(folder)
        return folder

    def workspaces(self) -> list[str]:
        """The names of all workspaces, sorted."""
        try:
            return sorted(name for name in os.listdir(self.scratch) if not is_temporary(name))
        except FileNotFoundError:
            return []

    def clear_workspaces(self, *keep: str) -> list[str]:
        """Remove all workspaces but those named; returns the names removed."""
        gone = [name for name in self.workspaces() if name not in keep]
        for name in gone:
            with failing("removing the workspace", self.scratch / name):
                discard(self.scratch / name, self.scratch)
        return gone


def read_settings(place: Path) -> dict[str, Any]:
    """The settings of the store at `place`, without the fields that plait itself writes."""
    path = place / SETTINGS
    try:
        data = read_file(path)
    except (FileNotFoundError, NotADirectoryError):
        raise RefusedInput(
            f"{place}: not a line (it has no {SETTINGS}); make one with `plait init`"
        ) from None
    except OSError as error:
        raise PlaitError(f"{path}: cannot be read ({error.strerror}); check the permissions") from error
    try:
        value = decode(data, path)
    except PlaitError as error:
        raise RefusedInput(str(error)) from error
    found = value.get("format")
    if type(found) is not int or found < 1:
        raise RefusedInput(f"{path}: format {found!r}, expected {FORMAT}; is this folder a line?")
    if found > FORMAT:
        raise RefusedInput(f"{path}: store format {found}, this plait reads {FORMAT}: upgrade plait")
    unseal(data, path)
    return {key: item for key, item in value.items() if key not in RESERVED}


def _build(fresh: Path, settings: bytes) -> None:
    """A complete empty store."""
    os.mkdir(fresh)
    for name in FOLDERS:
        os.mkdir(fresh / name)
    write_new(fresh / SETTINGS, settings)
    write_new(fresh / "lock", b"", 0o644)


def _probe(fresh: Path) -> None:
    """Refuse a file system without hard links before any work is done."""
    probe = fresh / "tmp" / "probe"
    try:
        os.link(fresh / SETTINGS, probe)
        os.unlink(probe)
    except OSError as error:
        raise no_links(error, fresh.parent) from error


def _sweep(place: Path) -> None:
    """Remove what an earlier attempt at this very place left behind when it was killed."""
    for name in os.listdir(place.parent):
        left = place.parent / name
        if left.is_dir() and re.fullmatch(rf"\.{re.escape(place.name)}\.[0-9a-f]{{16}}\.tmp", name):
            with suppress(PlaitError, OSError), lock.hold(left / "lock", "init"):
                discard(left, place.parent)


def _appear(fresh: Path, place: Path) -> None:
    for name in FOLDERS:
        sync_folder(fresh / name)
    sync_folder(fresh)
    try:
        os.rename(fresh, place)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            _refuse_existing(place)
        raise
    try:
        sync_folder(place.parent)
    except OSError:
        os.rename(place, fresh)  # not known to be on the disk: the caller removes it
        raise


def _refuse_existing(place: Path) -> None:
    if not os.path.lexists(place):
        return
    if (place / SETTINGS).exists():
        raise RefusedInput(f"{place}: there is a line already; choose another place, or open this one")
    if not place.is_dir():
        raise RefusedInput(f"{place}: there is a file already; choose another place")
    if os.listdir(place):
        raise RefusedInput(f"{place}: the folder is not empty; choose another place")
