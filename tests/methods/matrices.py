"""Small models of matrices, vectors and tables, for methods that take matrices apart."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

Model = dict[str, Tensor]

SHAPES: Mapping[str, tuple[int, ...]] = {
    "q.weight": (12, 12),
    "up.weight": (30, 11),
    "down.weight": (11, 30),
    "row.weight": (1, 7),
    "column.weight": (9, 1),
    "q.bias": (12,),
    "embed.weight": (9, 8),
}
MATRICES = [n for n, s in SHAPES.items() if len(s) == 2 and n != "embed.weight"]


def drawn(
    count: int, rank: int | None = None, seed: int = 0, shapes: Mapping[str, tuple[int, ...]] = SHAPES
) -> tuple[Model, list[Model]]:
    """A base and experts in fp64. rank: that of the task vectors of matrices; None: full."""
    draw = torch.Generator().manual_seed(seed)

    def noise(shape: tuple[int, ...]) -> Tensor:
        if rank is None or len(shape) != 2:
            return torch.randn(shape, generator=draw, dtype=torch.float64)
        left = torch.randn(shape[0], rank, generator=draw, dtype=torch.float64)
        return left @ torch.randn(rank, shape[1], generator=draw, dtype=torch.float64)

    base = {n: torch.randn(s, generator=draw, dtype=torch.float64) for n, s in shapes.items()}
    return base, [{n: t + noise(tuple(t.shape)) / 16 for n, t in base.items()} for _ in range(count)]
