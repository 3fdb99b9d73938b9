"""Iso-CTS: directions that tasks share, and some of each task's own, with all singular values alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plait.methods.base import Facts, Outlook, Where
from plait.methods.ranges import share
from plait.methods.rebuilt import Rebuilt, Taus
from plait.methods.tables import finds, pattern
from plait.tensors import Tensor, torch
from plait.tensors.polar import polar
from plait.tensors.spectral import EMPTY, spectrum


@dataclass(frozen=True)
class IsoCts(Rebuilt):
    """base + scale * m * P(U) P(V)^T for the matrix of a linear layer (Marczak et al. 2025, arXiv 2502.04959,
    algorithm 2). The columns of U and V are singular vectors, m is the mean of their singular values:

        of sum_i w_i tau_i, the min(out, in) - N s leading ones, U_c those on the left
        of w_i tau_i - U_c U_c^T w_i tau_i, the s leading ones, for each of N members

    with s = (min(out, in) - c) / N, rounded (halves to the even number), c = common * min(out, in), rounded down, and
    P(X) = X (X^T X)^(-1/2) the nearest matrix with orthonormal columns. All other tensors are averaged, times
    `scale`.

    scale: 0 gives the base.
    common: share of the directions that are those of the sum; 1 takes no other, which is `iso_c`.
    tables: regular expression; a tensor whose name it finds is a look-up table and is averaged. "" finds none. The
        default finds no kernels of convolutions.
    convolutions: true takes kernels (out, in, height, width) as matrices (out, in * height * width), but for those
        with one input channel, as of depthwise convolutions; false averages all of them.
    inputs_first: regular expression of matrices that are stored (in, out), as those of GPT-2. "" finds none.

    Directions with a singular value below 1e-6 of a task vector's largest are empty and take no part, nor do
    directions of U or V that others span. No expert comes back, unless its singular values are alike.
    """

    common: float = 0.8
    inputs_first: str = ""

    facts: ClassVar[Facts] = Facts(
        summary="shared and own singular directions of task vectors, with all singular values of a matrix alike",
        family="rebuild",
        removal="recompute",
        data="none",
        order=False,
        memory="none, all members' copies of a matrix at work",
        cost="1 pass over all members, N + 3 eigen-decompositions a matrix",
        paper="Marczak et al. 2025, arXiv 2502.04959",
    )

    def check(self) -> None:
        super().check()
        share("common", self.common)
        pattern("inputs_first", self.inputs_first)

    def flipped(self, name: str) -> bool:
        return finds(self.inputs_first, name)

    def combine(self, taus: Taus, outlook: Outlook, where: Where) -> Tensor:
        count = outlook.count
        size = min(where.shape)
        own = min(round((size - int(size * self.common)) / count), size // count)
        total = sum(taus(), torch.zeros((), dtype=torch.float64))
        found = spectrum(total)
        kept = min(size - own * count, len(found.values))
        shared = found.left(kept)
        left, right, values = [shared], [found.right(kept)], [found.values[:kept]]
        for tau in taus() if own else ():
            least = EMPTY * float(tau.norm())  # below that, what is left is rounding
            rest = spectrum(tau.sub_(shared @ (shared.T @ tau)))
            kept = min(own, int((rest.values > least).sum()))
            left.append(rest.left(kept))
            right.append(rest.right(kept))
            values.append(rest.values[:kept])
        level = torch.cat(values).mean()
        if not bool(level > 0):
            return torch.zeros_like(total)
        return level * (polar(torch.cat(left, dim=1)) @ polar(torch.cat(right, dim=1)).T)
