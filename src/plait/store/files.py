"""Durable file operations: a file is complete and on the disk before it gets its name, or it never gets it.

Names that begin with a dot are temporary: readers skip them, `gc` removes those that are left over.
Every failure of the file system becomes a `PlaitError` that names the file and says what to do.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from plait.errors import PlaitError, VerificationError

FILE_MODE = 0o444
FOLDER_MODE = 0o755
PIECE = 1 << 20  # bytes a read while copying

_FULL = {errno.ENOSPC, errno.EDQUOT}
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


def storage_error(error: OSError, doing: str, path: Path) -> PlaitError:
    """The error of the file system, restated as: what failed, where, what to do."""
    if error.errno in _FULL:
        advice = "the disk is full; free some space, then run the command again"
    elif error.errno in _READ_ONLY:
        advice = f"{_reason(error)}; make the folder writable for this user, then run the command again"
    elif error.errno == errno.EIO:
        advice = "input/output error; check the disk, then run `plait verify` and the command again"
    else:
        advice = f"{_reason(error)}; remove the cause, then run the command again"
    return PlaitError(f"{path}: {doing} failed: {advice}")


def no_links(error: OSError, path: Path) -> PlaitError:
    """The error of a failed link(2), restated; a file system without hard links gets its own words."""
    if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
        return PlaitError(
            f"{path}: this file system has no hard links ({_reason(error)}), which the ledger needs; "
            "keep the line on a local disk"
        )
    return storage_error(error, "linking", path)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


@contextmanager
def failing(doing: str, path: Path) -> Iterator[None]:
    """Restate every OSError of the block as a PlaitError about `path`."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, doing, path) from error


def temporary(folder: Path, label: str = "") -> Path:
    """A fresh name in `folder` that readers skip: .<label>.<random>.tmp"""
    return folder / f".{label}{'.' if label else ''}{os.urandom(8).hex()}.tmp"


def is_temporary(name: str) -> bool:
    return name.startswith(".")


def write_new(path: Path, data: bytes, mode: int = FILE_MODE) -> None:
    """Create `path` with these bytes and fsync it; on any failure no file is left. OSErrors pass through."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            write_all(handle, data)
            os.fchmod(handle, mode)
            os.fsync(handle)
        finally:
            os.close(handle)
    except BaseException:
        with suppress(OSError):
            os.unlink(path)
        raise


def write_all(handle: int, data: bytes) -> None:
    """All the bytes, also where the system takes only some of them at a time."""
    left = memoryview(data)
    while left:
        left = left[os.write(handle, left) :]


def replace(path: Path, data: bytes) -> None:
    """Give `path` these bytes in one step: the old file or the new one, never half. OSErrors pass through."""
    fresh = temporary(path.parent)
    write_new(fresh, data)
    try:
        os.replace(fresh, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(fresh)
        raise
    sync_folder(path.parent)


def sync_file(path: Path, mode: int | None = None) -> None:
    """Put the file's bytes on the disk, after giving it `mode` where one is asked for."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if mode is not None and stat.S_IMODE(os.fstat(handle).st_mode) != mode:
            os.fchmod(handle, mode)
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(path: Path) -> None:
    """Put the folder's names on the disk. File systems that cannot sync a folder say EINVAL: left alone."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(handle)


def make_folder(path: Path) -> None:
    """Create the folder, and put its name on the disk, unless it is there."""
    try:
        os.mkdir(path, FOLDER_MODE)
    except FileExistsError:
        return
    sync_folder(path.parent)


def sync_tree(folder: Path) -> None:
    """Files become 0444, folders 0755, everything goes to the disk. Links and devices are refused."""
    with os.scandir(folder) as found:
        for item in found:
            if item.is_dir(follow_symlinks=False):
                sync_tree(Path(item.path))
            elif item.is_file(follow_symlinks=False):
                sync_file(Path(item.path), FILE_MODE)
            else:
                raise PlaitError(f"{item.path}: neither a file nor a folder; a version holds nothing else")
    os.chmod(folder, FOLDER_MODE)
    sync_folder(folder)


def open_regular(path: Path) -> int:
    """A read handle of a regular file: no link, no pipe that would block. OSError or VerificationError."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise VerificationError(f"{path}: not a regular file; expected one that plait wrote") from error
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise VerificationError(f"{path}: not a regular file; expected one that plait wrote")
    return handle


def read_file(path: Path) -> bytes:
    """All bytes of a regular file. OSErrors pass through."""
    with open(open_regular(path), "rb") as file:
        return file.read()


def hash_file(path: Path) -> str:
    """The sha256 of a regular file, read in pieces. OSErrors pass through."""
    with open(open_regular(path), "rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def copy_file(source: Path, target: Path) -> str:
    """Copy to a new file, 0444 and fsynced; returns the sha256 of the bytes. OSErrors pass through."""
    digest = hashlib.sha256()
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            with open(source, "rb", buffering=0) as file:
                while piece := file.read(PIECE):
                    digest.update(piece)
                    write_all(handle, piece)
            os.fchmod(handle, FILE_MODE)
            os.fsync(handle)
        finally:
            os.close(handle)
    except BaseException:
        with suppress(OSError):
            os.unlink(target)
        raise
    return digest.hexdigest()


def tree_size(path: Path) -> tuple[int, float]:
    """Bytes and newest modification time of a file, or of all that is in a folder. What is gone counts 0."""
    try:
        status = os.lstat(path)
        size, newest = status.st_size if stat.S_ISREG(status.st_mode) else 0, status.st_mtime
        if stat.S_ISDIR(status.st_mode):
            for name in os.listdir(path):
                more, when = tree_size(path / name)
                size, newest = size + more, max(newest, when)
    except FileNotFoundError:
        return 0, 0.0
    return size, newest


def discard(path: Path, scratch: Path) -> None:
    """Remove a file or folder in one step: it loses its name first, so half of it is never found there."""
    if not path.is_dir() or path.is_symlink():
        os.unlink(path)
        return
    import shutil  # late: it costs milliseconds that most commands do not need

    doomed = path
    if not is_temporary(path.name):
        doomed = temporary(scratch)
        os.rename(path, doomed)
        sync_folder(path.parent)
    shutil.rmtree(doomed)
