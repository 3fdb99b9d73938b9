"""The path with ceilings, the quadratic program in it, the refinement at its end, and the controls."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from plait.methods.base import MemberFacts
from plait.methods.ode.quadratic import nearest
from plait.methods.ode_m import OdeM
from tests.methods.ode_toys import Formula, split, steps, toys, vector

SIZE = 9


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape or (SIZE,), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def bowl(centre: Tensor, bend: float = 1.0) -> Formula:
    return lambda x: bend * ((x - centre) ** 2).sum() / 2 + (x**4).sum() / 50


def bowls(count: int, spread: float = 1.0) -> tuple[list[Tensor], list[Formula]]:
    """Experts, and losses whose minima lie near them."""
    experts = [spread * normal(i) for i in range(count)]
    return experts, [bowl(expert + normal(50 + i) / 10, 0.3 + i / 2) for i, expert in enumerate(experts)]


# The quadratic program


def solved(gradients: np.ndarray[Any, Any], base: np.ndarray[Any, Any], bounds: Sequence[float]) -> Any:
    """The nearest by coordinate ascent on the dual (Hildreth's method): slow, and sure where there is a solution."""
    factors = np.zeros(len(bounds))
    for _ in range(20_000):
        before = factors.copy()
        for j, g in enumerate(gradients):
            v = base - factors @ gradients
            factors[j] = max(factors[j] + (g @ v - bounds[j]) / (g @ g), 0.0)
        if np.abs(factors - before).max() <= 1e-15 * np.abs(factors).max():
            break
    return base - factors @ gradients


def cases() -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], list[float]]]:
    made = []
    for seed, count in product(range(6), (1, 2, 3, 4)):
        g = normal(seed, count, SIZE).numpy() * 10.0 ** (seed - 3)
        if seed % 2 and count > 1:
            g[-1] = g[0] * 0.9 + g[-1] * 0.2  # nearly the same
        base = normal(100 + seed).numpy()
        bounds = [min(float(x), 0.0) for x in normal(200 + seed, count) * 10.0 ** (seed - 3)]
        made.append((g, base, bounds))
    return made


def ours(g: np.ndarray[Any, Any], base: np.ndarray[Any, Any], bounds: list[float]) -> tuple[Any, Any]:
    found = nearest((g @ g.T).tolist(), (g @ base).tolist(), bounds)
    return base - np.array(found.factors) @ g, found


@pytest.mark.parametrize("case", cases()[::3])
def test_the_nearest_velocity_is_that_of_a_slow_solver(case: Any) -> None:
    g, base, bounds = case
    v, found = ours(*case)
    assert found.met
    assert np.allclose(v, solved(g, base, bounds), rtol=0, atol=1e-7)


@pytest.mark.parametrize("case", cases())
def test_the_nearest_velocity_is_scipys(case: Any) -> None:
    minimize = pytest.importorskip("scipy.optimize").minimize
    g, base, bounds = case
    size = np.linalg.norm(g, axis=1)
    want = minimize(
        lambda v: 0.5 * ((v - base) ** 2).sum(),
        base,
        jac=lambda v: v - base,
        method="SLSQP",
        constraints=[
            {"type": "ineq", "fun": lambda v: (bounds - g @ v) / size, "jac": lambda v: -g / size[:, None]}
        ],
        options={"ftol": 1e-15, "maxiter": 500},
    )
    v, found = ours(*case)
    assert found.met
    assert np.allclose(v, want.x, rtol=0, atol=2e-6)
    assert ((v - base) ** 2).sum() <= ((want.x - base) ** 2).sum() + 1e-9
    assert (g @ v <= bounds + 1e-8 * size * np.linalg.norm(base)).all()
    on = np.abs(g @ v - bounds) <= 1e-8 * size * np.linalg.norm(base)
    assert set(found.active) <= set(np.flatnonzero(on))


def test_velocities_at_the_edges() -> None:
    base = np.array([1.0, 2.0, 0.0])
    one, two = np.array([1.0, 0, 0]), np.array([-1.0, 0, 0])
    v, found = ours(np.array([one]), base, [2.0])
    assert (v.tolist(), found.active, found.met) == ([1, 2, 0], (), True)
    v, found = ours(np.array([one, one]), base, [0.0, -1.0])  # the same gradient twice
    assert v == pytest.approx([-1, 2, 0])
    assert found.met
    v, found = ours(np.array([one, two]), base, [0.0, 0.0])  # opposite, and both at once
    assert v == pytest.approx([0, 2, 0])
    assert found.met
    v, found = ours(np.array([one, two]), base, [-1.0, -3.0])  # cannot be: x <= -1 and x >= 3
    assert not found.met
    assert np.isfinite(v).all()
    v, found = ours(np.array([one, 0 * two]), base, [0.0, -1.0])  # a gradient of 0 bounds nothing
    assert v == pytest.approx([0, 2, 0])
    assert nearest([], [], []).factors == ()


# The path


def dense_step(
    theta: np.ndarray[Any, Any], expert: np.ndarray[Any, Any], t: float, s: float, tasks: list[Any], ends: Any
) -> tuple[np.ndarray[Any, Any], float]:
    """METHODS C2, one step. tasks: (loss, gradient). ends: L0 and L1 of each."""
    u = (expert - theta) / (1 - t)
    loss = [f(theta) for f, _ in tasks]
    slope = [d(theta) for _, d in tasks]

    def ceiling(j: int, at: float) -> float:
        return float((1 - at) * ends[0][j] + at * ends[1][j] + 0.08 * (1 - at) ** 2)

    every = range(len(tasks))
    excess = sorted(every, key=lambda j: ceiling(j, t) - loss[j])[:2]
    rising = [j for j in sorted(every, key=lambda j: -slope[j] @ u) if slope[j] @ u > 0][:2]
    bound = sorted({*excess, *rising})
    macro = sum(g * np.linalg.norm(g) ** -0.25 for g in slope)
    base = u - 0.24 * np.linalg.norm(u) * macro / np.linalg.norm(macro)
    limits = [min((ceiling(j, t + s) - loss[j]) / s, 0) for j in bound]
    v = solved(np.array([slope[j] for j in bound]), base, limits)
    for factor in 0.7 ** np.arange(9):
        new = theta + s * factor * v
        if all(tasks[j][0](new) <= ceiling(j, t + s) for j in every):
            return new, float(factor)
    return theta, 0.0


def numbers(formula: Formula) -> tuple[Any, Any]:
    def slope(x: np.ndarray[Any, Any]) -> Any:
        live = torch.tensor(x, requires_grad=True)
        formula(live).backward()  # type: ignore[no-untyped-call]
        return live.grad.numpy() if live.grad is not None else None

    return lambda x: float(formula(torch.tensor(x))), slope


def ripple(seed: int, height: float) -> Formula:
    """A bowl with waves in it, so that a straight way goes up and down."""
    across, centre = normal(seed) / normal(seed).norm(), normal(seed + 1)
    return lambda x: ((x - centre) ** 2).sum() / 20 + height * (4 * (x @ across)).sin()


@pytest.mark.parametrize(
    ("seed", "height", "made"),
    [
        (9, 0.1, [1, 1, 1]),
        (45, 0.1, [1, 1, 1]),
        (27, 0.4, [0.7, 1, 1]),
        (84, 0.2, [1, 1, 1]),  # bounds below 0 are met in two steps
        (99, 0.2, [1, 0, 1]),
        (57, 0.4, [0.7, 0, 0]),
    ],
)
def test_steps_are_what_the_equations_say(seed: int, height: float, made: list[float]) -> None:
    formulas = [ripple(1000 + 10 * seed + 2 * i, height) for i in range(5)]
    tasks = [numbers(f) for f in formulas]
    method = OdeM(variant="released", refine=0, h=0.25, t_end=0.6)
    start, end = normal(seed), normal(seed) + normal(seed + 500)
    base = split(start)
    members = tuple(MemberFacts(1, {}) for _ in range(5))
    state, known = method.step(base, base, split(end), members, toys(*formulas))
    theta, expert = start.numpy(), end.numpy()
    ends = [f(theta) for f, _ in tasks], [f(expert) for f, _ in tasks]
    for t, s, want in zip((0.0, 0.25, 0.5), (0.25, 0.25, 0.1), made, strict=True):
        theta, factor = dense_step(theta, expert, t, s, tasks, ends)
        assert factor == want
    assert known["factor"] == made
    assert np.allclose(torch.cat([state[n].flatten() for n in sorted(base)]), theta, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("wall", "factor"), [(0.03, 0.7**8), (0.02, 0.0)])
def test_a_step_is_shortened_eight_times_before_it_is_skipped(wall: float, factor: float) -> None:
    """Half of the way to the expert, of length 1, but for a wall on it that is flat at the start."""
    start, expert = torch.zeros(SIZE, dtype=torch.float64), torch.zeros(SIZE, dtype=torch.float64)
    expert[0] = 1
    problem = toys(*[lambda x: 1e4 * (x[0] - wall).relu() * (0.9 - x[0]).relu()] * 2)
    method = OdeM(variant="released", h=0.5, refine=0)
    got, found = steps(method, start, [start, expert], [1, 1], problem)
    assert found[1]["factor"] == pytest.approx([factor])
    assert float(got[0]) == pytest.approx(0.5 * factor)


def test_no_step_goes_above_a_ceiling_and_some_are_shortened_or_skipped() -> None:
    experts, formulas = bowls(4, 2.0)
    _, found = steps(OdeM(variant="released", h=0.1, refine=0), normal(9), experts, [1] * 4, toys(*formulas))
    factors = []
    for known in found[1:]:
        assert json.loads(json.dumps(known)) == known
        factors += known["factor"]
        for task, losses in known["losses"].items():
            for i, (factor, t) in enumerate(zip(known["factor"], known["t"][1:], strict=True)):
                ceiling = (1 - t) * known["start"][task] + t * known["target"][task] + 0.08 * (1 - t) ** 2
                assert losses[i + 1] <= ceiling if factor else losses[i + 1] == losses[i]
    assert 0 in factors or any(0 < factor < 1 for factor in factors)
    assert any(factor > 0 for factor in factors)


# The refinement


def test_the_refinement_stays_near_and_lowers_the_loss() -> None:
    experts, formulas = bowls(3)
    plain, _ = steps(OdeM(variant="control_refine", refine=0), normal(9), experts, [1, 2, 1], toys(*formulas))
    average = (experts[0] + 2 * experts[1] + experts[2]) / 4
    assert torch.allclose(plain, average, rtol=0, atol=1e-14)
    for rate in (1e-6, 1e-2):
        got, found = steps(
            OdeM(variant="control_refine", rate=rate), normal(9), experts, [1, 2, 1], toys(*formulas)
        )
        trace = found[2]["refined"]
        away = float((got - plain).norm())
        assert 0 < away <= 1e-3 * float(plain.norm()) * (1 + 1e-9)
        assert trace["steps"] == list(range(0, 81, 10))
        before, after = (sum(float(f(x)) for f in formulas) for x in (plain, got))
        assert after < before
        at = trace["steps"].index(trace["taken"])
        assert [row[at] for row in trace["losses"].values()] == [float(f(got)) for f in formulas]
    # 80 steps at 1e-6 move an element by at most about 80e-6: AdamW's own bound.
    got, _ = steps(OdeM(variant="control_refine"), normal(9), experts, [1, 2, 1], toys(*formulas))
    assert 70e-6 < float((got - plain).abs().max()) < 82e-6


def test_a_refinement_that_costs_one_task_too_much_is_not_taken() -> None:
    start = torch.zeros(SIZE, dtype=torch.float64)
    start[1] = 1000.0  # the radius is then 1
    up, down = torch.zeros(SIZE, dtype=torch.float64), torch.zeros(SIZE, dtype=torch.float64)
    up[0], down[0] = 1.0, -3.0
    problem = toys(lambda x: x @ up, lambda x: x @ down)

    def taken(rate: float) -> int:
        method = OdeM(variant="control_refine", rate=rate)
        _, found = steps(method, start, [start, start], [1, 1], problem)
        return int(found[1]["refined"]["taken"])

    assert taken(1e-4) == 80  # task a rises by 0.008
    assert taken(1e-3) == 20  # by 0.01 every 10 steps, and at most 0.02 is let pass
    assert taken(1e-2) == 0


def adamw(x: np.ndarray[Any, Any], slope: Any, rate: float, count: int) -> Any:
    m = v = np.zeros_like(x)
    for i in range(1, count + 1):
        g = slope(x)
        x = x * (1 - rate * 0.01)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        x = x - rate * (m / (1 - 0.9**i)) / (np.sqrt(v / (1 - 0.999**i)) + 1e-8)
    return x


def test_plain_adamw_is_adamw_from_the_running_average() -> None:
    experts, formulas = bowls(3)
    tasks = [numbers(f) for f in formulas]
    method = OdeM(variant="control_adamw", refine=25, rate=0.01)
    got, found = steps(method, normal(9), experts, [1, 1, 1], toys(*formulas))
    middle = (sum(experts, torch.zeros(SIZE, dtype=torch.float64)) / 3).numpy()
    want = adamw(middle, lambda x: sum(d(x) for _, d in tasks) / 3, 0.01, 25)
    assert np.allclose(got, want, rtol=0, atol=1e-12)
    assert found[2]["refined"]["steps"] == [0, 10, 20, 25]
    assert found[2]["refined"]["taken"] == 25


def test_the_anchor_pulls_back() -> None:
    """A slope of 2e-4 and the anchor's 1e-3 balance at a distance of 0.2; the radius is 0.316."""
    start = torch.full((1001,), 10.0, dtype=torch.float64)
    start[0] = 0
    problem = toys(*[lambda x: 2e-4 * x[0]] * 2)
    method = OdeM(variant="control_refine", refine=500, rate=1e-3)
    got, _ = steps(method, start, [start, start], [1, 1], problem)
    assert float(got[0]) == pytest.approx(-0.2, abs=0.04)


def test_examples_of_a_step_are_drawn_anew_and_by_the_seed() -> None:
    experts, formulas = bowls(2)
    drawn = []
    for seed in (0, 0, 1):
        problem = toys(*formulas)
        steps(OdeM(variant="control_adamw", refine=3, seed=seed), normal(9), experts, [1, 1], problem)
        drawn.append(problem["a"].samples)  # type: ignore[attr-defined]
    assert drawn[0] == drawn[1]
    assert [n for n, _ in drawn[0]] == [1024, 1024, 64, 64, 64]  # for the path, and for the refinement
    assert len({seed for _, seed in drawn[0] + drawn[2]}) == 8


def test_the_next_path_starts_from_the_unrefined_model() -> None:
    """Refinement comes after the stream: nothing of an earlier one is in a later model."""
    experts, formulas = bowls(3)
    path, _ = steps(OdeM(variant="released", refine=0, h=0.1), normal(9), experts, [1] * 3, toys(*formulas))
    method = OdeM(variant="released", refine=10, h=0.1)
    base = split(normal(9))
    state: Mapping[str, Tensor] = base
    for k in (1, 2, 3):
        members = tuple(MemberFacts(1, {}) for _ in range(k))
        state, known = method.step(state, base, split(experts[k - 1]), members, toys(*formulas))
        assert "refined" not in known
        made, more = method.finish(state, base, members, toys(*formulas))
        assert bool(more) == (k > 1)
    assert torch.equal(vector(state), path)
    assert not torch.equal(vector(made), path)


def test_what_the_released_variant_costs() -> None:
    experts, formulas = bowls(2)
    _, found = steps(OdeM(variant="released", h=0.1, refine=20), normal(9), experts, [1, 1], toys(*formulas))
    tried = sum(1 + (9 if not f else round(math.log(f, 0.7))) - (not f) for f in found[1]["factor"])
    assert found[1]["work"]["gradients"] == 2 * 5
    assert found[1]["work"]["losses"] == 2 * (2 + tried)
    assert found[1]["refined"]["work"]["gradients"] == 2 * 20
    assert found[1]["refined"]["work"]["losses"] == 2 * 3
