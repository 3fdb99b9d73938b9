"""Covariance: second moments estimated from the task vectors themselves, without data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import fsum
from typing import Any, ClassVar

from plait.methods.base import Facts, Part
from plait.methods.fit import adopt
from plait.methods.ranges import choice
from plait.methods.second_order import SecondOrder
from plait.tensors import Tensor
from plait.tensors.products import Sliced


@dataclass(frozen=True)
class Covariance(SecondOrder):
    """base + scale * (sum_i w_i tau_i C_i) (sum_i w_i C_i + ridge * m * I)^-1 for matrices, with

        C_i = n * tau_i^T tau_i / ||tau_i||^2     (n columns, mean diagonal element 1)

    and m = sum_i w_i: the minimum over M of

        sum_i w_i ||(M - tau_i) tau_i^T||^2 / ||tau_i||^2 + (ridge * m / n) ||M||^2,

    the objective of Cheng et al. 2025 (WUDI, arXiv 2503.08099) in closed form. Gradient steps pull a row of a task
    vector towards the inputs of its layer, so tau^T tau stands for their second moment. All other tensors are
    averaged.

    scale: 0 gives the base.
    ridge: 0 is the plain solution, by the pseudo-inverse; a large one turns the update of matrices off.
    flatten: 0 leaves the singular values of a matrix's update as they are, 1 sets them to their mean (Marczak et al.
        2025, Iso-C, arXiv 2502.04959).
    side: "in" as above; "out" from the left, C_i = tau_i tau_i^T; "smaller": the shorter side, for less state.
    tables: regular expression; a tensor whose name it finds is a look-up table and is averaged. "" finds none. The
        default finds no kernels of convolutions.
    convolutions: true takes kernels (out, in, height, width) as matrices (out, in * height * width), but for those
        with one input channel, as of depthwise convolutions; false averages all of them.
    inputs_first: regular expression of matrices that are stored (in, out), as those of GPT-2. "" finds none.
    widest: a matrix whose side is longer takes the other side, and is averaged where that is longer too. 0 averages
        all.
    fit: "cmaes" or "gradient" chooses the scale by the members' losses (see `fit.Fit`), starting at `scale`. None: it
        is fixed.

    With ridge 0 one member comes back up to rounding and to singular directions below 2^-13 (16-bit bases: 2^-10) of
    its largest, whatever its weight, and so do identical members. With ridge r, the part of the one member that has
    share v of the mean eigenvalue of C comes back times v / (v + r).
    """

    ridge: float = 0.3
    side: str = "in"
    fit: Any = None

    facts: ClassVar[Facts] = Facts(
        summary="regression on the task vectors: each update counts where it moved the weights most",
        family="additive",
        removal="subtract",
        data="none",
        order=False,
        memory="1 sum, and half a square of the inputs a matrix",
        cost="1 pass, 3 to 5 products and a factorisation a matrix",
        paper="Cheng et al. 2025, arXiv 2503.08099",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        adopt(self)

    def check(self) -> None:
        super().check()
        choice("side", self.side, ("in", "out", "smaller"))

    def axes(self, shape: tuple[int, ...], name: str) -> tuple[int, ...]:
        first = self.inputs(name)
        if self.side == "out" or (self.side == "smaller" and shape[1 - first] < shape[first]):
            first = 1 - first
        return (first, 1 - first)

    def moment(self, matrix: Sliced, part: Part) -> Tensor | None:
        # One slice says enough of how the weights moved; fp64 lines keep to the formula further.
        whole = part.where.dtype == "F64"
        gram, _ = (matrix if whole else replace(matrix, low=None)).gram()
        trace = fsum(gram.diagonal().tolist())
        return gram.div_(trace).mul_(float(len(gram))) if trace > 0 else None
