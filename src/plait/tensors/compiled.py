"""Merges of whole chunks in compiled loops: the very bytes of exact arithmetic, or nothing.

Needs numba. Sums are fp64 here. A chunk in which something is rounded that must not be, or which holds what needs a
closer look (NaN, infinity, the sign of a zero, very large numbers), is given up, and the engine goes the long way.
"""

from __future__ import annotations

from functools import cache
from math import frexp
from types import ModuleType
from typing import Any, Protocol

from plait.tensors import Tensor, torch
from plait.tensors.real import BITS

LONG = object()
"""In place of an answer: the long way must be gone."""

_RAW = {"torch.bfloat16": "uint16", "torch.float16": "int16", "torch.float32": "float32"}
_LIMIT = {"torch.bfloat16": 2.0**48, "torch.float16": 65504.0, "torch.float32": 2.0**48}
"""Results reach no more than this: sums could be too large for the long way, or round to infinity."""


@cache
def works() -> bool:
    """Whether numba is there and fits. Loads it."""
    try:
        loops()
    except Exception:  # numba raises many kinds where it does not fit the Python, the numpy or the machine
        return False
    return True


@cache
def loops() -> ModuleType:
    """The module of the loops. Loads numba."""
    from plait.tensors import loops as module

    return module


class Weighted(Protocol):
    """A member, as far as its weight."""

    @property
    def weight(self) -> float: ...


def known(values: Tensor) -> bool:
    """Whether the loops take chunks of this dtype: bf16, fp16 and fp32."""
    return str(values.dtype) in _RAW and values.numel() > 0


def raw(values: Tensor) -> Any:
    """A flat tensor as the loops take it. Shares memory."""
    return values.view(getattr(torch, _RAW[str(values.dtype)])).numpy()


def _empty(count: int, dtype: str) -> Any:
    import numpy as np

    return np.empty(count, dtype)


class _Chunk:
    """A base and what was seen so far. Buffers that are handed in may be used again after each call, but `base`."""

    def __init__(self, base: Tensor) -> None:
        self._dtype = base.dtype
        self._base = raw(base)
        self._seen = 0
        self._fresh = True  # nobody was taken in yet

    def _fits(self, expert: Tensor, weight: float) -> bool:
        return expert.dtype == self._dtype and weight > 0

    def _run(self, loop: str, *args: Any) -> bool:
        """Run a loop that takes a member in. False: give up."""
        self._seen |= getattr(loops(), loop)(*args)
        return not self._seen & 1

    def _dropped(self, weight: float) -> int:
        """How many of 53 bits are rounded away of a task vector times `weight`."""
        return 0 if frexp(weight)[0] == 0.5 else 53 - BITS[str(self._dtype)]

    def _settle(self, loop: str, dtype: torch.dtype, *args: Any) -> Tensor | None:
        """What a loop writes that takes base, args, limit and output. None: give up."""
        if dtype != self._dtype or self._fresh:
            return None
        out = torch.empty(len(self._base), dtype=dtype)
        found = getattr(loops(), loop)(self._base, *args, _LIMIT[str(dtype)], raw(out))
        # A zero needs the count of negative zeros if there is one.
        minus = self._seen & 2 or found & 4
        return None if found & 1 or (found & 2 and minus) else out


class ScaledSum(_Chunk):
    """base + factor * sum_i w_i (expert_i - base) / divisor, where factor or divisor is 1."""

    def __init__(self, base: Tensor, factor: float = 1.0, divisor: float = 1.0) -> None:
        super().__init__(base)
        self._factor, self._divisor = factor, divisor
        self._weight = 0.0  # of the members that were added whole, without subtracting the base
        self._total = _empty(len(self._base), "float64")

    def take(self, expert: Tensor, member: Weighted) -> bool:
        """Add a member. False: give up."""
        weight, fresh, self._fresh = member.weight, self._fresh, False
        if not self._fits(expert, weight):
            return False
        dropped = self._dropped(weight)
        if dropped:
            return self._run("shift_by", raw(expert), self._base, weight, dropped, fresh, self._total)
        self._weight += weight  # the base is subtracted at the end, once for all
        return self._run("add_by", raw(expert), weight, fresh, self._total)

    def merged(self, dtype: torch.dtype) -> Tensor | None:
        """The merged chunk, rounded once. None: give up."""
        if frexp(self._weight)[0] * 2.0**24 % 1.0:
            return None  # its product with the base may be rounded
        return self._settle("settle_sum", dtype, self._total, self._weight, self._factor, self._divisor)


class Combined(_Chunk):
    """base + sum_i c_i (expert_i - base), for coefficients of either sign but not 0. The sum has two numbers an
    element, so that terms of very different size hold too."""

    def __init__(self, base: Tensor) -> None:
        super().__init__(base)
        count = len(self._base)
        self._total, self._rest = _empty(count, "float64"), _empty(count, "float64")

    def take(self, expert: Tensor, coefficient: float) -> bool:
        """Add a member. False: give up."""
        if not self._fits(expert, abs(coefficient)):
            return False
        fresh, self._fresh = self._fresh, False
        sums = (self._total, self._rest)
        return self._run(
            "shift_pair", raw(expert), self._base, coefficient, self._dropped(abs(coefficient)), fresh, *sums
        )

    def merged(self, dtype: torch.dtype) -> Tensor | None:
        """The merged chunk, rounded once. None: give up."""
        return self._settle("settle_pair", dtype, self._total, self._rest)


class Winner(_Chunk):
    """base + scale * (what is farthest from it of all base + w_i (expert_i - base)); of equally far ones the last."""

    def __init__(self, base: Tensor, scale: float) -> None:
        super().__init__(base)
        self._scale = scale
        self._winner = base.to(torch.float32, copy=True).numpy()

    def take(self, expert: Tensor, member: Weighted) -> bool:
        """Let a member compete. False: give up."""
        weight, self._fresh = member.weight, False
        return self._fits(expert, weight) and self._run(
            "farther", raw(expert), self._base, weight, self._winner
        )

    def merged(self, dtype: torch.dtype) -> Tensor | None:
        """The merged chunk, rounded once. None: give up."""
        return self._settle("settle_winner", dtype, self._winner, self._scale)


class Agreement(_Chunk):
    """base + scale * what agrees with the elected sign (TIES). even: whether all weights are 1."""

    def __init__(self, base: Tensor, scale: float, *, mean: bool, even: bool) -> None:
        super().__init__(base)
        self._scale, self._mean = scale, mean
        count = len(self._base)
        self._sums = [_empty(count, "float64"), _empty(count, "float64")]
        self._behind = [_empty(count, "float32" if even else "float64") for _ in "+-"]

    def take(self, expert: Tensor, weight: float, behind: float, cuts: list[tuple[int, float]]) -> bool:
        """Add a member's task vector. behind: what counts for it in the mean. cuts: (end, least): up to index `end`,
        from the end of the one before, what is below `least` in magnitude is trimmed. False: give up."""
        if not self._fits(expert, weight):
            return False
        theirs, behind = raw(expert), self._behind[0].dtype.type(behind)
        sums, first, held = (*self._sums, *self._behind), 0, True
        fresh, self._fresh = self._fresh, False
        for end, least in cuts:
            part = slice(first, end)
            args = (least, weight, self._dropped(weight), behind, fresh, *(a[part] for a in sums))
            held = held and self._run("trim_by", theirs[part], self._base[part], *args)
            first = end
        return held

    def merged(self, dtype: torch.dtype) -> Tensor | None:
        """The merged chunk, rounded once. None: give up."""
        return self._settle("settle_agreed", dtype, *self._sums, *self._behind, self._mean, self._scale)


def place_of_equal(base: Tensor, expert: Tensor, key: int, count: int) -> int:
    """The index of the `count`-th element (from 1) for which |expert - base|, rounded once to fp32, has the bits
    `key`; -1 where there are fewer."""
    return int(loops().place_of(raw(expert), raw(base), key, count))
