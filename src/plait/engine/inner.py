"""The pass that finds inner products of task vectors, each with the same bits whichever others are found with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isfinite

from plait.engine.call import Merge
from plait.engine.desk import Desk
from plait.engine.plan import Job
from plait.engine.source import Incoming, Source
from plait.methods.base import Where
from plait.methods.coefficients import CoefficientMethod, overflow
from plait.tensors import BLOCK, Tensor, torch
from plait.tensors.inner import LEAF, block_products, expansion, leaf_products

ROOM = 1 << 21
"""Numbers that a thread holds of all members together, 16 MiB: more members get shorter runs."""

JOBS = 64
"""Jobs whose sums lie in memory at once."""

Blocks = dict[str, Tensor]
"""Group -> (fresh, members, blocks): sums over blocks."""

Vector = Callable[[int], Tensor]
"""The task vector of a member over a run, in fp64, by the member's number."""

Parts = dict[str, dict[tuple[int, int], list[float]]]
"""Group -> pair of members -> their inner product so far, as an expansion."""


def measure(
    merge: Merge, method: CoefficientMethod, members: Sequence[Incoming], fresh: Sequence[int]
) -> dict[str, dict[tuple[int, int], float]]:
    """Inner products of the `fresh` members with all: group -> (smaller, larger number) -> value, where not 0."""
    journal = merge.driver.journal
    if journal is not None and "inner" in journal.values:
        return {g: {(i, j): v for i, j, v in rows} for g, rows in journal.values["inner"].items()}
    task = InnerPass(method, merge.source, tuple(members), tuple(fresh), merge.compiled)
    names = {name for number in fresh for name, ref in members[number].refs.items() if ref.numel}
    plan = merge.plan(names)
    parts: Parts = {}
    for start in range(0, len(plan), JOBS):
        some = plan[start : start + JOBS]
        for sums in merge.driver.survey("inner products", some, task, task.total(some)):
            _add(parts, sums, members, fresh)
    found = {g: {pair: (row or [0.0])[0] for pair, row in rows.items()} for g, rows in parts.items()}
    if journal is not None:
        journal.value(
            "inner", {g: [[i, j, v] for (i, j), v in sorted(rows.items())] for g, rows in found.items()}
        )
    return found


def _add(parts: Parts, sums: Blocks, members: Sequence[Incoming], fresh: Sequence[int]) -> None:
    for group, blocks in sums.items():
        mine = parts.setdefault(group, {})
        for slot, number in enumerate(fresh):
            for other in range(blocks.shape[1]):
                if other in fresh and other < number:
                    continue  # found the other way round
                pair = (min(number, other), max(number, other))
                values: list[float] = blocks[slot, other].tolist()
                if not all(map(isfinite, values)):
                    raise overflow(*(members[number].task for number in pair))
                if any(values):
                    mine[pair] = expansion([*mine.get(pair, ()), *values])


@dataclass(frozen=True)
class InnerPass:
    """Products of the fresh members' task vectors with those of all, one read of every file."""

    method: CoefficientMethod
    source: Source
    members: tuple[Incoming, ...]
    fresh: tuple[int, ...]
    compiled: bool = False

    def __call__(self, job: Job, desk: Desk) -> Blocks:
        found: dict[str, list[Tensor]] = {}
        for piece in job.pieces:
            found.setdefault(self.method.group(piece.name), []).append(self._piece(piece, desk))
        return {group: torch.cat(blocks, dim=2) for group, blocks in found.items()}

    def total(self, plan: Iterable[Job]) -> int:
        """Bytes to be read, about."""
        count = 0
        for piece in (piece for job in plan for piece in job.pieces):
            refs = [m.refs[piece.name] for m in self.members if piece.name in m.refs]
            count += sum(
                piece.count * ref.nbytes // ref.numel for ref in (self.source.base[piece.name], *refs)
            )
        return count

    def _piece(self, piece: Where, desk: Desk) -> Tensor:
        """(fresh, members, blocks)."""
        run = BLOCK
        while run > LEAF and 2 * run * len(self.fresh) > ROOM:
            run //= 2
        leaves = []
        for first in range(0, piece.count, run):
            where = Where(
                piece.name, piece.shape, piece.dtype, piece.first + first, min(run, piece.count - first)
            )
            found = self._products(where, self._plain(where, desk))
            if not bool(torch.isfinite(found).all()):  # something is not finite: refuse it, or put it right
                found = self._products(where, self._checked(where, desk))
            leaves.append(found)
        return block_products(torch.cat(leaves, dim=2))

    def _plain(self, where: Where, desk: Desk) -> Vector:
        """Task vectors as they lie in the files, by the number of the member."""
        base = desk.read(self.source.base[where.name], where.first, where.count, "base").double()

        def vector(number: int) -> Tensor:
            ref = self.members[number].refs[where.name]
            return desk.read(ref, where.first, where.count, "expert").double() - base

        return vector

    def _checked(self, where: Where, desk: Desk) -> Vector:
        """The same with all elements finite; NonFinite where that is not allowed for."""
        base = self.source.load(desk, where)
        start = base.values.double()

        def vector(number: int) -> Tensor:
            return self.source.part(desk, base, self.members[number]).expert.double() - start

        return vector

    def _products(self, where: Where, vector: Vector) -> Tensor:
        """(fresh, members, leaves) of a run."""
        here = [slot for slot, number in enumerate(self.fresh) if where.name in self.members[number].refs]
        rows = torch.empty(len(here), where.count, dtype=torch.float64)
        for row, slot in enumerate(here):
            rows[row] = vector(self.fresh[slot])
        out = torch.zeros(len(self.fresh), len(self.members), -(-where.count // LEAF), dtype=torch.float64)
        row_of = {self.fresh[slot]: row for row, slot in enumerate(here)}
        for number, member in enumerate(self.members):
            if where.name not in member.refs:
                continue
            # Of two fresh ones the later multiplies the earlier: rows up to its own.
            upto = row_of.get(number, len(here) - 1) + 1
            other = rows[row_of[number]] if number in row_of else vector(number)
            out[here[:upto], number] = leaf_products(rows[:upto], other, self.compiled)
        return out
