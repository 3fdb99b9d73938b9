"""Ranges of floats, error-free sums, and rounding once. Source of the error-free steps: Shewchuk 1997,
"Adaptive precision floating-point arithmetic", theorems 7 and 13."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from plait.tensors import BLOCK, Tensor, torch

ANY = 1 << 16
"""The `low` of a tensor of zeros: zero is a multiple of everything."""

_LAYOUT = {
    # dtype -> (integer view, fraction bits, exponent bias, all exponent bits)
    "torch.bfloat16": ("int16", "uint16", 7, 127, 0xFF),
    "torch.float16": ("int16", "uint16", 10, 15, 0x1F),
    "torch.float32": ("int32", "uint32", 23, 127, 0xFF),
    "torch.float64": ("int64", "uint64", 52, 1023, 0x7FF),
}


@dataclass(slots=True)
class Scan:
    """What one look at the bit patterns of a float tensor tells. Every finite element is a multiple of
    2^low and below 2^high in magnitude."""

    low: int
    high: int
    negative_zero: bool
    finite: bool
    _wider: dict[torch.dtype, Tensor] = field(default_factory=dict, repr=False, compare=False)

    @property
    def bound(self) -> float:
        """2^high, a bound on every magnitude; 0.0 where all elements are zero."""
        return 0.0 if self.low == ANY else power(self.high)

    def wider(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """The scanned tensor in a wider dtype, kept for all who ask (the members that share a base)."""
        if dtype not in self._wider:
            self._wider[dtype] = tensor.to(dtype)
        return self._wider[dtype]


def power(exponent: int) -> float:
    """2^exponent as a float, infinite above the range and 0.0 below."""
    if exponent > 1023:
        return float("inf")
    return 2.0**exponent if exponent >= -1074 else 0.0


def scan(tensor: Tensor) -> Scan:
    """Look at a float tensor (bf16, fp16, fp32 or fp64, any shape). Cost: three passes over small integers, five
    where it holds zeros."""
    layout = _LAYOUT.get(str(tensor.dtype))
    if layout is None:
        raise TypeError(
            f"dtype {tensor.dtype} has no exact sums; convert it to bf16, fp16, fp32 or fp64 first"
        )
    import numpy as np

    signed, unsigned, fraction, bias, full = layout
    if tensor.numel() == 0:
        return Scan(ANY, -ANY, False, True)
    raw = tensor.detach().contiguous().view(getattr(torch, signed)).numpy().reshape(-1)
    top = 1 << (8 * raw.itemsize - 1)
    smallest, largest, negative_zero = top, 0, False
    room = np.empty(min(BLOCK, len(raw)), unsigned)
    mask, one = room.dtype.type(top - 1), room.dtype.type(1)
    for start in range(0, len(raw), BLOCK):  # short enough to stay near the processor
        run = raw[start : start + BLOCK]
        bits = np.bitwise_and(run.view(unsigned), mask, out=room[: len(run)])
        least = int(bits.min())
        largest = max(largest, int(bits.max()))
        if least == 0:
            negative_zero = negative_zero or int(run.min()) == -top
            bits -= one  # zero becomes the largest integer, so that the minimum skips it
            least = int(bits.min()) + 1
        smallest = min(smallest, least)
    if largest == 0:
        return Scan(ANY, -ANY, negative_zero, True)
    low = max(smallest >> fraction, 1) - bias - fraction
    high = max(largest >> fraction, 1) - bias + 1
    return Scan(low, high, negative_zero, (largest >> fraction) < full)


def two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """s = fl64(a + b) and the error e, with s + e = a + b exactly unless s overflows."""
    s = a + b
    t = s - a
    e = s - t
    torch.sub(a, e, out=e)
    torch.sub(b, t, out=t)
    return s, e.add_(t)


def normal(terms: Sequence[Tensor]) -> list[Tensor]:
    """The same exact sum as terms of falling magnitude: the first is the correctly rounded sum, and each other
    one is at most half a unit in the last place of the one before. `terms`: fp64, one shape."""
    out = list(terms)
    moved = True
    while moved:
        moved = False
        for i in range(len(out) - 2, -1, -1):
            s, e = two_sum(out[i], out[i + 1])
            moved = moved or not torch.equal(s, out[i]) or not torch.equal(e, out[i + 1])
            if not bool(torch.isfinite(s).all()):
                return [s]
            out[i], out[i + 1] = s, e
    if len(out) > 2:
        # A tie was decided without the terms behind it: they decide now.
        doubled = out[1] * 2
        other = out[0] + doubled
        wrong = (other - out[0] == doubled) & (torch.sign(out[1]) * torch.sign(out[2]) > 0)
        out[0] = torch.where(wrong, other, out[0])
        out[1] = torch.where(wrong, -out[1], out[1])
    while len(out) > 1 and not bool(out[-1].any()):
        out.pop()
    return out


def odd(value: Tensor, rest: Tensor) -> Tensor:
    """`value` + `rest` rounded to odd, where `value` is that sum rounded to nearest: rounding the result again,
    to a shorter dtype, rounds the exact sum once. fp32 or fp64, finite; only the sign of `rest` matters."""
    import numpy as np

    near, lacking = value.numpy(), rest.numpy()
    bits = near.view(f"int{8 * near.itemsize}")
    some = lacking != 0
    inward = ((lacking < 0) != np.signbit(near)) & some
    return torch.from_numpy(((bits - inward) | some).view(near.dtype))


def round_once(
    v: Tensor, dtype: torch.dtype, error: Callable[[Tensor | slice], Tensor] | None = None
) -> Tensor:
    """fp64 to `dtype`, to nearest with ties to even, in one rounding (a cast by way of fp32 rounds twice).

    v: flat. error: where v is itself rounded, what v lacks at an index; it decides what looks like a tie.
    """
    import numpy as np

    if dtype == torch.float64 or (dtype == torch.float32 and error is None):
        return v.to(dtype)
    single = v.to(torch.float32)
    if dtype == torch.float32:
        some = (v.view(torch.int64) & ((1 << 28) - 1)).numpy() == 0
        if some.any():
            some &= v.numpy() != single.numpy()
    else:
        some = _at_ties(v, single, dtype, error is None)
    if some is None or not some.any():
        return single.to(dtype)
    if error is not None and dtype != torch.float32 and np.count_nonzero(some) * 16 > len(some):
        some &= (error(slice(None)).numpy() != 0) | (v.numpy() != single.numpy())  # whole tensors are faster
    index = some.nonzero()[0]
    if len(index):
        at = torch.from_numpy(index)
        near, held = single.numpy(), v.numpy()[index]
        if dtype == torch.float32:
            fixed = odd(torch.from_numpy(held), error(at)).to(dtype) if error else single[at]
        else:
            rest = torch.from_numpy(held - near[index])
            if error is not None:
                rest += error(at) * (rest == 0)
            fixed = odd(torch.from_numpy(near[index]), rest)
        near[index] = fixed.numpy()
    return single.to(dtype)


def _at_ties(v: Tensor, single: Tensor, dtype: torch.dtype, exact: bool) -> Any:
    """Where fp32 `single` lies between two neighbours of `dtype` and the bits that it lacks of `v` matter (more,
    for fp16). None: nowhere. With `exact` nothing but those bits is lacking."""
    wide, narrow = v.numpy(), single.numpy()
    # Sums of a few members mostly fit fp32, others hardly ever do: the cheaper question comes first.
    if exact and (wide[:512] == narrow[:512]).all():
        lacking = wide != narrow
        if not lacking.any():
            return None
        exact = False
    else:
        lacking = None
    low, tie = (0xFFFF, 0x8000) if dtype == torch.bfloat16 else (0xFFF, 0)
    some = (single.view(torch.int32) & low).numpy() == tie
    if exact and some.any():
        lacking = wide != narrow
    return some if lacking is None else some & lacking
