"""Fisher merging: every element is averaged with the members' Fisher information as weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plait.errors import RefusedInput
from plait.methods.base import Facts, Outlook, Part, Slot, State, Wants, Where
from plait.methods.ranges import at_least, finite
from plait.methods.sparsify import Sparsified
from plait.tensors import Tensor, torch
from plait.tensors.exact import Exact

UP, MORE = 8, 12
"""Information is kept times 2^UP, and its product with a task vector times 2^(UP + MORE), so that the digits which
are kept densely hold all that is usual: information below 2^-9, and products below 2^-21."""


@dataclass(frozen=True)
class Fisher(Sparsified):
    """base + sum_i w_i F_i tau_i / (sum_i w_i F_i + epsilon), element by element, with F_i the diagonal of member i's
    Fisher information (Matena & Raffel 2022, arXiv 2111.09832, equation 3).

    The member's information comes as sides: "fisher/NAME" in the tensor's shape, fp32 or fp64, none negative, for
    every tensor. It counts where the member left a tensor as it is, too.

    epsilon: 0 is the plain mean; elements that no member knows anything about then stay at the base. A larger one
        pulls elements with less information towards the base.

    w_i F_i is rounded to 24 significant bits and to a multiple of 2^-72 (2^-112 for fp64 bases): what is smaller is
    no information. Its product with tau_i is kept finer, so that no element is off by more than 2^-29 for it.
    """

    epsilon: float = 0.0

    wants: ClassVar[Wants] = "fisher"
    sides_needed: ClassVar[bool] = True
    facts: ClassVar[Facts] = Facts(
        summary="mean of the experts, each element weighted by its Fisher information",
        family="additive",
        removal="subtract",
        data="labelled new",
        order=False,
        memory="2 sums",
        cost="1 pass",
        paper="Matena & Raffel 2022, arXiv 2111.09832",
    )

    def check(self) -> None:
        super().check()
        finite("epsilon", self.epsilon)
        at_least("epsilon", self.epsilon, 0)

    def sides(self, shape: tuple[int, ...], name: str, dtype: str) -> dict[str, tuple[int, ...]]:
        return {"fisher": shape}

    def slots(self, shape: tuple[int, ...], dtype: str) -> dict[str, Slot]:
        digits = "F64" if dtype == "F64" else "F32"
        return {"product": Slot("exact", digits=digits), "fisher": Slot("exact", digits=digits)}

    def statistic(self, part: Part) -> dict[str, Exact]:
        given = part.side["fisher"].double()
        if bool((given < 0).any()):
            raise RefusedInput(
                f"Fisher information is {float(given.min()):g} somewhere, expected 0 or more; compute it again"
            )
        grid = -120 if part.where.dtype == "F64" else -80
        fisher = Exact.of(given * (part.weight * 2.0**UP)).round_bits(24).round_to(grid + 16)
        tau = self.tau(part)
        product = Exact.of(fisher.double() * tau.double() * 2.0**MORE).round_bits(tau.bits).round_to(grid)
        return {"product": product, "fisher": fisher}

    def merge(self, base: Tensor, state: State, where: Where, outlook: Outlook) -> Exact | Tensor:
        known = state["fisher"].value().double() * 2.0**-UP + self.epsilon
        total = state["product"].value().double() * 2.0 ** -(UP + MORE)
        return Exact.of(torch.where(known > 0, total / known, 0.0))
