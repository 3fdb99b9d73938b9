"""Iso-C: the sum of task vectors with all singular values alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plait.methods.base import Facts, Outlook, State, Where
from plait.methods.matrices import OfMatrices
from plait.methods.ranges import finite
from plait.methods.second_order import flattened
from plait.methods.sparsify import SumOfTaskVectors
from plait.tensors import Tensor
from plait.tensors.exact import Exact, ExactSum


@dataclass(frozen=True)
class IsoC(OfMatrices, SumOfTaskVectors):
    """base + scale * m * U V^T for the matrix of a linear layer, with U diag(sigma) V^T = sum_i w_i tau_i and m the
    mean of sigma (Marczak et al. 2025, arXiv 2502.04959, algorithm 1). All other tensors are averaged, times `scale`.

    The result is a function of one sum, which is kept exactly: the order of members changes nothing, and any of them
    is taken out by subtraction.

    scale: 0 gives the base.
    tables: regular expression; a tensor whose name it finds is a look-up table and is averaged. "" finds none. The
        default finds no kernels of convolutions.
    convolutions: true takes kernels (out, in, height, width) as matrices (out, in * height * width), but for those
        with one input channel, as of depthwise convolutions; false averages all of them.

    Directions with a singular value below 1e-6 of the largest are empty: they stay so, and the mean is that of the
    others. Task vectors that cancel give the base. No expert comes back, unless its singular values are alike.
    """

    scale: float = 1.0

    facts: ClassVar[Facts] = Facts(
        summary="the sum of task vectors, with all singular values of a matrix alike",
        family="additive",
        removal="subtract",
        data="none",
        order=False,
        memory="1 sum",
        cost="1 pass, an eigen-decomposition a matrix",
        paper="Marczak et al. 2025, arXiv 2502.04959",
    )

    def check(self) -> None:
        super().check()
        finite("scale", self.scale)

    def merge(self, base: Tensor, state: State, where: Where, outlook: Outlook) -> Exact | Tensor:
        total: ExactSum = state["delta"]
        shape = self.matrix(where.shape, where.name)
        if shape is None:
            return total.value().over(outlook.weight).times(self.scale)
        flat = flattened(total.value().double().view(shape), 1.0)
        return Exact.of(flat.reshape(-1) * self.scale)
