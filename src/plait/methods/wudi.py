"""WUDI: the update of a matrix that disturbs each task vector least, by steps of Adam as published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from plait.methods.base import Facts, MemberFacts, Outlook, Where
from plait.methods.ranges import at_least, finite
from plait.methods.rebuilt import Rebuilt, Taus
from plait.methods.tables import finds, pattern
from plait.tensors import Tensor, torch
from plait.tensors.adam import descend


@dataclass(frozen=True)
class Wudi(Rebuilt):
    """base + scale * M for the matrix of a linear layer, M = sum_i w_i tau_i at first and then moved by `steps` steps
    of Adam of size `rate` that lessen

        sum_i ||(M - w_i tau_i) tau_i^T||^2 / ||tau_i||^2

    (Cheng et al. 2025, arXiv 2503.08099, algorithm 1). All other tensors are averaged, times `scale`.

    The slope is 2 (M G - H) with G = sum_i tau_i^T tau_i / ||tau_i||^2 and H = sum_i w_i tau_i tau_i^T tau_i /
    ||tau_i||^2, sums that are made once, in fp64; the steps run in fp32 (fp64 where the base is fp64). `covariance`
    with ridge 0 is the minimum itself, by one factorisation.

    scale: 0 gives the base.
    steps, rate: 0 of either leaves the sum of the task vectors. No element moves further than about steps * rate.
    tables: regular expression; a tensor whose name it finds is a look-up table and is averaged. "" finds none. The
        default finds no kernels of convolutions.
    convolutions: true takes kernels (out, in, height, width) as matrices (out, in * height * width), but for those
        with one input channel, as of depthwise convolutions; false averages all of them.
    inputs_first: regular expression of matrices that are stored (in, out), as those of GPT-2. "" finds none.

    A member that leaves a matrix as it is disturbs nothing and is not disturbed. Where a matrix has one task vector,
    nothing moves: one member of weight 1 comes back bit for bit at scale 1.
    """

    steps: int = 300
    rate: float = 1e-5
    inputs_first: str = ""

    facts: ClassVar[Facts] = Facts(
        summary="the update that disturbs each task vector least, approached by steps of Adam",
        family="rebuild",
        removal="recompute",
        data="none",
        order=False,
        memory="none, all members' copies of a matrix at work",
        cost="1 pass over all members, 2 products a member and 1 a step of each matrix with a square of its inputs",
        paper="Cheng et al. 2025, arXiv 2503.08099",
    )

    def check(self) -> None:
        super().check()
        at_least("steps", self.steps, 0)
        finite("rate", self.rate)
        at_least("rate", self.rate, 0)
        pattern("inputs_first", self.inputs_first)

    def flipped(self, name: str) -> bool:
        return finds(self.inputs_first, name)

    def combine(self, taus: Taus, outlook: Outlook, where: Where) -> Tensor:
        total, gram, pull, found = _sums(taus)
        if found == 1 or not self.steps:
            return total
        kind = torch.float64 if where.dtype == "F64" else torch.float32
        gram, pull = gram.to(kind), pull.to(kind)

        def slopes(here: Sequence[Tensor]) -> list[Tensor]:
            return [2 * (here[0] @ gram - pull)]

        return descend([total.to(kind)], slopes, self.steps, self.rate)[0]

    def reduces(self, members: Sequence[MemberFacts]) -> bool:
        return self.scale == 1 and len(members) == 1 and members[0].weight == 1


def _sums(taus: Taus) -> tuple[Tensor, Tensor, Tensor, int]:
    """sum_i t_i, G, H and the number of t_i = w_i tau_i: the weight of t_i falls out of t_i^T t_i / ||t_i||^2."""
    total = gram = pull = torch.zeros((), dtype=torch.float64)
    found = 0
    for tau in taus():
        square = tau.T @ tau
        square /= square.diagonal().sum()
        total, gram, pull, found = total + tau, gram + square, pull + tau @ square, found + 1
    return total, gram, pull, found
