"""What decides the order and the size of the steps."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, pi

from plait.problem.batching import batches_by_length
from plait.tensors import torch


def share_of_rate(done: float, warmup: float) -> float:
    """Share of the learning rate when `done` of all steps are over, 0 <= done < 1: up to 1 while `done` is below
    `warmup`, then down a cosine to 0. The first step of a warm-up moves a little."""
    if done < warmup:
        return min(1.0, (done + 1e-3) / warmup)
    return 0.5 * (1 + cos(pi * (done - warmup) / (1 - warmup)))


def one_epoch(lengths: Sequence[int], batch: int, chance: torch.Generator) -> list[list[int]]:
    """The examples of one epoch by number, in batches: those of like length in random order, then the batches
    shuffled. Every example is in one batch."""
    mixed = torch.randperm(len(lengths), generator=chance).tolist()
    cut = [[mixed[i] for i in rows] for rows in batches_by_length([lengths[m] for m in mixed], batch)]
    return [cut[i] for i in torch.randperm(len(cut), generator=chance).tolist()]
