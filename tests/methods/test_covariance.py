"""Covariance against descent on its own objective, and what holds at its ends."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from plait.errors import UsageError
from plait.methods.base import LEAST_WEIGHT, MOST_WEIGHT
from plait.methods.memory import Table, apply
from plait.methods.registry import make

Model = dict[str, Tensor]


def models(
    count: int,
    shape: tuple[int, int] = (9, 14),
    dtype: torch.dtype = torch.float64,
    rank: int | None = None,
    part: int = 512,
) -> tuple[Model, list[Model]]:
    draw = torch.Generator().manual_seed(5)
    base = {
        "w": torch.randn(shape, generator=draw) / 16,
        "b": torch.randint(-16, 16, shape[:1], generator=draw) / 16,
    }
    experts = []
    for _ in range(count):
        inner = min(shape) if rank is None else rank
        left = torch.randn(shape[0], inner, generator=draw)
        move = left @ torch.randn(inner, shape[1], generator=draw) / part
        experts.append({"w": (base["w"] + move).to(dtype), "b": (base["b"] + 0.25).to(dtype)})
    return {n: t.to(dtype) for n, t in base.items()}, experts


def shifts(base: Model, experts: list[Model]) -> list[Tensor]:
    return [e["w"].double() - base["w"].double() for e in experts]


def update(base: Model, experts: list[Model], weights: list[float] | None = None, **options: Any) -> Tensor:
    return apply(make("covariance", options), base, experts, weights)["w"].double() - base["w"].double()


def loss(merged: Tensor, taus: list[Tensor], weights: list[float], ridge: float, side: str) -> Tensor:
    """The objective of WUDI with weights, and a ridge term as the documentation has it."""
    if side == "out":
        merged, taus = merged.T, [t.T for t in taus]
    total = ridge * sum(weights) / merged.shape[1] * (merged**2).sum()
    for tau, weight in zip(taus, weights, strict=True):
        total = total + weight * (((merged - tau) @ tau.T) ** 2).sum() / (tau**2).sum()
    return total


@pytest.mark.parametrize("side", ["in", "out"])
@pytest.mark.parametrize("ridge", [0.3, 0.03, 2.0])
def test_is_where_descent_on_the_objective_ends(side: str, ridge: float) -> None:
    base, experts = models(3)
    weights = [1.0, 2.0, 0.3]
    taus = shifts(base, experts)
    merged = torch.zeros_like(taus[0], requires_grad=True)
    descent = torch.optim.LBFGS([merged], max_iter=800, tolerance_grad=0, tolerance_change=0)

    def again() -> float:
        descent.zero_grad()
        value = loss(merged * 2.0**-8, taus, weights, ridge, side) * 2.0**16
        value.backward()  # type: ignore[no-untyped-call]
        return value.item()

    descent.step(again)  # type: ignore[no-untyped-call]
    want = merged.detach() * 2.0**-8
    found = update(base, experts, weights, ridge=ridge, side=side)
    # Descent ends where the loss no longer falls, about the square root of eps away.
    assert (found - want).abs().max() <= 1e-6 * want.abs().max()


@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_no_small_step_from_it_lowers_the_objective(ridge: float) -> None:
    base, experts = models(2, (14, 9))
    taus = shifts(base, experts)
    found = update(base, experts, ridge=ridge)
    at = float(loss(found, taus, [1.0, 1.0], ridge, "in"))
    draw = torch.Generator().manual_seed(0)
    for _ in range(50):
        step = torch.randn(found.shape, generator=draw, dtype=torch.float64) * found.abs().max() * 1e-3
        assert float(loss(found + step, taus, [1.0, 1.0], ridge, "in")) > at


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(9, 14), (14, 9)])
@pytest.mark.parametrize("side", ["in", "out", "smaller"])
def test_without_a_ridge_one_member_comes_back(dtype: str, shape: tuple[int, int], side: str) -> None:
    kind: torch.dtype = getattr(torch, dtype)
    for rank in (None, 2):
        base, experts = models(1, shape, kind, rank)
        for members in (experts, experts * 3):
            merged = apply(
                make("covariance", {"ridge": 0, "side": side}), base, members, [0.5] * len(members)
            )
            near = torch.finfo(kind).eps * experts[0]["w"].double().abs().max()
            # One rounding of the result, and directions of the update below 2^-13 of the largest.
            move = shifts(base, experts)[0].abs().max()
            assert (merged["w"].double() - experts[0]["w"].double()).abs().max() <= near + move * 2.0**-11
            assert torch.equal(merged["b"], experts[0]["b"])


def test_with_a_ridge_a_direction_comes_back_in_part() -> None:
    base, experts = models(1, (12, 4))
    tau = shifts(base, experts)[0]
    values, vectors = torch.linalg.eigh(tau.T @ tau)
    share = values / values.mean()
    want = tau @ vectors @ torch.diag(share / (share + 0.5)) @ vectors.T
    assert (update(base, experts, ridge=0.5) - want).abs().max() <= 1e-9 * want.abs().max()


def test_a_large_ridge_turns_the_update_of_matrices_off() -> None:
    base, experts = models(2)
    merged = apply(make("covariance", {"ridge": 1e300}), base, experts)
    assert (merged["w"] - base["w"]).abs().max() < 1e-290
    assert torch.equal(merged["b"], base["b"] + 0.25)


def test_scale_multiplies_the_whole_update() -> None:
    base, experts = models(2)
    assert torch.equal(update(base, experts, scale=0), torch.zeros(9, 14, dtype=torch.float64))
    twice = update(base, experts, scale=2)
    assert (twice - 2 * update(base, experts)).abs().max() < 1e-15
    merged = apply(make("covariance", {"scale": 0.5}), base, experts)
    assert torch.equal(merged["b"], base["b"] + 0.125)


@pytest.mark.parametrize("shape", [(9, 14), (14, 9)])
def test_flattening_moves_singular_values_to_their_mean(shape: tuple[int, int]) -> None:
    base, experts = models(3, shape)
    left, values, right = torch.linalg.svd(update(base, experts), full_matrices=False)
    for part in (0.4, 1.0):
        want = left @ torch.diag((1 - part) * values + part * values.mean()) @ right
        assert (update(base, experts, flatten=part) - want).abs().max() <= 1e-9 * want.abs().max()


def test_flattening_leaves_what_is_empty_empty() -> None:
    base, experts = models(2, rank=2)
    values = torch.linalg.svdvals(update(base, experts, flatten=1))
    assert values[:4].std() < 1e-6 * values[0]
    assert values[4:].abs().max() < 1e-6 * values[0]


def test_weights_count_a_member_several_times() -> None:
    base, experts = models(2)
    got = update(base, experts, [3.0, 1.0])
    want = update(base, [experts[0]] * 3 + experts[1:])
    assert (got - want).abs().max() <= 2.0**-35 * want.abs().max()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("weight", [LEAST_WEIGHT, 1.3 * LEAST_WEIGHT, MOST_WEIGHT])
def test_equal_weights_of_any_size_give_what_weights_of_1_give(weight: float, dtype: str) -> None:
    base, experts = models(3, dtype=getattr(torch, dtype))
    lines = [Table(make("covariance"), base) for _ in range(2)]  # type: ignore[arg-type]
    for line, each in zip(lines, (1.0, weight), strict=True):
        for expert in experts:
            line.enter(expert, each)
    one, other = (line.states()["w"][0][1] for line in lines)
    for slot in ("product", "gram"):
        a, b = one[slot].value().double(), other[slot].value().double() / weight
        # Addends are rounded to 2^-26 of their largest element, or finer.
        assert (a - b).abs().max() <= 3 * 2.0**-26 * a.abs().max()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("rank", [2, None])
def test_usual_sums_lie_in_the_dense_digits(dtype: str, rank: int | None) -> None:
    kind: torch.dtype = getattr(torch, dtype)
    base, experts = models(8, (60, 90), kind, rank, 8192)
    table = Table(make("covariance"), base)  # type: ignore[arg-type]
    for expert in experts:
        table.enter(expert)
    state = table.states()["w"][0][1]
    for slot in ("product", "gram"):
        dense, sparse = state[slot].pack()
        assert sorted(dense) == ([-40] if dtype == "bfloat16" else [-80, -40])
        assert not sparse
    assert state["gram"].count == 90 * 91 // 2


def test_a_wide_matrix_takes_its_other_side_or_is_averaged() -> None:
    base, experts = models(2, (4, 14))
    assert torch.equal(update(base, experts, widest=9), update(base, experts, side="out"))
    assert torch.equal(update(base, experts, widest=3), sum(shifts(base, experts)) / 2)  # type: ignore[arg-type]
    smaller = update(base, experts, side="smaller")
    assert torch.equal(smaller, update(base, experts, side="out"))
    assert not torch.equal(smaller, update(base, experts))


def test_matrices_stored_the_other_way_round_give_the_other_way_round() -> None:
    base, experts = models(3)
    turned = [{"w": m["w"].T.contiguous(), "b": m["b"]} for m in (base, *experts)]
    for side in ("in", "out", "smaller"):
        got = update(turned[0], turned[1:], side=side, inputs_first="^w$")
        assert torch.equal(got.T, update(base, experts, side=side))


def test_tables_are_averaged() -> None:
    base, experts = models(2)
    named = [{"embeddings.word.weight": m["w"]} for m in (base, *experts)]
    merged = apply(make("covariance"), named[0], named[1:])["embeddings.word.weight"]
    assert torch.equal(merged, apply(make("average"), base, experts)["w"])
    merged = apply(make("covariance", {"tables": ""}), named[0], named[1:])["embeddings.word.weight"]
    assert torch.equal(merged - base["w"], update(base, experts))


@pytest.mark.parametrize("ridge", [0.0, 1e-12, 0.3])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_odd_matrices_give_numbers(dtype: str, ridge: float) -> None:
    kind: torch.dtype = getattr(torch, dtype)
    least = torch.finfo(kind).smallest_normal
    base = {
        "row": torch.zeros(1, 9),
        "column": torch.ones(9, 1),
        "one": torch.ones(1, 1),
        "still": torch.ones(3, 3),
        "empty": torch.zeros(0, 4),
        "tiny": torch.zeros(2, 3),
        "alone": torch.zeros(4, 5),
    }
    base = {n: t.to(kind) for n, t in base.items()}
    expert = {n: t.clone() for n, t in base.items()}
    expert["row"] += torch.arange(9)
    expert["column"] *= 2
    expert["one"] += 1
    expert["tiny"][1, 2] = least
    expert["alone"][2, 3] = 1.0
    other = {n: t.clone() for n, t in expert.items()}
    other["row"] = base["row"]
    merged = apply(make("covariance", {"ridge": ridge}), base, [expert, other])
    for name, tensor in merged.items():
        assert torch.isfinite(tensor).all(), name
    assert torch.equal(merged["still"], base["still"])
    assert torch.equal(merged["column"] > 1, torch.full((9, 1), True))
    assert merged["alone"].count_nonzero() == 1
    if ridge == 0:
        for name in ("row", "column", "one", "alone"):
            assert torch.allclose(merged[name].double(), expert[name].double(), rtol=1e-6, atol=1e-6), name


def test_a_member_that_leaves_a_matrix_as_it_is_changes_nothing_in_it() -> None:
    base, experts = models(2)
    still = {"w": base["w"], "b": base["b"] + 1}
    assert torch.equal(update(base, [*experts, still]), update(base, experts))
    nothing = {"name": "breadcrumbs", "density": 0, "gamma": 0.5}
    assert torch.equal(update(base, experts, sparsify=nothing, ridge=0), torch.zeros(9, 14).double())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ridge": -0.1}, "ridge is -0.1, expected 0 or more"),
        ({"ridge": float("inf")}, "ridge is inf, expected a finite number"),
        ({"scale": float("nan")}, "scale is nan"),
        ({"flatten": 1.5}, "flatten is 1.5, expected a number from 0 to 1"),
        ({"side": "left"}, "side is 'left', expected one of: in, out, smaller"),
        ({"widest": -1}, "widest is -1, expected 0 or more"),
        ({"tables": "("}, "tables is '\\(', expected a regular expression"),
        ({"inputs_first": "["}, "inputs_first is '\\[', expected a regular expression"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make("covariance", options)
