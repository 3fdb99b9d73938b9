"""What the tasks before and the new one get along the way to the last expert: the path of a method, and the straight
line.

All tasks but the last are merged, then one path is followed from the model so far, t = 0, to the expert of the last
task, t = 1. A point of it has the bytes of a path that ends there, so one path tells of every t_end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from pathlib import Path
from typing import Any, ClassVar

from plait.bench import results
from plait.bench.at_once import free_tensors, problem_of
from plait.bench.run import Asked, Run, Say, conduct
from plait.bench.specs import Spec, parse
from plait.bench.suites import find
from plait.bench.worker import BATCH, Model, Setup, World, score_of, world_of
from plait.errors import UsageError
from plait.line.data import need_of
from plait.methods.base import MemberFacts, ModelMethod
from plait.methods.registry import make
from plait.methods.watch import Blind, between
from plait.problem.objective import Objective
from plait.tensors import Tensor


def default_places(members: int) -> tuple[float, ...]:
    """0, half of the way that equal weights ask for (1/k), that way, twice that, and so on to 1."""
    return tuple(sorted({0.0, 0.5 / members, *((i + 1) / members for i in range(members))}))


@dataclass(frozen=True)
class AskedPath(Asked):
    """places: t of the points, from 0 to 1; none for `default_places`. members: the first so many tasks of the order,
    0 for all."""

    places: tuple[float, ...] = ()
    members: int = 0


def run(asked: AskedPath, say: Say = lambda line: None) -> dict[str, Any]:
    """Measure what is missing in the file `asked.out`; returns all that it holds then. Errors: those of
    `bench.run.run`, and UsageError for a method that follows no path."""
    suite = find(asked.suite)
    count = asked.members or len(suite.tasks)
    if not 2 <= count <= len(suite.tasks):
        raise UsageError(f"members is {count}, expected 2 to {len(suite.tasks)}, the tasks of {suite.name}")
    specs = {spec.label: spec for spec in map(parse, asked.methods)}
    for spec in specs.values():
        if not getattr(spec.made(), "follows_path", False):
            raise UsageError(
                f"method {spec.label} follows no path; expected ode_m, as variant paper or released"
            )
    return conduct(Paths, asked, specs, say)


class Paths(Run):
    """A run that follows paths. A cell tells of one method, order and number of members."""

    schema: ClassVar[str] = results.PATH

    def all(self) -> dict[str, Any]:
        assert isinstance(self.asked, AskedPath)
        self._begin()
        self._measure_rows()
        count = self.asked.members or len(self.suite.tasks)
        places = self.asked.places or default_places(count)
        for seed in self.asked.seeds:
            order = self.suite.order(seed)[:count]
            for label, spec in self.specs.items():
                key = {"method": label, "seed": seed, "members": count, "places": list(places)}
                if not any(all(cell[k] == v for k, v in key.items()) for cell in self.found["cells"]):
                    self._follow(key, spec, order, places)
        return self.found

    def _setting(self, base: str) -> dict[str, Any]:
        """Nothing is chosen here, so there is no budget."""
        return {key: value for key, value in super()._setting(base).items() if key != "budget"}

    def _known(self) -> dict[tuple[str, str], Any]:
        return {}

    def _follow(self, key: dict[str, Any], spec: Spec, order: Sequence[str], places: Sequence[float]) -> None:
        experts = {task: self.stock.experts[task] for task in order}
        job = self.pool.submit(follow, experts, tuple(order), spec.name, spec.words(), tuple(places))
        self.found["methods"].setdefault(spec.label, {"options": spec.words()})
        cell = job.result()
        self.found["cells"].append({**key, "order": list(order), "run": len(self.found["runs"]) - 1, **cell})
        self._save()
        self.say(f"{spec.label}, order {key['seed']}: {cell['seconds']:.0f} s")


@dataclass
class _Measuring(Blind):
    """Measures the points of a path as it comes to them."""

    world: World
    base: Mapping[str, Tensor]
    tasks: Sequence[str]
    places: Sequence[float]
    rows: list[dict[str, Any]] = field(default_factory=list)

    def wanted(self, t: float, after: float) -> Sequence[float]:
        return between(self.places, t, after)

    def point(self, t: float, weights: Mapping[str, Tensor]) -> None:
        self.rows.append({"t": t, **self.measured(weights)})

    def measured(self, weights: Mapping[str, Tensor]) -> dict[str, Any]:
        """Loss and accuracy of every task on its test examples."""
        whole = {**self.base, **weights}
        scores = {task: score_of(self.world, whole, task, "test") for task in self.tasks}
        losses = {task: self._objective(task).loss(whole) for task in self.tasks}
        return {"right": {t: s.right for t, s in scores.items()}, **summary(scores, losses)}

    def _objective(self, task: str) -> Objective:
        world = self.world
        fixed = {**world.rest, **self.base}
        test = world.tasks[task].examples("test")
        return Objective(world.network, world.head(task), test, batch=BATCH, fixed=fixed)


def summary(scores: Mapping[str, Any], losses: Mapping[str, float]) -> dict[str, Any]:
    """accuracy, loss: {old (mean over all tasks but the last), new, all (mean over all)}, and both by task."""
    values = {task: score.value for task, score in scores.items()}
    told = {"accuracy": _three(list(values.values())), "loss": _three(list(losses.values()))}
    return {**told, "values": values, "losses": dict(losses)}


def _three(values: Sequence[float]) -> dict[str, float]:
    *old, new = values
    return {"old": fsum(old) / len(old), "new": new, "all": fsum(values) / len(values)}


def follow(
    setup: Setup,
    experts: Mapping[str, Path],
    order: Sequence[str],
    name: str,
    options: Mapping[str, Any],
    places: Sequence[float],
) -> dict[str, Any]:
    """Merge all but the last of the order, follow the path to the last, and measure its points; then those of the
    straight line. A job of a worker process.

    Returns path, line: rows {t, right, accuracy, loss, values, losses} (see `summary`); known: what the path's step
    found; seconds: of the path, with what was measured on it.
    """
    world = world_of(setup)
    method, whole = (make(name, {**options, **more}) for more in ({}, {"t_end": 1.0, "refine": 0}))
    assert isinstance(method, ModelMethod)
    assert isinstance(whole, ModelMethod)
    base = world.tensors(Model(setup.base))
    free = {task: free_tensors(world, experts[task]) for task in order}
    start = {n: base[n] for n in free[order[0]]}
    need = need_of(method)
    problem = None if need is None else problem_of(world, order, need)
    state: Mapping[str, Tensor] = method.start(start)
    for count, task in enumerate(order[:-1], 1):
        members = [MemberFacts(1.0, {})] * count
        state, _ = method.step(state, start, free[task], members, problem)
    watch = _Measuring(world, base, order, places)
    began = time.perf_counter()
    members = [MemberFacts(1.0, {})] * len(order)
    _, known = whole.step(state, start, free[order[-1]], members, problem, watch)  # type: ignore[call-arg]
    seconds = time.perf_counter() - began
    last = free[order[-1]]
    line = [
        {"t": t, **watch.measured({n: state[n] + t * (last[n] - state[n]) for n in start})}
        for t in sorted(set(places))
    ]
    return {"path": watch.rows, "line": line, "known": known, "seconds": round(seconds, 3)}
