"""Fisher merging against the dense formula, and what happens where there is no information."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from plait.errors import RefusedInput, UsageError
from plait.methods.base import LEAST_WEIGHT, MOST_WEIGHT
from plait.methods.memory import apply
from plait.methods.registry import make

Model = dict[str, Tensor]


def world(count: int, dtype: torch.dtype) -> tuple[Model, list[Model], list[Model]]:
    draw = torch.Generator().manual_seed(4)
    shapes = {"w": (30, 17), "b": (30,), "scale": ()}
    base: Model = {n: (torch.randn(s, generator=draw) / 16).to(dtype) for n, s in shapes.items()}
    experts, sides = [], []
    for _ in range(count):
        moved = {n: (t + torch.randn(t.shape, generator=draw) / 256).to(dtype) for n, t in base.items()}
        experts.append(moved)
        sizes = {n: torch.randint(-60, -6, s, generator=draw).double().exp2() for n, s in shapes.items()}
        sides.append({f"fisher/{n}": torch.rand(t.shape, generator=draw) * t for n, t in sizes.items()})
    return base, experts, sides


def dense(
    base: Model, experts: list[Model], sides: list[Model], weights: list[float], epsilon: float, name: str
) -> Tensor:
    top = torch.zeros_like(base[name], dtype=torch.float64)
    below = torch.full_like(top, epsilon)
    for expert, side, weight in zip(experts, sides, weights, strict=True):
        top = top + weight * side[f"fisher/{name}"] * (expert[name].double() - base[name].double())
        below = below + weight * side[f"fisher/{name}"]
    return base[name].double() + top / below


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
@pytest.mark.parametrize("epsilon", [0.0, 1e-9])
def test_agrees_with_the_dense_formula(dtype: str, epsilon: float) -> None:
    kind: torch.dtype = getattr(torch, dtype)
    base, experts, sides = world(4, kind)
    weights = [1.0, 2.0, 0.3, 1.7]
    got = apply(make("fisher", {"epsilon": epsilon}), base, experts, weights, sides=sides)
    for name in base:
        want = dense(base, experts, sides, weights, epsilon, name)
        # Half a step of the result; information to 24 bits, its products as exact as other weighted task vectors.
        kept = {"bfloat16": 2.0**-15, "float16": 2.0**-19}.get(dtype, 2.0**-22)
        near = torch.finfo(kind).eps * want.abs().max() + kept / 32
        assert (got[name].double() - want).abs().max() <= near


@pytest.mark.parametrize("weight", [LEAST_WEIGHT, 0.3, MOST_WEIGHT])
def test_one_member_comes_back_wherever_it_has_information(weight: float) -> None:
    base, experts, sides = world(1, torch.float32)
    draw = torch.Generator().manual_seed(0)
    fisher = (
        torch.rand(30, 17, generator=draw) * torch.randint(-110, -6, (30, 17), generator=draw).double().exp2()
    )
    fisher[3:5] = 0
    got = apply(make("fisher"), base, experts, [weight], sides=[{**sides[0], "fisher/w": fisher}])["w"]
    assert torch.equal(got[3:5], base["w"][3:5])
    known = fisher * weight >= 2.0**-72
    unknown = fisher * weight < 2.0**-73  # half a step: counts as none
    assert min(known.sum(), unknown.sum()) > 50
    assert torch.equal(got[unknown], base["w"][unknown])
    off = (got.double() - experts[0]["w"].double()).abs()[~unknown]
    assert off.max() <= 2.0**-28 + torch.finfo(torch.float32).eps * experts[0]["w"].abs().max()


def test_a_large_epsilon_gives_the_base() -> None:
    base, experts, sides = world(2, torch.float32)
    got = apply(make("fisher", {"epsilon": 1e30}), base, experts, sides=sides)
    assert all(torch.equal(got[n], base[n]) for n in base)
    with pytest.raises(UsageError, match="epsilon is -1"):
        make("fisher", {"epsilon": -1})


def test_a_member_that_left_a_tensor_as_it_is_holds_it_by_its_information() -> None:
    base, experts, sides = world(2, torch.float64)
    members = [experts[0], {**experts[1], "w": base["w"]}]
    got = apply(make("fisher"), base, members, sides=sides)["w"]
    want = dense(base, members, sides, [1.0, 1.0], 0.0, "w")
    assert (got - want).abs().max() <= 2.0**-26


def test_missing_and_negative_information_is_refused() -> None:
    base, experts, sides = world(2, torch.float32)
    del sides[1]["fisher/b"]
    with pytest.raises(
        RefusedInput, match=r"expert 1: fisher of tensor b is missing \(1 of 3 tensors lack it\)"
    ):
        apply(make("fisher"), base, experts, sides=sides)
    with pytest.raises(RefusedInput, match=r"expert 0: fisher of tensor b is missing \(3 of 3"):
        apply(make("fisher"), base, experts)
    base, experts, sides = world(2, torch.float32)
    sides[1]["fisher/w"][2, 2] = -1e-3
    with pytest.raises(RefusedInput, match=r"expert 1: w: Fisher information is -0.001 somewhere"):
        apply(make("fisher"), base, experts, sides=sides)
