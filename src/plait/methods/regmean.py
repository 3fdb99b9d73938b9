"""RegMean: least squares on the inputs that each member's layers see."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import ClassVar

from plait.errors import RefusedInput
from plait.methods.base import LEAST_WEIGHT, Facts, Outlook, Part, Slot, State, Wants, Where
from plait.methods.ranges import share
from plait.methods.second_order import SecondOrder
from plait.tensors import Tensor, torch
from plait.tensors.exact import Exact
from plait.tensors.products import Sliced


@dataclass(frozen=True)
class RegMean(SecondOrder):
    """base + scale * (sum_i w_i tau_i C_i) (sum_i w_i C_i + ridge * m * I)^-1 for matrices, with C_i the mean of
    x x^T over the inputs x that the layer sees on member i's data, off-diagonal elements times `shrink`: the minimum
    over M of sum_i w_i mean_x ||(M - tau_i) x||^2 (Jin et al. 2023, arXiv 2212.09849, equations 1 and 2). All other
    tensors are averaged, and so are matrices that nobody has inputs of.

    The member's moments come as sides: "moment/NAME", (in, in), fp32 or fp64. They need no labels, and count for a
    matrix that the member left as it is.

    scale: 0 gives the base. shrink: 0 weighs each input by its mean square alone, 1 is least squares.
    ridge: 0 is the plain solution, by the pseudo-inverse; a large one turns the update of matrices off.
    flatten: 0 leaves the singular values of a matrix's update as they are, 1 sets them to their mean.
    tables: regular expression; a tensor whose name it finds is a look-up table and is averaged. "" finds none. The
        default finds no kernels of convolutions.
    convolutions: true takes kernels (out, in, height, width) as matrices (out, in * height * width), but for those
        with one input channel, as of depthwise convolutions; false averages all of them.
    inputs_first: regular expression of matrices that are stored (in, out), as those of GPT-2. "" finds none.
    widest: matrices with more inputs are averaged. 0 averages all.

    One member comes back up to rounding with ridge 0 where its moments have full rank; else what its inputs never
    touch stays at the base.
    """

    shrink: float = 0.95

    wants: ClassVar[Wants] = "moments"
    gram_digits: ClassVar[str] = "F32"  # moments have any magnitude
    facts: ClassVar[Facts] = Facts(
        summary="least squares on the inputs of each layer",
        family="additive",
        removal="subtract",
        data="unlabelled",
        order=False,
        memory="1 sum, and half a square of the inputs a matrix",
        cost="1 pass, 2 or 3 products and a factorisation a matrix",
        paper="Jin et al. 2023, arXiv 2212.09849",
    )

    def check(self) -> None:
        super().check()
        share("shrink", self.shrink)

    def sides(self, shape: tuple[int, ...], name: str, dtype: str) -> dict[str, tuple[int, ...]]:
        matrix = self.matrix(shape, name)
        return {} if matrix is None else {"moment": (self.side_of(matrix, name)[1],) * 2}

    def layout(self, shape: tuple[int, ...], dtype: str, name: str) -> dict[str, Slot]:
        found = super().layout(shape, dtype, name)
        return found if "gram" not in found else {**found, "known": Slot("narrow", 1)}

    def moment(self, matrix: Sliced, part: Part) -> Tensor | None:
        given = part.side["moment"].double()
        given = given.view(isqrt(given.numel()), -1)  # flat where the matrix itself is square
        moment = (given + given.T).mul_(0.5)
        diagonal = moment.diagonal().clone()
        if bool((diagonal < 0).any()):
            raise RefusedInput(
                f"a mean square of inputs is {float(diagonal.min()):g}, expected 0 or more; compute the moments again"
            )
        moment.mul_(self.shrink).diagonal().copy_(diagonal)
        return moment

    def statistic(self, part: Part) -> dict[str, Exact]:
        where = part.where
        if self.matrix(where.shape, where.name) is None:
            return super().statistic(part)
        if "moment" not in part.side:
            return {"product": self.tau(part).times(part.weight)}
        weight = torch.full((1,), part.weight, dtype=torch.float64)
        return {**super().statistic(part), "known": Exact.of(weight)}

    def merge(self, base: Tensor, state: State, where: Where, outlook: Outlook) -> Exact | Tensor:
        if self.matrix(where.shape, where.name) is None:
            return super().merge(base, state, where, outlook)
        known = float(state["known"].value().double()[0])
        if not known:
            return self._averaged(state["product"], outlook)
        if abs(known - outlook.weight) >= LEAST_WEIGHT / 2:
            raise RefusedInput(
                f"members of weight {known:g} of {outlook.weight:g} have second moments of its inputs; compute them "
                "for every member or for none"
            )
        return super().merge(base, state, where, outlook)
