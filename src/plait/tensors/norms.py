"""Sums in one fixed order: the same bits for any chunk size, any number of threads and any vector width."""

from __future__ import annotations

from plait.tensors import BLOCK, Tensor, torch


def block_sums(values: Tensor, length: int = BLOCK) -> list[float]:
    """Sums of consecutive runs of `length` elements; the last run may be shorter.

    values: flat fp64. Each run is padded with zeros to a power of two and halved by element-wise additions,
    so a sum depends on its own run only. `torch.sum` is not used: its order changes with threads and vector
    width. Add the sums up with `math.fsum`, which rounds once. Cost: two reads and one write an element.
    """
    whole = values.numel() - values.numel() % length
    sums: list[float] = _halve(values[:whole].view(-1, length)).tolist() if whole else []
    if whole < values.numel():
        sums += _halve(values[whole:].view(1, -1)).tolist()
    return sums


def _halve(rows: Tensor) -> Tensor:
    width = rows.shape[1]
    full = 1 << (width - 1).bit_length()
    if full != width:
        rows = torch.nn.functional.pad(rows, (0, full - width))
    while full > 1:
        full //= 2
        rows = rows[:, :full] + rows[:, full:]
    return rows[:, 0]
