"""Sums of exact real numbers: order never matters, and subtraction undoes addition."""

from __future__ import annotations

from plait.tensors import Tensor, torch
from plait.tensors.bins import BINS, STEP, carry, digits, guard
from plait.tensors.real import Exact, _split

Dense = dict[int, Tensor]
Sparse = dict[int | str, tuple[Tensor, Tensor]]

_OFTEN = 1 << 11
"""Additions after which digits are carried: each adds at most 2^39 to a digit that must stay below 2^53."""


def dense_bins(dtype: str, narrow: bool = False) -> tuple[int, ...]:
    """Bins that are stored dense for a line of `dtype` (safetensors name); all others are stored sparse."""
    if narrow:
        return (-STEP,)
    return {"BF16": (-40,), "F16": (-40,), "F32": (-40, -80), "F64": (-40, -80, -120)}[dtype]


class ExactSum:
    """A sum of Exact numbers per element of a chunk of `count` elements.

    narrow: addends are rounded to multiples of 2^-40 first and their sum must stay below 2^12; z is not kept.
    """

    def __init__(self, count: int, dtype: str, narrow: bool = False) -> None:
        self.count = count
        self.dtype = dtype
        self.narrow = narrow
        self._bins: dict[int, Tensor] = {}
        self._z: Tensor | None = None
        self._adds = 0

    def add(self, x: Exact) -> None:
        """Add exactly. RefusedInput where a sum reaches 2^53 or an addend is not finite."""
        terms = [x.main]
        if self.narrow:
            terms = [x.round_to(-STEP).main]
        elif x.tail is not None:
            terms += [torch.zeros_like(x.main).index_copy_(0, x.tail.index, t) for t in x.tail.terms]
        for term in terms:
            guard(term)
            for e, part in digits(term):
                now = self._bins.get(e)
                self._bins[e] = part if now is None else now + part
        if 0 in self._bins:
            guard(self._bins[0])
        self._adds += len(terms)
        if self._adds > _OFTEN:
            carry(self._bins)
            self._adds = 0
        if x.z is not None and not self.narrow:
            self._z = x.z if self._z is None else self._z + x.z

    def subtract(self, x: Exact) -> None:
        """Undo `add(x)`."""
        self.add(-x)

    def value(self) -> Exact:
        """The sum. Later additions do not change it."""
        terms = [self._bins[e] for e in BINS if e in self._bins]
        if not terms:
            return Exact(torch.zeros(self.count, dtype=torch.float64), None, self._z)
        total, tail = _split(terms)
        return Exact(total, tail, self._z)

    def pack(self) -> tuple[Dense, Sparse]:
        """The canonical form: dense {bin: (count,) fp64}, sparse {bin or "z": (int64 index, fp64 value)}.
        Equal sums have equal bytes, whatever the route."""
        carry(self._bins)
        bins = dict(self._bins)
        if self.narrow:
            whole = bins.pop(0, None)
            if whole is not None:
                bins[-STEP] = whole + bins[-STEP] if -STEP in bins else whole
        dense: Dense = {}
        for e in dense_bins(self.dtype, self.narrow):
            digit = bins.pop(e, None)
            dense[e] = torch.zeros(self.count, dtype=torch.float64) if digit is None else digit + 0.0
        sparse: Sparse = {}
        for e in sorted(bins, reverse=True):
            index = torch.nonzero(bins[e]).view(-1)
            sparse[e] = (index, bins[e][index])
        if self._z is not None and bool(self._z.any()):
            index = torch.nonzero(self._z).view(-1)
            sparse["z"] = (index, self._z[index].to(torch.float64))
        return dense, sparse

    @classmethod
    def unpack(cls, count: int, dtype: str, dense: Dense, sparse: Sparse, narrow: bool = False) -> ExactSum:
        """The sum that `pack` wrote."""
        out = cls(count, dtype, narrow)
        for e, digit in dense.items():
            out._bins[e] = digit.clone()
        for key, (index, value) in sparse.items():
            full = torch.zeros(count, dtype=torch.float64).index_copy_(0, index, value)
            if isinstance(key, int):
                out._bins[key] = full
            else:
                out._z = full.to(torch.int32)
        return out
