"""Slerp: the point between two experts on the arc that joins them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import acos, fsum, sin, sqrt
from typing import ClassVar

from plait.methods.base import Facts, Grain, MemberFacts, Outlook, Part, Slot, State, TensorMethod, Where
from plait.methods.ranges import share, truth
from plait.tensors import BLOCK, Tensor, torch
from plait.tensors.norms import squares_and_product

STRAIGHT = 0.9995
"""Experts whose cosine is larger than that, in size, are joined by a straight line, as mergekit does."""

FLAT = 1e-8
"""Task vectors are where the sine of their angle is below that."""

NOTHING = 1e-8
"""A tensor with a norm up to that has no direction, and lies at right angles to any other."""


@dataclass(frozen=True)
class Slerp(TensorMethod):
    """sin((1 - t) a) / sin(a) * one + sin(t a) / sin(a) * other for two experts, with a the angle between them,
    tensor by tensor (Shoemake 1985, "Animating rotation with quaternion curves"; mergekit's `slerp`). Where they are
    nearly parallel or opposed: (1 - t) * one + t * other.

    t: 0 gives the member that came first, 1 the other, both bit for bit.
    updates: true does the same with the task vectors and adds the result to the base (mergekit's `nuslerp` with a
        base). They are joined by a straight line only where they are parallel.

    Without `updates` the base counts for nothing; the weights of members never do. One member comes back bit for bit;
    three have no arc, and are refused. Sums are made in one fixed order, so the bytes do not depend on the processor.
    """

    t: float = 0.5
    updates: bool = False

    most_members: ClassVar[int] = 2
    facts: ClassVar[Facts] = Facts(
        summary="a point on the arc between two experts",
        family="rebuild",
        removal="recompute",
        data="none",
        order=True,
        memory="none, both members' copies of a tensor at work",
        cost="1 pass over both members",
        paper="Shoemake 1985",
    )

    def check(self) -> None:
        share("t", self.t)
        truth("updates", self.updates)

    def grain(self, shape: tuple[int, ...], name: str = "") -> Grain:
        return "matrix"

    def slots(self, shape: tuple[int, ...], dtype: str) -> dict[str, Slot]:
        return {}

    def step(self, state: State, part: Part) -> State:
        return {**state, f"{len(state)}": part.expert}

    def merge(self, base: Tensor, state: State, where: Where, outlook: Outlook) -> Tensor:
        if outlook.count == 1:
            return next(iter(state.values()), base).double()
        ends = _ends(base, state)
        if self._at_an_end(ends):
            return ends[int(self.t)].double()
        merged, first = torch.empty(base.numel(), dtype=torch.float64), 0
        for run in self._points(base, ends):
            merged[first : first + len(run)] = run
            first += len(run)
        return merged

    def runs(self, base: Tensor, state: State, where: Where, outlook: Outlook) -> Iterator[Tensor] | None:
        if outlook.count == 1:
            return None
        ends = _ends(base, state)
        return None if self._at_an_end(ends) else self._points(base, ends)

    def _at_an_end(self, ends: tuple[Tensor, Tensor]) -> bool:
        """Whether the point is one of the ends, bit for bit: between equal ones there is no other."""
        one, other = ends
        return self.t in (0, 1) or (one.dtype == other.dtype and torch.equal(one, other))

    def _points(self, base: Tensor, ends: tuple[Tensor, Tensor]) -> Iterator[Tensor]:
        one, other = (_Pieces(end, base if self.updates else None) for end in ends)
        first, second = self.shares(one, other)
        for place in one.places:
            point = one.at(place).mul_(first).add_(other.at(place).mul_(second))
            yield point.add_(base[place]) if self.updates else point

    def shares(self, one: _Pieces, other: _Pieces) -> tuple[float, float]:
        """The factors of the two ends at the point between them."""
        pieces = ((one.at(place).numpy(), other.at(place).numpy()) for place in one.places)
        sums = list(squares_and_product(pieces)) or [(0.0, 0.0, 0.0)]
        squares, others, products = zip(*sums, strict=True)
        norms, inner = (sqrt(fsum(squares)), sqrt(fsum(others))), fsum(products)
        cosine = inner / (norms[0] * norms[1]) if min(norms) > NOTHING else 0.0
        angle = acos(max(-1.0, min(1.0, cosine)))
        straight = abs(sin(angle)) < FLAT if self.updates else abs(cosine) > STRAIGHT
        first, second = 1 - self.t, self.t
        if not straight:
            first, second = sin(first * angle) / sin(angle), sin(second * angle) / sin(angle)
        return first, second

    def reduces(self, members: Sequence[MemberFacts]) -> bool:
        return len(members) == 1


def _ends(base: Tensor, state: State) -> tuple[Tensor, Tensor]:
    """The two members' tensors. A first member that leaves the tensor as it is has not stepped in."""
    one, other = state.values() if len(state) > 1 else (base, *state.values())
    return one, other


class _Pieces:
    """A flat tensor, or what it adds to a base, in fp64 by runs of BLOCK elements: short enough to stay near the
    processor, and those whose sums `plait.tensors.norms` makes in one fixed order."""

    def __init__(self, end: Tensor, base: Tensor | None) -> None:
        self.end, self.base = end, base
        self.places = [slice(i, i + BLOCK) for i in range(0, end.numel(), BLOCK)]
        self._room = torch.empty(min(BLOCK, end.numel()), dtype=torch.float64)

    def at(self, place: slice) -> Tensor:
        """The run there, to be written over as one likes; it is gone at the next call."""
        found = self.end[place]
        piece = self._room[: len(found)].copy_(found)
        return piece if self.base is None else piece.sub_(self.base[place].double())
