"""Iso-C: the sum of task vectors with all singular values alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plait.methods.base import Facts, Grain, Outlook, State, Where
from plait.methods.ranges import finite
from plait.methods.second_order import flattened
from plait.methods.sparsify import SumOfTaskVectors
from plait.methods.tables import TABLES, is_linear, pattern
from plait.tensors import Tensor
from plait.tensors.exact import Exact, ExactSum


@dataclass(frozen=True)
class IsoC(SumOfTaskVectors):
    """base + scale * m * U V^T for the matrix of a linear layer, with U diag(sigma) V^T = sum_i w_i tau_i and m the
    mean of sigma (Marczak et al. 2025, arXiv 2502.04959, algorithm 1). All other tensors are averaged, times `scale`.

    The result is a function of one sum, which is kept exactly: the order of members changes nothing, and any of them
    is taken out by subtraction.

    scale: 0 gives the base.
    tables: regular expression; a 2-D tensor whose name it finds is a look-up table and is averaged. "" finds none.

    Directions with a singular value below 1e-6 of the largest are empty: they stay so, and the mean is that of the
    others. Task vectors that cancel give the base. No expert comes back, unless its singular values are alike.
    """

    scale: float = 1.0
    tables: str = TABLES

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
        pattern("tables", self.tables)

    def grain(self, shape: tuple[int, ...], name: str = "") -> Grain:
        return "matrix" if is_linear(shape, name, self.tables) else super().grain(shape, name)

    def merge(self, base: Tensor, state: State, where: Where, outlook: Outlook) -> Exact | Tensor:
        total: ExactSum = state["delta"]
        if not is_linear(where.shape, where.name, self.tables):
            return total.value().over(outlook.weight).times(self.scale)
        flat = flattened(total.value().double().view(where.shape), 1.0)
        return Exact.of(flat.reshape(-1) * self.scale)
