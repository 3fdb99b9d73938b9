"""Sums in one fixed order: the same bits for any chunk size, any number of threads and any vector width."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from plait.tensors import BLOCK, Tensor, torch

Array = Any
"""A numpy array."""


def block_sums(values: Tensor, length: int = BLOCK) -> list[float]:
    """Sums of consecutive runs of `length` elements; the last run may be shorter.

    values: flat fp64. Each run is padded with zeros to a power of two and halved by element-wise additions,
    so a sum depends on its own run only. Neither `torch.sum` nor a dot product is used: their order changes with
    threads and vector width. Add the sums up with `math.fsum`, which rounds once.
    """
    array: Array = values.numpy()
    whole = len(array) - len(array) % length
    sums: list[float] = []
    for rows in _bands(array[:whole].reshape(-1, length)):
        sums += _halved(rows)
    if whole < len(array):
        sums += _halved(array[None, whole:])
    return sums


def squares_and_product(pieces: Iterable[tuple[Array, Array]]) -> Iterator[tuple[float, float, float]]:
    """sum a², sum b² and sum a b for every pair of flat fp64 arrays of at most BLOCK elements, in the order of
    `block_sums`. The arrays may be written to when the next pair is asked for."""
    import numpy as np

    products = np.empty((3, BLOCK))
    for a, b in pieces:
        room = products[:, : len(a)]
        for found, one, other in zip(room, (a, b, a), (a, b, b), strict=True):
            np.multiply(one, other, out=found)
        squares, others, inner = _halved(room)
        yield squares, others, inner


def differences(a: Tensor, b: Tensor) -> Iterator[tuple[int, Array]]:
    """a - b in fp64, a block at a time, with the index of its first element. a, b: flat, of any float dtypes and one
    length. A block may be written to; it is used again for the next."""
    count = a.numel()
    first, second = (torch.empty(min(count, BLOCK), dtype=torch.float64) for _ in "ab")
    array = first.numpy()
    for start in range(0, count, BLOCK):
        size = min(BLOCK, count - start)
        x, y = first[:size], second[:size]
        x.copy_(a[start : start + size])
        x.sub_(y.copy_(b[start : start + size]))
        yield start, array[:size]


def square_distances(a: Tensor, b: Tensor) -> list[float]:
    """block_sums((a - b)²) in fp64, for flat tensors of any float dtypes and one length."""
    sums = []
    for _, x in differences(a, b):
        x *= x
        sums += _halved(x[None])
    return sums


def _bands(rows: Array) -> Iterator[Array]:
    """The rows, as many at a time as stay near the processor."""
    step = max(1, BLOCK // rows.shape[1]) if rows.shape[1] else 1
    for start in range(0, len(rows), step):
        yield rows[start : start + step]


def _halved(rows: Array) -> list[float]:
    """The sum of each row, which is left as it is."""
    import numpy as np

    width = rows.shape[1]
    half = 1 << (width - 1).bit_length() >> 1
    if not half:
        return [float(value) for value in rows[:, 0]]
    sums = rows[:, :half].copy()
    sums[:, : width - half] += rows[:, half:]
    sums[:, width - half :] += 0.0  # as if padded: -0.0 becomes 0.0
    while half > 1:
        half //= 2
        np.add(sums[:, :half], sums[:, half : 2 * half], out=sums[:, :half])
    return [float(value) for value in sums[:, 0]]
