"""The two plans without a method: copying tensors, and looking at an expert before it is taken in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum, sqrt

from plait.engine.desk import (
    Desk,
    count_nonfinite,
    first_nonfinite,
    is_finite,
    overflowed,
    place_of,
    torch_dtype,
)
from plait.engine.drive import Driver
from plait.engine.plan import Job, Settings, in_file_order, jobs, whole
from plait.engine.progress import Gauge
from plait.errors import PlaitError
from plait.methods.base import Grain, Where
from plait.tensors import BLOCK, Tensor, torch
from plait.tensors.norms import block_sums
from plait.types import DTYPES, TensorRef

PIECE = 8 * BLOCK
"""Elements of a piece when tensors are copied or compared."""


def _element(shape: tuple[int, ...], name: str) -> Grain:
    return "element"


@dataclass(frozen=True)
class CopyPass:
    """Copies pairs of tensors. A piece is named by the number of its pair, since two pairs may share a
    name. A job returns for each piece the number of elements that became infinite in another dtype."""

    pairs: tuple[tuple[TensorRef, TensorRef], ...]

    def plan(self) -> list[Job]:
        for source, target in self.pairs:
            if source.shape != target.shape:
                raise ValueError(f"{source.name}: {source.shape} cannot be copied to {target.shape}")
            if source.dtype != target.dtype and not (source.mergeable and target.mergeable):
                raise PlaitError(
                    f"tensor {source.name} is {source.dtype} and cannot be written as {target.dtype}; "
                    "only F64, F32, F16 and BF16 are converted, keep the dtype of this tensor"
                )
        order = sorted(range(len(self.pairs)), key=lambda n: (self.pairs[n][0].file, self.pairs[n][0].start))
        return jobs([whole(self.pairs[n][0], str(n)) for n in order], _element, PIECE)

    @property
    def total(self) -> int:
        return sum(source.nbytes + target.nbytes for source, target in self.pairs)

    def __call__(self, job: Job, desk: Desk) -> list[int]:
        return [self._piece(piece, desk) for piece in job.pieces]

    def _piece(self, piece: Where, desk: Desk) -> int:
        source, target = self.pairs[int(piece.name)]
        if source.dtype == target.dtype:
            size = DTYPES[source.dtype].size
            data = desk.read_bytes_of(source, piece.first * size, piece.count * size, "copy")
            desk.write_bytes(target, piece.first * size, data)
            return 0
        from plait.tensors.exact import round_once

        values = desk.read(source, piece.first, piece.count, "copy")
        rounded = round_once(values.double(), torch_dtype(target.dtype))
        desk.write(target, piece.first, rounded)
        lost = overflowed(rounded, target.dtype)
        return lost and lost - count_nonfinite(values)


def copy(
    pairs: Sequence[tuple[TensorRef, TensorRef]], settings: Settings, progress: Gauge | None = None
) -> int:
    """Copy each first tensor over the place of the second, byte for byte; a float tensor whose place has
    another float dtype is rounded once. Returns the number of bytes written."""
    driver = Driver(settings, progress)
    task = CopyPass(tuple(pairs))
    driver.write("copy", task.plan(), task, task.total)
    return driver.traffic.written


@dataclass(frozen=True)
class Intake:
    """What one look at an expert tells.

    changed: tensors whose value differs from the base's somewhere (the sign of zero counts).
    nonfinite: (tensor, index) of the first NaN or infinity of each of the expert's tensors that has one, the
    index with one number for each axis. base_nonfinite: the same of the base, in the tensors compared.
    elements_nonfinite: how many elements of the expert are NaN or infinite.
    distance: Euclidean norm of expert - base; norm: that of the base. Over the mergeable tensors with two or
    more axes (biases and scales are alike in unrelated models), in fp64 over fixed blocks; blocks with NaN or
    infinity are left out.
    """

    changed: set[str]
    nonfinite: list[tuple[str, tuple[int, ...]]]
    distance: float
    norm: float
    elements_nonfinite: int = 0
    base_nonfinite: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)


@dataclass(frozen=True)
class Look:
    """One piece. bad, base_bad: flat index in the tensor of the first NaN or infinity of expert and base;
    count: how many the expert has. delta, norm: sums of squares of blocks of expert - base, and of the
    base."""

    differs: bool
    bad: int | None = None
    count: int = 0
    base_bad: int | None = None
    delta: Sequence[float] = ()
    norm: Sequence[float] = ()


@dataclass(frozen=True)
class IntakePass:
    base: Mapping[str, TensorRef]
    expert: Mapping[str, TensorRef]

    def __call__(self, job: Job, desk: Desk) -> list[Look]:
        return [self._look(piece, desk) for piece in job.pieces]

    def _look(self, piece: Where, desk: Desk) -> Look:
        base, expert = self.base[piece.name], self.expert[piece.name]
        one = desk.read(base, piece.first, piece.count, "base")
        other = desk.read(expert, piece.first, piece.count, "expert")
        if not (base.mergeable and expert.mergeable):
            return Look(base.dtype != expert.dtype or not _same_bytes(one, other))
        bad, count, base_bad = None, 0, None
        if not is_finite(other, expert.dtype):
            bad, count = piece.first + first_nonfinite(other), count_nonfinite(other)
        wide_base = one.double()
        norm = _squares(wide_base)
        # The square of NaN or infinity spoils the sum of its block: only then is the base looked at again.
        if len(norm) < -(-piece.count // BLOCK) and not is_finite(one, base.dtype):
            base_bad = piece.first + first_nonfinite(one)
        if base.dtype == expert.dtype and _same_bytes(one, other):
            return Look(False, bad, count, base_bad, (), norm)
        wide = other.double()
        differs = base.dtype == expert.dtype or not torch.equal(
            wide.view(torch.int64), wide_base.view(torch.int64)
        )
        return Look(differs, bad, count, base_bad, _squares(wide - wide_base), norm)


def _same_bytes(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def _squares(values: Tensor) -> list[float]:
    """Sums of squares over blocks of BLOCK elements; blocks without a finite sum are left out."""
    return [s for s in block_sums(values * values) if s - s == 0.0]


def intake(
    base: Mapping[str, TensorRef],
    expert: Mapping[str, TensorRef],
    settings: Settings,
    progress: Gauge | None = None,
) -> Intake:
    """Compare an expert with its base in one pass over both.

    expert: tensors by the base's names, of the base's shapes; float ones may have another float dtype.
    """
    for name, ref in expert.items():
        if ref.shape != base[name].shape:
            raise ValueError(f"{name}: expert has {ref.shape}, base has {base[name].shape}")
    driver = Driver(settings, progress)
    names = in_file_order(base, set(expert))
    plan = jobs([whole(base[name], name) for name in names], _element, PIECE)
    total = sum(base[name].nbytes + expert[name].nbytes for name in expert)
    looks = driver.survey("look", plan, IntakePass(base, expert), total)
    changed: set[str] = set()
    bad: dict[str, int] = {}
    base_bad: dict[str, int] = {}
    distance: list[float] = []
    norm: list[float] = []
    count = 0
    for job, found in zip(plan, looks, strict=True):
        for piece, look in zip(job.pieces, found, strict=True):
            if look.differs:
                changed.add(piece.name)
            for firsts, at in ((bad, look.bad), (base_bad, look.base_bad)):
                if at is not None:
                    firsts.setdefault(piece.name, at)
            count += look.count
            if len(piece.shape) > 1:
                distance += look.delta
                norm += look.norm
    places, base_places = (
        [(name, place_of(base[name].shape, at)) for name, at in sorted(firsts.items())]
        for firsts in (bad, base_bad)
    )
    return Intake(changed, places, sqrt(fsum(distance)), sqrt(fsum(norm)), count, base_places)
