"""The weighted average of the experts. The smallest method: copy this file to write another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plait.methods.base import Facts, Outlook, Quick, State, Where
from plait.methods.sparsify import SumOfTaskVectors
from plait.tensors import Tensor
from plait.tensors.compiled import ScaledSum, known
from plait.tensors.exact import Exact


@dataclass(frozen=True)
class Average(SumOfTaskVectors):
    """base + sum_i w_i tau_i / sum_i w_i, with tau_i = expert_i - base.

    One member of weight 1 comes back bit for bit; of another weight, up to the rounding of w * tau.
    Cost: one read of each input.
    """

    facts: ClassVar[Facts] = Facts(
        summary="weighted mean of the experts",
        family="additive",
        removal="subtract",
        data="none",
        order=False,
        memory="1 sum",
        cost="1 pass",
        paper="Wortsman et al. 2022, arXiv 2203.05482",
    )

    def merge(self, base: Tensor, state: State, where: Where, outlook: Outlook) -> Exact | Tensor:
        total: Exact = state["delta"].value()
        return total.over(outlook.weight)

    def quick(self, base: Tensor, where: Where, outlook: Outlook) -> Quick | None:
        if self.sparsify is not None or not known(base):
            return None
        return ScaledSum(base, divisor=outlook.weight)
