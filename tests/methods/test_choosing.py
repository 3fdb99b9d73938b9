"""From a method with a fit to the numbers that it merges with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from plait.errors import UsageError
from plait.methods.base import MemberFacts
from plait.methods.choosing import choose, choose_scale, span_of, unfitted
from plait.methods.coefficients import CoefficientMethod, Products
from plait.methods.mdm_oc import MdmOc
from plait.methods.memory import apply
from plait.methods.registry import make
from plait.tensors import Tensor, torch

SHAPES = {"a.0.w": (3, 4), "a.1.w": (2, 5)}
Weights = Mapping[str, Tensor]


def draw(seed: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=g, dtype=torch.float64) for name, shape in SHAPES.items()}


@dataclass
class Bowls:
    """Tasks whose losses are |theta - target_i|^2 / 2, and whose Fisher information is made up."""

    targets: Sequence[Weights]

    def loss(self, weights: Weights) -> float:
        return self.loss_and_gradient(weights)[0]

    def loss_and_gradient(self, weights: Weights) -> tuple[float, dict[str, Tensor]]:
        apart = [{n: weights[n] - t[n] for n in t} for t in self.targets]
        loss = sum(float((d**2).sum()) for row in apart for d in row.values()) / 2 / len(apart)
        return loss, {n: sum((row[n] for row in apart), torch.zeros(())) / len(apart) for n in SHAPES}

    def fisher(self, weights: Weights, *, names: Any = None) -> dict[str, Tensor]:
        return {
            n: torch.full(SHAPES[n], float(len(self.targets)), dtype=torch.float64) for n in names or SHAPES
        }

    def seen(self, count: int) -> Bowls:
        return Bowls(self.targets[:count])


VECTORS = [draw(1), draw(2), draw(3)]
MEMBERS = [MemberFacts(1.0, {}), MemberFacts(2.0, {}), MemberFacts(0.5, {})]
TASKS = Bowls([{n: 0.5 * v[n] + 0.1 * draw(9)[n] for n in SHAPES} for v in VECTORS])
BASE = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in SHAPES.items()}


def products(method: CoefficientMethod, vectors: Sequence[Weights] = VECTORS) -> Products:
    inner: dict[str, Tensor] = {}
    for name in SHAPES:
        flat = torch.stack([v[name].flatten() for v in vectors])
        inner[method.group(name)] = inner.get(method.group(name), torch.zeros(())) + flat @ flat.T
    return Products(tuple("abc"[: len(vectors)]), inner)


def method_of(name: str, granularity: str, **fit: Any) -> CoefficientMethod:
    made = make(
        name,
        {"fit": {"name": "gradient", "evaluations": 3000, "rate": 0.03, **fit}, "granularity": granularity},
    )
    assert isinstance(made, CoefficientMethod)
    return made


@pytest.mark.parametrize("granularity", ["model", "layer", "tensor"])
@pytest.mark.parametrize("name", ["mdm_oc", "task_arithmetic"])
def test_the_span_holds_what_the_method_makes(name: str, granularity: str) -> None:
    method = method_of(name, granularity)
    found = products(method)
    span = span_of(method, found, MEMBERS, BASE, VECTORS)
    alpha = {group: [0.3, -0.2, 0.9] for group in found.inner}
    made = method.combine(found, MEMBERS, alpha).coefficients
    x = torch.tensor([alpha[group] for group in span.names], dtype=torch.float64)
    want = torch.tensor([made[group] for group in span.names], dtype=torch.float64)
    torch.testing.assert_close(span.coefficients(x), want)


@pytest.mark.parametrize("granularity", ["model", "tensor"])
def test_orthogonal_or_not_the_best_model_is_the_same(granularity: str) -> None:
    """With a free number for each member both methods reach the same models."""

    def best(name: str) -> dict[str, Tensor]:
        method = method_of(name, granularity)
        found = products(method)
        choice = choose(method, found, MEMBERS, BASE, VECTORS, TASKS)
        span = span_of(method, found, MEMBERS, BASE, VECTORS)
        return span.at(torch.tensor([choice.alpha[g] for g in span.names], dtype=torch.float64))

    one, other = best("mdm_oc"), best("task_arithmetic")
    for name in SHAPES:
        torch.testing.assert_close(one[name], other[name], atol=5e-3, rtol=0)


def test_a_fit_is_recorded() -> None:
    method = method_of("task_arithmetic", "model", evaluations=600)
    choice = choose(method, products(method), MEMBERS, BASE, VECTORS, TASKS)
    record = choice.record
    assert record["fit"] == "gradient"
    assert record["evaluations"] == 600
    assert record["loss"] < record["start"]
    assert record["trace"][-1] == [600, record["loss"]]
    assert len(record["trace"]) <= 100


def test_the_anchor_is_the_model_of_the_earlier_members() -> None:
    method = method_of("mdm_oc", "model", ewc=1e4)
    found = products(method)
    choice = choose(method, found, MEMBERS, BASE, VECTORS, TASKS)
    earlier = choose(method, products(method, VECTORS[:2]), MEMBERS[:2], BASE, VECTORS[:2], TASKS.seen(2))
    held = [*earlier.alpha["model"], 0.0]
    assert choice.alpha["model"] == pytest.approx(held, abs=2e-2)
    free = choose(method_of("mdm_oc", "model"), found, MEMBERS, BASE, VECTORS, TASKS)
    assert max(abs(a - b) for a, b in zip(free.alpha["model"], held, strict=True)) > 0.1
    again = choose(method, found, MEMBERS, BASE, VECTORS, TASKS, before=earlier.alpha)
    assert again.alpha == choice.alpha


def test_a_scale_is_chosen() -> None:
    method = make("ties", {"fit": "gradient", "fit.evaluations": "900", "scale": 1.0})
    shift = draw(1)
    tasks = Bowls([{n: 0.4 * v for n, v in shift.items()}])
    choice = choose_scale(method, BASE, shift, tasks)
    assert choice.alpha["model"] == pytest.approx([0.4], abs=1e-3)
    fixed = unfitted(method, scale=choice.alpha["model"][0])
    assert fixed.options() == {**make("ties").options(), "scale": choice.alpha["model"][0]}


def test_a_fit_changes_what_a_method_needs() -> None:
    fixed, fitted = make("task_arithmetic"), method_of("task_arithmetic", "model")
    assert (fixed.facts.family, fitted.facts.family) == ("additive", "coefficients")
    assert (fixed.wants, fitted.wants) == ("", "problem")
    assert fitted.facts.data == "labelled all"
    assert make(fitted.name, fitted.options()) == fitted
    assert MdmOc().wants == ""
    assert method_of("mdm_oc", "tensor").wants == "problem"


def test_what_makes_no_sense() -> None:
    for wrong in (
        {"granularity": "layer"},
        {"fit": "gradient", "sparsify": "dare"},
        {"fit": "gradient", "granularity": "word"},
        {"fit": "gradient", "fit.replay": "later"},
        {"fit": "best"},
    ):
        with pytest.raises(UsageError):
            make("task_arithmetic", wrong)


def experts() -> list[dict[str, Tensor]]:
    return [{n: BASE[n] + v[n] for n in SHAPES} for v in VECTORS]


@pytest.mark.parametrize("name", ["mdm_oc", "task_arithmetic"])
def test_merging_in_memory_takes_the_fit(name: str) -> None:
    method = method_of(name, "tensor")
    merged = apply(method, BASE, experts(), [1.0, 2.0, 0.5], problem=TASKS)
    found = products(method)
    choice = choose(method, found, MEMBERS, BASE, VECTORS, TASKS)
    made = method.combine(found, MEMBERS, choice.alpha).coefficients
    for n in SHAPES:
        want = sum((c * v[n] for c, v in zip(made[method.group(n)], VECTORS, strict=True)), BASE[n])
        torch.testing.assert_close(merged[n], want)
    with pytest.raises(UsageError, match="needs the losses"):
        apply(method, BASE, experts())


def test_a_scale_in_memory_also_in_bf16() -> None:
    base = {n: t.bfloat16() for n, t in draw(4).items()}
    expert = {n: (t + 0.5 * draw(5)[n]).bfloat16() for n, t in base.items()}
    target = {n: base[n].float() + 0.6 * (expert[n].float() - base[n].float()) for n in base}
    method = make("ties", {"density": 1.0, "fit": "gradient", "fit.evaluations": 900})
    merged = apply(method, base, [expert], problem=Bowls([target]))
    for n in base:
        torch.testing.assert_close(merged[n].float(), target[n], atol=0.02, rtol=0)


def test_made_up_examples_are_asked_for_at_the_first_coefficients() -> None:
    method = method_of("task_arithmetic", "model", replay="all", evaluations=30)
    asked: list[Weights] = []

    def renew(weights: Weights, tasks: Bowls) -> Bowls:
        asked.append(weights)
        return Bowls([BASE] * 3)

    merged = apply(method, BASE, experts(), problem=TASKS, renew=renew)
    (start,) = asked
    for n in SHAPES:
        torch.testing.assert_close(start[n], sum((0.3 * v[n] for v in VECTORS), BASE[n]))
        assert float(merged[n].abs().max()) < float(
            start[n].abs().max()
        )  # towards the base, as made-up tasks ask
    with pytest.raises(UsageError, match="nothing was handed in that makes examples up"):
        apply(method, BASE, experts(), problem=TASKS)
