"""Task arithmetic: the base plus a scaled sum of task vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plait.methods.base import Facts, Outlook, Quick, State, Where
from plait.methods.ranges import finite
from plait.methods.sparsify import SumOfTaskVectors
from plait.tensors import Tensor
from plait.tensors.compiled import ScaledSum, known
from plait.tensors.exact import Exact


@dataclass(frozen=True)
class TaskArithmetic(SumOfTaskVectors):
    """base + scale * sum_i w_i tau_i, with tau_i = expert_i - base (Ilharco et al. 2023, eq. in section 4.2).

    scale: 0 gives the base, 1 with one member of weight 1 gives that expert bit for bit.
    """

    scale: float = 0.3

    facts: ClassVar[Facts] = Facts(
        summary="base plus a scaled sum of task vectors",
        family="additive",
        removal="subtract",
        data="none",
        order=False,
        memory="1 sum",
        cost="1 pass",
        paper="Ilharco et al. 2023, arXiv 2212.04089",
    )

    def check(self) -> None:
        super().check()
        finite("scale", self.scale)

    def merge(self, base: Tensor, state: State, where: Where, outlook: Outlook) -> Exact | Tensor:
        total: Exact = state["delta"].value()
        return total.times(self.scale)

    def quick(self, base: Tensor, where: Where, outlook: Outlook) -> Quick | None:
        if self.sparsify is not None or not known(base):
            return None
        return ScaledSum(base, factor=self.scale)
