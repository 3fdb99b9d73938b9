"""Per element, the expert farthest from the base, fast: differences in fp32, with the inexact flag as the
witness.

Gives the very bytes of the same steps in fp64, or gives up.
"""

from __future__ import annotations

from plait.tensors import Tensor, flags, torch
from plait.tensors.exact import round_once

_SHORT = ("torch.bfloat16", "torch.float16")


class Farthest:
    """The merge of one chunk, base + scale * (winner - base); at equal distance the later expert wins.

    Buffers that are handed in may be used again after each call, but `base`.
    """

    def __init__(self, base: Tensor, scale: float) -> None:
        self._base = base
        self._scale = scale
        self._start = base.to(torch.float32)
        self._winner = self._start.clone()
        self._distance = torch.zeros_like(self._start)

    @staticmethod
    def fits(base: Tensor) -> bool:
        """Whether chunks of this dtype and size can be merged here at all."""
        return str(base.dtype) in _SHORT and base.numel() > 0 and flags.usable(base.numel())

    def take(self, expert: Tensor, weight: float) -> bool:
        """Let an expert compete. False: give up; the weight must be 1."""
        if expert.dtype != self._base.dtype or weight != 1.0:
            return False
        candidate = expert.to(torch.float32)
        flags.lower()
        distance = candidate - self._start
        if flags.raised():
            return False
        distance.abs_()
        # The sign of a difference is right even where the difference is rounded. A choice by bits is five times as
        # fast as torch.where: all bits of `stay` are set where the winner so far is farther away.
        stay = (distance - self._distance).view(torch.int32).numpy()
        stay >>= 31
        bits, held = candidate.view(torch.int32).numpy(), self._winner.view(torch.int32).numpy()
        held ^= bits
        held &= stay
        held ^= bits
        torch.maximum(self._distance, distance, out=self._distance)
        return True

    def merged(self, dtype: torch.dtype) -> Tensor | None:
        """The merged chunk, rounded once. None: give up."""
        if not bool(torch.isfinite(self._distance.amax())):  # NaN and infinity of any input end up here
            return None
        if self._scale == 1:
            return self._winner.to(dtype)
        flags.lower()
        total = (self._winner - self._start).mul_(self._scale).add_(self._start)
        if not flags.raised():
            return total.to(dtype)
        start = self._start.double()
        return round_once(start + (self._winner.double() - start) * self._scale, dtype)
