"""Merging in memory: what is accepted, copied and refused; and the three kinds of method on one protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from plait import merge_files
from plait.errors import KeyMismatch, NonFinite, RefusedInput, UsageError
from plait.methods.average import Average
from plait.methods.base import LEAST_WEIGHT, MOST_WEIGHT, Facts, Known, MemberFacts, Method, ModelMethod
from plait.methods.memory import Table, apply
from plait.methods.pieces import content
from plait.methods.registry import make
from plait.tensors import BLOCK
from plait.testing import LawBroken, check

Model = dict[str, Tensor]


def pair() -> tuple[Model, Model]:
    base = {"w": torch.arange(6.0).view(2, 3), "steps": torch.tensor([4]), "flag": torch.tensor(True)}
    return base, {**base, "w": base["w"] + 1}


def test_float_tensors_are_merged_and_equal_others_copied() -> None:
    base, expert = pair()
    got = apply(make("average"), base, [expert, base], [3, 1])
    assert got["w"].tolist() == (base["w"] + 0.75).tolist()
    assert got["steps"].tolist() == [4]
    assert got["steps"] is not base["steps"]
    assert apply(make("average"), base, [])["w"].tolist() == base["w"].tolist()


def test_an_expert_of_another_dtype_is_rounded_once_to_the_bases() -> None:
    base = {"w": torch.tensor([1.0, 1.0], dtype=torch.bfloat16)}
    # 1 + 2^-8 lies between two bf16 numbers, a hair more rounds up: an early rounding would lose the hair.
    expert = {"w": torch.tensor([1 + 2**-8, 1 + 2**-8 + 2**-30], dtype=torch.float64)}
    for method in (make("average"), make("opcm"), make("task_arithmetic", {"scale": 1})):
        got = apply(method, base, [expert])["w"]
        assert got.dtype == torch.bfloat16
        assert got.tolist() == [1.0, 1 + 2**-7]


def test_tensors_that_are_not_contiguous_or_ask_for_gradients_are_taken() -> None:
    base, expert = pair()
    turned = {**expert, "w": expert["w"].t().contiguous().t().requires_grad_()}
    assert torch.equal(apply(make("average"), base, [turned])["w"], expert["w"])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"w": None}, KeyMismatch, "expert 0 does not fit the base: w is missing"),
        ({"x": torch.ones(2)}, KeyMismatch, r"x \(2,\) is not in the base"),
        ({"w": torch.ones(3, 2)}, KeyMismatch, r"w has shape \(3, 2\), the base \(2, 3\)"),
        ({"w": torch.ones(2, 3, dtype=torch.int8)}, KeyMismatch, "w is I8, the base F32"),
        ({"steps": torch.tensor([5])}, RefusedInput, "expert 0: steps cannot be merged"),
        ({"w": torch.tensor([[1, 2, float("nan")], [0, 0, 0]])}, NonFinite, "w holds nan at flat index 2"),
        ({"w": torch.full((2, 3), float("inf"))}, NonFinite, "w holds inf at flat index 0"),
    ],
)
def test_what_does_not_fit_is_refused(
    change: Mapping[str, Any], error: type[Exception], message: str
) -> None:
    base, expert = pair()
    wrong = {n: t for n, t in {**expert, **change}.items() if t is not None}
    with pytest.raises(error, match=message):
        apply(make("average"), base, [wrong])
    stub = StraightPath()
    with pytest.raises(error, match=message):
        apply(stub, base, [wrong], problem=Bowl(base))


def test_all_misfits_are_listed_at_once() -> None:
    base, expert = pair()
    with pytest.raises(KeyMismatch, match="flag is missing; extra") as caught:
        apply(
            make("average"),
            base,
            [{"w": expert["w"].flatten(), "steps": base["steps"], "extra": torch.ones(1)}],
        )
    assert "w has shape" in str(caught.value)


def test_numbers_of_weights_seeds_and_chunks_are_checked() -> None:
    base, expert = pair()
    with pytest.raises(UsageError, match="2 weights for 1 experts"):
        apply(make("average"), base, [expert], [1, 1])
    with pytest.raises(UsageError, match="0 seeds for 1 experts"):
        apply(make("average"), base, [expert], seeds=[])
    with pytest.raises(UsageError, match="chunk is 100, expected a multiple of"):
        apply(make("average"), base, [expert], chunk=100)
    with pytest.raises(UsageError, match="neither a TensorMethod nor a ModelMethod"):
        apply(Method(), base, [expert])


@pytest.mark.parametrize("weight", [0, -1.0, float("nan"), float("inf"), 2.0**-21, 2049, True, "1", None])
def test_weights_out_of_range_are_refused(weight: Any) -> None:
    base, expert = pair()
    with pytest.raises(UsageError, match=r"weight is .*, expected a number from 2\^-20 to 2\^11"):
        apply(make("average"), base, [expert], [weight])
    with pytest.raises(UsageError, match="expected a number from"):
        Table(Average(), base).enter(expert, weight)


@pytest.mark.parametrize("weight", [LEAST_WEIGHT, MOST_WEIGHT])
@pytest.mark.parametrize("name", ["average", "ties", "model_stock"])
def test_the_ends_of_the_range_of_weights_give_the_expert_back(name: str, weight: float) -> None:
    base, expert = pair()
    method = make(name, {"density": 1} if name == "ties" else {})
    assert torch.equal(apply(method, base, [expert], [weight])["w"], expert["w"])


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("name", ["average", "task_arithmetic", "ties", "model_stock", "magmax", "opcm"])
@pytest.mark.parametrize("count", [1, 2])
def test_nonfinite_elements_are_what_the_engine_makes_of_them(
    name: str, wide: bool, count: int, tmp_path: Path
) -> None:
    draw = torch.Generator().manual_seed(count)
    base = {"a": torch.randn(6, 7, generator=draw), "b": torch.randn(9, generator=draw), "c": torch.ones(3)}
    experts = [
        {n: t + torch.randn(t.shape, generator=draw) / 8 for n, t in base.items()} for _ in range(count)
    ]
    if wide:
        experts[0] = {n: t.double() for n, t in experts[0].items()}
    base["a"][0, 0], base["b"][2] = float("nan"), float("-inf")
    experts[0]["a"][0, 0], experts[-1]["a"][0, 0] = 3.0, float("inf")
    experts[0]["a"][2, 3], experts[-1]["b"][4] = float("inf"), float("nan")
    experts[-1]["c"] = base["c"].clone()
    experts[-1]["c"][1] = float("nan")
    paths = [str(tmp_path / f"{i}.safetensors") for i in range(count + 1)]
    for tensors, path in zip([base, *experts], paths, strict=True):
        save_file(tensors, path)
    options: dict[str, Any] = {"scale": 1} if name == "magmax" else {}
    merge_files(paths[0], paths[1:], tmp_path / "out", name, allow_nonfinite=True, **options)
    (file,) = list((tmp_path / "out").rglob("*.safetensors")) or [tmp_path / "out"]
    got = apply(make(name, options), base, experts, allow_nonfinite=True)
    for n, want in load_file(file).items():
        assert torch.equal(got[n].view(torch.int32), want.view(torch.int32)), n
    assert bool(torch.isnan(got["a"][0, 0]))
    assert float(got["b"][2]) == float("-inf")
    assert sum(int((~torch.isfinite(t)).sum()) for t in got.values()) == 2


def test_content_tells_models_apart() -> None:
    one = {"a": torch.zeros(2), "b": torch.ones(1)}
    others = [
        {"a": torch.zeros(2), "b": torch.tensor([1.0000001])},
        {"a": -torch.zeros(2), "b": torch.ones(1)},
        {"a": torch.zeros(1, 2), "b": torch.ones(1)},
        {"a": torch.zeros(4, dtype=torch.bfloat16), "b": torch.ones(1)},
        {"c": torch.zeros(2), "b": torch.ones(1)},
    ]
    assert content(dict(reversed(one.items()))) == content(one)
    assert len({content(m) for m in [one, *others]}) == 6


def test_a_fold_is_refolded_when_a_member_leaves() -> None:
    draw = torch.Generator().manual_seed(0)
    base = {"w": torch.randn(BLOCK + 3, generator=draw)}
    experts = [{"w": base["w"] + torch.randn(BLOCK + 3, generator=draw)} for _ in range(3)]
    for name in ("magmax", "opcm"):
        table = Table(make(name), base, chunk=BLOCK)  # type: ignore[arg-type]
        for expert in experts:
            table.enter(expert)
        table.leave(1)
        want = apply(make(name), base, [experts[0], experts[2]])
        assert torch.equal(table.merged()["w"], want["w"])


# A stub of a method that sees all weights and asks a problem for losses and gradients.


@dataclass
class Bowl:
    """A toy problem: loss 1/2 * sum (theta - centre)^2, lowest at `centre`."""

    centre: Mapping[str, Tensor]

    def loss(self, weights: Mapping[str, Tensor]) -> float:
        return 0.5 * sum(float(((t - self.centre[n]) ** 2).sum()) for n, t in weights.items())

    def gradient(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {n: t - self.centre[n] for n, t in weights.items()}


@dataclass(frozen=True)
class StraightPath(ModelMethod):
    """From the state towards the expert in Euler steps of `h`, without the part that climbs the loss, as far as
    w_k / sum w: METHODS C1 in ten lines. rectify: 0 follows the straight line, 1 drops all of the climbing part."""

    h: float = 0.25
    rectify: float = 1.0

    facts: ClassVar[Facts] = Facts(
        "toy", "calibrated", "refold", "labelled all", True, "the model", "1 gradient a step", "none"
    )

    def step(
        self,
        state: Mapping[str, Tensor],
        base: Mapping[str, Tensor],
        expert: Mapping[str, Tensor],
        members: Sequence[MemberFacts],
        problem: Any,
    ) -> tuple[dict[str, Tensor], Known]:
        theta, t, end = dict(state), 0.0, members[-1].weight / sum(m.weight for m in members)
        losses = []
        while t < end:
            s = min(self.h, end - t)
            u = {n: (expert[n] - theta[n]) / (1 - t) for n in theta} if t < 1 else {}
            g = problem.gradient(theta)
            climb = sum(float((g[n] * u[n]).sum()) for n in theta)
            norm = sum(float((g[n] ** 2).sum()) for n in theta)
            pull = self.rectify * max(climb, 0.0) / norm if norm else 0.0
            theta = {n: theta[n] + s * (u[n] - pull * g[n]) for n in theta}
            losses.append(problem.loss(theta))
            t += s
        return theta, {"losses": losses}


def test_a_model_method_follows_the_running_average_where_nothing_is_rectified() -> None:
    draw = torch.Generator().manual_seed(0)
    base = {"a": torch.randn(5, generator=draw, dtype=torch.float64), "n": torch.tensor(3)}
    experts = [
        {**base, "a": base["a"] + torch.randn(5, generator=draw, dtype=torch.float64)} for _ in range(3)
    ]
    weights = [1.0, 2.0, 0.5]
    got = apply(StraightPath(h=0.05, rectify=0), base, experts, weights, problem=Bowl({"a": base["a"]}))
    want = sum(w * e["a"] for w, e in zip(weights, experts, strict=True)) / sum(weights)
    # Some 60 Euler steps of fp64: 60 * 4 roundings of numbers below 4.
    assert (got["a"] - want).abs().max() <= 240 * 2**-51
    assert int(got["n"]) == 3


def test_a_model_method_ends_lower_when_it_is_rectified() -> None:
    base = {"a": torch.tensor([1.0, 0.0])}
    expert = {"a": torch.tensor([0.5, 3.0])}
    bowl = Bowl({"a": torch.tensor([0.0, 0.0])})
    plain = apply(StraightPath(rectify=0), base, [base, expert], problem=bowl)
    bent = apply(StraightPath(rectify=1), base, [base, expert], problem=bowl)
    assert bowl.loss(bent) < bowl.loss(plain)


def test_the_stub_obeys_the_laws_and_one_that_writes_into_its_arguments_does_not() -> None:
    check(StraightPath(), problem=Bowl(_Zero()))

    @dataclass(frozen=True)
    class Scribbler(StraightPath):
        """Like its parent, but it writes into the expert."""

        def step(self, state: Any, base: Any, expert: Any, members: Any, problem: Any) -> Any:
            expert["layer.bias"].add_(1)
            return super().step(state, base, expert, members, problem)

    with pytest.raises(LawBroken, match="a step wrote into an argument"):
        check(Scribbler(), problem=Bowl(_Zero()))


class _Zero(dict[str, Any]):
    """A centre at zero for tensors of any name and shape."""

    def __missing__(self, name: str) -> Any:
        return 0.0
