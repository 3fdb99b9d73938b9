"""Products of matrices that come out the same on every machine: whole numbers in fp64, multiplied without rounding.

A product in fp64 depends on the order of its additions, and so on the library, the processor and the threads. Here a
matrix is cut into two slices of whole numbers that are so short that every sum of their products stays below 2^53: no
addition rounds, so order, fused operations and block sizes cannot show. Source: Ozaki, Ogita, Oishi, Rump 2012,
"Error-free transformations of matrix multiplication by using fast routines of matrix multiplication", Numerical
Algorithms 59, algorithm 3, with two slices.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import frexp

from plait.tensors import Tensor, torch
from plait.tensors.real import largest


@dataclass(frozen=True)
class Sliced:
    """(high + low * 2^-bits) * 2^exponent, with fp64 matrices of whole numbers: |high| <= 2^bits, |low| <=
    2^(bits-1). None for `low` that is 0 everywhere."""

    high: Tensor
    low: Tensor | None
    bits: int
    exponent: int

    def value(self) -> Tensor:
        """The matrix, exact in fp64 where its exponent is in reach."""
        if self.low is None:
            return scaled(self.high, self.exponent)
        return scaled(self.high + self.low * 2.0**-self.bits, self.exponent)

    def gram(self) -> tuple[Tensor, int]:
        """(G, e) with self^T self = G * 2^e, short of low^T low: off by at most rows * 2^(-2 * bits) of the largest
        square. G: (columns, columns) fp64, symmetric to the bit. Two products of matrices."""
        total = self.high.mT @ self.high
        if self.low is not None:
            cross = self.high.mT @ self.low
            cross = cross + cross.mT
            total += cross.mul_(2.0**-self.bits)
        return total, 2 * self.exponent

    def times(self, other: Sliced) -> Tensor:
        """self @ other in fp64, short of low @ low. Both of the same `bits`. Three products of matrices."""
        total = self.high @ other.high
        cross = self.high @ other.low if other.low is not None else None
        if self.low is not None:
            more = self.low @ other.high
            cross = more if cross is None else cross.add_(more)
        if cross is not None:
            total += cross.mul_(2.0**-self.bits)
        return scaled(total, self.exponent + other.exponent)


def bits_for(length: int) -> int:
    """Bits of a slice with which sums of `length` products are exact in fp64."""
    return (53 - max(length - 1, 0).bit_length()) // 2


def sliced(matrix: Tensor, bits: int, slices: int = 2) -> Sliced:
    """Cut a finite fp64 matrix: rounded to multiples of 2^(-2 * bits) of the power of two above its largest
    magnitude, 2^-bits with one slice."""
    top = frexp(largest(matrix.reshape(-1)))[1]
    wide = scaled(matrix, bits - top)
    high = torch.round(wide)
    if slices == 1:
        return Sliced(high, None, bits, top - bits)
    low = (wide - high).mul_(2.0**bits).round_()
    return Sliced(high, low if bool(low.any()) else None, bits, top - bits)


def scaled(x: Tensor, exponent: int) -> Tensor:
    """x * 2^exponent in a new tensor, also where the factor itself is out of fp64's reach."""
    first = max(min(exponent, 1000), -1000)
    out = x * 2.0**first
    return out if first == exponent else out.mul_(2.0 ** max(min(exponent - first, 1000), -1000))
