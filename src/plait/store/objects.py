"""Content-addressed files: the store computes the name, which is the sha256 of the bytes."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from plait.errors import RefusedInput, VerificationError
from plait.store.files import (
    FILE_MODE,
    copy_file,
    failing,
    hash_file,
    is_temporary,
    read_file,
    sync_file,
    sync_folder,
    temporary,
    write_new,
)

_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


def is_digest(name: object) -> bool:
    """True for 64 lower-case hexadecimal digits."""
    return isinstance(name, str) and _DIGEST.fullmatch(name) is not None


def checked(digest: object) -> str:
    """The digest itself, or VerificationError if it is not one (so that it can name a file)."""
    if not isinstance(digest, str) or _DIGEST.fullmatch(digest) is None:
        raise VerificationError(f"{digest!r} is not a sha256 digest (64 lower-case hexadecimal digits)")
    return digest


class Objects:
    """The folder `objects`: objects/ab/abcd…, read-only files that never change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put_file(self, path: Path) -> str:
        """Take a file in; returns its digest.

        A file below the store's own folder is moved, any other is copied and stays. Guarantee: when this
        returns the object is complete, read-only and on the disk; the same bytes again change nothing. Raises
        RefusedInput if `path` is no regular file, PlaitError if the disk fails (then no object is left).
        """
        path = Path(path)
        with failing("storing", path):
            status = os.stat(path)
            if not stat.S_ISREG(status.st_mode):
                raise RefusedInput(f"{path}: not a regular file; only files can be stored")
            if self._own(path):
                return self._move(path, status.st_size)
            return self._copy(path)

    def put_bytes(self, data: bytes) -> str:
        """Store these bytes; returns their digest."""
        fresh = temporary(self.folder)
        with failing("storing an object", self.folder):
            write_new(fresh, data)
        return self.put_file(fresh)

    def keep(self, digest: str) -> str:
        """Do for an object that is there already what `put_file` does for one that it finds: put it on the disk
        for certain, and let the grace period of gc start anew. Returns its digest. VerificationError if missing.
        """
        path = self.path(digest)
        with failing("storing", path):
            self._kept(path, path.stat().st_size)
        return digest

    def get(self, digest: str) -> bytes:
        """The bytes of the object, checked against its name: those or VerificationError, never others."""
        path = self.path(digest)
        with failing("reading", path):
            data = read_file(path)
        if hashlib.sha256(data).hexdigest() != digest:
            raise VerificationError(_damaged(path))
        return data

    def path(self, digest: str) -> Path:
        """Where the object lies. VerificationError if it is missing; its bytes are not hashed here."""
        path = self._place(digest)
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            raise VerificationError(f"{path}: the object is missing; restore it from a backup") from None
        if not stat.S_ISREG(status.st_mode):
            raise VerificationError(f"{path}: not a regular file; restore the object from a backup")
        return path

    def has(self, digest: str) -> bool:
        return os.path.lexists(self._place(digest))

    def size(self, digest: str) -> int:
        """Bytes of the object. VerificationError if it is missing."""
        return self.path(digest).stat().st_size

    def delete(self, digest: str) -> int:
        """Remove the object; returns the bytes freed, 0 if it was not there."""
        path = self._place(digest)
        with failing("removing", path):
            try:
                size = os.lstat(path).st_size
                os.unlink(path)
            except FileNotFoundError:
                return 0
            sync_folder(path.parent)
        return size

    def all(self) -> list[str]:
        """The digests of all objects, sorted."""
        return self.scan()[0]

    def scan(self) -> tuple[list[str], list[str]]:
        """The digests of all objects, and one line for every name that does not belong there."""
        found: list[str] = []
        problems: list[str] = []
        with failing("listing", self.folder):
            for group in sorted(os.listdir(self.folder)):
                if is_temporary(group):
                    continue
                folder = self.folder / group
                if not (len(group) == 2 and folder.is_dir()):
                    problems.append(f"{folder}: not a folder of objects; move it out of the store")
                    continue
                for name in sorted(os.listdir(folder)):
                    if is_digest(name) and name[:2] == group:
                        found.append(name)
                    elif not is_temporary(name):
                        problems.append(f"{folder / name}: not an object; move it out of the store")
        return found, problems

    def damage(self, digest: str) -> str | None:
        """One line if the bytes do not give the name, else None. FileNotFoundError passes through."""
        path = self._place(digest)
        try:
            return None if hash_file(path) == digest else _damaged(path)
        except VerificationError as error:
            return str(error)
        except FileNotFoundError:
            raise
        except OSError as error:
            return f"{path}: cannot be read ({error.strerror}); restore the object from a backup"

    def _place(self, digest: str) -> Path:
        return self.folder / checked(digest)[:2] / digest

    def _own(self, path: Path) -> bool:
        """Is it ours to move? A file in the store, reached by one name only."""
        status = os.lstat(path)
        root = os.path.realpath(self.folder.parent)
        inside = os.path.realpath(path).startswith(root + os.sep)
        return inside and stat.S_ISREG(status.st_mode) and status.st_nlink == 1

    def _move(self, path: Path, size: int) -> str:
        digest = hash_file(path)
        target = self._place(digest)
        if not self._kept(target, size):
            try:
                sync_file(path, FILE_MODE)
            except OSError:
                # What a failed fsync left on the disk is not known: the file must never be used again.
                with suppress(OSError):
                    os.unlink(path)
                raise
            os.makedirs(target.parent, exist_ok=True)
            try:
                os.rename(path, target)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                digest = self._copy(path)
            _settle(target)
        with suppress(FileNotFoundError):
            os.unlink(path)
        return digest

    def _copy(self, path: Path) -> str:
        fresh = temporary(self.folder)
        digest = copy_file(path, fresh)
        try:
            target = self._place(digest)
            if not self._kept(target, fresh.stat().st_size):
                os.makedirs(target.parent, exist_ok=True)
                os.rename(fresh, target)
                _settle(target)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(fresh)
        return digest

    def _kept(self, target: Path, size: int) -> bool:
        """Is the object there already? If so its size is compared, and it is put on the disk for certain."""
        try:
            status = os.lstat(target)
        except FileNotFoundError:
            return False
        if not stat.S_ISREG(status.st_mode) or status.st_size != size:
            raise VerificationError(
                f"{target}: {status.st_size} bytes, expected {size}: the object is damaged; "
                "move it away and run the command again"
            )
        # Its writer may have been killed before its last fsync. The new time is needed: nothing but gc's grace
        # period keeps an old object that no entry names yet, if this command is killed before it writes one.
        sync_file(target, FILE_MODE)
        _sync_name(target)
        os.utime(target)
        return True


def _settle(target: Path) -> None:
    """Put a new object's name on the disk, or take the object away again."""
    try:
        _sync_name(target)
    except OSError:
        with suppress(OSError):
            os.unlink(target)
        raise


def _sync_name(target: Path) -> None:
    """The name of the file, and the name of the folder that it is in, which may be as new."""
    sync_folder(target.parent)
    sync_folder(target.parent.parent)


def _damaged(path: Path) -> str:
    return f"{path}: its bytes do not give its name; the object is damaged, restore it from a backup"
