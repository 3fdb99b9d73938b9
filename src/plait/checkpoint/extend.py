"""Putting a task's own tensors into a merged checkpoint, so that it loads with that task's head."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from plait.checkpoint.format import FileWriter, fsync_folder, write_failed
from plait.checkpoint.layout import Checkpoint, open_checkpoint
from plait.checkpoint.output import copy_bytes, write_index
from plait.types import TensorRef

Row = tuple[str, TensorRef]


def append_shard(
    folder: str | os.PathLike[str],
    extra: Mapping[str, TensorRef],
    names: Mapping[str, str] | None = None,
) -> None:
    """Add tensors to a checkpoint folder, in place of those of the same canonical name.

    extra: canonical name -> bytes. One weight file is written anew with them; a sharded checkpoint gets one more
    shard, and shards that held a replaced tensor are written anew.
    names: canonical name -> name to store it by, such as the one in the task's own checkpoint; others stay.
    The folder should be a copy that nobody reads yet: a crash in between leaves it unfinished.
    Errors: FormatError, PlaitError.
    """
    folder = os.fspath(folder)
    opened = open_checkpoint(folder)
    stored = {**{n: n for n in extra}, **opened.stored, **(names or {})}
    added = [(stored[n], ref) for n, ref in extra.items()]
    weights: dict[str, str] = {}
    total = 0
    for shard in opened.shards:
        rows = [(stored[n], opened.tensors[n]) for n in shard.names if n not in extra]
        if opened.index is None:
            rows += added
        if [name for name, _ in rows] != [opened.stored[n] for n in shard.names]:
            _rewrite(shard.file, rows, shard.metadata)
        weights |= {name: shard.name for name, _ in rows}
        total += sum(ref.nbytes for _, ref in rows)
    if opened.index is not None:
        shard_name = _free_name(folder, opened)
        _rewrite(os.path.join(folder, shard_name), added, opened.shards[0].metadata)
        weights |= {name: shard_name for name, _ in added}
        total += sum(ref.nbytes for _, ref in added)
        write_index(os.path.join(folder, opened.index), opened.index_metadata, weights, total)
    fsync_folder(folder)


def _free_name(folder: str, opened: Checkpoint) -> str:
    stem = (opened.index or "model").split(".")[0]
    names = [f"{stem}-private{number or ''}.safetensors" for number in range(len(opened.shards) + 2)]
    return next(name for name in names if not Path(folder, name).exists())


def _rewrite(file: str, rows: Sequence[Row], metadata: Mapping[str, str]) -> None:
    """Write a weight file anew, beside the old one, then take its place. Without rows, the file goes."""
    beside = os.path.join(os.path.dirname(file), f".{os.path.basename(file)}.new")
    try:
        if not rows:
            os.unlink(file)
            return
        with FileWriter(beside, [(n, r.dtype, r.shape) for n, r in rows], metadata) as writer:
            for name, ref in rows:
                copy_bytes(ref, writer.places[name])
        os.replace(beside, file)
    except OSError as error:
        write_failed(file, error)
