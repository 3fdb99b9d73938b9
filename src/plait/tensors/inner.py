"""Inner products in one fixed order: each is a function of its two vectors alone, to the last bit.

A matrix product of many vectors adds up in an order that changes with their number, with threads and with the
processor. Here products are added by element-wise halving, in leaves of `LEAF` elements, then leaf by leaf in blocks
of `BLOCK`; the sums of blocks are added exactly and rounded once.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import fsum

from plait.tensors import BLOCK, Tensor, torch
from plait.tensors.compiled import loops

LEAF = 1 << 12
"""Elements that are added up first. Runs that are handed in begin at multiples of it."""


def leaf_products(rows: Tensor, other: Tensor, compiled: bool = False) -> Tensor:
    """Sums of rows[i] * other over leaves, the last one padded with zeros.

    rows: (count, n), other: (n,), both fp64 and contiguous. Returns (count, leaves). compiled: by a loop compiled by
    numba, with the same bits in one pass over rows; else about three passes and an array of their size.
    """
    count, size = rows.shape
    leaves = -(-size // LEAF)
    if compiled:
        sums = torch.empty(count, leaves, dtype=torch.float64)
        loops().leaf_sums(rows.numpy(), other.numpy(), LEAF, sums.numpy())
        return sums
    products = rows * other
    if size % LEAF:
        products = torch.nn.functional.pad(products, (0, leaves * LEAF - size))
    return _halve(products.view(count, leaves, LEAF))


def block_products(leaves: Tensor) -> Tensor:
    """Sums over blocks from those over leaves. leaves: (..., count) of a run that begins at a multiple of `BLOCK`, to
    the run's end. Returns (..., blocks)."""
    each = BLOCK // LEAF
    blocks = -(-leaves.shape[-1] // each)
    leaves = torch.nn.functional.pad(leaves, (0, blocks * each - leaves.shape[-1]))
    return _halve(leaves.view(*leaves.shape[:-1], blocks, each))


def _halve(values: Tensor) -> Tensor:
    """Sums over the last axis, whose length is a power of two; in place."""
    width = values.shape[-1]
    while width > 1:
        width //= 2
        values[..., :width] += values[..., width : 2 * width]
    return values[..., 0]


def expansion(values: Iterable[float]) -> list[float]:
    """The exact sum of finite numbers as a few numbers of falling magnitude, each the rounded sum of what the ones
    before it leave. Expansions may be added up, in any order and grouping, without an error; the first number is the
    sum, rounded once."""
    rest = list(values)
    parts: list[float] = []
    while True:
        part = fsum(rest)
        if part == 0.0:
            return parts
        parts.append(part)
        rest.append(-part)
