"""Materialised models: one folder per root digest, published in one step and never changed.

Beside each folder lies a list of its files with their sizes and, up to LIMIT bytes, their sha256: the root
digest covers the tensors, the list covers the files beside them (configuration, tokenizer, index, card).
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from plait.errors import PlaitError, RefusedInput, VerificationError
from plait.store.canonical import seal, unseal
from plait.store.files import (
    copy_file,
    discard,
    failing,
    hash_file,
    is_temporary,
    read_file,
    replace,
    sync_folder,
    sync_tree,
    temporary,
    tree_size,
)
from plait.store.objects import checked, is_digest

LIMIT = 64 << 20
"""Larger files are listed with their size only: hashing them again would double the time of a merge."""


class Versions:
    """The folder `versions`: versions/<root digest>/ and versions/<root digest>.json."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        self.folder = folder
        self.scratch = scratch

    def publish(self, folder: Path, digest: str) -> Path:
        """Move a finished folder to its place; returns that place.

        digest: the root digest that the caller computed. A version that is there already is kept and `folder`
        removed. Guarantee: the version appears whole or not at all, its files 0444 and on the disk.
        """
        folder, target = Path(folder), self._place(digest)
        with failing("publishing the version", target):
            if not stat.S_ISDIR(os.lstat(folder).st_mode):
                raise RefusedInput(f"{folder}: not a folder; a version is a folder of files")
            if target.is_dir():
                self._keep(folder, target)
                return target
            try:
                sync_tree(folder)
            except OSError:
                with suppress(OSError):
                    discard(folder, self.scratch)  # after a failed fsync its bytes on the disk are unknown
                raise
            os.utime(folder)
            replace(self._list(digest), seal({"files": _files(folder, folder)}))
            if not self._rename(folder, target):
                self._keep(folder, target)  # someone published the same version first
                return target
            try:
                sync_folder(self.folder)
            except OSError:
                with suppress(OSError):
                    discard(target, self.scratch)  # not known to be on the disk, so not published
                raise
        return target

    def path(self, digest: str) -> Path:
        """The folder of the version. VerificationError if it is missing."""
        path = self._place(digest)
        if not self.has(digest):
            raise VerificationError(f"{path}: the version is missing; build it again from the members")
        return path

    def has(self, digest: str) -> bool:
        path = self._place(digest)
        return path.is_dir() and not path.is_symlink()

    def size(self, digest: str) -> int:
        """Bytes of all files of the version."""
        return tree_size(self.path(digest))[0]

    def delete(self, digest: str) -> int:
        """Remove the version, its name first, then its files; returns the bytes freed, 0 if none."""
        path, size = self._place(digest), 0
        with failing("removing", path):
            if path.is_dir():
                size = tree_size(path)[0]
                discard(path, self.scratch)
            with suppress(FileNotFoundError):
                os.unlink(self._list(digest))
        return size

    def all(self) -> list[str]:
        """The digests of all versions, sorted."""
        return self.scan()[0]

    def scan(self) -> tuple[list[str], list[str]]:
        """The digests of all versions, and one line for every name that does not belong there."""
        found: list[str] = []
        problems: list[str] = []
        with failing("listing", self.folder):
            for name in sorted(os.listdir(self.folder)):
                path = self.folder / name
                if is_digest(name) and path.is_dir() and not path.is_symlink():
                    found.append(name)
                elif not is_temporary(name) and not (name.endswith(".json") and is_digest(name[:-5])):
                    problems.append(f"{path}: not a version; move it out of the store")
        return found, problems

    def damage(self, digest: str) -> list[str]:
        """One line for every file of the version that is missing, added or changed (large ones: by size)."""
        folder, listed = self._place(digest), self._list(digest)
        try:
            want: dict[str, dict[str, Any]] = unseal(read_file(listed), listed)["files"]
            have = _files(folder, folder)
        except (VerificationError, PlaitError) as error:
            return [str(error)]
        except OSError as error:
            return [f"{listed}: cannot be read ({error.strerror}); restore the version from a backup"]
        problems = []
        for name in sorted(want.keys() | have.keys()):
            if name not in have:
                problems.append(f"{folder / name}: missing; restore the version from a backup")
            elif name not in want:
                problems.append(f"{folder / name}: not part of the version; move it out of the store")
            elif have[name] != want[name]:
                problems.append(f"{folder / name}: its bytes have changed; restore the version from a backup")
        return problems

    def _place(self, digest: str) -> Path:
        return self.folder / checked(digest)

    def _list(self, digest: str) -> Path:
        return self.folder / f"{checked(digest)}.json"

    def _keep(self, folder: Path, target: Path) -> None:
        sync_folder(self.folder)  # its writer may have been killed before its own fsync
        os.utime(target)  # the grace period of gc starts anew
        if not os.path.samefile(folder, target):
            discard(folder, self.scratch)

    def _rename(self, folder: Path, target: Path) -> bool:
        """Give the folder its place; False if the place is taken."""
        try:
            os.rename(folder, target)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            if error.errno != errno.EXDEV:
                raise
            fresh = temporary(self.folder)
            _copy_tree(folder, fresh)
            sync_tree(fresh)
            os.rename(fresh, target)
            discard(folder, folder.parent)
        return True


def _files(folder: Path, root: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name in sorted(os.listdir(folder)):
        path = folder / name
        status = os.lstat(path)
        if stat.S_ISDIR(status.st_mode):
            found |= _files(path, root)
            continue
        facts: dict[str, Any] = {"size": status.st_size}
        if status.st_size <= LIMIT:
            facts["sha256"] = hash_file(path)
        found[path.relative_to(root).as_posix()] = facts
    return found


def _copy_tree(source: Path, target: Path) -> None:
    os.mkdir(target)
    for name in sorted(os.listdir(source)):
        if (source / name).is_dir():
            _copy_tree(source / name, target / name)
        else:
            copy_file(source / name, target / name)
