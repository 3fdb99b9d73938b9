"""The ledger: numbered entries, each with the sha256 of the one before. Creating an entry is the commit.

An entry gets its number only if that number is free (link(2)), so of two writers exactly one wins.
"""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from plait.errors import LockedError, PlaitError, VerificationError
from plait.store.canonical import decode, seal, unseal
from plait.store.files import failing, is_temporary, no_links, read_file, sync_folder, temporary, write_new

Entry = dict[str, Any]

FIRST = "0" * 64
"""What the first entry holds in place of the hash of the one before."""

RESERVED = ("sequence", "previous", "time", "checksum")
"""Fields that the ledger writes itself."""

_NAME = re.compile(r"[0-9]{8,}\.json", re.ASCII)


class Ledger:
    """The entries in one folder. Reading needs no lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def entries(self) -> list[Entry]:
        """All entries, oldest first. VerificationError at the first thing that is wrong, naming the file."""
        entries, problems = self.scan()
        if problems:
            raise VerificationError(problems[0])
        return entries

    def scan(self) -> tuple[list[Entry], list[str]]:
        """All entries that can be read, and one line for everything that is wrong."""
        try:
            count, problems = self._listing()
        except VerificationError as error:
            return [], [str(error)]
        entries: list[Entry] = []
        last: bytes | None = b""
        for number in range(count):
            path = self.path(number)
            try:
                data = self._read(path)
                entry = decode(data, path) if number + 1 < count else unseal(data, path)
                self._check(entry, number, data, last)
                entries.append(entry)
                last = data
            except VerificationError as error:
                problems.append(str(error))
                last = None  # unknown: the next entry is not blamed for it
        return entries, problems

    def head(self) -> Entry | None:
        """The last entry, or None. Reads only it and the one before."""
        count = self._count()
        if not count:
            return None
        data = self._read(self.path(count - 1))
        entry = unseal(data, self.path(count - 1))
        self._check(entry, count - 1, data, self._read(self.path(count - 2)) if count > 1 else b"")
        return entry

    def entry(self, number: int) -> Entry:
        """One entry, without a look at the others. VerificationError if it is damaged or not there."""
        return unseal(self._read(self.path(number)), self.path(number))

    def ends(self, versions: int) -> list[Entry]:
        """The first entry, and the last ones as far back as it takes to find so many different versions and the
        entry before the last. What is between is not read."""
        count = self._count()
        found: list[Entry] = []
        seen: set[Any] = set()
        for number in range(count - 1, 0, -1):
            if len(seen) >= versions and len(found) >= 2:
                break
            found.append(self.entry(number))
            seen.add(found[-1].get("version"))
        return [self.entry(0), *reversed(found)] if count else []

    def tip(self) -> str:
        """The sha256 of the last entry file: it fixes the whole history. 64 zeros for an empty ledger."""
        count = self._count()
        return self._hash(count - 1) if count else FIRST

    def append(self, body: Entry) -> Entry:
        """Commit the next entry; returns it as it will be read back.

        body: JSON values without the RESERVED fields. Guarantee: when this returns, the entry is on the disk;
        when it raises, the ledger is as before. LockedError if another process took the number first.
        """
        taken = [name for name in RESERVED if name in body]
        if taken:
            raise PlaitError(
                f"an entry holds the field {taken[0]!r}, which the ledger itself writes; rename it"
            )
        count = self._count()
        if count:
            self.head()  # never chain on a damaged entry
        before = self._hash(count - 1) if count else FIRST
        data = seal({**body, "sequence": count, "previous": before, "time": _now()})
        final, fresh = self.path(count), temporary(self.folder)
        with failing("writing the ledger entry", final):
            write_new(fresh, data)
            try:
                self._link(fresh, final)
            finally:
                with suppress(OSError):
                    os.unlink(fresh)
            try:
                sync_folder(self.folder)
            except OSError:
                with suppress(OSError):  # not known to be on the disk, so not committed
                    if not os.path.lexists(self.path(count + 1)):
                        os.unlink(final)
                raise
        return unseal(data, final)

    def path(self, number: int) -> Path:
        """Where the entry of this number lies, written or not."""
        return self.folder / f"{number:08d}.json"

    def _link(self, fresh: Path, final: Path) -> None:
        try:
            os.link(fresh, final)
        except FileExistsError:
            if os.path.samefile(fresh, final):
                return  # a network file system repeated a request that had been carried out
            raise LockedError(
                f"{final}: another process wrote entry {int(final.stem)}; "
                "nothing was changed, run the command again"
            ) from None
        except OSError as error:
            raise no_links(error, final) from error

    def _count(self) -> int:
        count, problems = self._listing()
        if problems:
            raise VerificationError(problems[0])
        return count

    def _listing(self) -> tuple[int, list[str]]:
        """How many entries there should be, and what is wrong with the names."""
        try:
            names = sorted(name for name in os.listdir(self.folder) if not is_temporary(name))
        except OSError as error:
            raise VerificationError(
                f"{self.folder}: cannot be read ({error.strerror}); restore it from a backup"
            ) from error
        good = [n for n in names if _NAME.fullmatch(n) and f"{int(n[:-5]):08d}.json" == n]
        problems = [
            f"{self.folder / name}: not a ledger entry; move it out of the folder"
            for name in names
            if name not in set(good)
        ]
        numbers = sorted(int(name[:-5]) for name in good)
        count = numbers[-1] + 1 if numbers else 0
        if len(numbers) != count:
            lost = next(number for number, found in enumerate(numbers) if number != found)
            problems.append(f"{self.path(lost)}: missing, later entries are there; restore it from a backup")
            count = lost  # what follows the first hole cannot be checked against it
        return count, problems

    def _check(self, entry: Entry, number: int, data: bytes, last: bytes | None) -> None:
        """Is this entry the one of this number, and does it follow `last` (None: not known)?"""
        path, before = self.path(number), self.path(number - 1)
        found = entry.get("sequence")
        if type(found) is not int or found != number:
            raise VerificationError(
                f"{path}: holds entry {found!r}, expected {number}; restore it from a backup"
            )
        if last is None or entry.get("previous") == (hashlib.sha256(last).hexdigest() if number else FIRST):
            return
        if number:
            unseal(last, before)
        unseal(data, path)
        raise VerificationError(
            f"{path}: the entry before it is not the one it was written after; restore the ledger from a backup"
        )

    def _read(self, path: Path) -> bytes:
        try:
            return read_file(path)
        except OSError as error:
            raise VerificationError(
                f"{path}: cannot be read ({error.strerror}); restore it from a backup"
            ) from error

    def _hash(self, number: int) -> str:
        return hashlib.sha256(self._read(self.path(number))).hexdigest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
