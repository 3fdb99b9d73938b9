"""A merge as data: tensors are cut into pieces, pieces are gathered into jobs. Pure, no files and no threads.

A piece is what a method sees in one call. A job is a run of pieces that one thread works through; every job
reads and writes its own byte ranges, so jobs may run in any order, side by side, and more than once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from plait.errors import UsageError
from plait.methods.base import Grain, Where
from plait.tensors import BLOCK
from plait.types import TensorRef

R = TypeVar("R")

CHUNK = 2 * BLOCK
"""Elements of a piece by default: the intermediates of one piece stay near the core."""

BATCH = 1 << 20
"""Elements of a job, about: large enough that handing it out costs nothing, small enough to stop soon."""


def _cores() -> int:
    """Cores that this process may use, at most 8; where the system does not tell, those of the machine."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(8, allowed)


@dataclass(frozen=True)
class Settings:
    """How to run a plan. Nothing here changes a byte of the result.

    workers: threads; one job runs on one of them. chunk: elements of a piece, a multiple of BLOCK. compiled:
    whether loops compiled by numba are used where a method has them; None: if there is much to do.
    allow_nonfinite: NaN and infinity in an input are not refused; where an expert holds one it takes the
    base's value, where the base holds one the output is the base's.
    """

    workers: int = field(default_factory=_cores)
    chunk: int = CHUNK
    allow_nonfinite: bool = False
    compiled: bool | None = None

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise UsageError(f"workers is {self.workers}, at least 1 is needed")
        if self.chunk < BLOCK or self.chunk % BLOCK:
            raise UsageError(f"chunk is {self.chunk}, expected a multiple of {BLOCK} elements")


@dataclass(frozen=True)
class Job:
    """Pieces that one thread works through, in this order. `index` is the job's place in its plan."""

    index: int
    pieces: tuple[Where, ...]

    @property
    def count(self) -> int:
        return sum(piece.count for piece in self.pieces)


def whole(ref: TensorRef, name: str | None = None) -> Where:
    """The tensor as one piece."""
    return Where(name or ref.name, ref.shape, ref.dtype, 0, ref.numel)


def pieces(tensor: Where, grain: Grain, chunk: int) -> Iterator[Where]:
    """Cut a tensor: at multiples of `chunk` ("element"), between rows ("row"), or not at all ("matrix").

    A row that is longer than `chunk` stays whole. A tensor without elements has no pieces.
    """
    if grain == "element":
        size = chunk
    elif grain == "row":
        row = tensor.shape[-1] if tensor.shape else 1
        size = max(row, chunk // row * row) if row else 1
    else:
        size = tensor.count
    for first in range(0, tensor.count, max(size, 1)):
        count = min(size, tensor.count - first)
        yield Where(tensor.name, tensor.shape, tensor.dtype, first, count)


def jobs(
    tensors: Sequence[Where],
    grain: Callable[[tuple[int, ...], str], Grain],
    chunk: int,
    batch: int = BATCH,
) -> list[Job]:
    """Jobs over `tensors`, in the order given; whole matrices come first, the largest before the others,
    because the last job to end decides when the plan ends."""
    runs: list[tuple[Where, ...]] = []
    matrices: list[tuple[Where, ...]] = []
    run: list[Where] = []
    size = 0
    for tensor in tensors:
        kind = grain(tensor.shape, tensor.name)
        for piece in pieces(tensor, kind, chunk):
            if kind == "matrix":
                matrices.append((piece,))
                continue
            run.append(piece)
            size += piece.count
            if size >= batch:
                runs.append(tuple(run))
                run, size = [], 0
    if run:
        runs.append(tuple(run))
    matrices.sort(key=lambda m: -m[0].count)
    return [Job(index, group) for index, group in enumerate([*matrices, *runs])]


def by_piece(plan: Sequence[Job], found: Sequence[Sequence[R]]) -> Iterator[tuple[Where, R]]:
    """Each piece of a plan with what the pass found for it."""
    for job, of_pieces in zip(plan, found, strict=True):
        yield from zip(job.pieces, of_pieces, strict=True)


def in_file_order(refs: Mapping[str, TensorRef], names: Sequence[str] | set[str]) -> list[str]:
    """Names in the order in which their bytes lie on the disk, so that jobs read forward."""
    return sorted(names, key=lambda n: (refs[n].file, refs[n].start, n))
