"""A merged checkpoint with the layout of its base: same shards, same names, same files beside the weights."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from plait.checkpoint.format import FileWriter, blocks, fsync_folder, write_all, write_failed
from plait.checkpoint.layout import Checkpoint
from plait.checkpoint.sidecars import copy_sidecar, write_file
from plait.checkpoint.ties import is_head
from plait.errors import UsageError
from plait.types import DTYPES, TensorRef


@dataclass(eq=False)
class Output:
    """Files of their final size, waiting for tensors. Write every place, then call `finish`."""

    path: str  # a folder, or the file itself where the base is a bare file
    base: Checkpoint
    places: dict[str, TensorRef]  # canonical names, aliases left out: they are copied by `finish`
    aliases: dict[str, TensorRef]  # tied names, without those that were untied
    dtype: str | None
    untied: bool = False  # is there an output layer that no longer follows its embedding?

    def finish(self, card: str = "") -> None:
        """Copy tied weights, write index, sidecars and README.md, and bring all to the disk.

        card: text of README.md; none is written if it is empty. A bare file has no index, no sidecars and no card.
        The caller then renames `path` to its final place. Errors: PlaitError, FormatError.
        """
        self._copy_aliases()
        if self.base.kind == "folder":
            self._write_index()
            for name in self.base.sidecars:
                target = os.path.join(self.path, name)
                _make_folder(os.path.dirname(target))
                untied = self.untied and name == "config.json"
                copy_sidecar(os.path.join(self.base.path, name), target, self.dtype, untied=untied)
            if card:
                write_file(os.path.join(self.path, "README.md"), card.encode())
        self._sync_shards()
        if self.base.kind == "folder":
            for folder, _, _ in os.walk(self.path):
                fsync_folder(folder)
        else:
            fsync_folder(os.path.dirname(os.path.abspath(self.path)))

    def _copy_aliases(self) -> None:
        for name, place in self.aliases.items():
            source = self.places[self.base.aliases[name]]
            copy_bytes(source, place)

    def _write_index(self) -> None:
        if self.base.index is None:
            return
        every = {**self.places, **self.aliases}
        stored = self.base.stored
        weights = {stored[n]: shard.name for shard in self.base.shards for n in shard.names}
        total = sum(ref.nbytes for ref in every.values())
        write_index(os.path.join(self.path, self.base.index), self.base.index_metadata, weights, total)

    def _sync_shards(self) -> None:
        for file in sorted({ref.file for ref in (*self.places.values(), *self.aliases.values())}):
            try:
                descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
            except OSError as error:
                write_failed(file, error)


def plan_output(
    base: Checkpoint,
    path: str | os.PathLike[str],
    dtype: str | None = None,
    untie: Collection[str] = frozenset(),
) -> Output:
    """Create the weight files of a merged checkpoint, of their final size, with headers and without tensors.

    path: a folder, which is made if it is not there; for a base that is a bare file, the file itself.
    dtype: a key of DTYPES for all tensors that can be merged; None keeps each tensor's dtype in the base.
    untie: aliases that do not follow the tensor they are tied to in the base: they are in `.places`, for the
    caller to write. With an untied output layer, config.json says `"tie_word_embeddings": false`, as a loader
    would throw the layer away otherwise. Names that are no aliases change nothing.
    Files of an interrupted run that have the same header and size are kept with what is in them.
    Errors: UsageError for a dtype that cannot be merged; PlaitError if the disk is full or fails.
    """
    if dtype is not None and (dtype not in DTYPES or not DTYPES[dtype].mergeable):
        known = ", ".join(name for name, entry in DTYPES.items() if entry.mergeable)
        raise UsageError(f"dtype {dtype} is not one that merged tensors can have; choose one of {known}")
    path = os.fspath(path)
    if base.kind == "folder":
        _make_folder(path)
    places: dict[str, TensorRef] = {}
    for shard in base.shards:
        file = os.path.join(path, shard.name) if base.kind == "folder" else path
        entries = []
        for name in shard.names:
            ref = base.tensors[name]
            kind = dtype if dtype is not None and ref.mergeable else ref.dtype
            entries.append((base.stored[name], kind, ref.shape))
        writer = FileWriter(file, entries, shard.metadata)
        writer.close(sync=False)
        for name in shard.names:
            ref = writer.places[base.stored[name]]
            places[name] = TensorRef(name, ref.dtype, ref.shape, ref.file, ref.start, ref.end)
    aliases = {name: places.pop(name) for name in base.aliases if name not in untie}
    untied = any(is_head(name) for name in base.aliases.keys() - aliases.keys())
    return Output(path, base, places, aliases, dtype, untied)


def write_index(path: str, metadata: Mapping[str, Any], weights: Mapping[str, str], total: int) -> None:
    """Write the index of a sharded checkpoint: metadata with a new total size in bytes, tensor -> shard."""
    table = {"metadata": {**metadata, "total_size": total}, "weight_map": dict(weights)}
    text = json.dumps(table, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    write_file(path, text.encode("utf-8", "backslashreplace"))


def copy_bytes(source: TensorRef, place: TensorRef) -> None:
    """Copy the bytes of one tensor to a place of the same dtype and shape. Errors: PlaitError."""
    if (source.dtype, source.shape) != (place.dtype, place.shape):
        raise ValueError(
            f"{place.name}: {place.dtype} {place.shape}, but {source.dtype} {source.shape} comes in"
        )
    descriptor = os.open(place.file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        start = place.start
        for part in blocks(source):
            write_all(descriptor, part, start, place.file)
            start += len(part)
    finally:
        os.close(descriptor)


def _make_folder(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        write_failed(path, error)
