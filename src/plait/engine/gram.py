"""Inner products of task vectors, without the result of any merge: how members lie to each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plait.engine.desk import Desk
from plait.engine.drive import Driver
from plait.engine.plan import Job, Settings, in_file_order, jobs, whole
from plait.engine.progress import Gauge
from plait.engine.source import Incoming
from plait.methods.base import Grain, Where
from plait.tensors import Tensor, torch
from plait.types import TensorRef

ROOM = 1 << 21
"""Numbers that a thread holds of all members together, 16 MiB: more members get shorter pieces."""

LEAST, MOST = 1 << 12, 1 << 17
"""Elements of a piece."""


@dataclass(frozen=True)
class Gram:
    """inner: (members, members) fp64, the inner products of whole task vectors, symmetric.
    norms: tensor -> for every member the square of the norm of its task vector there, 0 where it left the tensor
    alone. base: tensor -> the square of the norm of the base there."""

    inner: Tensor
    norms: dict[str, list[float]]
    base: dict[str, float]


@dataclass(frozen=True)
class Sums:
    """What one job finds: inner products over its pieces, and by tensor the squares of base and members."""

    inner: Tensor
    base: dict[str, float]
    norms: dict[str, Tensor]


@dataclass(frozen=True)
class GramPass:
    base: Mapping[str, TensorRef]
    members: Sequence[Incoming]

    def __call__(self, job: Job, desk: Desk) -> Sums:
        count = len(self.members)
        sums = Sums(torch.zeros(count, count, dtype=torch.float64), {}, {})
        for piece in job.pieces:
            self._piece(piece, desk, sums)
        return sums

    def _piece(self, piece: Where, desk: Desk, sums: Sums) -> None:
        name = piece.name
        start = desk.read(self.base[name], piece.first, piece.count, "base").double()
        here = [number for number, member in enumerate(self.members) if name in member.refs]
        vectors = torch.empty(len(here), piece.count, dtype=torch.float64)
        for row, number in enumerate(here):
            ref = self.members[number].refs[name]
            torch.sub(desk.read(ref, piece.first, piece.count, "expert").double(), start, out=vectors[row])
        vectors, start = _finite(vectors), _finite(start)
        products, index = vectors @ vectors.T, torch.tensor(here, dtype=torch.int64)
        sums.inner[index[:, None], index] += products
        sums.base[name] = sums.base.get(name, 0.0) + float(torch.dot(start, start))
        norms = sums.norms.setdefault(name, torch.zeros(len(self.members), dtype=torch.float64))
        norms[index] += products.diagonal()


def gram(
    base: Mapping[str, TensorRef],
    members: Sequence[Incoming],
    settings: Settings,
    progress: Gauge | None = None,
) -> Gram:
    """Inner products of the task vectors (expert minus base) of all pairs of members, and norms by tensor.

    base: the mergeable tensors. members: the tensors in which each differs from the base; weights do not count.
    Computed in fp64 in one read of every file; elements that are NaN or infinite in base or expert count as
    unchanged. The numbers do not depend on threads; their last bits depend on the processor. Memory: threads ×
    `ROOM` numbers, and the squares by tensor and member.
    """
    driver = Driver(settings, progress)
    count = len(members)
    chunk = min(MOST, max(LEAST, ROOM // max(count, 1)))
    names = [name for name in in_file_order(base, set(base)) if base[name].numel]
    plan = jobs([whole(base[name], name) for name in names], _element, chunk)
    total = sum(base[name].nbytes for name in names) + sum(r.nbytes for m in members for r in m.refs.values())
    found = driver.survey("compare members", plan, GramPass(base, members), total)
    inner = torch.zeros(count, count, dtype=torch.float64)
    norms = {name: torch.zeros(count, dtype=torch.float64) for name in names}
    squares = dict.fromkeys(names, 0.0)
    for sums in found:  # in the order of the plan, so that threads do not show
        inner += sums.inner
        for name, square in sums.base.items():
            squares[name] += square
            norms[name] += sums.norms[name]
    return Gram((inner + inner.T) / 2, {name: row.tolist() for name, row in norms.items()}, squares)


def _finite(values: Tensor) -> Tensor:
    """The values with 0 in the place of NaN and infinity."""
    return torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)


def _element(shape: tuple[int, ...], name: str) -> Grain:
    return "element"
