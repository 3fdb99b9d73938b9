"""Model Stock against the cosines of all pairs."""

from __future__ import annotations

from itertools import combinations
from math import sqrt

import pytest
import torch
from torch import Tensor

from plait.methods.base import LEAST_WEIGHT, MOST_WEIGHT
from plait.methods.memory import apply
from plait.methods.registry import make


def stock(base: Tensor, experts: list[Tensor], weights: list[float], clamp: bool) -> Tensor:
    taus = [(e - base).double().flatten().tolist() for e in experts]
    dots = [[sum(x * y for x, y in zip(a, b, strict=True)) for b in taus] for a in taus]
    pairs = list(combinations(range(len(taus)), 2))
    mass = sum(weights[i] * weights[j] for i, j in pairs)
    c = sum(weights[i] * weights[j] * dots[i][j] / sqrt(dots[i][i] * dots[j][j]) for i, j in pairs) / mass
    n = len(taus)
    t = n * c / (1 + (n - 1) * c)
    if clamp:
        t = min(max(t, 0.0), 1.0)
    mean = [
        sum(w * a[k] for w, a in zip(weights, taus, strict=True)) / sum(weights) for k in range(len(taus[0]))
    ]
    merged: Tensor = base + t * torch.tensor(mean, dtype=torch.float64).view(base.shape)
    return merged


def tensors(count: int, common: float, seed: int = 0) -> tuple[Tensor, list[Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    base = torch.randn(17, 23, generator=draw, dtype=torch.float64)
    shared = torch.randn(17, 23, generator=draw, dtype=torch.float64) * common
    return base, [
        base + shared + torch.randn(17, 23, generator=draw, dtype=torch.float64) for _ in range(count)
    ]


@pytest.mark.parametrize("common", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("clamp", [True, False])
@pytest.mark.parametrize("weights", [[1.0] * 4, [1.0, 2.0, 0.5, 0.3]], ids=["ones", "weights"])
def test_agrees_with_pairwise_cosines(common: float, clamp: bool, weights: list[float]) -> None:
    base, experts = tensors(4, common)
    got = apply(make("model_stock", {"clamp": clamp}), {"w": base}, [{"w": e} for e in experts], weights)["w"]
    want = stock(base, experts, weights, clamp)
    # Elements of U lie on a grid of 2^-40; 391 of them move the cosine by at most 391 * 2^-40 * max|u| < 1e-10.
    assert (got - want).abs().max() <= 1e-9 * (want - base).abs().max() + 1e-14


def test_opposed_task_vectors_give_the_base_and_equal_ones_the_expert() -> None:
    base, (expert,) = tensors(1, 0.0)
    opposite = base - (expert - base)
    method = make("model_stock")
    assert torch.equal(apply(method, {"w": base}, [{"w": expert}, {"w": opposite}])["w"], base)
    # c is 1 up to the grid of the sum of directions, so t is 1 within 1e-10.
    again = apply(method, {"w": base}, [{"w": expert}, {"w": expert}])["w"]
    assert (again - expert).abs().max() < 1e-9


def test_a_tensor_that_only_one_member_changes_is_averaged() -> None:
    base, (expert,) = tensors(1, 0.0)
    models = [{"w": expert, "v": base + 1}, {"w": base, "v": base + 1}]
    got = apply(make("model_stock"), {"w": base, "v": base}, models)["w"]
    assert (got - (base + (expert - base) / 2)).abs().max() < 1e-15


@pytest.mark.parametrize("weight", [LEAST_WEIGHT, 1.3 * LEAST_WEIGHT, 2.0**-11, MOST_WEIGHT])
def test_equal_weights_of_any_size_give_what_weights_of_1_give(weight: float) -> None:
    base, experts = tensors(4, 0.5)
    models = [{"w": e} for e in experts]
    for clamp in (True, False):
        method = make("model_stock", {"clamp": clamp})
        want = apply(method, {"w": base}, models)["w"]
        got = apply(method, {"w": base}, models, [weight] * 4)["w"]
        # Rounding to steps of 2^-30 of the weight moves ||U||^2 by about 2 ||U|| 2^-30 / sqrt(12) and t by 2^-31 of
        # it; on a grid of 2^-40 it would be 2^-21 for the least weight.
        assert (got - want).abs().max() <= 2.0**-30 * (want - base).abs().max()


def test_opposed_beyond_reason_gives_the_base_without_clamp_too() -> None:
    base, (expert,) = tensors(1, 0.0)
    opposite = base - (expert - base)
    got = apply(make("model_stock", {"clamp": False}), {"w": base}, [{"w": expert}, {"w": opposite}])["w"]
    assert (got - base).abs().max() < 1e-6
