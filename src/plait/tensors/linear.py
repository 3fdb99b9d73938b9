"""base + factor * sum_i w_i (expert_i - base), fast: one short accumulator, with the inexact flag as the
witness.

Gives the very bytes of the exact sums, or gives up; it never rounds where they do not. bf16 and fp16 are
summed in fp32, fp32 in fp64: the elements of a task vector have few bits beside those of their base, so
nearly all chunks pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import frexp

from plait.tensors import Tensor, flags, torch
from plait.tensors.exact import Exact
from plait.tensors.rounding import round_once, two_sum

_WIDER = {"torch.bfloat16": "float32", "torch.float16": "float32", "torch.float32": "float64"}
_LARGE = 2.0**48
_WHOLE = {2: "int16", 4: "int32"}


class Linear:
    """The merge of one chunk whose members are taken one after the other.

    factor: what the sum is multiplied with, if that is all and it is a power of two. finish: the same for any
    method, as exact arithmetic does it. Buffers that are handed in may be used again after each call, but
    `base`.
    """

    def __init__(self, base: Tensor, factor: float, finish: Callable[[Exact], Exact]) -> None:
        self._base = base
        self._finish = finish
        self._factor = factor if abs(frexp(factor)[0]) == 0.5 else None
        self._sum: Tensor | None = None
        self._weight = 0.0
        self._negative = factor < 0
        self._double = False  # whether fp32 was too short for this chunk
        self._minus = _negative_zero(base)  # whether a -0.0 was seen anywhere

    @staticmethod
    def fits(base: Tensor) -> bool:
        """Whether chunks of this dtype and size can be merged here at all."""
        return str(base.dtype) in _WIDER and base.numel() > 0 and flags.usable(base.numel())

    def take(self, expert: Tensor, weight: float) -> bool:
        """Add a member. False: give up. The weight must be a power of two."""
        if expert.dtype != self._base.dtype or abs(frexp(weight)[0]) != 0.5:
            return False
        self._minus = self._minus or _negative_zero(expert)
        self._negative = self._negative or weight < 0
        before = self._sum
        if before is None:
            self._sum = self._exactly(
                lambda: expert.to(getattr(torch, _WIDER[str(expert.dtype)])).mul_(weight)
            )
        else:
            self._sum = self._exactly(lambda: torch.add(self._wide(before), expert, alpha=weight))
        self._weight += weight
        return self._sum is not None

    def merged(self, dtype: torch.dtype) -> Tensor | None:
        """The merged chunk, rounded once. None: give up."""
        before, factor = self._sum, self._factor
        if before is None:
            return None
        if factor is not None and factor * self._weight == 1.0:  # the base cancels out
            total = self._exactly(lambda: self._wide(before) * factor)
            return self._rounded(total, dtype) if total is not None and _moderate(self._base) else None
        shift = self._exactly(lambda: torch.sub(self._wide(before), self._base, alpha=self._weight))
        if shift is None:
            return None
        if factor is not None:
            total = self._exactly(lambda: (self._wide(shift) * factor).add_(self._base))
            if total is not None:
                return self._rounded(total, dtype)
        return self._settled(shift, dtype)

    def _exactly(self, act: Callable[[], Tensor]) -> Tensor | None:
        """The result of an operation that rounded nowhere, in fp64 where fp32 was too short; None if it
        rounds."""
        flags.lower()
        found = act()
        if not flags.raised():
            return found
        if self._double or found.dtype == torch.float64:
            return None
        self._double = True
        return self._exactly(act)

    def _wide(self, values: Tensor) -> Tensor:
        return values.to(torch.float64) if self._double else values

    def _rounded(self, total: Tensor, dtype: torch.dtype) -> Tensor | None:
        """The exact merged values, rounded."""
        if not _moderate(total):
            return None
        if self._negative:
            total += 0.0  # nothing times a negative number is -0.0 here, and 0.0 by the law
        if self._minus and not bool(total.all()):
            return None  # the sign of a zero needs the count of negative zeros
        if total.dtype == torch.float32 or dtype == torch.float32:
            return total.to(dtype)
        return round_once(total, dtype)

    def _settled(self, shift: Tensor, dtype: torch.dtype) -> Tensor | None:
        """The exact shift, multiplied and added as exact arithmetic does it."""
        if not _moderate(shift):
            return None
        change = self._finish(Exact(shift.to(torch.float64)))
        if change.tail is not None:
            return None
        base, add = self._base.to(torch.float64), change.double()
        out = round_once(base + add, dtype, partial(_lost, base, add))
        return None if self._minus and not bool(out.all()) else out


def _lost(base: Tensor, add: Tensor, index: Tensor) -> Tensor:
    """What fl64(base + add) lacks of the sum, at some elements."""
    return two_sum(base[index], add[index])[1]


def _negative_zero(values: Tensor) -> bool:
    whole = values.view(getattr(torch, _WHOLE[values.element_size()])).numpy()
    return bool(whole.min() == -(1 << (8 * whole.itemsize - 1)))


def _moderate(values: Tensor) -> bool:
    """Whether all elements are finite and far below 2^53, from where on the long way refuses to sum."""
    low, high = torch.aminmax(values)
    return float(low) > -_LARGE and float(high) < _LARGE
