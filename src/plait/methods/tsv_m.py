"""TSV-M: the leading singular triplets of every task vector, made orthogonal to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from plait.methods.base import Facts, MemberFacts, Outlook, Where
from plait.methods.ranges import truth
from plait.methods.rebuilt import Rebuilt, Taus
from plait.tensors import Tensor, torch
from plait.tensors.polar import polar
from plait.tensors.sketch import leading
from plait.tensors.spectral import spectrum


@dataclass(frozen=True)
class TsvM(Rebuilt):
    """base + scale * P(U) S P(V)^T for the matrix of a linear layer (Gargiulo et al. 2025, arXiv 2412.00081,
    algorithm 1), with

        w_i tau_i = U_i S_i V_i^T        the k = min(m, n) // N leading singular triplets of each of N members
        U = [U_1 ... U_N], V = [V_1 ... V_N], S = diag(S_1 ... S_N)
        P(X) = X (X^T X)^(-1/2)          the nearest matrix with orthonormal columns

    All other tensors are averaged, times `scale`; so are matrices whose shorter side is below N, of which the paper
    would keep nothing.

    scale: 0 gives the base.
    tables: regular expression; a tensor whose name it finds is a look-up table and is averaged. "" finds none. The
        default finds no kernels of convolutions.
    convolutions: true takes kernels (out, in, height, width) as matrices (out, in * height * width), but for those
        with one input channel, as of depthwise convolutions; false averages all of them.

    sketch: true finds the triplets from a few random vectors where k is small (see `tensors.sketch`). Measured on 8
        random task vectors of width 768 (`benchmarks/sketch.py`): 0.5 to 0.8 of the time, directions that
        miss up to 0.6 % of the squared values, and an update that is off by 27 to 100 % of its norm, because P weighs
        the directions near the cut as much as the leading ones. That is another model, so it is false by default.

    One member of weight 1 comes back bit for bit at scale 1. Singular directions below 1e-6 of a task vector's
    largest are empty and take no part, nor do directions of U or V that others span: of two equal members the k
    leading triplets come back.
    """

    sketch: bool = False

    facts: ClassVar[Facts] = Facts(
        summary="the leading singular triplets of all task vectors, made orthogonal to each other",
        family="rebuild",
        removal="recompute",
        data="none",
        order=False,
        memory="none, all members' copies of a matrix at work",
        cost="1 pass over all members, N + 2 eigen-decompositions a matrix",
        paper="Gargiulo et al. 2025, arXiv 2412.00081",
    )

    def check(self) -> None:
        super().check()
        truth("sketch", self.sketch)

    def combine(self, taus: Taus, outlook: Outlook, where: Where) -> Tensor:
        rank = min(where.shape) // outlook.count
        if not rank:
            return sum(taus(), torch.zeros(where.shape, dtype=torch.float64)) / outlook.weight
        left, values, right = [], [], []
        for tau in taus():
            found = leading(tau, rank) if self.sketch else spectrum(tau)
            kept = min(rank, len(found.values))
            left.append(found.left(kept))
            right.append(found.right(kept))
            values.append(found.values[:kept])
        return (polar(torch.cat(left, dim=1)) * torch.cat(values)) @ polar(torch.cat(right, dim=1)).T

    def reduces(self, members: Sequence[MemberFacts]) -> bool:
        return self.scale == 1 and len(members) == 1 and members[0].weight == 1
