"""Inner products of task vectors in memory, with the bits that the streaming engine finds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import fsum, isfinite

from plait.methods.coefficients import Products, overflow
from plait.tensors import Tensor, torch
from plait.tensors.inner import block_products, leaf_products

Run = tuple[str, Mapping[int, Tensor]]
"""The group of at most BLOCK elements of a tensor, from a multiple of BLOCK on, and the task vectors there in fp64,
by the number of the member; who leaves the tensor alone is not in it."""


def products(tasks: Sequence[str], runs: Iterable[Run]) -> Products:
    """The inner products of the members that are called `tasks`. Holds one run at a time."""
    found: dict[str, dict[tuple[int, int], list[float]]] = {}
    for group, vectors in runs:
        numbers = sorted(vectors)
        rows = torch.stack([vectors[number] for number in numbers])
        mine = found.setdefault(group, {})
        for row, number in enumerate(numbers):
            sums = block_products(leaf_products(rows[: row + 1], rows[row]))
            for other, value in zip(numbers, sums[:, 0].tolist(), strict=False):
                mine.setdefault((other, number), []).append(value)
    inner = {}
    for group in sorted(found):
        gram = torch.zeros(len(tasks), len(tasks), dtype=torch.float64)
        for (i, j), values in found[group].items():
            if not all(map(isfinite, values)):
                raise overflow(tasks[i], tasks[j])
            gram[i, j] = gram[j, i] = fsum(values)
        inner[group] = gram
    return Products(tuple(tasks), inner)
