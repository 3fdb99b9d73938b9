"""The three terms that TRM's coordinates descend on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plait.errors import PlaitError
from plait.tensors import Tensor, torch

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Values:
    """align: cross-entropy. pre: how far representations lie from the mean of the two models. res: -||gradient of
    align||^2, over `scale`. A term that is switched off is 0. total: with the terms' factors."""

    align: float
    pre: float
    res: float
    scale: float
    total: float


@dataclass(frozen=True)
class Terms:
    """L_align + pre * L_pre + res * L_res on the examples of an objective.

    targets: the two models whose mean representations are to be kept. pre, res: factors; 0: that term is not
    computed. layers: omega by layer, see `layers.depths`.

    Cost: 1 gradient; 1 more and a forward pass for each target with `pre`; a Hessian-vector product (about 2
    gradients) with `res`. Memory: 3 models with the weights.
    """

    targets: Sequence[Weights]
    pre: float
    res: float
    layers: Mapping[str, float]

    def at(
        self, objective: Any, weights: Weights, scale: float | None, where: str
    ) -> tuple[Values, dict[str, Tensor]]:
        """The terms, and the gradient of their sum by tensor name.

        scale: what ||gradient of align||^2 is divided by; None: by its own value here. It has the gradient -2 H g /
        scale, a product with the Hessian that attention takes by its plain formula. PlaitError where a value is not
        finite; where: what the error calls the place.
        """
        align, slopes = objective.loss_and_gradient(weights)
        steep = square(slopes)
        scale = steep if scale is None else scale
        by_res = self.res / scale if scale else 0.0
        if by_res:
            for name, product in objective.hvp(weights, slopes).items():
                slopes[name] = slopes[name] - 2 * by_res * product
        apart = 0.0
        if self.pre:
            apart, pull = objective.drift(weights, self.targets, self.layers)
            for name in slopes:
                slopes[name] = slopes[name] + self.pre * pull.pop(name)
        res = -steep / scale if by_res else 0.0
        total = align + self.pre * apart + self.res * res
        if not abs(total) < float("inf"):
            raise PlaitError(
                f"the terms of trm are align {align}, pre {apart}, res {res} {where}, expected finite numbers; look "
                "at the expert and at its examples, or take a smaller rate"
            )
        return Values(align, apart, res, scale, total), slopes


def square(gradient: Weights) -> float:
    """||gradient||^2 over all tensors, in fp64."""
    return float(sum((one.square().sum(dtype=torch.float64) for one in gradient.values()), torch.zeros(())))
