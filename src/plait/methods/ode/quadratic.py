"""The nearest velocity that keeps to a few linear bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt

from plait.tensors import Tensor, torch

SLACK = 1e-9
"""By how much a bound may be missed, as a share of the numbers that meet in it: rounding of the solution."""


@dataclass(frozen=True)
class Nearest:
    """v = base - sum_j factors[j] g_j. active: the bounds that it lies on. met: whether it keeps to all bounds; else
    they contradict each other, and it is the candidate that misses them least."""

    factors: tuple[float, ...]
    active: tuple[int, ...]
    met: bool


def nearest(gram: Sequence[Sequence[float]], inner: Sequence[float], bounds: Sequence[float]) -> Nearest:
    """min 1/2 ||v - base||^2 subject to <g_j, v> <= bounds[j], by trying every set of active bounds.

    gram: <g_i, g_j>. inner: <g_j, base>. For a few bounds: 2^n small systems, in fp64. A bound whose g_j is 0 is
    left out. The solution lies on its own active bounds as near to base as these let it, so that it is among the
    candidates; of those that keep to all bounds it is the nearest.
    """
    lengths = [sqrt(gram[j][j]) for j in range(len(inner))]
    some = [j for j, length in enumerate(lengths) if length > 0]
    scale = torch.tensor([lengths[j] for j in some], dtype=torch.float64)
    unit = torch.tensor([[gram[i][j] for j in some] for i in some], dtype=torch.float64).view(
        len(some), len(some)
    )
    unit = unit / (scale[:, None] * scale)
    over = torch.tensor([inner[j] - bounds[j] for j in some], dtype=torch.float64) / scale
    slack = SLACK * max([1e-300, *((abs(inner[j]) + abs(bounds[j])) / lengths[j] for j in some)])
    best: tuple[tuple[float, float], Tensor, tuple[int, ...]] | None = None
    for count in range(len(some) + 1):
        for active in combinations(range(len(some)), count):
            factors = _solved(unit, over, active)
            if factors is None:
                continue
            missed = max(float((over - unit @ factors).max()) if some else 0.0, 0.0)
            way = float(factors @ unit @ factors)
            rank = (0.0, way) if missed <= slack else (missed, way)
            if best is None or rank < best[0]:
                best = rank, factors, active
    assert best is not None  # no active bounds: factors of 0
    rank, factors, active = best
    every = [0.0] * len(inner)
    for j, factor in zip(some, (factors / scale).tolist(), strict=True):
        every[j] = factor
    return Nearest(tuple(every), tuple(some[i] for i in active), rank[0] == 0.0)


def _solved(unit: Tensor, over: Tensor, active: tuple[int, ...]) -> Tensor | None:
    """The factors with which the active bounds hold with equality, the others 0. None where they are dependent: a
    smaller set then gives the same."""
    factors = torch.zeros(len(over), dtype=torch.float64)
    if active:
        chosen = list(active)
        part = unit[chosen][:, chosen]
        lower, broken = torch.linalg.cholesky_ex(part)
        if int(broken) or float(lower.diagonal().min()) < 1e-7:
            return None
        factors[chosen] = torch.cholesky_solve(over[chosen, None], lower)[:, 0]
    return factors
