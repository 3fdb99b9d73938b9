"""What a calibrated method sees: the losses of several tasks as functions of one set of weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import reduce
from operator import add
from typing import Any, Literal

from plait.errors import UsageError
from plait.problem.base import Weights
from plait.problem.objective import Objective
from plait.problem.probes import representations
from plait.problem.totals import Totals, Work, zeros_like
from plait.tensors import Tensor

Choice = Iterable[str] | Mapping[str, float] | None
"""Tasks: all of them or some, each with an equal share of 1; or by task the factor of its loss."""


class Problem(Mapping[str, Objective]):
    """Task name -> objective, in the order of the members of a line.

    A `ModelMethod` gets it in `step`, where `seen(len(members))` are the tasks so far and the last of them is the one
    that comes in. It holds no weights and nothing that grows with use.
    """

    def __init__(self, objectives: Mapping[str, Objective]) -> None:
        """UsageError where there is none."""
        if not objectives:
            raise UsageError("a problem of 0 tasks has no loss; expected at least one")
        self._objectives = dict(objectives)

    def __getitem__(self, task: str) -> Objective:
        if task not in self._objectives:
            raise UsageError(f"there is no task {task!r}; there are {', '.join(self._objectives)}")
        return self._objectives[task]

    def __contains__(self, task: object) -> bool:
        return task in self._objectives

    def __iter__(self) -> Iterator[str]:
        return iter(self._objectives)

    def __len__(self) -> int:
        return len(self._objectives)

    # parts of it
    def seen(self, count: int) -> Problem:
        """The first `count` tasks. UsageError unless there are so many."""
        if not 1 <= count <= len(self):
            raise UsageError(f"{count} tasks were asked for; there are {len(self)}")
        return Problem({task: self[task] for task in list(self)[:count]})

    @property
    def last(self) -> str:
        """The name of the last task."""
        return list(self)[-1]

    def only(self, *tasks: str) -> Problem:
        """Some of the tasks, in this order."""
        return Problem({task: self[task] for task in tasks})

    def sample(self, each: int, seed: int) -> Problem:
        """The same tasks with at most `each` examples, drawn as `Objective.sample` says. Which examples a task gives
        does not depend on the other tasks."""
        return Problem({task: objective.sample(each, seed) for task, objective in self.items()})

    # what it computes
    def losses(self, weights: Weights, tasks: Iterable[str] | None = None) -> dict[str, float]:
        """The loss of each task."""
        return {task: self[task].loss(weights) for task in (self if tasks is None else tasks)}

    def loss(self, weights: Weights, tasks: Choice = None) -> float:
        """The sum of factor * loss; the mean of the losses where no factors are given."""
        return sum(share * self[task].loss(weights) for task, share in self._shares(tasks).items())

    def loss_and_gradient(
        self, weights: Weights, tasks: Choice = None, names: Iterable[str] | None = None
    ) -> tuple[float, dict[str, Tensor]]:
        """`loss` and its gradient by tensor name. names: see `Objective.loss_and_gradient`."""
        shares = self._shares(tasks)
        chosen = None if names is None else tuple(names)
        one = self[next(iter(shares))]
        slopes = zeros_like({name: weights[name] for name in one.chosen(weights, chosen)})
        total = 0.0
        for task, share in shares.items():
            total += share * self[task].add_gradient(weights, slopes, share)
        return total, slopes

    def hvp(self, weights: Weights, vector: Weights, tasks: Choice = None) -> dict[str, Tensor]:
        """The Hessian of `loss` times `vector`; see `Objective.hvp`."""
        totals = _Weighted()
        for task, share in self._shares(tasks).items():
            totals.take(share, self[task].hvp(weights, vector))
        return totals.sums(weights)

    def fisher(
        self,
        weights: Weights,
        tasks: Choice = None,
        names: Iterable[str] | None = None,
        *,
        labels: Literal["given", "model"] = "given",
        how: Literal["auto", "vmap", "loop"] = "auto",
    ) -> dict[str, Tensor]:
        """The sum of factor * diagonal Fisher over tasks, their mean where no factors are given; see
        `Objective.fisher`."""
        chosen = None if names is None else tuple(names)
        totals = _Weighted()
        for task, share in self._shares(tasks).items():
            totals.take(share, self[task].fisher(weights, chosen, labels=labels, how=how))
        return totals.sums(weights)

    def representations(
        self, weights: Weights, tasks: Iterable[str] | None = None, layers: Iterable[str] | None = None
    ) -> dict[str, dict[str, Tensor]]:
        """Task -> layer -> (examples, width); see `probes.representations`."""
        chosen = None if layers is None else tuple(layers)
        return {
            task: representations(self[task], weights, chosen) for task in (self if tasks is None else tasks)
        }

    def _shares(self, tasks: Choice) -> dict[str, float]:
        if isinstance(tasks, Mapping):
            return {task: float(share) for task, share in tasks.items()}
        chosen = list(self if tasks is None else tasks)
        if not chosen:
            raise UsageError("0 tasks were chosen; expected at least one")
        return {task: 1 / len(chosen) for task in chosen}

    # what it cost
    @property
    def work(self) -> Work:
        """All that was computed on these tasks so far, samples of them included. Subtract an earlier one to have the
        work in between."""
        return reduce(add, {id(o.work): o.work for o in self.values()}.values(), Work())

    def record(self) -> dict[str, Any]:
        """For receipts, as JSON: by task the number and the digest of its examples, and the work so far."""
        return {
            "tasks": {task: {"examples": len(o), "digest": o.digest} for task, o in self.items()},
            "work": asdict(self.work),
        }


class _Weighted:
    """Sums of factor * tensor by name."""

    def __init__(self) -> None:
        self._totals = Totals()
        self._names: dict[str, None] = {}

    def take(self, share: float, addends: Mapping[str, Tensor]) -> None:
        self._names |= dict.fromkeys(addends)
        self._totals.add(addends, {name: addend.double() * share for name, addend in addends.items()})

    def sums(self, like: Weights) -> dict[str, Tensor]:
        return self._totals.over(1, {name: like[name] for name in self._names})
