"""Bytes of tensors in safetensors files: read, hash, compare and written in place, in bounded memory."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from types import TracebackType
from typing import NoReturn

from plait.checkpoint.header import Header, check_name, open_regular, read_header
from plait.errors import FormatError, PlaitError
from plait.types import DTYPES, TensorRef

__all__ = [
    "FileWriter",
    "Header",
    "blocks",
    "fsync_folder",
    "hash_buffers",
    "hash_tensor",
    "header_bytes",
    "read_bytes",
    "read_header",
    "same_bytes",
    "write_all",
]

_BLOCK = 1 << 20

Buffer = bytes | bytearray | memoryview


def read_bytes(ref: TensorRef, first_byte: int = 0, count: int | None = None) -> bytes:
    """Bytes of a tensor, from `first_byte` of the tensor; all that follow if `count` is None.

    Errors: ValueError for a range outside the tensor; FormatError if the file became shorter.
    """
    count = ref.nbytes - first_byte if count is None else count
    if first_byte < 0 or count < 0 or first_byte + count > ref.nbytes:
        raise ValueError(f"{ref.name}: bytes {first_byte} to {first_byte + count} of {ref.nbytes}")
    buffer = bytearray(count)
    descriptor, _ = open_regular(ref.file)
    try:
        _fill(descriptor, memoryview(buffer), ref.start + first_byte, ref)
    finally:
        os.close(descriptor)
    return bytes(buffer)


def blocks(ref: TensorRef, size: int = _BLOCK) -> Iterator[memoryview]:
    """The bytes of a tensor, block by block, in one buffer that is used again: copy what you keep."""
    buffer = memoryview(bytearray(min(size, ref.nbytes)))
    descriptor, _ = open_regular(ref.file)
    try:
        for place in range(ref.start, ref.end, size):
            part = buffer[: min(size, ref.end - place)]
            _fill(descriptor, part, place, ref)
            yield part
    finally:
        os.close(descriptor)


def hash_tensor(ref: TensorRef) -> str:
    """sha256, in hex, of a tensor's dtype, shape and bytes. Its name and place in the file do not enter.

    The hashed text begins with a line such as `BF16 768,3072`, then a newline, then the bytes.
    """
    return hash_buffers(ref.dtype, ref.shape, blocks(ref))


def hash_buffers(dtype: str, shape: Sequence[int], parts: Iterable[Buffer]) -> str:
    """As `hash_tensor`, of bytes in memory."""
    total = hashlib.sha256(f"{dtype} {','.join(map(str, shape))}\n".encode())
    for part in parts:
        total.update(part)
    return total.hexdigest()


def same_bytes(one: TensorRef, other: TensorRef) -> bool:
    """Whether two tensors have equal dtype, shape and bytes. Stops at the first block that differs."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    if (one.file, one.start) == (other.file, other.start):
        return True
    size = 4096  # most pairs differ early
    if one.nbytes > size and read_bytes(one, 0, size) != read_bytes(other, 0, size):
        return False
    return all(a == b for a, b in zip(blocks(one), blocks(other), strict=True))


def header_bytes(entries: Sequence[tuple[str, str, Sequence[int]]], metadata: Mapping[str, str]) -> bytes:
    """The first bytes of a safetensors file, up to where tensor data begin (a multiple of 8).

    entries: (name, dtype, shape) of each tensor, in the order of their bytes.
    """
    table: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    place = 0
    for name, dtype, shape in entries:
        if check_name("output", name) == "__metadata__" or name in table:
            raise FormatError(f"output: tensor name {name} is taken; rename one of the two tensors")
        end = place + prod(shape) * DTYPES[dtype].size
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


class FileWriter:
    """A safetensors file: header and size are written first, then tensors are filled in in any order.

    path: its folder must exist. entries: (name, dtype, shape), in the order of their bytes.
    A file that already has this very header and size is kept as it is, so that an interrupted merge can
    go on; any other file is emptied, and a read-only one of this user is replaced. `.places` says where each
    tensor's bytes belong.
    Errors: PlaitError if the disk is full or fails. What was written stays; the caller removes it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        entries: Sequence[tuple[str, str, Sequence[int]]],
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self.path = os.fspath(path)
        head = header_bytes(entries, metadata or {})
        self.places: dict[str, TensorRef] = {}
        place = len(head)
        for name, dtype, shape in entries:
            end = place + prod(shape) * DTYPES[dtype].size
            self.places[name] = TensorRef(name, dtype, tuple(shape), self.path, place, end)
            place = end
        self.size = place
        try:
            self._descriptor = _open_or_replace(self.path)
        except OSError as error:
            write_failed(self.path, error)
        try:
            self._begin(head)
        except BaseException:
            os.close(self._descriptor)
            raise

    def _begin(self, head: bytes) -> None:
        try:
            if (
                os.fstat(self._descriptor).st_size == self.size
                and os.pread(self._descriptor, len(head), 0) == head
            ):
                return
            os.ftruncate(self._descriptor, 0)
            _reserve(self._descriptor, self.size)
        except OSError as error:
            write_failed(self.path, error)
        write_all(self._descriptor, head, 0, self.path)

    def write(self, name: str, first_byte: int, buffer: Buffer) -> None:
        """Write bytes of a tensor, `first_byte` counted from the tensor's start. All of them, or an error."""
        ref = self.places[name]
        count = memoryview(buffer).nbytes
        if first_byte < 0 or first_byte + count > ref.nbytes:
            raise ValueError(f"{name}: bytes {first_byte} to {first_byte + count} of {ref.nbytes}")
        write_all(self._descriptor, buffer, ref.start + first_byte, self.path)

    def close(self, sync: bool = True) -> None:
        """Close the file; with `sync`, after its bytes are on the disk. May be called twice."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        try:
            if sync:
                os.fsync(descriptor)
        except OSError as error:
            write_failed(self.path, error)
        finally:
            os.close(descriptor)

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(sync=kind is None)


def _open_or_replace(path: str) -> int:
    """A handle to write the file with. OSErrors pass through.

    A file of this user that cannot be opened is what a command left that was killed after it made the file
    read-only and before it moved it to its place: a new one takes its name.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(path, flags, 0o644)
    except PermissionError:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise
    os.unlink(path)
    return os.open(path, flags, 0o644)


def write_all(descriptor: int, buffer: Buffer, place: int, path: str) -> None:
    """Write a buffer at a place of an open file, however many calls that takes. Errors: PlaitError."""
    rest = memoryview(buffer).cast("B")
    try:
        while rest:
            done = os.pwrite(descriptor, rest, place)
            rest, place = rest[done:], place + done
    except OSError as error:
        write_failed(path, error)


def write_failed(path: str, error: OSError) -> NoReturn:
    """Restate a failed write as a PlaitError that says what to do."""
    raise PlaitError(
        f"{path}: cannot be written ({error.strerror}); nothing was published, free space or check the disk "
        "and its permissions, then run the command again"
    ) from error


def fsync_folder(path: str | os.PathLike[str]) -> None:
    """Make the names in a folder last through a power cut. Errors: PlaitError."""
    path = os.fspath(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        write_failed(path, error)


def _reserve(descriptor: int, size: int) -> None:
    """Give the file its size. Blocks are reserved where possible, so that a full disk shows now."""
    if size and hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
    os.ftruncate(descriptor, size)


def _fill(descriptor: int, view: memoryview, place: int, ref: TensorRef) -> None:
    try:
        while view:
            done = os.preadv(descriptor, [view], place)
            if done == 0:
                raise FormatError(f"{ref.file}: became shorter while {ref.name} was read; fetch it again")
            view, place = view[done:], place + done
    except OSError as error:
        raise PlaitError(
            f"{ref.file}: {ref.name} cannot be read ({error.strerror}); check the disk, then try again"
        ) from error
