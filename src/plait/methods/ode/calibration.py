"""The losses that a path is steered by: those of some tasks, on a sample of their examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import fsum
from typing import Any

from plait.errors import PlaitError, UsageError
from plait.methods.ode.flat import Layout
from plait.tensors import Tensor


def calibrate(problem: Any, count: int, which: str, samples: int, seed: int) -> Any:
    """The tasks of the first `count` members ("seen"), or of the last of them alone ("new"), with `samples` examples
    in all: an equal number of each task, at least 1."""
    if problem is None:
        raise UsageError("ode_m follows losses and was given none; hand in a problem (see docs/problems.md)")
    seen = problem.seen(count)
    if which == "new":
        seen = seen.only(seen.last)
    return seen.sample(max(samples // len(seen), 1), seed)


class Calibration:
    """Losses and gradients of tasks at weights in flat buffers. Each task counts the same.

    problem: the tasks, already sampled. PlaitError wherever a loss or a gradient is NaN or infinite.
    """

    def __init__(self, problem: Any, layout: Layout) -> None:
        self.problem = problem
        self.layout = layout
        self.tasks: tuple[str, ...] = tuple(problem)

    def losses(self, at: Tensor, where: str) -> dict[str, float]:
        """The loss of each task. where: what an error calls the place."""
        weights = self.layout.views(at)
        return {
            task: _finite(task, objective.loss(weights), where) for task, objective in self.problem.items()
        }

    def gradient(self, at: Tensor, into: Tensor, where: str) -> dict[str, float]:
        """The loss of each task; the gradient of their mean is written into `into`."""
        losses = {}
        weights, slopes = self.layout.views(at), self.layout.views(into.zero_())
        for task, objective in self.problem.items():
            losses[task] = _finite(task, objective.add_gradient(weights, slopes, 1 / len(self.tasks)), where)
        return losses

    def each(self, at: Tensor, where: str) -> Iterator[tuple[str, float, Tensor]]:
        """Task by task: its loss, and its gradient in a new buffer."""
        for task, objective in self.problem.items():
            found = self.layout.empty().zero_()
            loss = objective.add_gradient(self.layout.views(at), self.layout.views(found))
            yield task, _finite(task, loss, where), found


def mean(losses: Mapping[str, float]) -> float:
    """The mean over tasks."""
    return fsum(losses.values()) / len(losses)


def means(losses: Mapping[str, Sequence[float]]) -> list[float]:
    """Point by point, the mean over tasks."""
    return [fsum(row) / len(row) for row in zip(*losses.values(), strict=True)]


def _finite(task: str, loss: float, where: str) -> float:
    if loss - loss != 0:
        raise PlaitError(
            f"the loss of {task} is {loss} {where}, expected a finite number; look at the member and at its "
            "examples, or take smaller steps"
        )
    return float(loss)


def require_finite(value: float, where: str) -> float:
    """PlaitError unless an inner product with a gradient is finite."""
    if value - value != 0:
        raise PlaitError(
            f"the gradient is not finite {where}, expected finite numbers; look at the members and their examples"
        )
    return value
