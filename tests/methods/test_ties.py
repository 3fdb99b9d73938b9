"""TIES against the definition, written out on sorted vectors in plain Python."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from plait.errors import UsageError
from plait.methods.base import LEAST_WEIGHT, Part, Where
from plait.methods.memory import apply
from plait.methods.registry import make
from plait.methods.ties import Ties
from plait.tensors import BLOCK
from plait.tensors.select import Cut

Model = dict[str, Tensor]


def models(seed: int = 0, coarse: bool = False) -> tuple[Model, list[Model]]:
    """fp64, so that the oracle's own rounding stays far below what is compared. coarse: many equal magnitudes."""
    draw = torch.Generator().manual_seed(seed)

    def noise(shape: tuple[int, ...]) -> Tensor:
        values = torch.randn(shape, generator=draw, dtype=torch.float64)
        return torch.round(values * 3) / 1024 if coarse else values / 1024

    shapes = {"a.weight": (20, 31), "b.bias": (13,), "c": (2,)}
    base = {n: torch.round(torch.randn(s, generator=draw).double() * 1024) / 1024 for n, s in shapes.items()}
    return base, [{n: t + noise(tuple(t.shape)) for n, t in base.items()} for _ in range(5)]


def trimmed(tau: list[float], k: int) -> list[float]:
    order = sorted(range(len(tau)), key=lambda i: (-abs(tau[i]), i))
    kept = set(order[:k])
    return [t if i in kept else 0.0 for i, t in enumerate(tau)]


def ties(base: Model, experts: list[Model], weights: list[float], o: dict[str, Any]) -> Model:
    density, trim = o.get("density", 0.2), o.get("trim", "tensor")
    size = {n: t.numel() for n, t in base.items()}

    def count(n: int) -> int:
        k = max(int(density * n), 1)
        return min(k + 1, n) if o.get("kept") == "inclusive" else k

    rows: list[dict[str, list[float]]] = []
    for expert, w in zip(experts, weights, strict=True):
        tau = {n: (expert[n] - base[n]).flatten().tolist() for n in sorted(base)}
        if trim == "tensor":
            tau = {n: trimmed(v, count(len(v))) for n, v in tau.items()}
        else:
            whole = trimmed([x for v in tau.values() for x in v], count(sum(size.values())))
            for n in tau:
                tau[n], whole = whole[: size[n]], whole[size[n] :]
        rows.append({n: [w * x for x in v] for n, v in tau.items()})
    signs = {n: [(s > 0) - (s < 0) for s in map(sum, zip(*(r[n] for r in rows), strict=True))] for n in base}
    total = sum(sum(v) for v in signs.values())
    majority = (total > 0) - (total < 0)
    out = {}
    for n in base:
        merged = []
        for i, sign in enumerate(signs[n]):
            if sign == 0 and o.get("zero") == "majority":
                sign = majority
            agree = [(r[n][i], abs(w)) for r, w in zip(rows, weights, strict=True) if r[n][i] * sign > 0]
            value = sum(x for x, _ in agree)
            if agree and o.get("disjoint", "mean") == "mean":
                value /= sum(w for _, w in agree)
            merged.append(o.get("scale", 1.0) * value)
        out[n] = base[n] + torch.tensor(merged, dtype=torch.float64).view(base[n].shape)
    return out


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"density": 0.5, "disjoint": "sum", "scale": 0.3},
        {"trim": "model"},
        {"trim": "model", "kept": "inclusive", "zero": "majority"},
        {"density": 0.001},
        {"density": 1.0, "zero": "majority"},
    ],
    ids=str,
)
@pytest.mark.parametrize("coarse", [False, True], ids=["distinct", "equal magnitudes"])
@pytest.mark.parametrize("weights", [[1.0] * 5, [1.0, 0.5, 2.0, 4.0, 0.7]], ids=["ones", "weights"])
def test_agrees_with_the_definition(options: dict[str, Any], coarse: bool, weights: list[float]) -> None:
    base, experts = models(coarse=coarse)
    if coarse and weights[-1] == 0.7:
        weights = [1.0, 0.5, 2.0, 4.0, 0.25]  # exact cancellation must look the same in the oracle's fp64
    got, want = apply(make("ties", options), base, experts, weights), ties(base, experts, weights, options)
    for n in base:
        # Both round a few times in fp64; |base| < 8, so one unit in the last place is 2^-50.
        assert (got[n] - want[n]).abs().max() <= 4 * 2**-50, n


def test_support_is_exactly_k_and_equal_magnitudes_go_by_position() -> None:
    base = {"w": torch.zeros(10)}
    expert = {"w": torch.tensor([1.0, -2.0, 2.0, 1.0, -1.0, 0.0, 2.0, 1.0, 0.0, 0.0])}
    got = apply(make("ties", {"density": 0.5}), base, [expert])["w"]
    assert got.tolist() == [1.0, -2.0, 2.0, 1.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0]


def test_a_tiny_tensor_keeps_one_element() -> None:
    base, expert = {"w": torch.zeros(3)}, {"w": torch.tensor([1.0, -3.0, 2.0])}
    assert apply(make("ties"), base, [expert])["w"].tolist() == [0.0, -3.0, 0.0]


def test_density_0_gives_the_base_and_scale_0_too() -> None:
    base, experts = models()
    for options in ({"density": 0}, {"scale": 0}):
        got = apply(make("ties", options), base, experts)
        assert all(torch.equal(got[n], base[n]) for n in base), options


def test_density_1_makes_no_pass_over_the_member() -> None:
    from plait.methods.base import Where

    passes = make("ties", {"density": 1}).prepare({"w": Where("w", (9,), "F32", 0, 9)}, 9)  # type: ignore[attr-defined]
    with pytest.raises(StopIteration) as stop:
        next(passes)
    assert stop.value.value == {"cuts": {"w": "all"}}


def test_a_sum_that_cancels_takes_the_majority_sign_on_request() -> None:
    base = {"w": torch.zeros(4)}
    experts = [{"w": torch.tensor([1.0, 1.0, 1.0, 2.0])}, {"w": torch.tensor([-1.0, 1.0, 1.0, 1.0])}]
    none = apply(make("ties", {"density": 1}), base, experts)["w"]
    majority = apply(make("ties", {"density": 1, "zero": "majority"}), base, experts)["w"]
    assert none.tolist() == [0.0, 1.0, 1.0, 1.5]
    assert majority.tolist() == [1.0, 1.0, 1.0, 1.5]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"density": 1.2}, "density is 1.2, expected a number from 0 to 1"),
        ({"density": float("nan")}, "density is nan, expected a number from 0 to 1"),
        ({"trim": "layer"}, "trim is 'layer', expected one of: tensor, model"),
        ({"disjoint": "max"}, "disjoint is 'max', expected one of: mean, sum"),
        ({"scale": float("inf")}, "scale is inf, expected a finite number"),
        ({"kept": "ceil"}, "kept is 'ceil', expected one of: floor, inclusive"),
        ({"zero": "plus"}, "zero is 'plus', expected one of: none, majority"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make("ties", options)


def cuts(half: int, wide: bool) -> list[Any]:
    """Cuts at a key that several elements have, with all of the equal ones, some of them, in this tensor or
    another."""
    lasts = [None, ("a", 0, 1), ("m", 0, 2), ("m", BLOCK, 1), ("m", 3 * BLOCK, 1), ("z", 0, 1)]
    keys = [0, 1, half - 1, half, half + 1, half + 2, half + 3, 0x7F800000 - 1]
    return ["all", "none", *(Cut(key, wide, last).to_json() for key in keys for last in lasts)]


@pytest.mark.parametrize("weight", [1.0, 0.5, 0.3, LEAST_WEIGHT])
@pytest.mark.parametrize("dtypes", [("BF16", "BF16"), ("F32", "F32"), ("F32", "F64"), ("F64", "F64")])
def test_the_quick_statistic_is_the_plain_one(
    dtypes: tuple[str, str], weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = {"BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}
    ours, theirs = (of[d] for d in dtypes)
    draw = torch.Generator().manual_seed(1)
    base = torch.randint(1, 5, (700,), generator=draw).to(ours)
    # Task vectors around 0.5: fp32 numbers, middles between two, and what lies just beside them.
    size = 0.5 + torch.randint(0, 6, (700,), generator=draw).double() * 2.0**-25
    size += torch.randint(-1, 2, (700,), generator=draw).double() * 2.0**-40
    expert = (base.double() + size * torch.randint(-1, 2, (700,), generator=draw)).to(theirs)
    wide = ours == of["F64"]
    half = int(
        torch.tensor([0.5], dtype=of["F64"] if wide else of["F32"]).view(torch.int64 if wide else torch.int32)
    )
    found = 0
    for first in (0, BLOCK, 2 * BLOCK):
        for cut in cuts(half, wide):
            where = Where("m", (4 * BLOCK,), dtypes[0], first, 700)
            part = Part(where, base, expert, weight, {"cuts": {"m": cut}})
            method = Ties()
            quick = method._quick_statistic(part.delta, part)
            if quick is None:
                continue
            found += 1
            with monkeypatch.context() as patch:
                patch.setattr(Ties, "_quick_statistic", lambda *_: None)
                plain = method.statistic(part)
            for name, want in plain.items():
                assert torch.equal(quick[name].double(), want.double()), (name, cut, first)
    assert found > 30


@pytest.mark.parametrize("options", [{}, {"disjoint": "sum", "scale": 0.3}, {"zero": "majority"}])
def test_the_quick_merge_is_the_plain_one(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"density": 1, **options}
    draw = torch.Generator().manual_seed(2)
    base = {"w": torch.randint(1, 9, (999,), generator=draw) / 8}
    experts = [{"w": base["w"] + torch.randint(-2, 3, (999,), generator=draw) / 64} for _ in range(3)]
    with monkeypatch.context() as patch:
        took = []
        quick = Ties._quick_merge

        def noted(*given: Any) -> Any:
            took.append(1)
            return quick(*given)

        patch.setattr(Ties, "_quick_merge", noted)
        got = apply(make("ties", options), base, experts, [1.0, 2.0, 1.0])["w"]
    # With a negative zero somewhere the plain way is taken for the whole chunk.
    base["w"] = torch.cat([base["w"], torch.tensor([0.0])])
    experts = [{"w": torch.cat([e["w"], torch.tensor([-0.0])])} for e in experts]
    want = apply(make("ties", options), base, experts, [1.0, 2.0, 1.0])["w"]
    assert took == [1]
    assert torch.equal(got, want[:-1])
