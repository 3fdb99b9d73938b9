"""Fits of coefficients on losses whose optimum is known."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy
import pytest

from plait.errors import PlaitError, UsageError
from plait.methods.fit import Anchor, Cmaes, Fit, Gradient, fit_of
from plait.methods.span import Span, Weights
from plait.tensors import Tensor, torch

SHAPES = {"a.0.w": (3, 4), "a.0.b": (3,), "a.1.w": (2, 5)}


def draw(seed: int, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    made = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=made, dtype=torch.float64).to(dtype)
        for name, shape in SHAPES.items()
    }


def one_group() -> dict[str, str]:
    return dict.fromkeys(SHAPES, "model")


def by_layer() -> dict[str, str]:
    return {name: name[:3] for name in SHAPES}


@dataclass
class Bowl:
    """L(theta) = |theta - target|^2 / 2, and how often it was asked."""

    target: Weights
    losses: int = 0
    gradients: int = 0
    seen: list[float] = field(default_factory=list)

    def loss(self, weights: Weights) -> float:
        self.losses += 1
        self.seen.append(sum(float(((weights[n] - t) ** 2).sum()) for n, t in self.target.items()) / 2)
        return self.seen[-1]

    def loss_and_gradient(self, weights: Weights) -> tuple[float, dict[str, Tensor]]:
        self.gradients += 1
        loss = sum(float(((weights[n] - t) ** 2).sum()) for n, t in self.target.items()) / 2
        return loss, {n: weights[n] - t for n, t in self.target.items()}


def flat(weights: Weights) -> Tensor:
    return torch.cat([weights[name].flatten() for name in SHAPES])


def best(span: Span, target: Weights) -> Tensor:
    """Least squares on materialised vectors, for one group."""
    turn = span.turns["model"]
    matrix = torch.stack([flat(d) for d in span.directions], dim=1) @ turn.T
    found: Tensor = torch.linalg.lstsq(matrix, (flat(target) - flat(span.base))[:, None]).solution[:, 0]
    return found


@pytest.mark.parametrize("fit", [Gradient(evaluations=3000), Cmaes(evaluations=800, seed=3)])
def test_fit_reaches_least_squares(fit: Fit) -> None:
    turn = torch.tensor([[1.0, 0.0], [-0.4, 1.0]], dtype=torch.float64)
    span = Span(draw(0), [draw(1), draw(2)], one_group(), {"model": turn})
    found = fit.search(span, Bowl(draw(3)), torch.full((1, 2), 0.3, dtype=torch.float64))
    torch.testing.assert_close(found.x[0], best(span, draw(3)), atol=2e-3, rtol=0)
    assert found.loss < found.start


def test_cmaes_finds_the_best_point_of_a_grid() -> None:
    span = Span(draw(0), [draw(1), draw(2)], one_group())
    bowl, target = Bowl(draw(3)), draw(3)
    axis = torch.linspace(-2, 2, 81, dtype=torch.float64)
    grid = {
        (float(a), float(b)): Bowl(target).loss(span.at(torch.stack([a, b])[None]))
        for a in axis
        for b in axis
    }
    found = Cmaes(evaluations=400).search(span, bowl, torch.full((1, 2), 0.3, dtype=torch.float64))
    assert found.loss <= min(grid.values()) + 1e-9
    nearest = min(grid, key=lambda point: grid[point])
    assert float((found.x[0] - torch.tensor(nearest)).abs().max()) <= 0.05


def test_one_coordinate_can_be_searched() -> None:
    span = Span(draw(0), [draw(1)], one_group())
    found = Cmaes(evaluations=200).search(span, Bowl(draw(2)), torch.zeros(1, 1))
    torch.testing.assert_close(found.x[0], best(span, draw(2)), atol=1e-3, rtol=0)


def test_groups_are_fitted_apart() -> None:
    span = Span(draw(0), [draw(1), draw(2)], by_layer())
    target = dict(draw(0))
    target["a.1.w"] = target["a.1.w"] + 0.7 * span.directions[1]["a.1.w"]
    found = Gradient(evaluations=3000).search(span, Bowl(target), torch.zeros(2, 2, dtype=torch.float64))
    want = torch.tensor([[0.0, 0.0], [0.0, 0.7]], dtype=torch.float64)
    torch.testing.assert_close(found.x, want, atol=2e-3, rtol=0)


def test_slope_is_the_derivative() -> None:
    turn = torch.tensor([[1.0, 0.0], [-0.4, 1.0]], dtype=torch.float64)
    span = Span(draw(0), [draw(1), draw(2)], by_layer(), {"a.0": turn})
    bowl, x = Bowl(draw(3)), torch.tensor([[0.2, -0.1], [0.5, 0.3]], dtype=torch.float64)
    slope = span.slope(bowl.loss_and_gradient(span.at(x))[1])
    for place in ((0, 0), (0, 1), (1, 0), (1, 1)):
        step = torch.zeros_like(x)
        step[place] = 1e-6
        rise = (bowl.loss(span.at(x + step)) - bowl.loss(span.at(x - step))) / 2e-6
        assert rise == pytest.approx(float(slope[place]), rel=1e-6)


def test_a_direction_that_lacks_a_tensor_is_zero_there() -> None:
    span = Span(draw(0), [{"a.0.w": draw(1)["a.0.w"]}], one_group())
    made = span.at(torch.ones(1, 1, dtype=torch.float64))
    assert torch.equal(made["a.1.w"], span.base["a.1.w"])
    assert torch.equal(made["a.0.w"], span.base["a.0.w"] + draw(1)["a.0.w"])


def test_anchor_equals_the_dense_sum() -> None:
    span = Span(draw(0), [draw(1), draw(2)], by_layer())
    fisher = {name: values.abs() for name, values in draw(4).items()}
    x, held = (
        torch.tensor([[0.2, -0.1], [0.5, 0.3]]).double(),
        torch.tensor([[0.4, 0.0], [0.1, 0.9]]).double(),
    )
    value, slope = span.quadratic(span.form(fisher), x - held)
    here, there = span.at(x), span.at(held)
    dense = sum(float((fisher[n] * (here[n] - there[n]) ** 2).sum()) for n in SHAPES) / 2
    assert value == pytest.approx(dense, rel=1e-12)
    pull = span.slope({n: fisher[n] * (here[n] - there[n]) for n in SHAPES})
    torch.testing.assert_close(slope, pull)


def test_a_strong_anchor_holds_the_coefficients() -> None:
    span = Span(draw(0), [draw(1), draw(2)], one_group())
    held = torch.tensor([[0.3, 0.3]], dtype=torch.float64)
    form = span.form({name: torch.ones(shape).double() for name, shape in SHAPES.items()})
    free = Gradient(evaluations=600).search(span, Bowl(draw(3)), held)
    tied = Gradient(evaluations=600).search(span, Bowl(draw(3)), held, Anchor(1e4, form, held))
    assert float((free.x - held).abs().max()) > 0.1
    assert float((tied.x - held).abs().max()) < 1e-3


def test_budget_is_kept_and_the_trace_counts_it() -> None:
    span = Span(draw(0), [draw(1), draw(2)], one_group())
    bowl = Bowl(draw(3))
    found = Cmaes(evaluations=25).search(span, bowl, torch.zeros(1, 2))
    assert bowl.losses == found.evaluations == 25
    assert found.trace[-1] == (25, found.loss)
    assert found.loss == min(bowl.seen)
    bowl = Bowl(draw(3))
    found = Gradient(evaluations=25).search(span, bowl, torch.zeros(1, 2))
    assert bowl.gradients == 8
    assert found.evaluations == 24


def test_same_seed_same_points_and_no_other_random_numbers_move() -> None:
    span = Span(draw(0), [draw(1), draw(2)], one_group())

    def points(seed: int) -> list[float]:
        bowl = Bowl(draw(3))
        Cmaes(evaluations=30, seed=seed).search(span, bowl, torch.zeros(1, 2))
        return bowl.seen

    numpy.random.seed(5)
    one = points(1)
    drawn = numpy.random.random()
    numpy.random.seed(6)
    assert points(1) == one != points(2)
    numpy.random.seed(5)
    assert numpy.random.random() == drawn


def test_a_start_without_a_loss_is_told() -> None:
    span = Span(draw(0), [draw(1)], one_group())
    bowl = Bowl({name: values * float("nan") for name, values in draw(3).items()})
    with pytest.raises(PlaitError, match="not finite"):
        Gradient().search(span, bowl, torch.zeros(1, 1))


def test_words_of_the_option() -> None:
    assert fit_of(None) is None
    assert fit_of("fixed") is None
    assert fit_of("cmaes") == Cmaes()
    assert fit_of({"name": "gradient", "rate": "0.1"}) == Gradient(rate=0.1)
    for wrong in (
        "best",
        {"name": "gradient", "rate": 0.0},
        {"name": "cmaes", "samples": -1},
        {"name": "cmaes", "x": 1},
    ):
        with pytest.raises(UsageError):
            fit_of(wrong)
