"""Sums of exact real numbers: order never matters, and subtraction undoes addition.

While all that was added spans at most 53 bits, a sum is one fp64 accumulator whose additions are exact. What does
not fit goes to digits (bins.py). A base that many task vectors share is only counted, and subtracted at the end.
"""

from __future__ import annotations

from math import frexp

from plait.errors import NonFinite, RefusedInput
from plait.tensors import Tensor, torch
from plait.tensors.bins import BINS, STEP, carry, digits, last_bit, refuse
from plait.tensors.real import Exact, Piece, Tail, add_up, fits, largest
from plait.tensors.rounding import ANY, power

Dense = dict[int, Tensor]
Sparse = dict[int | str, tuple[Tensor, Tensor]]

DENSE = {"BF16": (-40,), "F16": (-40,), "F32": (-40, -80), "F64": (-40, -80, -120)}
HEADROOM = 4  # bits that a sum may grow before its accumulator is cut again
NARROW_LIMIT = 2.0**12
OFTEN = 1 << 11
"""Additions after which digits are carried: each adds at most 2^39 to a digit that must stay below 2^53."""


def dense_bins(dtype: str, narrow: bool = False) -> tuple[int, ...]:
    """Bins that are stored dense for a line of `dtype` (safetensors name); all others are stored sparse."""
    return (-STEP,) if narrow else DENSE[dtype]


class ExactSum:
    """A sum of Exact numbers per element of a chunk of `count` elements.

    narrow: addends are rounded to multiples of 2^-40 first and their sum must stay below 2^12; z is not kept.
    A base that is yet to be subtracted is referred to until `value` or `pack`: do not write into it before.
    """

    def __init__(self, count: int, dtype: str, narrow: bool = False) -> None:
        self.count = count
        self.dtype = dtype
        self.narrow = narrow
        self._acc: Tensor | None = (
            None  # multiples of 2^low; with what is pending, at most `bound` in magnitude
        )
        self._mine = True  # whether _acc may be written in place
        self._low = ANY
        self._bound = 0.0
        self._pending: dict[int, Piece] = {}  # by id of the tensor
        self._tallies: dict[float, tuple[Tensor, int]] = {}  # |factor| -> whole numbers (int16), additions
        self._rest: Tensor | None = None  # a second accumulator, for what is cut off the first
        self._rest_low, self._rest_bound = ANY, 0.0
        self._bins: dict[int, Tensor] = {}  # digits, for what fits neither
        self._own: set[int] = set()  # bins whose tensors may be written in place
        self._spills = 0
        self._z: Tensor | None = None

    def add(self, x: Exact) -> None:
        """Add exactly. RefusedInput where a sum reaches 2^53 (2^12 if narrow), NonFinite where an addend is not
        a number; the sum is then of no use."""
        if self.narrow:
            if len(x.pieces) == 1 and self._tally(x.pieces[0]):
                self._check_narrow()
                return
            x = x.round_to(-STEP)
        low, bound = x.claims()
        if x.tail is not None or not fits(min(low, self._low), bound + self._bound):
            self._tighten()
        if x.tail is None and fits(min(low, self._low), bound + self._bound):
            self._low, self._bound = min(low, self._low), bound + self._bound
            for i, p in enumerate(x.pieces or (Piece(x.main, 1.0, low, bound),)):
                self._collect(p, wait=i > 0)
        else:
            self._add_wide(x, bound)
        if self.narrow:
            self._check_narrow()
        elif x.z is not None:
            self._z = x.z if self._z is None else self._z + x.z

    def subtract(self, x: Exact) -> None:
        """Undo `add(x)`."""
        self.add(-x)

    def value(self) -> Exact:
        """The sum. Later additions do not change it."""
        if not self._bins and self._rest is None:
            self._mine = False
            pieces = [p for p in self._pending.values() if p.coef != 0.0]
            pieces += [_tallied(f, t.clone(), times) for f, (t, times) in self._tallies.items()]
            if self._acc is not None or not pieces:
                acc = self._acc if self._acc is not None else torch.zeros(self.count, dtype=torch.float64)
                rest = max(self._bound - sum(p.bound for p in pieces), 0.0) * 1.001
                pieces.insert(0, Piece(acc, 1.0, self._low, rest))
            return Exact(None, None, self._z, 53, None, tuple(pieces))
        terms = [self._whole(), *(self._bins[e] for e in BINS if e in self._bins)]
        if self._rest is not None:
            terms.insert(1, self._rest)
        self._mine = False
        return Exact(*add_up(terms), self._z)

    def pack(self) -> tuple[Dense, Sparse]:
        """The canonical form: dense {bin: (count,) fp64}, sparse {bin or "z": (int64 index, fp64 value)}.
        Equal sums have equal bytes, whatever the route. Only bin 0 of a sparse one may be as large as 2^53."""
        acc = self._whole()
        first, *others = dense_bins(self.dtype, self.narrow)
        plain = not self._bins and self._rest is None and self._low >= first
        if self.narrow or (plain and largest(acc) < 2.0 ** (first + 39)):
            bins = {first: acc}
        else:
            bins = dict(self._bins)
            for term in (acc, self._rest):
                for e, part in digits(term) if term is not None else ():
                    bins[e] = bins[e] + part if e in bins else part
            carry(bins)
        dense: Dense = {}
        for e in (first, *others):
            digit = bins.pop(e, None)
            dense[e] = torch.zeros(self.count, dtype=torch.float64) if digit is None else digit + 0.0
        sparse: Sparse = {e: _gather(bins[e]) for e in sorted(bins, reverse=True)}
        if self._z is not None and bool(self._z.any()):
            sparse["z"] = _gather(self._z)
        return dense, sparse

    @classmethod
    def unpack(cls, count: int, dtype: str, dense: Dense, sparse: Sparse, narrow: bool = False) -> ExactSum:
        """The sum that `pack` wrote. Its tensors are not written into, and must not be by others meanwhile."""
        out = cls(count, dtype, narrow)
        out._bins = dict(dense)
        for key, (index, value) in sparse.items():
            full = torch.zeros(count, dtype=torch.float64).index_copy_(0, index, value)
            if isinstance(key, int):
                out._bins[key] = full
            else:
                out._z = full.to(torch.int32)
        out._gather_bins()
        return out

    def _gather_bins(self) -> None:
        """Move digits into the accumulators, from the top bin down, as far as these can hold them."""
        for e in BINS:
            digit = self._bins.pop(e, None)
            top = 0.0 if digit is None else largest(digit)
            if digit is None or top == 0.0:
                continue
            low = e if e >= -STEP else last_bit(digit, e)
            if self._rest is None and fits(min(low, self._low), top + self._bound):
                self._low, self._bound = min(low, self._low), top + self._bound
                self._mine = self._acc is not None
                self._acc = digit if self._acc is None else self._acc + digit
            elif not self._keep_rest(digit, low, top):
                self._bins[e] = digit
                return

    def _collect(self, p: Piece, wait: bool) -> None:
        """Take a piece into the accumulator; with `wait`, only note how often its tensor is to be added."""
        if wait:
            known = self._pending.get(id(p.tensor))
            coef = p.coef if known is None else known.coef + p.coef
            bound = p.bound if known is None else p.bound + known.bound
            self._pending[id(p.tensor)] = Piece(
                p.tensor, coef, min(p.low, known.low if known else ANY), bound
            )
            return
        if self._acc is None:
            self._mine = True
            acc = p.tensor.to(torch.float64, copy=True)
            self._acc = acc if p.coef == 1.0 else acc.mul_(p.coef)
            return
        if not self._mine:
            self._acc, self._mine = self._acc.clone(), True
        self._acc.add_(p.tensor, alpha=p.coef)  # exact, so one rounding or two make no difference

    def _whole(self) -> Tensor:
        """The accumulator with all that was pending or tallied."""
        pending, self._pending = self._pending, {}
        tallies, self._tallies = self._tallies, {}
        if self._acc is None:
            self._acc, self._mine = torch.zeros(self.count, dtype=torch.float64), True
        for p in pending.values():
            if p.coef != 0.0:
                self._collect(p, wait=False)
        for factor, tally in tallies.items():
            self._collect(_tallied(factor, *tally), wait=False)
        return self._acc

    def _tighten(self) -> None:
        """Learn the true bound of the accumulator."""
        if self._acc is not None or self._pending or self._tallies:
            self._bound = largest(self._whole())
            if self._bound == 0.0:
                self._low = ANY

    def _add_wide(self, x: Exact, bound: float) -> None:
        """Add what one accumulator cannot hold beside what it has: its upper part stays, the rest is spilled."""
        main = x.main
        size = largest(main)
        if not size < float("inf"):
            raise NonFinite("a task vector holds NaN or infinity, which no sum can hold; repair the expert")
        if not size < 2.0**52:
            raise refuse(size)
        acc = self._whole()
        top = size + self._bound
        cut = max(frexp(top)[1] + HEADROOM - 52, -1000)
        low, half = x.claims()[0], power(cut - 1)
        if self._low < cut:
            self._acc, rest = _cut(acc, cut)
            self._mine = True
            self._spill(rest, self._low, half)
        upper, rest = _cut(main, cut)
        self._spill(rest, low, half)
        self._low, self._bound = cut, top * 1.01 + power(cut)
        self._collect(Piece(upper, 1.0, cut, size), wait=False)
        tail = x.tail or Tail(torch.zeros(0, dtype=torch.int64), ())
        for term in tail.terms:
            if 4 * len(term) > self.count:
                whole = torch.zeros(self.count, dtype=torch.float64).index_copy_(0, tail.index, term)
                self._spill(whole, low, largest(term))
            else:
                self._spill_at(tail.index, term)
        if self._bound >= 2.0**51:
            size = largest(self._whole())
            if not size < 2.0**52:
                raise refuse(size)

    def _spill(self, rest: Tensor, low: int, bound: float) -> None:
        """Add to the second accumulator or to the digits."""
        import numpy as np

        some = rest.numpy() != 0
        count = int(np.count_nonzero(some))
        if count == 0:
            return
        if 4 * count > self.count:
            if self._keep_rest(rest, low, bound):
                return
            if self._rest is not None:  # make room
                self._spill_at(None, self._rest)
                self._rest, self._rest_low, self._rest_bound = None, ANY, 0.0
                if self._keep_rest(rest, low, bound):
                    return
            self._spill_at(None, rest)
        else:
            at = torch.from_numpy(some.nonzero()[0])
            self._spill_at(at, rest[at])

    def _keep_rest(self, rest: Tensor, low: int, bound: float) -> bool:
        """Take into the second accumulator what it can hold."""
        low, bound = min(low, self._rest_low), bound + self._rest_bound
        if not fits(low, bound):
            return False
        self._rest = rest if self._rest is None else self._rest + rest
        self._rest_low, self._rest_bound = low, bound
        return True

    def _spill_at(self, index: Tensor | None, values: Tensor) -> None:
        """Add values (at `index`, each place once) to the digits."""
        for e, part in digits(values):
            digit = self._bins.get(e)
            if index is None:
                self._bins[e] = part if digit is None else digit + part
            else:
                if digit is None:
                    digit = torch.zeros(self.count, dtype=torch.float64)
                elif e not in self._own:
                    digit = digit.clone()
                self._bins[e] = digit.index_add_(0, index, part)
            self._own.add(e)
        self._spills += 1
        if self._spills > OFTEN:
            carry(self._bins)
            self._spills = 0

    def _tally(self, p: Piece) -> bool:
        """Count small whole numbers that come with one factor, rather than add them up. False: not such numbers."""
        if p.tensor.dtype != torch.int8 or p.coef == 0.0:
            return False
        most = round(p.bound / abs(p.coef))
        factor = round(abs(p.coef) * 2.0**STEP) / 2.0**STEP
        if most > 1 and factor != abs(p.coef):
            return False  # each product must be rounded, not the factor
        tally, times = self._tallies.get(factor, (None, 0))
        if times + most > 32000:
            self._whole()
            tally, times = None, 0
        if tally is None:
            tally = torch.zeros(self.count, dtype=torch.int16)
        whole = tally.numpy()
        (whole.__iadd__ if p.coef > 0 else whole.__isub__)(p.tensor.numpy())
        self._tallies[factor] = (tally, times + most)
        self._low, self._bound = min(self._low, -STEP), self._bound + factor * most
        return True

    def _check_narrow(self) -> None:
        if self._bound >= NARROW_LIMIT:
            self._tighten()
            if not self._bound < NARROW_LIMIT:
                raise RefusedInput(
                    f"a sum of counts or weights is {self._bound:g}, it must stay below 4096; use smaller weights"
                )


def _tallied(factor: float, tally: Tensor, times: int) -> Piece:
    return Piece(tally, factor, -STEP, factor * times)


def _cut(x: Tensor, quantum: int) -> tuple[Tensor, Tensor]:
    """x to the nearest multiple of 2^quantum, and the rest; |x| < 2^(quantum + 51)."""
    magic = 1.5 * 2.0 ** (52 + quantum)
    upper = (x + magic).sub_(magic)
    return upper, x - upper


def _gather(x: Tensor) -> tuple[Tensor, Tensor]:
    index = torch.from_numpy((x.numpy() != 0).nonzero()[0])
    return index, x[index].to(torch.float64)
