"""Diagnostics against closed forms and dense Hessians."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any

import pytest
import torch
from torch import Tensor

from plait.methods.diagnostics import gradient_deviation, hessian_norm, layer_drift, weight_drift
from plait.problem.base import Examples
from plait.problem.network import module_network
from plait.problem.objective import Objective
from plait.problem.problem import Problem

POINTS = torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
LABELS = torch.arange(20) % 3
SHAPES = {"0.weight": (4, 3), "0.bias": (4,), "2.weight": (3, 4), "2.bias": (3,)}


def model(seed: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {n: torch.randn(s, generator=draw, dtype=torch.float64) for n, s in SHAPES.items()}


def objective() -> Objective:
    layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
    network = module_network(layers, dtype=torch.float64)
    return Objective(network, None, Examples(POINTS, LABELS, ""), batch=6, micro=7)


def loss(vector: Tensor) -> Tensor:
    one, two, three, four = torch.split(vector, [12, 4, 12, 3])
    logits = (POINTS @ one.view(4, 3).T + two).tanh() @ three.view(3, 4).T + four
    mean: Tensor = (logits.logsumexp(1) - logits[torch.arange(20), LABELS]).mean()
    return mean


def flat(weights: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([weights[name].reshape(-1) for name in SHAPES])


class Line:
    """A loss with the gradient (cos x, sin x), and with no Hessian."""

    def loss_and_gradient(self, weights: Any) -> tuple[float, dict[str, Tensor]]:
        return 0.0, {"x": weights["x"] * torch.stack([weights["a"].cos(), weights["a"].sin()])}

    def hvp(self, weights: Any, vector: Any) -> dict[str, Tensor]:
        return {name: torch.zeros_like(part) for name, part in vector.items()}


@pytest.mark.parametrize("degrees", [0.0, 30.0, 90.0, 180.0])
def test_the_angle_between_gradients(degrees: float) -> None:
    one = {"a": torch.tensor(1.0, dtype=torch.float64), "x": torch.tensor(3.0, dtype=torch.float64)}
    other = {
        "a": torch.tensor(1.0 + degrees * torch.pi / 180, dtype=torch.float64),
        "x": torch.tensor(0.2, dtype=torch.float64),
    }
    # The arc cosine of 1 - eps is sqrt(2 eps), 1e-6 degrees.
    assert gradient_deviation(Line(), one, other) == pytest.approx(degrees, abs=2e-6)
    still = {**other, "x": torch.tensor(0.0, dtype=torch.float64)}
    assert str(gradient_deviation(Line(), one, still)) == "nan"


def test_the_angle_on_a_network() -> None:
    one, other = (torch.func.grad(loss)(flat(weights)) for weights in (model(1), model(2)))
    cosine = torch.nn.functional.cosine_similarity(one, other, dim=0)
    told = Problem({"a": objective(), "b": objective()})
    for problem in (objective(), told):
        assert gradient_deviation(problem, model(1), model(2)) == pytest.approx(
            float(cosine.acos().rad2deg()), rel=1e-9
        )


def test_the_norm_of_the_hessian_is_that_of_the_dense_one() -> None:
    dense = torch.func.hessian(loss)(flat(model(1)))
    wanted = float(torch.linalg.matrix_norm(dense, 2))
    found = hessian_norm(objective(), model(1), 400, 1e-9)
    assert found.norm == pytest.approx(wanted, rel=1e-6)
    assert found.products < 400
    rough = hessian_norm(objective(), model(1), 2)
    assert rough.products == 2
    assert rough.norm < wanted
    assert rough.change > 1e-3
    assert hessian_norm(objective(), model(1), 400, 1e-9) == found
    assert hessian_norm(objective(), model(1), 2, seed=1).norm != rough.norm
    weights = {"a": torch.tensor(1.0, dtype=torch.float64), "x": torch.tensor(3.0, dtype=torch.float64)}
    assert hessian_norm(Line(), weights).norm == 0


def test_drift_of_weights_by_layer() -> None:
    one, other = model(1), model(2)
    found = weight_drift(one, other)
    assert list(found) == ["0", "2"]
    for layer in found:
        a, b = (torch.cat([m[f"{layer}.weight"].reshape(-1), m[f"{layer}.bias"]]) for m in (one, other))
        assert found[layer] == pytest.approx(float((a - b).norm() / b.norm()))
    assert weight_drift(one, one) == {"0": 0.0, "2": 0.0}
    assert weight_drift({"a": torch.ones(2)}, {"a": torch.zeros(2)}) == {"a": float("inf")}


def test_drift_of_outputs_by_layer() -> None:
    one, other = model(1), model(2)

    def layers(weights: Mapping[str, Tensor]) -> list[Tensor]:
        hidden = POINTS @ weights["0.weight"].T + weights["0.bias"]
        return [hidden, hidden.tanh() @ weights["2.weight"].T + weights["2.bias"]]

    found = layer_drift(objective(), one, other)
    assert list(found) == ["0", "2"]
    for got, a, b in zip(found.values(), layers(one), layers(other), strict=True):
        assert got == pytest.approx(sqrt(float((a - b).square().sum() / b.square().sum())))
    assert layer_drift(objective(), one, one, "^1$") == {"1": 0.0}
