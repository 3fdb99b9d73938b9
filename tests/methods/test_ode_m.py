"""The path of ODE-M against closed forms, a dense transcription of its equations, and an ODE solver."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from plait.errors import PlaitError, UsageError, VerificationError
from plait.methods.base import Known, MemberFacts
from plait.methods.memory import apply
from plait.methods.ode_m import OdeM
from plait.methods.registry import make
from plait.methods.watch import Blind, between
from plait.problem.base import Examples
from plait.problem.network import module_network
from plait.problem.objective import Objective
from plait.problem.problem import Problem
from plait.testing import check
from tests.methods.ode_toys import Formula, Toy, split, steps, toys

EPS = 2.0**-52
SIZE = 11


def normal(seed: int, size: int = SIZE) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def bowl(centre: Tensor, bend: float = 1.0) -> Formula:
    return lambda x: bend * ((x - centre) ** 2).sum() / 2


def wavy(seed: int) -> Formula:
    """A smooth loss without symmetries."""
    a, b = normal(seed), normal(seed + 1)
    return lambda x: (x @ a).sin() + ((x - b) ** 2).sum() / 4 + (x**4).sum() / 40


def straight(base: Tensor, experts: list[Tensor], weights: list[float]) -> Tensor:
    total = torch.zeros_like(base)
    for expert, weight in zip(experts, weights, strict=True):
        total += weight * expert
    return total / math.fsum(weights)


# gamma = 1


@pytest.mark.parametrize("integrator", ["euler", "heun", "rk4"])
@pytest.mark.parametrize("h", [1.0, 0.3, 0.05, 0.013])
@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0, 1.0], [0.3, 2.0, 7.0, 0.01]])
def test_a_path_that_is_never_restrained_ends_at_the_running_average(
    integrator: str, h: float, weights: list[float]
) -> None:
    experts = [normal(i) for i in range(4)]
    method = OdeM(h=h, integrator=integrator, budget=1e9)
    got, found = steps(method, normal(9), experts, weights, toys(*[wavy(i) for i in range(4)]))
    assert all(gamma == 1 for known in found[1:] for gamma in known["gamma"])
    # Each of at most 80 steps rounds a few times, at magnitudes below 4.
    assert torch.allclose(got, straight(normal(9), experts, weights), rtol=0, atol=400 * EPS)


@pytest.mark.parametrize("granularity", ["model", "layer", "tensor"])
def test_the_law_holds_in_fp32_and_without_any_slope(granularity: str) -> None:
    experts = [normal(i) for i in range(3)]
    problem = toys(*[lambda x: x.sum() * 0] * 3)
    got, found = steps(
        OdeM(granularity=granularity), normal(9), experts, [1, 1, 1], problem, kind=torch.float32
    )
    assert got.dtype == torch.float32
    assert found[2]["inner"] == [0.0] * 7
    assert torch.allclose(got.double(), straight(normal(9), experts, [1, 1, 1]), rtol=0, atol=80 * 2.0**-24)


def test_the_first_member_comes_back_bit_for_bit_and_needs_no_loss() -> None:
    for method in (OdeM(), OdeM(t_end=0.5), OdeM(variant="released"), OdeM(target="merged")):
        got, found = steps(method, normal(0), [normal(1)], [0.3], None)
        assert torch.equal(got, normal(1))
        assert found == [{"t": [0.0, 1.0], "t_end": 1.0}]


def test_how_far_the_path_goes() -> None:
    problem, experts = toys(*[wavy(i) for i in range(4)]), [normal(i) for i in range(4)]
    _, found = steps(OdeM(), normal(9), experts, [1, 1, 1, 1], problem)
    assert [known["t_end"] for known in found] == [1, 1 / 2, 1 / 3, 1 / 4]
    assert [len(known["t"]) for known in found[1:]] == [11, 8, 6]
    assert found[2]["t"] == pytest.approx([0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 1 / 3])
    _, found = steps(OdeM(), normal(9), experts, [1, 3, 4, 8], problem)
    assert [known["t_end"] for known in found] == [1, 3 / 4, 1 / 2, 1 / 2]


def test_the_ends_of_the_way() -> None:
    problem, experts = toys(wavy(0), wavy(1)), [normal(0), normal(1)]
    got, found = steps(OdeM(t_end=0), normal(9), experts, [1, 1], problem)
    assert torch.equal(got, experts[0])
    assert (found[1]["t"], found[1]["gamma"], found[1]["barrier"]) == ([0.0], [], 0.0)
    got, _ = steps(OdeM(t_end=1, budget=1e9), normal(9), experts, [1, 1], problem)
    assert torch.allclose(got, experts[1], rtol=0, atol=4 * EPS * 3)


# The equations again, with dense vectors


def dense(
    theta: np.ndarray[Any, Any],
    expert: np.ndarray[Any, Any],
    end: float,
    h: float,
    tasks: list[Any],
    allowed: float | None,
) -> tuple[np.ndarray[Any, Any], list[float]]:
    """METHODS C1. tasks: (loss, gradient) pairs of functions."""

    def loss(x: np.ndarray[Any, Any]) -> float:
        return float(sum(f(x) for f, _ in tasks) / len(tasks))

    budget = loss(expert) - loss(theta) if allowed is None else allowed
    t, gammas = 0.0, []
    while t < end - 1e-12:
        s = min(h, end - t)
        u = (expert - theta) / (1 - t)
        g = sum(slope(theta) for _, slope in tasks) / len(tasks)
        p = g @ u
        gamma = 1.0 if p <= 0 else float(np.clip(budget / p, 0, 1))
        theta = theta + s * (u - (1 - gamma) * p * g / (g @ g) if p > 0 else u)
        gammas.append(gamma)
        t += s
    return theta, gammas


def numbers(seed: int) -> tuple[Any, Any]:
    """`wavy` with its derivative."""
    a, b = normal(seed).numpy(), normal(seed + 1).numpy()
    return (
        lambda x: np.sin(x @ a) + ((x - b) ** 2).sum() / 4 + (x**4).sum() / 40,
        lambda x: np.cos(x @ a) * a + (x - b) / 2 + x**3 / 10,
    )


@pytest.mark.parametrize("budget", [None, 0.0, 0.4])
@pytest.mark.parametrize("which", ["seen", "new"])
@pytest.mark.parametrize("h", [0.05, 0.07])
def test_a_merge_is_what_the_equations_say(budget: float | None, which: str, h: float) -> None:
    weights = [1.0, 2.0, 0.7]
    experts = [normal(20 + i) for i in range(3)]
    problem = toys(*[wavy(i) for i in range(3)])
    got, found = steps(OdeM(h=h, budget=budget, calibration=which), normal(9), experts, weights, problem)
    theta = experts[0].numpy()
    for k in (2, 3):
        end = weights[k - 1] / sum(weights[:k])
        tasks = [numbers(i) for i in (range(k) if which == "seen" else [k - 1])]
        theta, gammas = dense(theta, experts[k - 1].numpy(), end, h, tasks, budget)
        assert found[k - 1]["gamma"] == pytest.approx(gammas, abs=1e-11)
    assert np.allclose(got.numpy(), theta, rtol=0, atol=1e-12)
    assert budget is None or which == "new" or min(found[1]["gamma"] + found[2]["gamma"]) < 1


def test_gamma_against_budgets_of_either_sign() -> None:
    """The expert is worse than the model so far: some of the climb is let pass; better: none of it."""
    uphill = bowl(torch.zeros(SIZE, dtype=torch.float64))
    near, far = normal(1) / 8, normal(2)
    _, found = steps(OdeM(), near, [near, far], [1, 1], toys(uphill, uphill))
    assert found[1]["budget"] == pytest.approx(float(uphill(far) - uphill(near)))
    assert found[1]["budget"] > 0
    _, found = steps(OdeM(), far, [torch.cat([far[:-1], far[-1:] + 9]), near], [1, 1], toys(uphill, uphill))
    assert found[1]["budget"] < 0
    assert set(found[1]["gamma"]) == {1.0}  # straight downhill
    over = torch.zeros(SIZE, dtype=torch.float64)
    over[0] = 3.0  # a hill lies on the way, and a valley behind it: none of the climb is let pass
    hill: Formula = lambda x: x[0].sin() - x[0] / 2  # noqa: E731
    got, found = steps(OdeM(), over * 0, [over * 0, over * 2], [1, 1], toys(hill, hill))
    assert found[1]["budget"] < 0
    assert set(found[1]["gamma"]) == {0.0}
    assert torch.allclose(got, over * 0, rtol=0, atol=1e-14)
    assert found[1]["barrier"] > 0


# Closed forms


def test_a_linear_loss_rises_by_the_budget_and_the_rest_goes_straight() -> None:
    slope = normal(3)
    start, expert = normal(1), normal(1) + 2 * slope + normal(4)
    slope_length = float(slope @ slope)
    climb = float(slope @ (expert - start))
    budget = climb / 3
    got, found = steps(
        OdeM(budget=budget), start, [start, expert], [1, 1], toys(lambda x: x @ slope, lambda x: x @ slope)
    )
    across = expert - start - climb / slope_length * slope
    want = start + across / 2 + budget / 2 / slope_length * slope
    assert torch.allclose(got, want, rtol=0, atol=1e-13)
    assert all(gamma < 1 for gamma in found[1]["gamma"])
    losses = found[1]["losses"]["b"]
    assert losses == pytest.approx([losses[0] + budget * t for t in found[1]["t"]], abs=1e-12)


def on_the_circle(h: float, integrator: str, end: float = 0.5) -> tuple[float, float]:
    """The distance to the closed form for L = |x|^2 / 2 and budget 0, and the error of the radius. The path stays on
    the circle of its start; its angle to the expert, of length R r, is tan(psi / 2) = tan(psi_0 / 2) (1 - t)^R."""
    ratio, psi, radius = 2.0, 1.0, 1.5
    start = torch.zeros(SIZE, dtype=torch.float64)
    expert = start.clone()
    start[0], expert[3] = radius * math.cos(psi), ratio * radius * math.sin(0)
    start[4], expert[0] = radius * math.sin(psi), ratio * radius
    still = bowl(torch.zeros(SIZE, dtype=torch.float64))
    method = OdeM(h=h, integrator=integrator, budget=0.0, t_end=end)
    got, found = steps(method, start, [start, expert], [1, 1], toys(still, still))
    assert max(found[1]["gamma"]) == 0
    angle = 2 * math.atan(math.tan(psi / 2) * (1 - end) ** ratio)
    want = torch.zeros(SIZE, dtype=torch.float64)
    want[0], want[4] = radius * math.cos(angle), radius * math.sin(angle)
    return float((got - want).norm()), abs(float(got.norm()) - radius)


@pytest.mark.parametrize(("integrator", "order"), [("euler", 1), ("heun", 2), ("rk4", 4)])
def test_the_order_of_the_integrators_on_a_quadratic_loss(integrator: str, order: int) -> None:
    coarse, _ = on_the_circle(0.05, integrator)
    fine, _ = on_the_circle(0.025, integrator)
    assert coarse < 0.1
    assert abs(math.log2(coarse / fine) - order) < 0.25


def test_small_steps_reach_the_closed_form() -> None:
    away, radius = on_the_circle(0.01, "rk4")
    assert away < 1e-8
    assert radius < 1e-8


def test_a_step_that_ends_at_the_expert_is_finite_with_every_integrator() -> None:
    for integrator in ("euler", "heun", "rk4"):
        away, _ = on_the_circle(0.02, integrator, end=1.0)
        assert away < 0.1


@pytest.mark.parametrize("granularity", ["model", "layer", "tensor"])
@pytest.mark.parametrize("budget", [0.0, 0.1, None])
def test_a_step_raises_the_loss_by_no_more_than_the_budget_to_first_order(
    granularity: str, budget: float | None
) -> None:
    """What is left over is of second order: halving the step divides it by about 4."""

    def excess(h: float) -> float:
        _, found = steps(
            OdeM(h=h, granularity=granularity, budget=budget, t_end=h),
            normal(9),
            [normal(5), normal(6)],
            [1, 1],
            toys(wavy(1), wavy(3)),
        )
        known = found[1]
        before, after = (sum(known["losses"][task][i] for task in "ab") / 2 for i in (0, 1))
        return float(after - before - h * max(known["budget"], 0.0))

    big, small = excess(2e-3), excess(1e-3)
    assert small < max(0.3 * big, 0.0) + 1e-9 or small <= 0


def test_each_tensor_is_restrained_by_itself() -> None:
    """The loss climbs in one tensor and falls as much in the others: over the model that evens out, by tensor it does
    not."""
    slope = torch.ones(SIZE, dtype=torch.float64)
    slope[2:6] = -3
    start, expert = torch.zeros(SIZE, dtype=torch.float64), torch.ones(SIZE, dtype=torch.float64)
    problem = toys(lambda x: x @ slope, lambda x: x @ slope)

    def run(granularity: str) -> Tensor:
        return steps(OdeM(granularity=granularity, budget=0.0), start, [start, expert], [1, 1], problem)[0]

    half = torch.full((SIZE,), 0.5, dtype=torch.float64)
    by_tensor = half.clone()
    by_tensor[:2] = by_tensor[6:] = 0
    by_layer = half.clone()
    by_layer[6:] = 0  # layer 0 has 2 * 1 - 4 * 3 < 0
    assert torch.allclose(run("model"), half, rtol=0, atol=1e-14)
    assert torch.allclose(run("layer"), by_layer, rtol=0, atol=1e-14)
    assert torch.allclose(run("tensor"), by_tensor, rtol=0, atol=1e-14)
    # A budget is shared by the tensors that climb, 2 and 5 units: in each, 0.7 of 7 lets a tenth pass.
    got, found = steps(OdeM(granularity="tensor", budget=0.7), start, [start, expert], [1, 1], problem)
    by_tensor[:2] = by_tensor[6:] = 0.05
    assert torch.allclose(got[2:6], by_tensor[2:6], rtol=0, atol=1e-14)
    assert found[1]["gamma"][0] == pytest.approx(0.1)
    rise = sum(float(got[i]) for i in (0, 1, 6, 7, 8, 9, 10))
    assert rise == pytest.approx(0.35)  # to t = 1/2


def test_torchdiffeq_agrees() -> None:
    odeint = pytest.importorskip("torchdiffeq").odeint
    start, expert = normal(1), normal(2)
    want = odeint(lambda t, x: (expert - x) / (1 - t), start, torch.tensor([0.0, 0.5]).double(), rtol=1e-11)[
        -1
    ]
    got, _ = steps(OdeM(budget=1e9), start, [start, expert], [1, 1], toys(wavy(0), wavy(1)))
    assert torch.allclose(got, want, rtol=0, atol=1e-9)


# What is found on the way


def test_the_trace() -> None:
    problem = toys(*[wavy(i) for i in range(3)])
    experts = [normal(i) for i in range(3)]
    got, found = steps(OdeM(line=3, budget=0.2), normal(9), experts, [1, 1, 1], problem)
    known = found[2]
    assert json.loads(json.dumps(known)) == known
    count = len(known["t"])
    assert all(len(known[key]) == count - 1 for key in ("gamma", "inner", "norm"))
    assert {task: len(row) for task, row in known["losses"].items()} == dict.fromkeys("abc", count)
    assert [known["losses"][task][-1] for task in "abc"] == [float(wavy(i)(got)) for i in range(3)]
    assert known["restrained"] == sum(gamma < 1 for gamma in known["gamma"])
    before, _ = steps(OdeM(line=3, budget=0.2), normal(9), experts[:2], [1, 1], problem)
    assert known["norm"][0] == pytest.approx(float((experts[2] - before).norm()))
    _, free = steps(OdeM(budget=1e9), normal(9), experts[:2], [1, 1], problem)
    assert free[1]["norm"] == pytest.approx(
        [float((experts[1] - experts[0]).norm())] * 10
    )  # it goes straight
    ends = [sum(float(wavy(i)(x)) for i in range(3)) / 3 for x in (before, experts[2])]

    def above(t: float, losses: list[float]) -> float:
        return sum(losses) / 3 - ((1 - t) * ends[0] + t * ends[1])

    rows = zip(*(known["losses"][task] for task in "abc"), strict=True)
    want = max(above(t, list(row)) for t, row in zip(known["t"], rows, strict=True))
    assert known["barrier"] == pytest.approx(want)
    line = known["line"]
    assert line["t"] == [0.25, 0.5, 0.75]
    points = [before + t * (experts[2] - before) for t in line["t"]]
    assert line["losses"]["c"] == pytest.approx([float(wavy(2)(x)) for x in points])
    want = max(
        0.0,
        *(above(t, [float(wavy(i)(x)) for i in range(3)]) for t, x in zip(line["t"], points, strict=True)),
    )
    assert line["barrier"] == pytest.approx(want)


@pytest.mark.parametrize(("integrator", "gamma"), [("euler", 1.0), ("heun", 0.4), ("rk4", 0.4)])
def test_a_step_that_is_held_back_in_a_later_stage_says_so(integrator: str, gamma: float) -> None:
    """From the bottom of a bowl: the slope is 0 at the start of the step, and above the budget at its end."""
    start, expert = torch.zeros(SIZE, dtype=torch.float64), torch.ones(SIZE, dtype=torch.float64)
    method = OdeM(integrator=integrator, h=0.5, t_end=0.5, budget=0.2 * SIZE)
    _, found = steps(method, start, [start, expert], [1, 1], toys(*[lambda x: (x @ x) / 2] * 2))
    assert found[1]["gamma"][0] == pytest.approx(gamma, abs=0.06)
    assert found[1]["restrained"] == (gamma < 1)


@pytest.mark.parametrize(("integrator", "each"), [("euler", 1), ("heun", 2), ("rk4", 4)])
def test_what_it_costs(integrator: str, each: int) -> None:
    """One gradient a stage, and a loss at either end; those of the straight line are extra."""
    for line in (0, 2):
        _, found = steps(
            OdeM(integrator=integrator, line=line),
            normal(9),
            [normal(0), normal(1)],
            [1, 1],
            toys(wavy(0), wavy(1)),
        )
        # `work` counts each task by itself.
        assert found[1]["work"] == {
            "losses": 2 * (2 + line),
            "gradients": 2 * 10 * each,
            "samples": 2 * (2 + line + 10 * each),
        }


def test_examples_are_shared_out_among_the_tasks_and_drawn_by_the_seed() -> None:
    for options, want in (
        ({"samples": 100, "seed": 7}, [[(50, 7), (33, 7)], [(50, 7), (33, 7)], [(33, 7)]]),
        ({"samples": 100, "calibration": "new"}, [[], [(100, 0)], [(100, 0)]]),
        ({"samples": 1}, [[(1, 0), (1, 0)], [(1, 0), (1, 0)], [(1, 0)]]),
    ):
        problem = toys(*[wavy(i) for i in range(3)])
        steps(OdeM(**options), normal(9), [normal(i) for i in range(3)], [1, 1, 1], problem)
        assert [problem[task].samples for task in "abc"] == want  # type: ignore[attr-defined]


def test_the_order_of_names_changes_nothing() -> None:
    problem = toys(wavy(0), wavy(1))
    method, members = OdeM(budget=0.0), (MemberFacts(1, {}), MemberFacts(1, {}))

    def turned(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(reversed(list(weights.items())))

    base, state, expert = (split(normal(i)) for i in range(3))
    one, known = method.step(state, base, expert, members, problem)
    other, also = method.step(turned(state), turned(base), turned(expert), members, problem)
    assert known["inner"] == also["inner"]
    assert all(torch.equal(one[name], other[name]) for name in base)


def test_a_base_of_two_dtypes_keeps_them() -> None:
    base, state, expert = (split(normal(i)) for i in range(3))
    for model in (base, state, expert):
        model["layer.0.bias"] = model["layer.0.bias"].float()
    got, _ = OdeM().step(
        state,
        base,
        expert,
        (MemberFacts(1, {}), MemberFacts(1, {})),
        toys(lambda x: x.sum().double(), wavy(1)),
    )
    assert {name: tensor.dtype for name, tensor in got.items()} == {n: t.dtype for n, t in base.items()}


# Going on after a stop


class Stopped(Exception):
    pass


class Keeper(Blind):
    """Keeps what it is handed after every so many steps, and stops after some."""

    def __init__(self, every: int, stop: int = 0) -> None:
        self.every, self.stop = every, stop
        self.held: tuple[str, dict[str, Tensor]] | None = None
        self.told: list[tuple[int, int, float]] = []

    def kept(self) -> tuple[Known, Mapping[str, Tensor]] | None:
        return None if self.held is None else (json.loads(self.held[0]), self.held[1])

    def due(self) -> bool:
        return self.told[-1][0] % self.every == 0

    def keep(self, note: Known, weights: Mapping[str, Tensor]) -> None:
        self.held = json.dumps(note), {name: tensor.clone() for name, tensor in weights.items()}

    def tell(self, done: int, steps: int, loss: float) -> None:
        self.told.append((done, steps, loss))
        if done == self.stop:
            raise Stopped


@pytest.mark.parametrize(
    "options", [{}, {"integrator": "rk4", "line": 2}, {"variant": "released", "h": 0.05}]
)
def test_a_stopped_path_goes_on_to_the_same_bytes(options: dict[str, Any]) -> None:
    method = OdeM(**options)
    problem = toys(wavy(0), wavy(1))
    base, first, expert = (split(normal(i)) for i in range(3))
    state, _ = method.step(base, base, first, (MemberFacts(1, {}),), problem)
    members = (MemberFacts(1, {}), MemberFacts(1, {}))
    want, found = method.step(state, base, expert, members, problem)
    keeper = Keeper(3, stop=8)
    with pytest.raises(Stopped):
        method.step(state, base, expert, members, problem, keeper)
    assert keeper.held is not None
    keeper.stop, keeper.told = 0, []
    got, also = method.step(state, base, expert, members, problem, keeper)
    assert keeper.told[0][:2] == (7, 10)
    assert all(torch.equal(got[name], want[name]) for name in want)
    assert also == found
    assert keeper.told[0][2] == pytest.approx(sum(found["losses"][task][6] for task in "ab") / 2, rel=0.5)


class Points(Blind):
    """Collects points of the path."""

    def __init__(self, *places: float) -> None:
        self.places = places
        self.found: dict[float, dict[str, Tensor]] = {}

    def wanted(self, t: float, after: float) -> list[float]:
        return between(self.places, t, after)

    def point(self, t: float, weights: Mapping[str, Tensor]) -> None:
        self.found[t] = {name: tensor.clone() for name, tensor in weights.items()}


@pytest.mark.parametrize(
    "options", [{}, {"integrator": "rk4"}, {"variant": "released", "h": 0.1, "refine": 0}]
)
def test_a_point_of_a_path_has_the_bytes_of_a_path_that_ends_there(options: dict[str, Any]) -> None:
    problem = toys(wavy(0), wavy(1))
    base, first, expert = (split(normal(i)) for i in range(3))
    members = (MemberFacts(1, {}), MemberFacts(1, {}))

    def follow(end: float, watch: Blind | None = None) -> tuple[dict[str, Tensor], Known]:
        return OdeM(t_end=end, **options).step(first, base, expert, members, problem, watch)

    # 0.1 + 0.2 is a rounding error beyond a step's end; 1.5 lies beyond the path.
    points = Points(0.0, 0.07, 0.1 + 0.2, 1 / 3, 0.34, 1.0, 1.5)
    got, known = follow(1.0, points)
    want, found = follow(1.0)
    assert all(torch.equal(got[name], want[name]) for name in want)
    assert {k: v for k, v in known.items() if k != "work"} == {k: v for k, v in found.items() if k != "work"}
    assert list(points.found) == pytest.approx([0.0, 0.07, 0.3, 1 / 3, 0.34, 1.0], abs=1e-12)
    for end, weights in points.found.items():
        alone, _ = follow(end)
        assert all(torch.equal(weights[name], alone[name]) for name in weights), end


# The end point that a data-free method makes


def model(seed: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    shapes = {"layer.0.weight": (6, 5), "layer.0.bias": (6,), "scale": ()}
    return {n: torch.randn(s, generator=draw, dtype=torch.float64) for n, s in shapes.items()}


@pytest.mark.parametrize(
    "end",
    [
        "covariance",
        "average",
        {"name": "covariance", "ridge": 0.1, "side": "out"},
        {"name": "task_arithmetic"},
    ],
)
def test_the_path_can_lead_to_what_another_method_makes_of_all_members(end: Any) -> None:
    base, experts, weights = model(0), [model(i) for i in (1, 2, 3)], [1.0, 2.0, 0.5]
    method = make("ode_m", {"target": "merged", "end": end, "budget": 1e9})
    told = dict(end) if isinstance(end, dict) else {"name": end}
    inner = make(told.pop("name"), told)
    problem = toys(*[lambda x: x.sum()] * 3)
    for count in (2, 3):
        got = apply(method, base, experts[:count], weights[:count], problem=problem)
        want = apply(inner, base, experts[:count], weights[:count])
        for name in base:
            # 20 steps, each rounded at magnitudes below 4.
            assert torch.allclose(got[name], want[name], rtol=0, atol=200 * EPS), name


def test_the_way_to_a_merged_end_is_guarded_by_losses() -> None:
    base, experts = model(0), [model(1), model(2)]
    problem = toys(*[bowl(torch.zeros(37, dtype=torch.float64))] * 2)
    method = OdeM(target="merged", end="average", budget=0.0)
    state, _ = method.step(base, base, experts[0], (MemberFacts(1, {}),), problem)
    _, known = method.step(state, base, experts[1], (MemberFacts(1, {}), MemberFacts(1, {})), problem)
    assert known["t_end"] == 1
    assert len(known["t"]) == 21
    # A state without the sums is refused, never taken for one of no members.
    plain = {name: state[name] for name in base}
    with pytest.raises(VerificationError, match="holds no tensors sum/"):
        method.step(plain, base, experts[1], (MemberFacts(1, {}), MemberFacts(1, {})), problem)


# With a network


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"granularity": "layer", "integrator": "heun", "calibration": "new"},
        {"variant": "released", "h": 0.1, "refine": 10},
        {"variant": "control_adamw", "refine": 10},
        {"target": "merged"},
    ],
)
def test_losses_of_a_network(options: dict[str, Any]) -> None:
    """In fp32, through the problem that lines hand in; what a trace says is what the problem says of the model."""
    network = module_network(
        torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    )
    points = normal(0, 400).view(200, 2).float()
    problem = Problem(
        {
            "right": Objective(network, None, Examples(points, (points[:, 0] > 0).long(), "right")),
            "above": Objective(network, None, Examples(points, (points[:, 1] > 0).long(), "above")),
        }
    )
    shapes = {"0.weight": (8, 2), "0.bias": (8,), "2.weight": (2, 8), "2.bias": (2,)}
    base, one, two = (
        {name: normal(seed, math.prod(shape)).view(shape).float() for name, shape in shapes.items()}
        for seed in (1, 2, 3)
    )
    method = OdeM(samples=120, **options)
    state, _ = method.step(base, base, one, (MemberFacts(1, {}),), problem)
    state, known = method.step(state, base, two, (MemberFacts(1, {}), MemberFacts(1, {})), problem)
    members = (MemberFacts(1, {}), MemberFacts(1, {}))
    made, more = method.finish(state, base, members, problem)
    assert all(made[name].dtype == torch.float32 for name in base)
    known = {**known, **more}
    losses = known["refined"]["losses"] if "refined" in known else known["losses"]
    new = options.get("calibration") == "new"
    sampled = problem.only("above").sample(120, 0) if new else problem.sample(60, 0)
    if options.get("variant") != "released":  # which takes the best point, not the last
        assert {task: row[-1] for task, row in losses.items()} == sampled.losses(made)
    merged = apply(method, base, [one, two], problem=problem)
    assert all(torch.equal(merged[name], made[name]) for name in base)


# Errors and options


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_losses_that_are_not_finite_are_told_with_task_and_place(variant: str) -> None:
    method = OdeM(variant=variant)
    experts = [torch.full((SIZE,), 4.0), normal(1)]

    def bad(x: Tensor) -> Tensor:
        return (x.sum() - 40).log()

    with pytest.raises(PlaitError, match="the loss of b is nan at the end point, expected a finite number"):
        steps(method, normal(9), experts, [1, 1], toys(wavy(0), bad))
    with pytest.raises(PlaitError, match=r"the loss of a is nan at t = 0\.\d+"):
        steps(method, normal(9), [-normal(1), normal(1)], [1, 1], toys(lambda x: (x @ x - 5).sqrt(), wavy(0)))
    with pytest.raises(PlaitError, match="the gradient is not finite at t = 0, expected"):
        steps(method, normal(9), [normal(1) * 0, normal(1)], [1, 1], toys(lambda x: (x @ x).sqrt(), wavy(0)))


def test_losses_must_be_handed_in() -> None:
    with pytest.raises(UsageError, match="follows losses and was given none; hand in a problem"):
        steps(OdeM(), normal(9), [normal(0), normal(1)], [1, 1], None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"variant": "old"},
            "variant is 'old', expected one of: paper, released, control_refine, control_adamw",
        ),
        ({"h": -0.1}, "h is -0.1, expected a number from 0 to 1"),
        ({"h": 1.5}, "h is 1.5, expected a number from 0 to 1"),
        ({"h": "nan"}, "h is nan, expected a number from 0 to 1"),
        ({"samples": -1}, "samples is -1, expected 0 or more"),
        ({"calibration": "old"}, "calibration is 'old', expected one of: seen, new"),
        ({"granularity": "row"}, "granularity is 'row'"),
        ({"integrator": "rk2"}, "integrator is 'rk2', expected one of: euler, heun, rk4"),
        ({"budget": -1}, "budget is -1.0, expected 0 or more"),
        ({"target": "base"}, "target is 'base', expected one of: expert, merged"),
        ({"end": "ties"}, "end is ties, expected a method without data"),
        ({"end": "fisher"}, "end is fisher, expected a method without data"),
        ({"t_end": 1.01}, "t_end is 1.01, expected a number from 0 to 1"),
        (
            {"variant": "released", "integrator": "heun"},
            "integrator is heun and variant released, which has no",
        ),
        ({"variant": "released", "calibration": "new"}, "calibration is new and variant released"),
        ({"variant": "control_adamw", "budget": 0}, "budget is 0.0 and variant control_adamw"),
        ({"variant": "control_adamw", "h": 0.1}, "h is 0.1 and variant control_adamw"),
        (
            {"refine": 8},
            "refine is 8 and variant paper, .* variant=released or control_refine or control_adamw",
        ),
        ({"rate": 1e-4}, "rate is 0.0001 and variant paper"),
        ({"batch": 8}, "batch is 8 and variant paper"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make("ode_m", options)


def test_options_and_what_the_variant_fills_in() -> None:
    paper, released = make("ode_m"), make("ode_m", {"variant": "released"})
    assert isinstance(paper, OdeM)
    assert isinstance(released, OdeM)
    assert (paper.h, paper.samples) == (0.05, 1024)
    assert (released.h, released.samples, released.rate) == (0.01, 2048, 1e-6)
    assert make("ode_m", {"variant": "control_adamw"}).options()["rate"] == 1e-5
    assert make("ode_m", {"end": "covariance", "end.ridge": "0.1"}).options()["end"]["ridge"] == 0.1
    assert paper.options()["end"] == "covariance"
    assert paper.facts.data == released.facts.data == "labelled all"
    assert replace(paper, calibration="new").facts.data == "labelled new"
    for method in (
        paper,
        released,
        replace(paper, calibration="new", target="merged", budget=0.1, t_end=0.5),
    ):
        again = make("ode_m", json.loads(json.dumps(method.options())))
        assert again == method
        assert hash(again) == hash(method)


def test_it_obeys_the_laws() -> None:
    problem = toys(lambda x: (x.double() ** 2).sum(), lambda x: x.double().sum())
    sets: list[dict[str, Any]] = [
        {},
        {"granularity": "tensor", "integrator": "rk4"},
        {"calibration": "new", "line": 2},
    ]
    for options in sets:
        check(make("ode_m", options), problem=problem)


def test_toys_are_what_they_say() -> None:
    loss, slopes = Toy(bowl(torch.zeros(SIZE, dtype=torch.float64), 2.0)).loss_and_gradient(split(normal(0)))
    assert loss == pytest.approx(float(normal(0) @ normal(0)))
    assert torch.allclose(torch.cat(list(slopes.values())), 2 * normal(0))


def test_options_of_an_option_need_no_name_where_it_has_one() -> None:
    named = make("ode_m", {"target": "merged", "end": "covariance", "end.ridge": 0.1})
    assert (
        make("ode_m", {"target": "merged", "end.ridge": 0.1}) == named != make("ode_m", {"target": "merged"})
    )
