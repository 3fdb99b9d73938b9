"""Slow and obvious: real numbers as fractions, rounding by the definition. Shares nothing with what it checks."""

from __future__ import annotations

from fractions import Fraction

import torch
from hypothesis import strategies as st
from torch import Tensor

FORMATS = {
    # name -> (torch dtype, integer view, total bits, fraction bits, bias)
    "BF16": (torch.bfloat16, torch.int16, 16, 7, 127),
    "F16": (torch.float16, torch.int16, 16, 10, 15),
    "F32": (torch.float32, torch.int32, 32, 23, 127),
    "F64": (torch.float64, torch.int64, 64, 52, 1023),
}


def patterns(name: str, largest: int = 40) -> st.SearchStrategy[int]:
    """Bit patterns of finite numbers below 2^largest: any of them, denormals, both zeros, and ones near 1/32."""
    _, _, bits, fraction, bias = FORMATS[name]
    top = (min(largest + bias, 2 * bias + 1) << fraction) - 1
    common = (bias - 5) << fraction  # 1/32
    magnitude = st.one_of(
        st.integers(0, top),
        st.integers(0, 3),
        st.integers(common - (2 << fraction), common + (2 << fraction)),
        st.integers(0, 40).map(lambda e: min(max(bias - 20 + e, 0) << fraction, top)),
    )
    return st.builds(lambda m, s: m | s << (bits - 1), magnitude, st.integers(0, 1))


def tensor(name: str, raw: list[int]) -> Tensor:
    dtype, view, bits, _, _ = FORMATS[name]
    signed = [r - (1 << bits) if r >= 1 << (bits - 1) else r for r in raw]
    return torch.tensor(signed, dtype=view).view(dtype)


def real(name: str, raw: int) -> Fraction:
    """The number that a bit pattern stands for."""
    _, _, bits, fraction, bias = FORMATS[name]
    sign = -1 if raw >> (bits - 1) else 1
    exponent = (raw >> fraction) & ((1 << (bits - 1 - fraction)) - 1)
    mantissa = raw & ((1 << fraction) - 1)
    if exponent:
        mantissa += 1 << fraction
    return sign * mantissa * Fraction(2) ** (max(exponent, 1) - bias - fraction)


def round_even(x: Fraction) -> int:
    return round(x)  # Python rounds a Fraction to nearest, ties to even


def binade(x: Fraction) -> int:
    """e with 2^e <= |x| < 2^(e+1)."""
    e = abs(x.numerator).bit_length() - x.denominator.bit_length()
    return e if Fraction(2) ** e <= abs(x) else e - 1


def significant(x: Fraction, bits: int, least: int = -10_000) -> Fraction:
    """x to nearest with `bits` significant bits, no finer than 2^least."""
    if x == 0:
        return x
    quantum = Fraction(2) ** max(binade(x) - bits + 1, least)
    return round_even(x / quantum) * quantum


def nearest(name: str, x: Fraction) -> Fraction:
    """x rounded once to a format (no overflow)."""
    _, _, _, fraction, bias = FORMATS[name]
    return significant(x, fraction + 1, 1 - bias - fraction)


def reals(t: Tensor) -> list[Fraction]:
    """The exact values of a tensor of finite numbers, signs of zero aside."""
    return [Fraction(float(v)) for v in t.to(torch.float64).tolist()]


def is_minus_zero(name: str, raw: int) -> bool:
    return raw == 1 << (FORMATS[name][2] - 1)


def same_bytes(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.view(torch.uint8), b.view(torch.uint8))
