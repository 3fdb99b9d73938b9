"""The path of ODE-M: towards the end point in small steps, without what raises the loss too much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt

from plait.methods.base import Known
from plait.methods.ode.calibration import Calibration, mean, means, require_finite
from plait.methods.ode.flat import Layout
from plait.methods.ode.walk import walk
from plait.methods.watch import Blind, Watch
from plait.tensors import Tensor

INTEGRATORS: dict[str, tuple[tuple[float, float], ...]] = {
    "euler": ((0.0, 1.0),),
    "heun": ((0.0, 1 / 2), (1.0, 1 / 2)),
    "rk4": ((0.0, 1 / 6), (1 / 2, 1 / 3), (1 / 2, 1 / 3), (1.0, 1 / 6)),
}
"""Stages of a step: at which share of the step a stage lies, reached with the velocity of the stage before, and the
weight of its velocity (Butcher tables with one entry a row). Orders 1, 2 and 4."""


def times(end: float, h: float) -> list[float]:
    """0, h, 2h, ..., end: the last step is the shorter one, and is not left out. [0] where end is 0."""
    steps = max(ceil(end / h - 1e-9), 1) if end > 0 else 0
    return [i * h for i in range(steps)] + [end] if steps else [0.0]


@dataclass(frozen=True)
class Velocity:
    """v = d / (1 - t) - pull[group] * g. gamma: the share of the climb that is kept. inner: <g, u> over all tensors.
    norm: of u."""

    pulls: tuple[float, ...]
    gamma: float
    inner: float
    norm: float


@dataclass
class Path:
    """From theta towards `target`, which lies at t = 1, as far as `end`:

        u = (target - theta) / (1 - t)
        p = <g, u>, g the gradient of the mean loss;  gamma = 1 if p <= 0 else clip(budget / p, 0, 1)
        d theta / dt = u - (1 - gamma) p g / ||g||^2

    so that the loss rises by at most `budget` per unit of t, to first order (ODE-M, arXiv 2605.19409). With several
    groups of tensors (see `Layout`) each has a p of its own; what is left of the budget is divided among those with
    p > 0 in proportion to p, so that one gamma serves them all and the bound holds for their sum.

    budget: None for loss(target) - loss(theta) at the start.
    line: points of the straight line at which losses are recorded, for comparison; each costs one loss.
    A step that ends at t = 1 is an Euler step, because u has no value there.

    Cost: a gradient a stage, a loss at either end. Memory: 3 buffers with theta, 5 where a step has several stages.
    """

    layout: Layout
    calibration: Calibration
    target: Tensor
    end: float
    h: float
    integrator: str = "euler"
    budget: float | None = None
    line: int = 0

    def follow(self, theta: Tensor, watch: Watch | None = None) -> Known:
        """Move `theta`, in place; returns the trace. `t` has a point more than `gamma`, `inner` and `norm`, which are
        those of the steps (of several stages of a step the least gamma; the others at its start); so have the
        `losses`, by task."""
        watch = watch or Blind()
        marks = times(self.end, self.h)
        gradient = self.layout.empty()
        before = watch.kept()
        if before is None:
            trace = self._begin(theta, gradient)
        else:
            trace = before[0]
            self.layout.fill(theta, before[1])
            del before
        self._walk(watch, theta, gradient, marks, trace)
        del gradient
        self._record(trace, self.calibration.losses(theta, f"at t = {self.end:g}"))
        return self._concluded(trace, marks)

    def _walk(
        self, watch: Watch, theta: Tensor, gradient: Tensor, marks: Sequence[float], trace: Known
    ) -> None:
        def step(theta: Tensor, t: float, after: float, trace: Known) -> None:
            self._step(theta, gradient, t, after, trace)

        walk(watch, self.layout, theta, marks, trace, step)

    def _begin(self, theta: Tensor, point: Tensor) -> Known:
        """point: a buffer that may be written into."""
        target = self.calibration.losses(self.target, "at the end point")
        trace: Known = {"gamma": [], "inner": [], "norm": [], "losses": {task: [] for task in target}}
        trace["target"] = target
        trace["budget"] = self.budget
        if self.line:
            marks = [i / (self.line + 1) for i in range(1, self.line + 1)]
            found = []
            for t in marks:
                point.copy_(theta).mul_(1 - t).add_(self.target, alpha=t)
                found.append(self.calibration.losses(point, f"on the straight line at t = {t:g}"))
            trace["line"] = {"t": marks, "losses": {task: [row[task] for row in found] for task in target}}
        return trace

    def _step(self, theta: Tensor, gradient: Tensor, t: float, after: float, trace: Known) -> None:
        stages = INTEGRATORS[self.integrator if after < 1 else "euler"]
        s = after - t
        start = here = theta
        if len(stages) > 1:
            start, here = theta.clone(), theta.clone()
        gammas: list[float] = []
        for number, (node, weight) in enumerate(stages):
            now = t + node * s
            losses = self.calibration.gradient(here, gradient, f"at t = {now:g}")
            if trace["budget"] is None:
                trace["budget"] = mean(trace["target"]) - mean(losses)
            found = self._velocity(here, gradient, now, trace["budget"])
            gammas.append(found.gamma)
            if number == 0:
                self._record(trace, losses)
                trace["inner"].append(found.inner)
                trace["norm"].append(found.norm)
            ahead = stages[number + 1][0] if number + 1 < len(stages) else None
            for group, block, away in self.layout.differences(self.target, here):
                pull = found.pulls[group]
                _add(theta[block], away, gradient[block], s * weight, 1 - now, pull)
                if ahead is not None:
                    here[block] = start[block]
                    _add(here[block], away, gradient[block], s * ahead, 1 - now, pull)
        trace["gamma"].append(min(gammas))

    def _velocity(self, at: Tensor, gradient: Tensor, t: float, budget: float) -> Velocity:
        found = self.layout.products(self.target, at, gradient)
        inner = [require_finite(one.across / (1 - t), f"at t = {t:g}") for one in found]
        for one in found:
            require_finite(one.gradient, f"at t = {t:g}")
        rise = sum(p for p in inner if p > 0)
        gamma = 1.0 if rise <= 0 else min(max(budget / rise, 0.0), 1.0)
        pulls = tuple(
            (1 - gamma) * p / one.gradient if p > 0 and one.gradient > 0 else 0.0
            for p, one in zip(inner, found, strict=True)
        )
        norm = sqrt(sum(one.away for one in found)) / (1 - t)
        return Velocity(pulls, gamma, sum(inner), norm)

    def _record(self, trace: Known, losses: dict[str, float]) -> None:
        for task, loss in losses.items():
            trace["losses"][task].append(loss)

    def _concluded(self, trace: Known, marks: list[float]) -> Known:
        first = {task: found[0] for task, found in trace["losses"].items()}
        ends = mean(first), mean(trace["target"])
        if trace["budget"] is None:  # no step was made
            trace["budget"] = ends[1] - ends[0]
        if "line" in trace:
            line = trace["line"]
            line["barrier"] = barrier([0.0, *line["t"]], [ends[0], *means(line["losses"])], ends)
        return {
            **trace,
            "t": marks,
            "t_end": self.end,
            "restrained": sum(gamma < 1 for gamma in trace["gamma"]),
            "barrier": barrier(marks, means(trace["losses"]), ends),
        }


def barrier(t: Sequence[float], losses: Sequence[float], ends: tuple[float, float]) -> float:
    """The loss barrier: how far losses along a path rise at most above the straight line between the losses at its
    `ends`, t = 0 and t = 1."""
    return max(loss - ((1 - at) * ends[0] + at * ends[1]) for at, loss in zip(t, losses, strict=True))


def _add(into: Tensor, away: Tensor, gradient: Tensor, share: float, left: float, pull: float) -> None:
    """into += share * (away / left - pull * gradient)."""
    into.add_(away, alpha=share / left)
    if pull:
        into.add_(gradient, alpha=-share * pull)
