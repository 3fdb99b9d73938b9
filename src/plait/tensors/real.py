"""An exact real number per element of a chunk."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, frexp, isfinite, log2
from typing import NamedTuple

from plait.errors import UsageError
from plait.tensors import Tensor, torch
from plait.tensors.rounding import ANY, Scan, normal, power, scan, two_sum

BITS = {"torch.bfloat16": 16, "torch.float16": 20, "torch.float32": 40, "torch.float64": 53}
"""Significant bits kept of a weighted task vector, by the dtype of the base."""

_WHOLE = {
    "torch.bool": 1.0,
    "torch.uint8": 255.0,
    "torch.int8": 128.0,
    "torch.int16": 2.0**15,
    "torch.int32": 2.0**31,
}


def fits(low: int, bound: float) -> bool:
    """Whether sums of multiples of 2^low up to `bound` in magnitude are exact in fp64, in any order."""
    return bound <= min(power(52 + low), 2.0**52)


class Piece(NamedTuple):
    """coef * tensor. coef * element is exact, a multiple of 2^low and at most `bound` in magnitude."""

    tensor: Tensor
    coef: float
    low: int
    bound: float
    seen: Scan | None = None  # the tensor's scan, for a base that several members share

    def scaled(self, w: float, k: int) -> Piece:
        """w = +-2^k times this."""
        low = self.low + k if self.low != ANY else ANY
        return Piece(self.tensor, self.coef * w, low, self.bound * abs(w), self.seen)

    def double(self) -> Tensor:
        """The tensor in fp64, perhaps the tensor itself."""
        if self.seen is not None:
            return self.seen.wider(self.tensor, torch.float64)
        return self.tensor.to(torch.float64)


@dataclass(frozen=True)
class Tail:
    """What is left of the elements that one fp64 cannot hold: `index` (int64, rising) and terms of falling
    magnitude for these elements, each at most half a unit in the last place of the one before."""

    index: Tensor
    terms: tuple[Tensor, ...]


class Exact:
    """An exact real number per element of a flat chunk. Immutable; the tensors it was made of must not be
    written while it is in use, for it may still refer to them.

    z: net count of negative zeros that arrived ([expert is -0.0] - [base is -0.0], summed), int32, or None.
    bits: significant bits that `times` keeps for weights that are not powers of two.
    """

    __slots__ = ("_bound", "_low", "_main", "_tail", "bits", "pieces", "z")

    def __init__(
        self,
        main: Tensor | None = None,
        tail: Tail | None = None,
        z: Tensor | None = None,
        bits: int = 53,
        claims: tuple[int, float] | None = None,
        pieces: tuple[Piece, ...] = (),
    ) -> None:
        """Either `pieces`, whose sum is exact in fp64 in any order, or `main` (fp64, the correctly rounded value)
        with what is left of it in `tail`. claims: (low, bound) as in `Piece`, if known."""
        self._main = main
        self._tail = tail
        self.z = z
        self.bits = bits
        self.pieces = pieces
        if pieces:
            claims = (min(p.low for p in pieces), sum(p.bound for p in pieces))
        self._low: int | None = claims[0] if claims else None
        self._bound = claims[1] if claims else 0.0

    @staticmethod
    def of(t: Tensor) -> Exact:
        """The exact values of a float, integer (to int32) or bool tensor, without z."""
        top = _WHOLE.get(str(t.dtype))
        if top is not None:
            return Exact(pieces=(Piece(t.view(torch.int8) if top == 1.0 else t, 1.0, 0, top),))
        return Exact(t.to(torch.float64))

    @property
    def main(self) -> Tensor:
        """fp64, correctly rounded. Do not write into it."""
        if self._main is None:
            first, *others = self.pieces
            if first.coef != 1.0:
                main = first.double() * first.coef
            else:
                main = first.tensor.to(torch.float64, copy=bool(others))
            for p in others:  # all of it exact, so that the way there makes no difference
                if p.coef == -1.0 and p.seen is not None:
                    main.sub_(p.double())
                else:
                    main.add_(p.tensor, alpha=p.coef)
            self._main = main
        return self._main

    @property
    def tail(self) -> Tail | None:
        return self._tail

    def claims(self) -> tuple[int, float]:
        """(low, bound): every value is a multiple of 2^low and at most `bound` in magnitude."""
        if self._low is None:
            found = scan(self.main)
            self._low, self._bound = found.low, found.bound if found.finite else float("inf")
            if self._tail is not None:
                self._low = min([self._low, *(scan(t).low for t in self._tail.terms)])
                self._bound *= 2
        return self._low, self._bound

    def _known(self) -> tuple[int, float] | None:
        return None if self._low is None else (self._low, self._bound)

    def double(self) -> Tensor:
        """fp64, correctly rounded. Do not write into it."""
        return self.main

    def sign(self) -> Tensor:
        """int8: -1, 0 or 1."""
        main = self.main.numpy()
        return torch.from_numpy((main > 0).view("int8") - (main < 0).view("int8"))

    def times(self, w: float) -> Exact:
        """w * self. Exact where w is 0 or a power of two (as far as fp64 reaches, 2^-1074); else fl64(w *
        fl64(self)) rounded to nearest even to `bits` significant bits. z follows the sign of w; 0 drops it."""
        if not isfinite(w):
            raise UsageError(f"a factor is {w}, a finite number is needed; check weights and scale")
        if w == 1.0:
            return self
        z = None if self.z is None or w == 0.0 else (self.z if w > 0 else -self.z)
        if w == 0.0:
            return Exact(torch.zeros_like(self.main), None, None, self.bits, (ANY, 0.0))
        known = self._known()
        mantissa, exponent = frexp(w)
        if len(self.pieces) == 1 and self.pieces[0].coef * self.pieces[0].bound == 1.0 and known == (0, 1.0):
            low = exponent - 53  # zeros and ones (and minus ones) take any factor exactly
            return Exact(None, None, z, 53, None, (Piece(self.pieces[0].tensor, w, low, abs(w)),))
        if abs(mantissa) != 0.5:
            if known is not None and known[0] != ANY:
                known = (known[0] + floor(log2(abs(w))) - self.bits, known[1] * abs(w) * 1.01)
            return Exact(shorten(self.main * w, self.bits), None, z, self.bits, known)
        if known is not None and known[0] != ANY:
            known = (known[0] + exponent - 1, known[1] * abs(w))
            if known[0] < -1000 or not known[1] < 2.0**1000:
                known = None
        if self.pieces and known is not None:
            return Exact(
                None, None, z, self.bits, None, tuple(p.scaled(w, exponent - 1) for p in self.pieces)
            )
        tail = None if self.tail is None else Tail(self.tail.index, tuple(t * w for t in self.tail.terms))
        return Exact(self.main * w, tail, z, self.bits, known)

    def over(self, d: float | Tensor) -> Exact:
        """self / d with d > 0, a number or a tensor. Exact where d is a power of two, else fl64(fl64(self) / d).
        Where a tensor d is 0 the result is 0."""
        if isinstance(d, (int, float)):
            if not (d > 0 and isfinite(d)):
                raise UsageError(f"a divisor is {d}, a number above 0 is needed; check the members' weights")
            if frexp(d)[0] == 0.5:
                return self.times(1.0 / d)
            return Exact(_divide(self.main, d), None, self.z, self.bits)
        d = d.to(torch.float64)
        main = _divide(self.main, d)
        none = (d.numpy() == 0).nonzero()[0]
        main.numpy()[none] = 0.0
        tail = self.tail
        if tail is not None:
            at = d[tail.index]
            plain = torch.frexp(at).mantissa == 0.5
            at = torch.where(plain, at, torch.inf)
            tail = Tail(tail.index, tuple(t / at for t in tail.terms))
        return Exact(main, tail, self.z, self.bits)

    def where(self, mask: Tensor) -> Exact:
        """self where `mask` (bool), exact 0 without z elsewhere."""
        main = torch.from_numpy(mask.numpy().astype("float64")).mul_(self.main)
        tail = self.tail
        if tail is not None:
            kept = mask[tail.index]
            tail = Tail(tail.index[kept], tuple(t[kept] for t in tail.terms)) if bool(kept.any()) else None
        z = None if self.z is None else self.z * mask
        return Exact(main, tail, z, self.bits, self._known())

    def positive(self) -> Exact:
        """Elements above 0; others become 0. z is kept where the value is 0."""
        z = None if self.z is None else self.z * (self.main >= 0)
        if self.tail is None:
            return Exact(torch.clamp_min(self.main, 0.0), None, z, self.bits, self._known())
        out = self.where(self.main > 0)
        out.z = z
        return out

    def negative(self) -> Exact:
        """Elements below 0; others become 0, without z."""
        if self.tail is None:
            z = None if self.z is None else self.z * (self.main < 0)
            return Exact(torch.clamp_max(self.main, 0.0), None, z, self.bits, self._known())
        return self.where(self.main < 0)

    def __neg__(self) -> Exact:
        return self.times(-1.0)

    def __add__(self, other: Exact) -> Exact:
        z = self.z if other.z is None else other.z if self.z is None else self.z + other.z
        bits = max(self.bits, other.bits)
        mine, its = self._known(), other._known()
        claims = None
        if mine is not None and its is not None:
            claims = (min(mine[0], its[0]), mine[1] + its[1])
            if fits(*claims) and self.tail is None and other.tail is None:
                return Exact(self.main + other.main, None, z, bits, claims)
        terms = [self.main, other.main, *spread(self), *spread(other)]
        return Exact(*add_up(terms), z, bits, claims)

    def round_bits(self, bits: int) -> Exact:
        """fl64(self) rounded to nearest even to `bits` significant bits."""
        return Exact(shorten(self.main.clone(), bits), None, self.z, self.bits)

    def round_to(self, quantum: int) -> Exact:
        """fl64(self) rounded to nearest even to a multiple of 2^quantum."""
        known = self._known()
        if known is not None and known[0] >= quantum and self.tail is None:
            return self
        bound = largest(self.main)
        if not bound < power(quantum + 50):
            scale = 2.0**-quantum
            return Exact(torch.round(self.main * scale) / scale, None, self.z, self.bits)
        magic = 1.5 * 2.0 ** (52 + quantum)
        claims = (quantum, bound + power(quantum))
        return Exact((self.main + magic).sub_(magic), None, self.z, self.bits, claims)


def largest(x: Tensor) -> float:
    """The largest magnitude; NaN where there is one."""
    if not len(x):
        return 0.0
    low, high = torch.aminmax(x)
    return max(-float(low), float(high)) if float(low) == float(low) else float("nan")


def _divide(x: Tensor, d: float | Tensor) -> Tensor:
    """fl64(x / d). A tensor divisor, lest a number's reciprocal be multiplied with."""
    return x / (d if isinstance(d, torch.Tensor) else torch.tensor(d, dtype=torch.float64))


def spread(x: Exact) -> list[Tensor]:
    """The tail's terms as full tensors."""
    if x.tail is None:
        return []
    return [torch.zeros_like(x.main).index_copy_(0, x.tail.index, t) for t in x.tail.terms]


def add_up(terms: list[Tensor]) -> tuple[Tensor, Tail | None]:
    """Main and tail of the exact sum of fp64 tensors."""
    if len(terms) == 1:
        return terms[0], None
    main, lost = two_sum(terms[0], terms[1])
    some = lost.numpy() != 0
    for t in terms[2:]:
        some |= t.numpy() != 0
    if not some.any():
        return main, None
    index = torch.from_numpy(some.nonzero()[0])
    if len(terms) == 2:
        return main, Tail(index, (lost[index],))
    parts = normal([main[index], lost[index], *(t[index] for t in terms[2:])])
    main[index] = parts[0]
    return main, Tail(index, tuple(parts[1:])) if len(parts) > 1 else None


def shorten(x: Tensor, bits: int) -> Tensor:
    """fp64 rounded to nearest even to `bits` significant bits, in place (denormals keep as many as they have)."""
    drop = 53 - bits
    if drop > 0:
        raw = x.view(torch.int64)
        last = raw >> drop
        last &= 1
        last += (1 << (drop - 1)) - 1
        raw += last
        raw &= -(1 << drop)
    return x


def difference(expert: Tensor, base: Tensor, scans: tuple[Scan, Scan] | None = None) -> Exact:
    """The task vector expert - base as exact real numbers. Both flat, of one length, any two float dtypes.

    scans: `scan(expert)` and `scan(base)` where they are known already.
    """
    of_expert, of_base = scans or (scan(expert), scan(base))
    z = None
    if of_expert.negative_zero or of_base.negative_zero:
        z = negative_zero(expert).to(torch.int32) - negative_zero(base).to(torch.int32)
    bits = BITS[str(base.dtype)]
    low, bound = min(of_expert.low, of_base.low), of_expert.bound + of_base.bound
    if not (of_expert.finite and of_base.finite):
        bound = float("inf")
    if fits(low, bound):
        theirs = Piece(expert, 1.0, of_expert.low, of_expert.bound)
        ours = Piece(base, -1.0, of_base.low, of_base.bound, of_base)
        return Exact(None, None, z, bits, None, (theirs, ours))
    terms = [expert.to(torch.float64), of_base.wider(base, torch.float64).neg()]
    return Exact(*add_up(terms), z, bits, (low, bound))


def negative_zero(t: Tensor) -> Tensor:
    """bool: the elements that are -0.0."""
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()]
    return t.view(whole) == torch.iinfo(whole).min
