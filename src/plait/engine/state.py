"""The state of a fold on disk: a folder with `dense.safetensors` and `sparse.safetensors`.

dense   `slot/bin/tensor`   one fp64 array for each dense bin of an exact slot, or `slot/value/tensor`, the
array of
                            a plain slot; flat, as long as the tensor or as the slot says, in the order of (tensor,
                            slot, bin)
sparse  `slot/bin/index/tensor` and `slot/bin/value/tensor`: what lies in the other bins of exact slots, and
the
                            signs of zero (bin `z`); int64 flat indices in rising order, fp64 values, never 0

The bytes are a function of the state's value. For an additive method a tensor is in the file if and only if
some array of it has a bit that is not zero, so adding a member and taking it out again gives the file of
never having added it. For other methods a tensor is in the file if and only if some member has changed it.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

from plait.checkpoint.format import FileWriter, fsync_folder, read_header
from plait.engine.desk import Desk, torch_dtype
from plait.engine.journal import Sums, Wrote
from plait.errors import VerificationError
from plait.methods.base import Method, Slot, State, TensorMethod, Where
from plait.tensors import Tensor, torch
from plait.tensors.exact import ExactSum, dense_bins
from plait.types import DTYPES, TensorRef

DENSE, SPARSE = "dense.safetensors", "sparse.safetensors"
_FORMAT = {"format": "plait state 1"}
_FRESH = f"{DENSE}.new"
_SPILL = "spill"

Record = list[Any]
"""What saving a piece tells: [some bit is not zero, [[slot, bin, place in the spill file, entries], ...]]."""


def blank(method: TensorMethod, where: Where) -> State:
    """The state of a piece before the first member: nothing but zeros."""
    state: State = {}
    for name, slot in method.layout(where.shape, where.dtype, where.name).items():
        count = _extent(slot, where).count
        if slot.kind in ("exact", "narrow"):
            state[name] = ExactSum(count, slot.digits or where.dtype, slot.kind == "narrow")
        else:
            state[name] = torch.zeros(count, dtype=torch_dtype(_plain_dtype(slot, where.dtype)))
    return state


def size_of(method: Method, tensors: Mapping[str, TensorRef]) -> int:
    """Bytes that the state of a line has once every one of these tensors is changed by some member; told from names,
    shapes and dtypes alone, before the first merge. Of the mergeable ones; numbers that lie outside the dense digits
    of an exact sum come on top, usually few."""
    merged = {name: ref for name, ref in tensors.items() if ref.mergeable and ref.numel}
    if not isinstance(method, TensorMethod):  # it keeps the merged model
        return sum(ref.numel * (8 if ref.dtype == "F64" else 4) for ref in merged.values())
    places = [Where(name, ref.shape, ref.dtype, 0, ref.numel) for name, ref in merged.items()]
    return sum(
        DTYPES[dtype].size * count for place in places for _, _, dtype, count in _arrays(method, place)
    )


def _extent(slot: Slot, where: Where) -> Where:
    """The place of a piece in an array of the state: the array is as long as the tensor, or has its own length."""
    if slot.length is None:
        return where
    if where.first or where.count != _count(where):
        raise ValueError(f"{where.name}: a slot with a length of its own needs grain matrix")
    return Where(where.name, (slot.length,), where.dtype, 0, slot.length)


def _plain_dtype(slot: Slot, base: str) -> str:
    if slot.kind == "base":
        return base
    for dtype in DTYPES.values():
        if slot.kind in (dtype.torch, dtype.name):
            return dtype.name
    raise ValueError(f"slot kind {slot.kind!r} is not exact, narrow, base or the name of a torch dtype")


def _arrays(method: TensorMethod, where: Where) -> list[tuple[str, str, str, int]]:
    """(slot, bin, dtype, length) of every dense array of a tensor."""
    arrays = []
    for name, slot in sorted(method.layout(where.shape, where.dtype, where.name).items()):
        count = _extent(slot, where).count
        if slot.kind in ("exact", "narrow"):
            bins = dense_bins(slot.digits or where.dtype, slot.kind == "narrow")
            arrays += [(name, str(b), "F64", count) for b in sorted(bins, reverse=True)]
        else:
            arrays.append((name, "value", _plain_dtype(slot, where.dtype), count))
    return arrays


class StateReader:
    """Reads pieces of a state. `names`: the tensors that have one."""

    def __init__(self, folder: Path, method: TensorMethod) -> None:
        self.folder, self._method = folder, method
        self._dense = read_header(folder / DENSE).tensors
        self._sparse: dict[tuple[str, str], list[tuple[str, TensorRef, TensorRef]]] = {}
        self.names: set[str] = {key.split("/", 2)[2] for key in self._dense}
        sparse = read_header(folder / SPARSE).tensors
        for key, ref in sparse.items():
            slot, bin_, part, name = key.split("/", 3)
            if part == "index":
                value = sparse[f"{slot}/{bin_}/value/{name}"]
                self._sparse.setdefault((name, slot), []).append((bin_, ref, value))

    @property
    def nbytes(self) -> int:
        return sum(ref.nbytes for ref in self._dense.values())

    def bytes_of(self, name: str) -> int:
        """Bytes of a tensor's dense arrays; 0 where it has no state."""
        return sum(r.nbytes for key, r in self._dense.items() if key.split("/", 2)[2] == name)

    def load(self, desk: Desk, where: Where) -> State:
        """The state of a piece of a tensor that has one. Holds until the desk loads the next one."""
        state: State = {}
        for name, slot in self._method.layout(where.shape, where.dtype, where.name).items():
            part = _extent(slot, where)
            if slot.kind not in ("exact", "narrow"):
                state[name] = self._read(desk, f"{name}/value", part)
                continue
            narrow, digits = slot.kind == "narrow", slot.digits or where.dtype
            dense = {b: self._read(desk, f"{name}/{b}", part) for b in dense_bins(digits, narrow)}
            sparse: dict[Any, tuple[Tensor, Tensor]] = {}
            for bin_, index, value in self._sparse.get((where.name, name), ()):
                entries = _cut(desk, index, value, part)
                if entries is not None:
                    sparse[bin_ if bin_ == "z" else int(bin_)] = entries
            state[name] = ExactSum.unpack(part.count, digits, dense, sparse, narrow)
        return state

    def _read(self, desk: Desk, key: str, where: Where) -> Tensor:
        ref = self._dense.get(f"{key}/{where.name}")
        if ref is None or ref.shape != (_count(where),):
            raise VerificationError(
                f"{self.folder / DENSE}: array {key} of tensor {where.name} is missing or of another length; "
                "the state belongs to another method or base, rebuild it from the members"
            )
        return desk.read(ref, where.first, where.count, f"state/{key}")


def _count(where: Where) -> int:
    count = 1
    for axis in where.shape:
        count *= axis
    return count


def _cut(desk: Desk, index: TensorRef, value: TensorRef, where: Where) -> tuple[Tensor, Tensor] | None:
    """The sparse entries that lie in a piece, indices counted from the piece's start; None without
    entries."""

    def at(place: int) -> int:
        return int(desk.read(index, place, 1, "probe")[0])

    places = range(index.numel)
    low = bisect_left(places, where.first, key=at)
    high = bisect_left(places, where.first + where.count, lo=low, key=at)
    if high == low:
        return None
    indices = desk.read(index, low, high - low, "probe") - where.first
    return indices, desk.read(value, low, high - low, "probe").clone()


class StateWriter:
    """Writes a state piece by piece, in any order and from several threads, into a folder that exists.

    tensors: every tensor that may have a state. What an earlier, interrupted writer of the same state left in
    the folder is kept. `finish` makes the canonical files, `settle` gives them their names.
    """

    def __init__(
        self, folder: Path, method: TensorMethod, tensors: Iterable[Where], spilled: int = 0
    ) -> None:
        self.folder, self._method = folder, method
        self._entries: dict[str, list[tuple[str, str, tuple[int]]]] = {}
        for tensor in sorted(tensors, key=lambda t: t.name):
            self._entries[tensor.name] = [
                (f"{slot}/{bin_}/{tensor.name}", dtype, (count,))
                for slot, bin_, dtype, count in _arrays(method, tensor)
            ]
        everything = [entry for group in self._entries.values() for entry in group]
        writer = FileWriter(folder / DENSE, everything, _FORMAT)
        writer.close(sync=False)
        self._places = writer.places
        self._lock = threading.Lock()
        self._spill = str(folder / _SPILL)
        self._end = spilled
        open(self._spill, "ab").close()

    @property
    def nbytes(self) -> int:
        return sum(ref.nbytes for ref in self._places.values())

    def save(self, desk: Desk, where: Where, state: State) -> Record:
        """Write the state of a piece."""
        alive = False
        notes: list[list[Any]] = []
        for name, slot in self._method.layout(where.shape, where.dtype, where.name).items():
            if slot.kind not in ("exact", "narrow"):
                alive |= self._dense(desk, f"{name}/value/{where.name}", where, state[name])
                continue
            total: ExactSum = state[name]
            dense, sparse = total.pack()
            for bin_, values in dense.items():
                alive |= self._dense(desk, f"{name}/{bin_}/{where.name}", where, values)
            for key, (index, values) in sparse.items():
                if index.numel():
                    alive = True
                    notes.append([name, str(key), *self._append(desk, index + where.first, values)])
        return [alive, notes]

    def _dense(self, desk: Desk, key: str, where: Where, values: Tensor) -> bool:
        desk.write(self._places[key], where.first, values)
        return bool(values.contiguous().view(torch.uint8).numpy().any())

    def _append(self, desk: Desk, index: Tensor, values: Tensor) -> tuple[int, int]:
        data = index.contiguous().numpy().tobytes() + values.contiguous().numpy().tobytes()
        with self._lock:
            place = self._end
            self._end += len(data)
        desk.write_at(self._spill, place, memoryview(data))
        return place, index.numel()

    def finish(
        self, records: Iterable[tuple[Where, Record]], wrote: Wrote, *, sync: bool
    ) -> tuple[set[str], Sums]:
        """Write the sparse file and, where the method is additive and some state is zero, a dense file without
        these tensors. Returns the names that remain, and the sums of both files.

        records: what `save` returned for every piece of every tensor. wrote: the ranges that it wrote, as desks
        traced them; without them the sums are not complete. Nothing that `save` wrote is gone before `settle`.
        """
        alive: set[str] = set()
        entries: dict[str, list[tuple[int, int, int]]] = {}
        for where, (some, notes) in records:
            if some or self._method.facts.family != "additive":
                alive.add(where.name)
            for slot, bin_, place, count in notes:
                entries.setdefault(f"{slot}/{bin_}/*/{where.name}", []).append((where.first, place, count))
        dense = self.folder / DENSE
        if set(self._entries) - alive:
            dense = self.folder / _FRESH
            wrote = self._shrink(alive, dense, sync)
        elif sync:
            _sync(dense)
        sparse = self.folder / SPARSE
        return alive, {
            DENSE: _sums(dense, wrote),
            SPARSE: _sums(sparse, self._write_sparse(entries, sparse, sync)),
        }

    def _shrink(self, alive: set[str], target: Path, sync: bool) -> Wrote:
        kept = [entry for name, group in self._entries.items() if name in alive for entry in group]
        desk = Desk()
        wrote: Wrote = []
        desk.trace = wrote
        with FileWriter(target, kept, _FORMAT) as writer:
            for key, _, _ in kept:
                ref = self._places[key]
                for first in range(0, ref.nbytes, 1 << 20):
                    count = min(1 << 20, ref.nbytes - first)
                    data = desk.read_bytes_of(ref, first, count, "move")
                    desk.write_bytes(writer.places[key], first, data)
            writer.close(sync)
        desk.close()
        return wrote

    def _write_sparse(
        self, entries: Mapping[str, list[tuple[int, int, int]]], target: Path, sync: bool
    ) -> Wrote:
        table: list[tuple[str, str, tuple[int]]] = []
        for key, runs in sorted(entries.items()):
            count = sum(n for _, _, n in runs)
            table.append((key.replace("/*/", "/index/", 1), "I64", (count,)))
            table.append((key.replace("/*/", "/value/", 1), "F64", (count,)))
        desk = Desk()
        wrote: Wrote = []
        desk.trace = wrote
        with FileWriter(target, table, _FORMAT) as writer, open(self._spill, "rb") as spill:
            for key, runs in sorted(entries.items()):
                done = 0
                for _, place, count in sorted(runs):
                    spill.seek(place)
                    for part in ("/index/", "/value/"):
                        ref = writer.places[key.replace("/*/", part, 1)]
                        desk.write_bytes(ref, done, memoryview(spill.read(8 * count)))
                    done += 8 * count
            writer.close(sync)
        desk.close()
        return wrote


def settle(folder: Path, *, sync: bool) -> None:
    """Give the files of a state that `StateWriter.finish` made their names, and remove what they were made from.
    Does the rest where an earlier call was interrupted."""
    fresh = folder / _FRESH
    if fresh.exists():
        os.replace(fresh, folder / DENSE)
    (folder / _SPILL).unlink(missing_ok=True)
    if sync:
        fsync_folder(folder)


def _sums(file: Path, wrote: Wrote) -> list[list[int]]:
    """The header of a file, and what was written of the file after it."""
    with file.open("rb") as handle:
        head = handle.read(8)
        head += handle.read(int.from_bytes(head, "little"))
    return [[0, len(head), crc32(head)], *(list(entry[1:]) for entry in wrote if entry[0] == str(file))]


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
