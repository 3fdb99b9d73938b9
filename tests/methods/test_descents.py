"""WUDI and DOP against their published algorithms in numpy: dense projectors, every term of the loss by itself, Adam
written out, fp64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from plait.errors import UsageError
from plait.methods.dop import _shortest
from plait.methods.memory import apply
from plait.methods.pieces import same_bytes
from plait.methods.registry import make
from tests.methods.matrices import MATRICES, Model, drawn

Array = npt.NDArray[np.float64]


def models(count: int = 3, rank: int | None = None, seed: int = 0) -> tuple[Model, list[Model]]:
    return drawn(count, rank, seed)


def adam(x: Array, slope: Callable[[Array], Array], steps: int, rate: float) -> Array:
    m, s, x = np.zeros_like(x), np.zeros_like(x), x.copy()
    for t in range(1, steps + 1):
        g = slope(x)
        m = 0.9 * m + 0.1 * g
        s = 0.999 * s + 0.001 * g**2
        x = x - rate * (m / (1 - 0.9**t)) / (np.sqrt(s / (1 - 0.999**t)) + 1e-8)
    return x


def wudi(taus: list[Array], steps: int = 300, rate: float = 1e-5) -> Array:
    def slope(m: Array) -> Array:
        # Of ||(m - tau) tau^T||^2 / ||tau||^2, one task after the other.
        return np.asarray(sum(2 * (m - t) @ t.T @ t / np.linalg.norm(t) ** 2 for t in taus))

    return adam(np.sum(taus, axis=0), slope, steps, rate)


def dop(taus: list[Array], share: float, alpha: float, decay: float, steps: int, rate: float) -> Array:
    total = taus[0]
    for tau in taus[1:]:
        ends, projectors = (total, tau), []
        for end in ends:
            u, s, vh = np.linalg.svd(end, full_matrices=False)
            s = s * (s > 1e-9 * s[0])
            r = int((np.cumsum(s) / s.sum() <= share).sum()) if share < 1 else int((s > 0).sum())
            projectors.append((u[:, :r] * s[:r], vh[:r].T * s[:r]))
        a = alpha

        def slope(m: Array, ends: Any = ends, projectors: Any = projectors) -> Array:
            nonlocal a
            gs, losses = [], []
            for end, (left, right) in zip(ends, projectors, strict=True):
                losses.append(np.sum((left.T @ (m - end)) ** 2) + np.sum(((m - end) @ right) ** 2))
                gs.append(2 * left @ left.T @ (m - end) + 2 * (m - end) @ right @ right.T)
            if min(losses) > 0:
                one, two = gs[0] / losses[0], gs[1] / losses[1]
                c = float(np.sum((two - one) * two) / np.sum((one - two) ** 2))
                if np.sum(one * two) >= np.sum(one * one):
                    c = 0.999
                elif np.sum(one * two) >= np.sum(two * two):
                    c = 0.001
                a = decay * a + (1 - decay) * c
            return np.asarray(a * gs[0] + (1 - a) * gs[1])

        total = adam((total + tau) / 2, slope, steps, rate)
    return total


def judge(
    rule: Callable[[list[Array]], Array], base: Model, experts: list[Model], weights: list[float]
) -> Model:
    out = {}
    for n, start in base.items():
        taus = [w * (e[n] - start).numpy() for w, e in zip(weights, experts, strict=True)]
        out[n] = start + torch.from_numpy(
            rule(taus) if n in MATRICES else np.sum(taus, axis=0) / sum(weights)
        )
    return out


def close(got: Model, want: Model, base: Model, tolerance: float) -> None:
    for n in base:
        assert (got[n] - want[n]).abs().max() <= tolerance * (want[n] - base[n]).abs().max(), n


WEIGHTS = [1.0, 0.5, 2.0]


@pytest.mark.parametrize("steps", [1, 300])
@pytest.mark.parametrize("rate", [1e-5, 1e-3])
def test_wudi_agrees_with_the_paper(steps: int, rate: float) -> None:
    base, experts = models()
    got = apply(make("wudi", {"steps": steps, "rate": rate}), base, experts, WEIGHTS)
    # A slope that is nothing but rounding moves its element by a whole step: none is here but where 1 x n matrices
    # have converged, and there a step is small beside the error of convergence.
    close(got, judge(lambda taus: wudi(taus, steps, rate), base, experts, WEIGHTS), base, 1e-7)


def test_wudi_ends_at_the_minimum_that_covariance_is() -> None:
    base, experts = models()
    got = apply(make("wudi", {"steps": 4000, "rate": 1e-3}), base, experts)
    want = apply(make("covariance", {"ridge": 0}), base, experts)
    n = "up.weight"  # Adam circles the minimum at a distance of about a step
    assert (got[n] - want[n]).abs().max() <= 5e-3 * (want[n] - base[n]).abs().max()


def test_wudi_leaves_the_sum_where_nothing_disturbs_it() -> None:
    base, experts = models()
    total = apply(make("task_arithmetic", {"scale": 1}), base, experts)
    for options in ({"steps": 0}, {"rate": 0.0}):
        got = apply(make("wudi", options), base, experts)
        assert all((got[n] - total[n]).abs().max() <= 1e-14 for n in MATRICES)
    # The others leave their matrices alone: one task vector is left.
    assert all(same_bytes(t, experts[0][n]) for n, t in apply(make("wudi"), base, [experts[0]]).items())
    short, first = ({n: t.float() for n, t in model.items()} for model in (base, experts[0]))
    got = apply(make("wudi", {"rate": 1e-2}), short, [short, first, short])
    assert all(
        (got[n] - first[n]).abs().max() <= 1e-6 for n in MATRICES
    )  # rounding would move by whole steps


RULE = {"share": 0.99999, "alpha": 0.8, "decay": 0.999, "steps": 200, "rate": 1e-4}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"share": 0.5},
        {"share": 1.0, "decay": 0.0, "steps": 60},
        {"decay": 1.0, "alpha": 0.3, "rate": 1e-3},
        {"decay": 0.9, "rate": 1e-3, "steps": 20},
    ],
    ids=str,
)
def test_dop_agrees_with_the_paper(options: dict[str, Any]) -> None:
    base, experts = models()
    got = apply(make("dop", options), base, experts, WEIGHTS)
    want = judge(lambda taus: dop(taus, **{**RULE, **options}), base, experts, WEIGHTS)
    close(got, want, base, 1e-6)


@pytest.mark.parametrize("stretch", [0.1, 0.5, 1.0, 3.0, 20.0])
def test_balance_of_dop_is_where_the_sum_is_shortest(stretch: float) -> None:
    draw = torch.Generator().manual_seed(1)
    common, one, two = (torch.randn(6, 5, generator=draw, dtype=torch.float64) for _ in range(3))
    slopes = [2 * stretch * (common + one), 3 * (common + two)]
    steps = np.linspace(0.001, 0.999, 999)
    sizes = [float((c * slopes[0] / 2 + (1 - c) * slopes[1] / 3).norm()) for c in steps]
    assert abs(_shortest(slopes, [2.0, 3.0]) - steps[int(np.argmin(sizes))]) <= 1e-3


def test_low_rank_task_vectors_of_dop() -> None:
    base, experts = models(2, rank=2)
    # Elements off the task vectors' rows and columns do not exist here, so that no slope is 0.
    want = judge(lambda taus: dop(taus, **RULE), base, experts, [1.0, 1.0])  # type: ignore[arg-type]
    close(apply(make("dop", {"share": 0.99999}), base, experts), want, base, 1e-6)


def test_ends_of_dop() -> None:
    base, (first, second, *_) = models()
    halves = {n: (first[n] + second[n]) / 2 for n in base}
    for options in ({"steps": 0}, {"rate": 0.0}, {"share": 0.0}):
        got = apply(make("dop", options), base, [first, second])
        assert all((got[n] - halves[n]).abs().max() <= 1e-14 for n in base), options
    # Where it alone counts, its expert is near: directions with small singular values come last.
    for alpha, end in ((1.0, first), (0.0, second)):
        got = apply(
            make("dop", {"alpha": alpha, "decay": 1, "rate": 1e-3, "steps": 600}), base, [first, second]
        )
        for n in ("q.weight", "up.weight", "down.weight"):
            assert (got[n] - end[n]).norm() <= 0.4 * (halves[n] - end[n]).norm(), n


@pytest.mark.parametrize("name", ["wudi", "dop"])
def test_one_member_no_member_and_the_same_twice(name: str) -> None:
    base, (first, *_) = models()
    assert all(same_bytes(t, first[n]) for n, t in apply(make(name), base, [first]).items())
    assert all(same_bytes(t, base[n]) for n, t in apply(make(name), base, [base, base]).items())
    if name == "dop":
        got = apply(make(name), base, [first, first])
        assert all((got[n] - first[n]).abs().max() <= 1e-12 for n in base)


@pytest.mark.parametrize("name", ["wudi", "dop"])
def test_lines_of_16_and_32_bits_descend_in_fp32(name: str) -> None:
    base, experts = models()
    method = make(name, {"steps": 20})
    for kind, eps in ((torch.bfloat16, 2**-8), (torch.float32, 2**-20)):
        short = {n: t.to(kind) for n, t in base.items()}
        tight = [{n: t.to(kind) for n, t in e.items()} for e in experts]
        wide = apply(
            method,
            {n: t.double() for n, t in short.items()},
            [{n: t.double() for n, t in e.items()} for e in tight],
        )
        got = apply(method, short, tight)
        again = apply(method, short, tight)
        for n in base:
            assert got[n].dtype == kind
            assert same_bytes(got[n], again[n])
            assert (got[n].double() - wide[n]).abs().max() <= 2 * eps * wide[n].abs().max(), n


@pytest.mark.parametrize("name", ["wudi", "dop"])
def test_matrices_that_are_stored_inputs_first_are_transposed(name: str) -> None:
    base, experts = models()

    def turned(model: Model) -> Model:
        return {n: t.T.contiguous() if n in MATRICES else t for n, t in model.items()}

    want = turned(apply(make(name), base, experts))
    got = apply(make(name, {"inputs_first": r"\.weight$"}), turned(base), [turned(e) for e in experts])
    close(got, want, turned(base), 1e-7)


def test_wudi_has_the_same_bytes_for_every_order() -> None:
    base, experts = models()
    want = apply(make("wudi"), base, experts, WEIGHTS)
    for order in ((1, 2, 0), (2, 1, 0)):
        got = apply(make("wudi"), base, [experts[i] for i in order], [WEIGHTS[i] for i in order])
        assert all(same_bytes(got[n], want[n]) for n in base)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("wudi", {"steps": -1}, "steps is -1, expected 0 or more"),
        ("wudi", {"rate": "nan"}, "rate is nan, expected a finite number"),
        ("dop", {"decay": 2}, "decay is 2.0, expected a number from 0 to 1"),
        ("dop", {"share": -0.1}, "share is -0.1, expected a number from 0 to 1"),
        ("dop", {"rate": -1}, "rate is -1.0, expected 0 or more"),
    ],
)
def test_options_are_checked(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make(name, options)
