"""Task arithmetic: the base plus a scaled sum of task vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from plait.errors import UsageError
from plait.methods.base import Facts, MemberFacts, Method, Outlook, Quick, State, Where
from plait.methods.coefficients import CoefficientMethod, Coefficients, Combination, Products
from plait.methods.fit import adopt
from plait.methods.groups import GRANULARITIES, group_of
from plait.methods.ranges import choice, finite
from plait.methods.sparsify import SumOfTaskVectors
from plait.tensors import Tensor
from plait.tensors.compiled import ScaledSum, known
from plait.tensors.exact import Exact


@dataclass(frozen=True)
class TaskArithmetic(SumOfTaskVectors):
    """base + scale * sum_i w_i tau_i, with tau_i = expert_i - base (Ilharco et al. 2023, eq. in section 4.2).

    scale: 0 gives the base, 1 with one member of weight 1 gives that expert bit for bit.
    fit: "cmaes" or "gradient" gives every member a scale of its own, chosen by the members' losses (see `fit.Fit`),
        starting at `scale`; members then leave by being left out of the sum and of the fit. None: one fixed scale.
    granularity: of fitted scales: one for the "model" (the default), for each "layer" or each "tensor" (see
        `groups.group_of`).
    """

    scale: float = 0.3
    fit: Any = None
    granularity: str | None = None

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

    def __post_init__(self) -> None:
        super().__post_init__()
        adopt(self)

    def check(self) -> None:
        super().check()
        finite("scale", self.scale)
        choice("granularity", self.granularity or GRANULARITIES[0], GRANULARITIES)
        if self.fit is None and self.granularity is not None:
            raise UsageError(
                f"granularity is {self.granularity} and nothing is fitted; one scale is fixed for the whole model: "
                "choose fit=cmaes or fit=gradient, or leave granularity out"
            )
        if self.fit is not None and self.sparsify is not None:
            raise UsageError(
                f"fit={self.fit.name} and sparsify={self.sparsify.name} are both given; scales are fitted to whole "
                "task vectors, choose one of the two"
            )

    def resolved(self) -> Method:
        if self.fit is None:
            return self
        return FittedTaskArithmetic(self.scale, self.fit, self.granularity)

    def merge(self, base: Tensor, state: State, where: Where, outlook: Outlook) -> Exact | Tensor:
        total: Exact = state["delta"].value()
        return total.times(self.scale)

    def quick(self, base: Tensor, where: Where, outlook: Outlook) -> Quick | None:
        if self.sparsify is not None or not known(base):
            return None
        return ScaledSum(base, factor=self.scale)


@dataclass(frozen=True)
class FittedTaskArithmetic(CoefficientMethod):
    """base + sum_i s_i w_i tau_i with scales s_i that a fit has chosen: what `TaskArithmetic` with a `fit` becomes.
    Where none has, they are `scale`."""

    scale: float = 0.3
    fit: Any = "gradient"
    granularity: str | None = None
    sparsify: None = None

    facts: ClassVar[Facts] = replace(
        TaskArithmetic.facts,
        family="coefficients",
        removal="recompute",
        memory="none, N² inner products a group",
        cost="1 pass over all members, and a fit",
    )

    def __post_init__(self) -> None:
        adopt(self)

    @property
    def name(self) -> str:
        return "task_arithmetic"

    def check(self) -> None:
        finite("scale", self.scale)
        choice("granularity", self.granularity or GRANULARITIES[0], GRANULARITIES)

    def group(self, name: str) -> str:
        return group_of(name, self.granularity or GRANULARITIES[0])

    def combine(
        self, products: Products, members: Sequence[MemberFacts], alpha: Coefficients | None = None
    ) -> Combination:
        def scaled(group: str) -> list[float]:
            given = [self.scale] * len(members) if alpha is None else alpha[group]
            return [a * m.weight for a, m in zip(given, members, strict=True)]

        return Combination({group: scaled(group) for group in products.inner})
