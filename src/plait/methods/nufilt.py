"""NUFILT: a new task vector loses what acts on the inputs that the model so far has changed for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from plait.methods.base import Facts, Part
from plait.methods.matrix_fold import MatrixFold
from plait.methods.ranges import at_least, truth
from plait.tensors import Tensor, torch
from plait.tensors.adam import descend
from plait.tensors.random import normal
from plait.tensors.sketch import leading
from plait.tensors.spectral import spectrum

LOW, OWN, STEPS, RATE, SPREAD = 64, 8, 50, 1e-3, 0.02
"""Of `recover`, as published: rank of the correction, leading directions of the new task vector, steps of Adam and
their size, and the standard deviation of A at the start."""


@dataclass(frozen=True)
class Nufilt(MatrixFold):
    """base + O with, for the matrix W (out, in) of a linear layer, y = W x (NUFILT, arXiv 2509.21413),

        O + tau (I - V V^T)

    for every task vector w * tau that comes in, V the r leading right singular vectors of O so far: the new task does
    not act on the inputs that earlier ones act on most. All other tensors are averaged: base + sum_i w_i tau_i /
    sum_i w_i.

    rank: r, but never more than a third of the inputs. 0 adds everything.
    recover: true adds tau B A to that, of rank 64, with A and B that lessen

        ||tau (I - V V^T + B A) V||^2 + ||(O + tau (I - V V^T + B A) - tau) V_tau||^2,

    what the new task does to the inputs of the earlier ones, and how far the 8 leading directions V_tau of tau are
    from what they were: 50 steps of Adam of size 1e-3 from B = 0 and normal A of deviation 0.02, seeded by line and
    member.
    sketch: true finds V from a few random vectors where r is small (see `tensors.sketch`). Measured on 8 random task
        vectors of 768 inputs (`benchmarks/sketch.py`): 0.5 to 0.85 of the time, directions that miss up to
        0.6 % of the squared values that V holds, and an update that is off by 13 to 46 % of its norm, because values
        near the cut are nearly equal. That is another model, so it is false by default.
    tables: regular expression; a tensor whose name it finds is a look-up table and is averaged. "" finds none. The
        default finds no kernels of convolutions.
    convolutions: true takes kernels (out, in, height, width) as matrices (out, in * height * width), but for those
        with one input channel, as of depthwise convolutions; false averages all of them.
    inputs_first: regular expression of matrices that are stored (in, out), as those of GPT-2. "" finds none.

    The state is O in fp32 (fp64 where the base is fp64), and an exact sum of other tensors. Decompositions are made
    in fp64, and products with tau in the state's dtype. Directions with a singular value below 1e-6 of the largest
    are empty and not in V. One member of weight 1 comes back bit for bit.
    """

    rank: int = 128
    recover: bool = False
    sketch: bool = False

    facts: ClassVar[Facts] = Facts(
        summary="sum of task vectors, each without what acts on the leading inputs of those before it",
        family="fold",
        removal="refold",
        data="none",
        order=True,
        memory="1 value in fp32, 1 sum where it is averaged",
        cost="1 pass, an eigen-decomposition a matrix",
        paper="NUFILT, arXiv 2509.21413",
    )

    def check(self) -> None:
        super().check()
        at_least("rank", self.rank, 0)
        truth("recover", self.recover)
        truth("sketch", self.sketch)

    def draws(self) -> bool:
        return self.recover

    def enter(self, total: Tensor, tau: Tensor, part: Part) -> Tensor:
        return tau + self.change(total, tau.to(total.dtype), part) + total

    def change(self, total: Tensor, tau: Tensor, part: Part) -> Tensor:
        """What is added to `tau` before it is added to `total`, both (out, in) and of one dtype."""
        rank = min(self.rank, tau.shape[1] // 3)
        found = leading(total, rank) if self.sketch and rank else spectrum(total)
        right = found.right(min(rank, len(found.values)))
        inside = tau @ right
        change = inside @ right.T
        change = change.neg_()
        return change + self._correction(total, tau, right, inside, part) if self.recover else change

    def _correction(self, total: Tensor, tau: Tensor, right: Tensor, inside: Tensor, part: Part) -> Tensor:
        """tau B A. right: V. inside: tau V."""
        own = spectrum(tau)
        leading = own.right(min(OWN, len(own.values)))
        looked = torch.cat([right, leading], dim=1)
        # (O + tau (I - V V^T) - tau) V_tau; of tau (I - V V^T) V nothing is left.
        missing = total @ leading - inside @ (right.T @ leading)
        short = right.shape[1]

        def slopes(here: Sequence[Tensor]) -> list[Tensor]:
            up, down = here
            narrow, seen = tau @ up, down @ looked
            error = narrow @ seen
            error[:, short:] += missing
            return [2 * (tau.T @ (error @ seen.T)), 2 * ((narrow.T @ error) @ looked.T)]

        inputs = tau.shape[1]
        begin = [
            tau.new_zeros(inputs, LOW),
            SPREAD * normal(part.seed, part.where.name, LOW * inputs).view(LOW, inputs).to(tau.dtype),
        ]
        up, down = descend(begin, slopes, STEPS, RATE)
        return (tau @ up) @ down
