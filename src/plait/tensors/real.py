"""An exact real number per element, and the rounding of base + shift to the merged model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import frexp

from plait.errors import UsageError
from plait.tensors import Tensor, torch
from plait.tensors.rounding import Scan, normal, odd, round_once, scan, two_sum

BITS = {"torch.bfloat16": 16, "torch.float16": 20, "torch.float32": 40, "torch.float64": 53}
"""Significant bits kept of a weighted task vector, by the dtype of the base."""


@dataclass(frozen=True)
class Tail:
    """What is left of the elements that one fp64 cannot hold: `index` (int64, rising) and terms of falling
    magnitude for these elements, each at most half a unit in the last place of the one before."""

    index: Tensor
    terms: tuple[Tensor, ...]


@dataclass(frozen=True)
class Exact:
    """An exact real number per element of a flat chunk. Immutable.

    main: fp64, the correctly rounded value. tail: the exact rest, where there is one.
    z: net count of negative zeros that arrived ([expert is -0.0] - [base is -0.0], summed), or None.
    bits: significant bits that `times` keeps for weights that are not powers of two.
    """

    main: Tensor
    tail: Tail | None = None
    z: Tensor | None = None
    bits: int = 53

    @staticmethod
    def of(t: Tensor) -> Exact:
        """The exact values of a float tensor, without z."""
        return Exact(t.to(torch.float64))

    def double(self) -> Tensor:
        """fp64, correctly rounded. Do not write into it."""
        return self.main

    def sign(self) -> Tensor:
        """int8: -1, 0 or 1."""
        return torch.sign(self.main).to(torch.int8)

    def times(self, w: float) -> Exact:
        """w * self. Exact where w is 0 or a power of two (down to 2^-1074); else fl64(w * fl64(self)) rounded to
        `bits` significant bits. z follows the sign of w, and 0 drops it."""
        if w == 1.0:
            return self
        z = None if self.z is None or w == 0.0 else (self.z if w > 0 else -self.z)
        if w == 0.0 or abs(frexp(w)[0]) == 0.5:
            tail = self.tail if w != 0.0 else None
            if tail is not None:
                tail = Tail(tail.index, tuple(t * w for t in tail.terms))
            return replace(self, main=self.main * w, tail=tail, z=z)
        return Exact(_shorten(self.main * w, self.bits), None, z, self.bits)

    def over(self, d: float | Tensor) -> Exact:
        """self / d, d > 0. Exact where d is a power of two, else fl64(fl64(self) / d); 0 (without z) where d is 0."""
        if not isinstance(d, Tensor_type()):
            if not d > 0:
                raise UsageError(
                    f"the divisor is {d}, a number above 0 is needed; check the members' weights"
                )
            if frexp(d)[0] == 0.5:
                return self.times(1.0 / d)
            return Exact(self.main / torch.tensor(d, dtype=torch.float64), None, self.z, self.bits)
        d = d.to(torch.float64)
        none = d == 0
        main = self.main / torch.where(none, torch.inf, d)
        z = None if self.z is None else self.z.masked_fill(none, 0)
        tail = self.tail
        if tail is not None:
            at = d[tail.index]
            plain = (torch.frexp(at).mantissa == 0.5).to(torch.float64)
            at = torch.where(at == 0, torch.inf, at)
            tail = Tail(tail.index, tuple(t / at * plain for t in tail.terms))
        return Exact(main, tail, z, self.bits)

    def where(self, mask: Tensor) -> Exact:
        """self where `mask` (bool), exact 0 without z elsewhere."""
        off = ~mask
        tail = self.tail
        if tail is not None:
            tail = Tail(tail.index, tuple(t.masked_fill(off[tail.index], 0.0) for t in tail.terms))
        z = None if self.z is None else self.z.masked_fill(off, 0)
        return replace(self, main=self.main.masked_fill(off, 0.0), tail=tail, z=z)

    def positive(self) -> Exact:
        """Elements above 0; others become 0. z is kept where the value is 0."""
        out = self.where(self.main > 0)
        return out if self.z is None else replace(out, z=self.z.masked_fill(self.main < 0, 0))

    def negative(self) -> Exact:
        """Elements below 0; others become 0, without z."""
        return self.where(self.main < 0)

    def __neg__(self) -> Exact:
        return self.times(-1.0)

    def __add__(self, other: Exact) -> Exact:
        z = self.z if other.z is None else other.z if self.z is None else self.z + other.z
        s, e = two_sum(self.main, other.main)
        terms = [s, e, *_spread(self), *_spread(other)]
        return Exact(*_split(terms), z, max(self.bits, other.bits))

    def round_bits(self, bits: int) -> Exact:
        """fl64(self) rounded to nearest even to `bits` significant bits."""
        return Exact(_shorten(self.main, bits), None, self.z, self.bits)

    def round_to(self, quantum: int) -> Exact:
        """fl64(self) rounded to nearest even to a multiple of 2^quantum. Magnitudes must be below 2^(51+quantum)."""
        magic = 1.5 * 2.0 ** (52 + quantum)
        return Exact((self.main + magic) - magic, None, self.z, self.bits)


def Tensor_type() -> type:
    return torch.Tensor


def _spread(x: Exact) -> list[Tensor]:
    """The tail's terms as full tensors."""
    if x.tail is None:
        return []
    return [torch.zeros_like(x.main).index_copy_(0, x.tail.index, t) for t in x.tail.terms]


def _split(terms: list[Tensor]) -> tuple[Tensor, Tail | None]:
    """Main and tail of a sum of fp64 tensors."""
    main = terms[0]
    rest = torch.zeros_like(main, dtype=torch.bool)
    for t in terms[1:]:
        rest |= t != 0
    index = torch.nonzero(rest).view(-1)
    if not len(index):
        return main, None
    parts = normal([t[index] for t in terms])
    main = main.index_copy(0, index, parts[0])
    return main, Tail(index, tuple(parts[1:])) if len(parts) > 1 else None


def _shorten(x: Tensor, bits: int) -> Tensor:
    """fp64 rounded to nearest even to `bits` significant bits (fp64 denormals keep as many as they have)."""
    drop = 53 - bits
    if drop <= 0:
        return x
    raw = x.view(torch.int64)
    half = (1 << (drop - 1)) - 1
    raw = (raw + half + ((raw >> drop) & 1)) & -(1 << drop)
    return raw.view(torch.float64)


def difference(expert: Tensor, base: Tensor, scans: tuple[Scan, Scan] | None = None) -> Exact:
    """The task vector expert - base as exact real numbers. Both flat, of one length, any two float dtypes.

    scans: `scan(expert)` and `scan(base)` where they are known already.
    """
    of_expert, of_base = scans or (scan(expert), scan(base))
    z = None
    if of_expert.negative_zero or of_base.negative_zero:
        z = _negative_zero(expert).to(torch.int32) - _negative_zero(base).to(torch.int32)
    d, e = two_sum(expert.to(torch.float64), -base.to(torch.float64))
    return Exact(*_split([d, e]), z, BITS[str(base.dtype)])


def _negative_zero(t: Tensor) -> Tensor:
    return (t == 0) & torch.signbit(t)


def settle(base: Tensor, shift: Exact | Tensor, dtype: torch.dtype) -> Tensor:
    """The merged chunk: base + shift rounded once to `dtype`; a Tensor `shift` holds merged values in fp64.

    A result of exactly 0 is -0.0 where the base is -0.0 and z is 0, or the base is not -0.0 and z > 0.
    """
    if not isinstance(shift, Exact):
        return round_once(shift.to(torch.float64), dtype)
    main, tail = (base_sum := Exact.of(base) + replace(shift, z=None)).main, base_sum.tail
    if tail is not None and dtype != torch.float64:
        main = main.index_copy(0, tail.index, odd(main[tail.index], tail.terms[0]))
    out = round_once(main, dtype)
    zero = main == 0
    if bool(zero.any()):
        minus = _negative_zero(base)
        z = torch.zeros_like(minus, dtype=torch.int32) if shift.z is None else shift.z
        sign = torch.where((minus & (z == 0)) | (~minus & (z > 0)), -0.0, 0.0).to(dtype)
        out = torch.where(zero, sign, out)
    return out
