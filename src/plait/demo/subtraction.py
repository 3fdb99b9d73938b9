"""What one does without plait: subtract the expert from the merged weights again, in their own dtype."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from plait.demo.minilm import Weights

Undo = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(merged, base, expert) -> merged without the expert, by the formula alone."""


@dataclass(frozen=True)
class Gap:
    """How far a model is from the one that it should be."""

    elements: int  # of all tensors
    differing: int  # elements whose bits differ
    largest: float  # the largest absolute difference


def undo_task_arithmetic(scale: float) -> Undo:
    """merged - scale * (expert - base)."""
    return lambda merged, base, expert: merged - scale * (expert - base)


def undo_average(members: int) -> Undo:
    """(members * merged - expert) / (members - 1)."""
    return lambda merged, base, expert: (members * merged - expert) / (members - 1)


def subtract_again(
    merged: Weights, base: Weights, expert: Weights, never: Weights, undo: Undo, dtype: torch.dtype
) -> Gap:
    """Take `expert` out of `merged` by plain arithmetic in `dtype`, and compare with `never`: the model that the
    expert was never part of, rounded to the same dtype."""
    elements, differing, largest = 0, 0, 0.0
    for name, want in never.items():
        got = undo(merged[name].to(dtype), base[name].to(dtype), expert[name].to(dtype))
        gap = compare(got, want.to(dtype))
        elements, differing = elements + gap.elements, differing + gap.differing
        largest = max(largest, gap.largest)
    return Gap(elements, differing, largest)


def compare(got: Tensor, want: Tensor) -> Gap:
    """Count the elements whose bits differ; both tensors have one floating dtype."""
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[got.element_size()]
    different = got.contiguous().view(bits) != want.contiguous().view(bits)
    return Gap(got.numel(), int(different.sum()), (got.double() - want.double()).abs().max().item())
