"""Models between an old one and an expert, a little off the straight line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import sqrt

from plait.methods.groups import group_of
from plait.tensors import Tensor, torch
from plait.tensors.random import uniform

PIECE = 1 << 18
"""Elements that are worked on at a time, in fp64."""

DEPENDENT = 1e-14
"""1 - cos^2 below which two vectors span one direction. What is then left along the second is below 1e-7 of it."""

NOTHING = 1e-18
"""A share of its square below which what is left of a vector is rounding; above, rounding is below 1e-6 of it."""

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Aside:
    """P of a group: scale * (noise - along * (old - base) - across * (expert - old)). scale 0: there is none."""

    scale: float = 0.0
    along: float = 0.0
    across: float = 0.0


class Mix:
    """The models old + alpha (expert - old) + beta P with an alpha and a beta for each group of tensors. As tau_t and
    tau_t-1 are differences to one base, that is base + alpha tau_t + (1 - alpha) tau_t-1 + beta P (TRM, arXiv
    2605.08311).

    P is random, and in each group orthogonal to tau_t and to tau_t-1, of length rho ||tau_t - tau_t-1||; so it is
    over all groups together. It starts from elements that are uniform in [-1, 1), by `tensors.random` from `seed` and
    the tensor's name, and is made again piece by piece whenever it is needed: three numbers a group are kept. A group
    whose task vectors leave no direction has none: fewer than three elements, or expert = old.

    base, old, expert: weights of the same names and shapes, fp32 or fp64; never written into. rho 0: no P.
    Coordinates are (2, G) fp64: the row of alpha and the row of beta, a column for each of `groups`.
    """

    def __init__(
        self, base: Weights, old: Weights, expert: Weights, granularity: str, seed: bytes, rho: float
    ) -> None:
        self._base, self._old, self._expert = base, old, expert
        self._seed = seed
        self._column: dict[str, int] = {}
        self._of = {name: group_of(name, granularity) for name in sorted(base)}
        for group in self._of.values():
            self._column.setdefault(group, len(self._column))
        self.groups = tuple(self._column)
        self._asides = self._prepare(rho) if rho else [Aside()] * len(self.groups)

    @property
    def movable(self) -> Tensor:
        """(G,) bool: which groups have a P."""
        return torch.tensor([aside.scale != 0 for aside in self._asides])

    def at(self, x: Tensor) -> dict[str, Tensor]:
        """The model at `x`, new tensors, rounded once. alpha 0 and beta 0 give the old model bit for bit, alpha 1
        and beta 0 the expert."""
        made = {name: torch.empty_like(self._old[name].contiguous()) for name in self._of}
        for name, column, piece in self._pieces():
            alpha, beta = x[:, column].tolist()
            point = torch.lerp(_cut(self._old[name], piece), _cut(self._expert[name], piece), alpha)
            if beta:
                point += beta * self._across(name, column, piece)
            made[name].view(-1)[piece] = point
        return made

    def aside(self) -> dict[str, Tensor]:
        """P, whole, in fp64. For checks; nothing else needs it at once."""
        made = {name: torch.empty(self._old[name].shape, dtype=torch.float64) for name in self._of}
        for name, column, piece in self._pieces():
            made[name].view(-1)[piece] = self._across(name, column, piece).cpu()
        return made

    def slope(self, gradient: Weights) -> Tensor:
        """(2, G): the derivative by alpha and beta of what has this gradient by weights: <gradient, expert - old> and
        <gradient, P>, summed in fp64."""
        found = torch.zeros(2, len(self.groups), dtype=torch.float64)
        for name, column, piece in self._pieces():
            slope = _cut(gradient[name], piece)
            _, way = self._vectors(name, piece)
            found[0, column] += torch.dot(slope, way).cpu()
            if self._asides[column].scale:
                found[1, column] += torch.dot(slope, self._across(name, column, piece)).cpu()
        return found

    # P
    def _prepare(self, rho: float) -> list[Aside]:
        """Gram-Schmidt by inner products: noise, what is left of it, and how long that is."""
        noise = self._products([Aside(1.0)] * len(self.groups))
        asides = [_without(gram) for gram in noise]
        return [
            Aside(rho * sqrt(now[1][1] / now[2][2]), aside.along, aside.across)
            if now[1][1] > 0 and now[2][2] > NOTHING * before[2][2]
            else Aside()
            for aside, before, now in zip(asides, noise, self._products(asides), strict=True)
        ]

    def _products(self, asides: list[Aside]) -> list[list[list[float]]]:
        """By group, inner products of old - base, expert - old and the P of `asides`: [i][j] for i <= j."""
        self._asides = asides
        found = torch.zeros(len(self.groups), 3, 3, dtype=torch.float64)
        for name, column, piece in self._pieces():
            rows = (*self._vectors(name, piece), self._across(name, column, piece))
            for i, j in ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)):
                found[column, i, j] += torch.dot(rows[i], rows[j]).cpu()
        products: list[list[list[float]]] = found.tolist()
        return products

    def _across(self, name: str, column: int, piece: slice) -> Tensor:
        """A piece of P."""
        aside = self._asides[column]
        start, way = self._vectors(name, piece)
        if not aside.scale:
            return torch.zeros_like(way)
        noise = uniform(self._seed, name, piece.start, len(way)).to(way.device) * 2 - 1
        return aside.scale * (noise - aside.along * start - aside.across * way)

    def _vectors(self, name: str, piece: slice) -> tuple[Tensor, Tensor]:
        """Pieces of tau_t-1 and of tau_t - tau_t-1, which span what tau_t-1 and tau_t do and are further apart."""
        old = _cut(self._old[name], piece)
        return old - _cut(self._base[name], piece), _cut(self._expert[name], piece) - old

    def _pieces(self) -> Iterator[tuple[str, int, slice]]:
        for name, group in self._of.items():
            count = self._old[name].numel()
            for first in range(0, count, PIECE):
                yield name, self._column[group], slice(first, min(first + PIECE, count))


def _cut(tensor: Tensor, piece: slice) -> Tensor:
    return tensor.reshape(-1)[piece].double()


def _without(gram: list[list[float]]) -> Aside:
    """Noise without what lies along the two vectors, by the inner products of these and it."""
    lengths = [sqrt(gram[i][i]) for i in range(2)]
    there = [gram[i][2] / lengths[i] if lengths[i] else 0.0 for i in range(2)]
    cosine = gram[0][1] / (lengths[0] * lengths[1]) if all(lengths) else 0.0
    apart = 1 - cosine * cosine
    across = (there[1] - cosine * there[0]) / apart if lengths[1] and apart > DEPENDENT else 0.0
    along = there[0] - cosine * across
    return Aside(
        1.0,
        along / lengths[0] if lengths[0] else 0.0,
        across / lengths[1] if lengths[1] else 0.0,
    )
