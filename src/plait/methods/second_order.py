"""Merging by second moments: the update of a matrix that errs least on what each member's layer sees or changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import frexp, prod
from typing import ClassVar

from plait.methods.base import Outlook, Part, Slot, State, Where
from plait.methods.matrices import OfMatrices
from plait.methods.ranges import at_least, finite, share
from plait.methods.sparsify import Sparsified
from plait.methods.tables import finds, pattern
from plait.tensors import Tensor, torch
from plait.tensors.exact import Exact, ExactSum
from plait.tensors.products import Sliced, bits_for, sliced
from plait.tensors.real import largest
from plait.tensors.solve import right_divide
from plait.tensors.spectral import spectrum

SHORT, FULL = 26, 44
"""Bits that are kept of an addend below its largest magnitude: for 16-bit bases, and for others."""

EMPTY = {True: 2.0**-20, False: 2.0**-26}
"""For 16-bit bases, and for others: directions in which the moments have less than this share of the largest are
empty, if the ridge does not fill them."""

GRAM = 2.0**-8
"""Factor of what is kept of moments, so that usual sums of them, with elements of about 1, stay below 1/2: what is
larger is kept beside the dense digits."""


@dataclass(frozen=True)
class SecondOrder(OfMatrices, Sparsified):
    """For a matrix W (out, in) of a linear layer, y = W x,

        base + scale * (sum_i w_i tau_i C_i) (sum_i w_i C_i + ridge * m * I)^-1

    with m the mean diagonal element of sum_i w_i C_i: the update that a ridge regression finds where task i has
    inputs of second moment C_i, which a subclass says. All other tensors are averaged: base + scale * sum_i w_i tau_i
    / sum_i w_i.

    Kept are two exact sums, of w_i tau_i C_i and of the upper triangle of w_i C_i. Their addends are products of
    whole numbers that fp64 holds exactly, rounded to 2^-44 (16-bit bases: 2^-26) of their largest magnitude or 2^-40,
    whichever is finer: the same bits in any library and on any processor. Only the solution at the end depends on
    the stack.
    """

    scale: float = 1.0
    ridge: float = 0.0
    flatten: float = 0.0
    inputs_first: str = ""
    widest: int = 4096

    gram_digits: ClassVar[str] = ""

    def check(self) -> None:
        super().check()
        finite("scale", self.scale)
        finite("ridge", self.ridge)
        at_least("ridge", self.ridge, 0)
        share("flatten", self.flatten)
        pattern("inputs_first", self.inputs_first)
        at_least("widest", self.widest, 0)

    def axes(self, shape: tuple[int, ...], name: str) -> tuple[int, ...]:
        """The axes of a matrix that second moments may be made of, the better one first: 1 for columns, x; 0 for
        rows, y."""
        return (self.inputs(name),)

    def inputs(self, name: str) -> int:
        """The axis of a matrix that its inputs are multiplied with."""
        return 0 if finds(self.inputs_first, name) else 1

    def idle(self, shapes: Mapping[str, Sequence[int]]) -> list[str]:
        free = replace(self, widest=max(map(prod, shapes.values()), default=0))
        lost = [
            name
            for name, s in shapes.items()
            if 0 not in s and free.matrix(s, name) and not self.matrix(s, name)
        ]
        told = f"matrices wider than widest={self.widest}, which are averaged: {len(lost)}"
        return [*super().idle(shapes), *([told] if lost and self.widest else [])]

    def matrix(self, shape: Sequence[int], name: str) -> tuple[int, int] | None:
        found = super().matrix(shape, name)
        fits = found is not None and any(found[axis] <= self.widest for axis in self.axes(found, name))
        return found if fits else None

    def side_of(self, matrix: tuple[int, int], name: str) -> tuple[int, int]:
        """The axis of a matrix of which second moments are made, and how long it is."""
        axis = next(axis for axis in self.axes(matrix, name) if matrix[axis] <= self.widest)
        return axis, matrix[axis]

    def slots(self, shape: tuple[int, ...], dtype: str) -> dict[str, Slot]:
        return self.layout(shape, dtype, "")

    def layout(self, shape: tuple[int, ...], dtype: str, name: str) -> dict[str, Slot]:
        matrix = self.matrix(shape, name)
        if matrix is None:
            return {"delta": Slot("exact")}
        size = self.side_of(matrix, name)[1]
        digits = self.gram_digits or ("BF16" if _short(dtype) else "F32")
        return {
            "product": Slot("exact", digits=digits),
            "gram": Slot("exact", size * (size + 1) // 2, digits),
        }

    def moment(self, matrix: Sliced, part: Part) -> Tensor | None:
        """C of a member, (n, n) fp64, symmetric to the bit and the same on every machine. matrix: its task vector,
        (m, n), of which axis 1 is the one that C belongs to. None: the member says nothing about the tensor."""
        raise NotImplementedError

    def statistic(self, part: Part) -> dict[str, Exact]:
        where, tau = part.where, self.tau(part)
        shape = self.matrix(where.shape, where.name)
        if shape is None:
            return {"delta": tau.times(part.weight)}
        short = _short(where.dtype)  # one slice then holds all that an expert is precise to
        matrix = tau.double().view(shape)
        axis, _ = self.side_of(shape, where.name)
        cut = sliced(matrix if axis else matrix.T.contiguous(), bits_for(max(shape)), 1 if short else 2)
        moment = self.moment(cut, part)
        if moment is None:
            return {}
        known = sliced(moment, cut.bits)
        bits = SHORT if short else FULL
        return {
            "product": _addend(cut.times(known).reshape(-1), part.weight, bits),
            "gram": _addend(known.value()[_upper(len(moment))], part.weight * GRAM, bits),
        }

    def merge(self, base: Tensor, state: State, where: Where, outlook: Outlook) -> Exact | Tensor:
        shape = self.matrix(where.shape, where.name)
        if shape is None:
            return self._averaged(state["delta"], outlook)
        axis, size = self.side_of(shape, where.name)
        update = right_divide(
            state["product"].value().double().view(-1, size).clone(),
            _symmetric(state["gram"].value().double() / GRAM, size),
            self.ridge,
            EMPTY[_short(where.dtype)],
        )
        if self.flatten:
            update = flattened(update, self.flatten)
        update = update if axis else update.T.contiguous()
        return Exact.of(update.view(-1) * self.scale)

    def _averaged(self, total: ExactSum, outlook: Outlook) -> Exact:
        return total.value().over(outlook.weight).times(self.scale)


def _short(dtype: str) -> bool:
    return dtype in ("BF16", "F16")


def flattened(update: Tensor, share: float) -> Tensor:
    """`update` with each singular value s replaced by (1 - share) s + share * their mean. Directions that are empty
    (see `spectral.EMPTY`) count for nothing and stay so."""
    found = spectrum(update)
    count = len(found.values)
    if not count:
        return update
    level = float(found.values.mean()) * share
    return update * (1 - share) + (found.left(count) * level) @ found.right(count).T


def _addend(values: Tensor, weight: float, bits: int) -> Exact:
    """weight * values on the grid of the addend."""
    values = values * weight
    top = frexp(largest(values))[1]
    return Exact.of(values).round_to(max(min(-40, top - bits), -1000))


def _upper(size: int) -> Tensor:
    """bool (size, size): the upper triangle with the diagonal."""
    return torch.ones(size, size, dtype=torch.bool).triu()


def _symmetric(upper: Tensor, size: int) -> Tensor:
    """The matrix whose upper triangle, row by row, is given."""
    out = torch.zeros(size, size, dtype=torch.float64)
    out[_upper(size)] = upper
    return out + out.triu(1).T
