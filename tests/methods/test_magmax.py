"""MagMax against a loop over elements."""

from __future__ import annotations

import pytest
import torch

from plait import merge_state_dicts
from plait.errors import UsageError
from plait.methods.memory import apply
from plait.methods.registry import make


def loop(base: list[float], experts: list[list[float]], weights: list[float], scale: float) -> list[float]:
    out = []
    for i, b in enumerate(base):
        best = 0.0
        for expert, w in zip(experts, weights, strict=True):
            tau = w * (expert[i] - b)
            if abs(tau) >= abs(best):
                best = tau
        out.append(b + scale * best)
    return out


@pytest.mark.parametrize("scale", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0], [1.0, 2.0, 0.3]])
def test_agrees_with_the_loop(scale: float, weights: list[float]) -> None:
    draw = torch.Generator().manual_seed(1)
    base = torch.randn(500, generator=draw, dtype=torch.float64)
    # Steps of 1/8 make many equal magnitudes.
    experts = [base + torch.round(torch.randn(500, generator=draw).double() * 8) / 8 for _ in range(3)]
    got = apply(make("magmax", {"scale": scale}), {"w": base}, [{"w": e} for e in experts], weights)["w"]
    want = torch.tensor(
        loop(base.tolist(), [e.tolist() for e in experts], weights, scale), dtype=torch.float64
    )
    # base + w * tau is rounded in fp64 when the winner is stored: below 16, half a unit is 2^-50.
    assert (got - want).abs().max() <= 2 * 2**-50


def test_equal_magnitudes_go_to_the_later_member() -> None:
    base = {"w": torch.tensor([1.0, 1.0])}
    experts = [{"w": torch.tensor([2.0, 2.0])}, {"w": torch.tensor([0.0, 1.5])}]
    assert apply(make("magmax", {"scale": 1}), base, experts)["w"].tolist() == [0.0, 2.0]
    assert apply(make("magmax", {"scale": 1}), base, experts[::-1])["w"].tolist() == [2.0, 2.0]


def test_the_winner_keeps_its_bits_even_where_it_has_more_than_the_base() -> None:
    base = {"w": torch.tensor([1.0, 1.0, 0.5], dtype=torch.bfloat16)}
    fine = {"w": torch.tensor([1.0000001, 1e-30, -0.0])}
    method = make("magmax", {"scale": 1})
    assert apply(method, base, [fine, base])["w"].tolist() == fine["w"].to(torch.bfloat16).tolist()
    wide = {"w": base["w"].float()}
    assert torch.equal(apply(method, wide, [fine, wide])["w"].view(torch.int32), fine["w"].view(torch.int32))


def test_scale_must_be_finite() -> None:
    with pytest.raises(UsageError, match="scale is nan, expected a finite number"):
        make("magmax", {"scale": "nan"})


def test_a_later_member_that_leaves_a_tensor_as_it_is_wins_where_nobody_moved() -> None:
    base, expert = {"w": torch.tensor([0.0, 1.0])}, {"w": torch.tensor([-0.0, 2.0])}
    got = apply(make("magmax", {"scale": 1}), base, [expert, base])["w"]
    assert got.signbit().tolist() == [False, False]
    assert got.tolist() == [0.0, 2.0]


@pytest.mark.parametrize("scale", [0.0, 0.5])
def test_where_nothing_is_added_the_base_stays_to_the_bit(scale: float) -> None:
    base = torch.tensor([-0.0, 0.0, -0.0, 1.0])
    experts = [{"w": torch.tensor([-0.0, 0.0, 0.0, 1.0])}, {"w": base.clone()}]
    merged = merge_state_dicts({"w": base}, experts, method="magmax", scale=scale)["w"]
    assert merged.view(torch.int32).tolist() == base.view(torch.int32).tolist()
