"""The path as the authors' published program follows it: ceilings for every task, and a step that is tried first."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

from plait.methods.base import Known
from plait.methods.ode.calibration import Calibration, means, require_finite
from plait.methods.ode.flat import Layout
from plait.methods.ode.path import barrier, times
from plait.methods.ode.quadratic import nearest
from plait.methods.ode.walk import walk
from plait.methods.watch import Blind, Watch
from plait.tensors import Tensor

SLACK, MOST = 0.08, 2
POWER, PULL = -0.25, 0.24
SHRINK, TRIALS = 0.7, 8


@dataclass
class Slope:
    """What is known of a task at a point: how far its loss lies above its ceiling, <g, u>, ||g||^2, and g itself
    where it may still be chosen."""

    excess: float
    inner: float
    square: float
    gradient: Tensor | None


@dataclass
class Guarded:
    """From theta towards `target`, at t = 1, as far as `end`, in steps of `h`, with u = (target - theta) / (1 - t)
    and a ceiling for the loss of each task j,

        ceiling_j(t) = (1 - t) L_j(start) + t L_j(target) + 0.08 (1 - t)^2

    1. Bounds: the 2 tasks with the largest excess L_j - ceiling_j(t), and the 2 with the largest <g_j, u> > 0.
    2. base = u - m, with m = sum_j g_j ||g_j||^-0.25 over all tasks, scaled to the length 0.24 ||u||.
    3. v = the nearest to base with <g_j, v> <= min((ceiling_j(t + s) - L_j) / s, 0) for the bounds.
    4. theta + s v is tried, and 0.7 of the step, at most 8 times over, until every task's loss is at most
       ceiling_j(t + s); else theta stays where it is. t goes on by s in any case.

    Cost: a gradient and 1 to 9 losses a task and step. Memory: 4 buffers with theta, and one for each bound.
    """

    layout: Layout
    calibration: Calibration
    target: Tensor
    end: float
    h: float

    def follow(self, theta: Tensor, watch: Watch | None = None) -> Known:
        """Move `theta`, in place; returns the trace. `t` has a point more than `factor` (the share of the step
        that was made; 0: skipped), `inner` (<g, u> by task), `norm` (of u), `bounds` (the tasks whose bounds v lies
        on) and `met` (whether v keeps to all of them), which are those of the steps; so have `losses`, by task."""
        watch = watch or Blind()
        marks = times(self.end, self.h)
        before = watch.kept()
        if before is None:
            trace = self._begin(theta)
        else:
            trace = before[0]
            self.layout.fill(theta, before[1])
            del before
        walk(watch, self.layout, theta, marks, trace, self._step)
        line = means({task: [trace["start"][task], trace["target"][task]] for task in trace["start"]})
        return {
            **trace,
            "t": marks,
            "t_end": self.end,
            "barrier": barrier(marks, means(trace["losses"]), (line[0], line[1])),
        }

    def _begin(self, theta: Tensor) -> Known:
        start = self.calibration.losses(theta, "at t = 0")
        return {
            "start": start,
            "target": self.calibration.losses(self.target, "at the end point"),
            "losses": {task: [loss] for task, loss in start.items()},
            **{name: [] for name in ("factor", "inner", "norm", "bounds", "met")},
        }

    def ceiling(self, trace: Known, task: str, t: float) -> float:
        """The highest loss of a task at t that is let pass."""
        return float((1 - t) * trace["start"][task] + t * trace["target"][task] + SLACK * (1 - t) ** 2)

    def _step(self, theta: Tensor, t: float, after: float, trace: Known) -> None:
        s = after - t
        slopes, macro = self._look(theta, t, trace)
        bounds = chosen(slopes)
        velocity, length = self._base(theta, t, macro)
        gradients = [self._gradient(slopes[task]) for task in bounds]
        gram = [[self.layout.dot(a, b) for b in gradients] for a in gradients]
        inner = [self.layout.dot(g, velocity) for g in gradients]
        limits = [
            min((self.ceiling(trace, task, after) - trace["losses"][task][-1]) / s, 0.0) for task in bounds
        ]
        found = nearest(gram, inner, limits)
        for factor, gradient in zip(found.factors, gradients, strict=True):
            if factor:
                velocity.add_(gradient, alpha=-factor)
        factor, losses = self._tried(theta, velocity, s, after, trace)
        trace["factor"].append(factor)
        trace["inner"].append({task: slope.inner for task, slope in slopes.items()})
        trace["norm"].append(length)
        trace["bounds"].append([bounds[i] for i in found.active])
        trace["met"].append(found.met)
        for task, loss in losses.items():
            trace["losses"][task].append(loss)

    def _look(self, theta: Tensor, t: float, trace: Known) -> tuple[dict[str, Slope], Tensor]:
        """Every task's slope, and the sum of their shortened gradients. Gradients of tasks that cannot be chosen any
        more are let go."""
        slopes: dict[str, Slope] = {}
        macro = self.layout.empty().zero_()
        where = f"at t = {t:g}"
        for task, loss, gradient in self.calibration.each(theta, where):
            found = self.layout.products(self.target, theta, gradient)
            inner = require_finite(sum(one.across for one in found) / (1 - t), where)
            square = require_finite(sum(one.gradient for one in found), where)
            slopes[task] = Slope(loss - self.ceiling(trace, task, t), inner, square, gradient)
            if square > 0:
                macro.add_(gradient, alpha=square ** (POWER / 2))
            kept = chosen(slopes)
            for other, slope in slopes.items():
                if other not in kept:
                    slope.gradient = None
        return slopes, macro

    def _base(self, theta: Tensor, t: float, macro: Tensor) -> tuple[Tensor, float]:
        """u - m in the buffer of m, and ||u||."""
        away = 0.0
        for one in self.layout.products(self.target, theta, macro):
            away += one.away
        length = sqrt(away) / (1 - t)
        size = sqrt(self.layout.dot(macro, macro))
        macro.mul_(-PULL * length / size if size > 0 else 0.0)
        for _, block, difference in self.layout.differences(self.target, theta):
            macro[block].add_(difference, alpha=1 / (1 - t))
        return macro, length

    def _tried(
        self, theta: Tensor, velocity: Tensor, s: float, after: float, trace: Known
    ) -> tuple[float, dict[str, float]]:
        """The share of the step that was made, and the losses behind it."""
        trial = self.layout.empty()
        factor = 1.0
        for _ in range(TRIALS + 1):
            trial.copy_(theta).add_(velocity, alpha=s * factor)
            losses = self.calibration.losses(trial, f"at t = {after:g}")
            if all(loss <= self.ceiling(trace, task, after) for task, loss in losses.items()):
                theta.copy_(trial)
                return factor, losses
            factor *= SHRINK
        return 0.0, {task: found[-1] for task, found in trace["losses"].items()}

    def _gradient(self, slope: Slope) -> Tensor:
        assert slope.gradient is not None
        return slope.gradient


def chosen(slopes: dict[str, Any]) -> list[str]:
    """The tasks that bound a step, in their order: those with the largest excess, and those that u raises most."""
    excess = sorted(slopes, key=lambda task: -slopes[task].excess)[:MOST]
    rising = sorted((t for t in slopes if slopes[t].inner > 0), key=lambda task: -slopes[task].inner)[:MOST]
    return [task for task in slopes if task in {*excess, *rising}]
