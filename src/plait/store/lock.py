"""One writer at a time: flock on a file, with the owner's name in it.

The kernel drops the lock when its owner dies, so a text that is left behind is no obstacle.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from plait.errors import LockedError, PlaitError
from plait.store.files import failing


@contextmanager
def hold(path: Path, verb: str) -> Iterator[None]:
    """Hold the lock file `path` for the length of the block.

    verb: what the owner is doing; shown to whoever comes second.
    Raises LockedError at once, naming the owner, if another holder is alive. Not re-entrant.
    """
    handle = _acquire(path)
    try:
        owner = {"host": os.uname().nodename, "pid": os.getpid(), "since": _now(), "verb": verb}
        with suppress(OSError):  # only a courtesy to others: gc must be able to lock on a full disk
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(owner, sort_keys=True).encode() + b"\n", 0)
        yield
        with suppress(OSError):
            os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def _acquire(path: Path) -> int:
    while True:
        with failing("locking", path):
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _same(handle, path):
                return handle
        except BlockingIOError:
            message = f"{path.parent}: {_owner(handle)}; wait until it ends, then run the command again"
            os.close(handle)
            raise LockedError(message) from None
        except OSError as error:
            os.close(handle)
            raise _unsupported(error, path) from error
        os.close(handle)  # the file was replaced while we waited for it: take the new one


def _same(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _owner(handle: int) -> str:
    try:
        owner = json.loads(os.pread(handle, 4096, 0))
        return "locked by `{verb}` (process {pid} on {host}, since {since})".format(**owner)
    except (OSError, ValueError, KeyError, TypeError):
        return "locked by another process"


def _unsupported(error: OSError, path: Path) -> PlaitError:
    if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
        return PlaitError(
            f"{path}: this file system has no locks ({os.strerror(error.errno).lower()}); "
            "keep the line on a local disk, or turn on locking for the mount"
        )
    return PlaitError(
        f"{path}: locking failed: {error.strerror}; remove the cause, then run the command again"
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
