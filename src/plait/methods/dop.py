"""DOP: the model so far and a new expert meet where both keep what their leading singular directions do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from plait.methods.base import Facts, Part
from plait.methods.matrix_fold import MatrixFold
from plait.methods.ranges import at_least, finite, share
from plait.tensors import Tensor
from plait.tensors.adam import descend
from plait.tensors.spectral import spectrum


@dataclass(frozen=True)
class Dop(MatrixFold):
    """base + O for the matrix of a linear layer. A task vector tau comes in by `steps` steps of Adam of size `rate`
    on M, from M = (O + tau) / 2, that lessen a L(O) + (1 - a) L(tau), and M is the new O ("Continual Model Merging
    without Data: Dual Projections for Balancing Stability and Plasticity", NeurIPS 2025), with

        L(T) = ||S U^T (M - T)||^2 + ||(M - T) V S||^2        T = U S V^T, its leading triplets

    a is `alpha` at first, and before each step becomes decay * a + (1 - decay) * c, where c in 0.001 .. 0.999 is the
    point at which c grad L(O) / L(O) + (1 - c) grad L(tau) / L(tau) is shortest (MGDA, Sener & Koltun 2018). All
    other tensors are averaged: base + sum_i w_i tau_i / sum_i w_i. A weight multiplies its task vector.

    share: of the sum of singular values that the leading triplets hold. 0: none, and nothing moves; 1: all.
    alpha: 1 counts the model so far alone, 0 the new expert alone.
    decay: 1 keeps a at `alpha`, 0 takes c at every step.
    steps, rate: 0 of either gives (O + tau) / 2.
    tables: regular expression; a tensor whose name it finds is a look-up table and is averaged. "" finds none. The
        default finds no kernels of convolutions.
    convolutions: true takes kernels (out, in, height, width) as matrices (out, in * height * width), but for those
        with one input channel, as of depthwise convolutions; false averages all of them.
    inputs_first: regular expression of matrices that are stored (in, out). No result depends on it: both sides of a
        matrix count alike.

    The state is O in fp32 (fp64 where the base is fp64), and an exact sum of other tensors. Steps are made in the
    state's dtype. One member of weight 1 comes back bit for bit, and so does the same expert twice, up to rounding.
    """

    share: float = 0.99999
    alpha: float = 0.8
    decay: float = 0.999
    steps: int = 200
    rate: float = 1e-4

    facts: ClassVar[Facts] = Facts(
        summary="a point between model and new expert that keeps what the leading directions of both do",
        family="fold",
        removal="refold",
        data="none",
        order=True,
        memory="1 value in fp32, 1 sum where it is averaged",
        cost="1 pass, 2 eigen-decompositions a matrix, 4 products a step of it with squares of its sides",
        paper='"Dual Projections for Balancing Stability and Plasticity", NeurIPS 2025',
    )

    def check(self) -> None:
        super().check()
        for name in ("share", "alpha", "decay"):
            share(name, getattr(self, name))
        at_least("steps", self.steps, 0)
        finite("rate", self.rate)
        at_least("rate", self.rate, 0)

    def enter(self, total: Tensor, tau: Tensor, part: Part) -> Tensor:
        ends = (total, tau.to(total.dtype))
        pulls = [self._pull(end) for end in ends]
        a = self.alpha

        def slopes(here: Sequence[Tensor]) -> list[Tensor]:
            nonlocal a
            gaps = [here[0] - end for end in ends]
            halves = [pull(gap) for pull, gap in zip(pulls, gaps, strict=True)]  # of the slopes of L
            losses = [_dot(gap, half) for gap, half in zip(gaps, halves, strict=True)]
            if all(loss > 0 for loss in losses):
                a = self.decay * a + (1 - self.decay) * _shortest(halves, losses)
            return [2 * (a * halves[0] + (1 - a) * halves[1])]

        return descend([(ends[0] + ends[1]) / 2], slopes, self.steps, self.rate)[0]

    def _pull(self, end: Tensor) -> Callable[[Tensor], Tensor]:
        """What takes X to U S^2 U^T X + X V S^2 V^T."""
        found = spectrum(end)
        kept = found.leading(self.share)
        values = found.values[:kept].to(end.dtype)
        left, right = _square(found.left(kept) * values), _square(found.right(kept) * values)
        return lambda x: left(x) + right(x.T).T


def _square(factor: Tensor) -> Callable[[Tensor], Tensor]:
    """What takes X to F F^T X, by the shorter way."""
    if 2 * factor.shape[1] < factor.shape[0]:
        return lambda x: factor @ (factor.T @ x)
    whole = factor @ factor.T
    return lambda x: whole @ x


def _dot(one: Tensor, other: Tensor) -> float:
    return float((one.double() * other.double()).sum())


def _shortest(slopes: Sequence[Tensor], losses: Sequence[float]) -> float:
    """c between 0.001 and 0.999 at which c g_0 + (1 - c) g_1 is shortest, g_i = slopes[i] / losses[i]."""
    first = _dot(slopes[0], slopes[0]) / losses[0] ** 2
    cross = _dot(slopes[0], slopes[1]) / (losses[0] * losses[1])
    second = _dot(slopes[1], slopes[1]) / losses[1] ** 2
    if cross >= first:
        return 0.999
    if cross >= second:
        return 0.001
    return (second - cross) / (first + second - 2 * cross)
