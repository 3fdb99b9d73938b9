"""What a merge did to a network, in numbers: where gradients point, how sharp a loss is, which layers moved.

`objective` is a `plait.problem.Objective`; a `Problem` serves too where no layers are looked at, for the mean of its
tasks. Nothing here changes a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import acos, degrees, sqrt
from typing import Any

from plait.methods.groups import layer_of
from plait.methods.trm_parts.layers import layers_of
from plait.tensors import Tensor, torch
from plait.tensors.random import uniform

Weights = Mapping[str, Tensor]


def gradient_deviation(objective: Any, weights: Weights, reference: Weights) -> float:
    """The angle in degrees, 0 to 180, between the gradients of the loss at two sets of weights; NaN where one of them
    is 0. Cost: 2 gradients."""
    one = objective.loss_and_gradient(weights)[1]
    other = objective.loss_and_gradient(reference)[1]
    lengths = sqrt(_inner(one, one)) * sqrt(_inner(other, other))
    if not lengths:
        return float("nan")
    return degrees(acos(min(max(_inner(one, other) / lengths, -1.0), 1.0)))


@dataclass(frozen=True)
class Sharpness:
    """norm: the estimate. change: by what share the last product changed it."""

    norm: float
    change: float
    products: int


def hessian_norm(
    objective: Any, weights: Weights, products: int = 50, tolerance: float = 1e-3, seed: int = 0
) -> Sharpness:
    """The spectral norm of the Hessian of the loss, the largest magnitude of its eigenvalues, by power iteration on
    Hessian-vector products: ||H v|| for the unit vector v that the last product gave. It rises towards the norm.

    products: the most that are made; fewer where one changes the estimate by no more than a share `tolerance` of it.
    seed: of the first vector.
    """
    root = str(seed).encode()
    vector = {n: uniform(root, n, 0, w.numel()).view(w.shape).to(w) - 0.5 for n, w in weights.items()}
    norm, change, made = 0.0, float("inf"), 0
    length = sqrt(_inner(vector, vector))
    while made < products and length and change > tolerance:
        vector = {name: part / length for name, part in vector.items()}
        vector = objective.hvp(weights, vector)
        length = sqrt(_inner(vector, vector))
        change = abs(length - norm) / length if length else 0.0
        norm, made = length, made + 1
    return Sharpness(norm, change, made)


def weight_drift(weights: Weights, reference: Weights) -> dict[str, float]:
    """By layer (`groups.layer_of`), ||weights - reference|| / ||reference||, over the tensors of the layer; infinite
    where only the reference is 0."""
    found: dict[str, list[float]] = {}
    for name, there in reference.items():
        sums = found.setdefault(layer_of(name), [0.0, 0.0])
        apart = weights[name].double() - there.double()
        sums[0] += float(apart.square().sum())
        sums[1] += float(there.double().square().sum())
    return {layer: _ratio(*sums) for layer, sums in found.items()}


def layer_drift(objective: Any, weights: Weights, reference: Weights, layers: str = "") -> dict[str, float]:
    """By layer, in the order in which they run, sqrt(mean ||h(weights) - h(reference)||^2 / mean ||h(reference)||^2)
    of what it puts out for the objective's examples, padding left out. layers: see `layers_of`. Cost: 2 losses."""
    names = layers_of(objective.network.module, layers)
    found: dict[str, float] = objective.apart(weights, reference, objective.running(weights, names))
    return found


def _inner(one: Weights, other: Weights) -> float:
    return sum(float(torch.dot(one[n].flatten().double(), other[n].flatten().double())) for n in one)


def _ratio(apart: float, size: float) -> float:
    if not apart:
        return 0.0
    return sqrt(apart / size) if size else float("inf")
