"""The working place of one thread: open files, and buffers that are used again for every piece.

Reads and writes are positional (`preadv`, `pwrite`); nothing is mapped, so resident memory does not grow with
the files. At most `OPEN` files are open for a thread, however many members a merge has.
"""

from __future__ import annotations

import os
import zlib
from collections import OrderedDict
from typing import Any, NoReturn

from plait.checkpoint.format import write_all
from plait.engine.journal import Wrote
from plait.errors import FormatError, NonFinite, PlaitError
from plait.tensors import Tensor, torch
from plait.types import DTYPES, TensorRef

OPEN = 64
"""Files that one thread holds open: few enough for eight threads under the usual limit of 1024."""


class Desk:
    """Reads pieces of tensors into buffers and writes pieces in place. One thread only."""

    def __init__(self) -> None:
        self._files: OrderedDict[tuple[str, bool], int] = OrderedDict()
        self._buffers: dict[str, _Buffer] = {}
        self.luck = Luck()
        self.read_bytes = 0
        self.written_bytes = 0
        self.trace: Wrote | None = None  # where a list is put here, every range written is noted in it

    def close(self) -> None:
        """Close every file. The desk can be used again."""
        for handle in self._files.values():
            os.close(handle)
        self._files.clear()

    def read(self, ref: TensorRef, first: int, count: int, into: str) -> Tensor:
        """Elements [first, first + count) of a tensor, flat, in its own dtype.

        The result lies in the buffer named `into` and holds until the next read into the same buffer.
        FormatError where the file ends too early, PlaitError where it cannot be read.
        """
        size = DTYPES[ref.dtype].size
        buffer = self._buffer(into, count * size)
        self._fill(ref, first * size, buffer.memory(count * size))
        return buffer.tensor(count, ref.dtype)

    def read_bytes_of(self, ref: TensorRef, first: int, count: int, into: str) -> memoryview:
        """`count` bytes of a tensor from byte `first`, in the buffer named `into`."""
        buffer = self._buffer(into, count)
        memory = buffer.memory(count)
        self._fill(ref, first, memory)
        return memory

    def write(self, ref: TensorRef, first: int, values: Tensor) -> None:
        """Write flat `values` over the elements of a tensor from `first` on. The dtype must be the tensor's
        own."""
        if values.dtype != torch_dtype(ref.dtype):
            raise TypeError(f"{ref.name}: values are {values.dtype}, the place is {ref.dtype}")
        self.write_bytes(ref, first * DTYPES[ref.dtype].size, _bytes_of(values))

    def write_bytes(self, ref: TensorRef, first: int, data: memoryview) -> None:
        """Write bytes over those of a tensor, from its byte `first` on, all of them or an error."""
        if first < 0 or first + len(data) > ref.nbytes:
            raise ValueError(f"{ref.name}: bytes {first}..{first + len(data)} of {ref.nbytes}")
        self.write_at(ref.file, ref.start + first, data)

    def write_at(self, file: str, place: int, data: memoryview) -> None:
        """Write bytes at a place of a file that exists, all of them or PlaitError."""
        write_all(self._open(file, write=True), data, place, file)
        self.written_bytes += len(data)
        if self.trace is not None:
            self._note(self.trace, file, place, data)

    def checksum(self, file: str, first: int, count: int) -> int:
        """crc32 of a byte range of a file; -1 where the file does not hold it."""
        size = min(count, 1 << 20)
        memory = self._buffer("checksum", size).memory(size)
        crc = 0
        try:
            handle = self._open(file, write=False)
            while count > 0:
                got = os.preadv(handle, [memory[: min(size, count)]], first)
                if got == 0:
                    return -1
                crc, first, count = zlib.crc32(memory[:got], crc), first + got, count - got
        except (OSError, PlaitError):
            return -1
        return crc

    @staticmethod
    def _note(trace: Wrote, file: str, first: int, data: memoryview) -> None:
        last = next((entry for entry in trace if entry[0] == file and entry[1] + entry[2] == first), None)
        if last is not None:
            last[2] += len(data)
            last[3] = zlib.crc32(data, last[3])
        else:
            trace.append([file, first, len(data), zlib.crc32(data)])

    def owns(self, values: Tensor, but: str = "") -> bool:
        """Whether a tensor shares memory with one of the desk's buffers, other than the one named `but`."""
        start = values.untyped_storage().data_ptr()
        return any(buffer.address == start for name, buffer in self._buffers.items() if name != but)

    def _buffer(self, name: str, size: int) -> _Buffer:
        buffer = self._buffers.get(name)
        if buffer is None or buffer.size < size:
            buffer = self._buffers[name] = _Buffer(size)
        return buffer

    def _fill(self, ref: TensorRef, first: int, memory: memoryview) -> None:
        handle = self._open(ref.file, write=False)
        done, wanted = 0, len(memory)
        if first < 0 or first + wanted > ref.nbytes:
            raise ValueError(f"{ref.name}: bytes {first}..{first + wanted} of {ref.nbytes}")
        while done < wanted:
            try:
                got = os.preadv(handle, [memory[done:] if done else memory], ref.start + first + done)
            except OSError as problem:
                raise PlaitError(
                    f"{ref.file}: cannot read {ref.name} ({problem.strerror}); check the disk, then try again"
                ) from problem
            if got == 0:
                raise FormatError(
                    f"{ref.file}: ends inside {ref.name}, expected {ref.end} bytes; fetch it again"
                )
            done += got
        self.read_bytes += wanted

    def _open(self, file: str, *, write: bool) -> int:
        key = (file, write)
        handle = self._files.get(key)
        if handle is not None:
            self._files.move_to_end(key)
            return handle
        if len(self._files) >= OPEN:
            os.close(self._files.popitem(last=False)[1])
        try:
            handle = os.open(file, (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC)
        except OSError as problem:
            verb = "write" if write else "read"
            raise PlaitError(
                f"{file}: cannot be opened to {verb} ({problem.strerror}); check path and permissions"
            ) from problem
        self._files[key] = handle
        return handle


class Luck:
    """Whether the shorter way of a method is worth trying, as the pieces so far tell: a piece that gives up
    costs half as much again."""

    def __init__(self) -> None:
        self._tries = self._losses = 0

    def worth_trying(self) -> bool:
        """Whether it mostly held; now and then it is tried all the same, since tensors differ."""
        self._tries += 1
        return self._losses < 8 or 2 * self._losses < self._tries or self._tries % 32 == 0

    def note(self, held: bool) -> None:
        """How the last try ended."""
        self._losses += not held


class _Buffer:
    """Memory that is read into again and again; its last view is kept, because most pieces have one size."""

    def __init__(self, size: int) -> None:
        self.size = max(size, 1)
        self.raw = torch.empty(self.size, dtype=torch.uint8)
        self.address = self.raw.untyped_storage().data_ptr()
        self._bytes = _bytes_of(self.raw)
        self._views: dict[tuple[int, str], Tensor] = {}

    def memory(self, size: int) -> memoryview:
        return self._bytes[:size]

    def tensor(self, count: int, dtype: str) -> Tensor:
        view = self._views.get((count, dtype))
        if view is None:
            if len(self._views) > 8:
                self._views.clear()
            view = self.raw[: count * DTYPES[dtype].size].view(torch_dtype(dtype))
            self._views[count, dtype] = view
        return view


def _bytes_of(values: Tensor) -> memoryview:
    values = values.contiguous()
    if values.dim() and values.stride(-1) != 1:  # one element cut out of a table
        values = values.clone(memory_format=torch.contiguous_format)
    raw: Any = values.view(torch.uint8).numpy()
    return memoryview(raw)


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a safetensors dtype name."""
    found: torch.dtype = getattr(torch, DTYPES[name].torch)
    return found


_EXPONENT = {
    "BF16": ("int16", 0x7F80),
    "F16": ("int16", 0x7C00),
    "F32": ("int32", 0x7F80 << 16),
    "F64": ("int64", 0x7FF0 << 48),
}


def is_finite(values: Tensor, dtype: str) -> bool:
    """True where a flat tensor holds neither NaN nor infinity, told from the bits in two passes of integer
    maxima.

    Read as signed integers, NaN and infinity of positive sign are the largest; read as unsigned, those of
    negative sign are.
    """
    kind, limit = _EXPONENT[dtype]
    signed: Any = values.view(getattr(torch, kind)).numpy()
    if signed.max(initial=0) >= limit:
        return False
    unsigned: Any = signed.view(f"u{kind}")
    sign = 1 << (8 * DTYPES[dtype].size - 1)
    return int(unsigned.max(initial=0)) < sign + limit


def first_nonfinite(values: Tensor) -> int:
    """Index of the first NaN or infinity in a flat tensor that holds one."""
    return int(torch.isfinite(values).logical_not().nonzero()[0, 0])


def count_nonfinite(values: Tensor) -> int:
    """How many elements are NaN or infinite."""
    return int(torch.isfinite(values).logical_not_().sum())


def overflowed(values: Tensor, dtype: str, hole: Tensor | None = None) -> int:
    """How many elements of an output piece are NaN or infinite; those in `hole`, where the input was, do not
    count. Cheap where there are none."""
    if is_finite(values, dtype):
        return 0
    bad = torch.isfinite(values).logical_not_()
    return int((bad if hole is None else bad & hole.logical_not()).sum())


def place_of(shape: tuple[int, ...], flat: int) -> tuple[int, ...]:
    """The index, one number for each axis, of an element of a row-major tensor."""
    place = []
    for axis in reversed(shape):
        flat, at = divmod(flat, axis)
        place.append(at)
    return tuple(reversed(place))


def refuse_nonfinite(values: Tensor, ref: TensorRef, first: int, owner: str) -> NoReturn:
    """Raise NonFinite that names the tensor and the index of the first NaN or infinity. `first`: flat index
    of the first element of `values`; `owner`: whose tensor it is."""
    at = first_nonfinite(values)
    place = ", ".join(map(str, place_of(ref.shape, first + at)))
    raise NonFinite(
        f"{owner}: {ref.name}[{place}] is {float(values[at])}, finite numbers are needed ({ref.file}); "
        "repair the checkpoint, or use --allow-nonfinite to take the base's value there"
    )
