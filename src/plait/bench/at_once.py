"""All experts merged at once, in memory, and the model measured: one job of a worker process."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from plait.bench.results import Score
from plait.bench.worker import BATCH, Model, Setup, World, score_of, world_of
from plait.line.data import Need, need_of
from plait.methods.base import TensorMethod
from plait.methods.choosing import fit_of_method
from plait.problem.base import Split
from plait.problem.objective import Objective
from plait.problem.problem import Problem
from plait.tensors import Tensor

MOST = 256
"""Examples of each task that a method looks at, at most."""


def merge_and_measure(
    setup: Setup,
    experts: Mapping[str, Path],
    order: Sequence[str],
    name: str,
    options: Mapping[str, Any],
    split: Split,
    weights: Sequence[float] | None = None,
) -> dict[str, Any]:
    """Merge the experts in this order, with their weights, and measure the model on all tasks.

    A method that fits numbers sees validation examples of the tasks, one that computes statistics of them training
    examples (validation examples where the experts are given). Returns `scores` by task, `version` (the model's
    digest), `seconds` and `cpu` of the merge, those of statistics included, what a `fit` found, what the steps of a
    method that sees whole models told (`known`), and the `work` that was done on examples.
    """
    from plait.line.fitting import renewing
    from plait.line.once import state_dict_digest
    from plait.methods.memory import apply
    from plait.methods.registry import make

    world = world_of(setup)
    method = make(name, dict(options))
    base = world.tensors(Model(setup.base))
    free = {task: free_tensors(world, experts[task]) for task in order}
    start = {n: base[n] for n in next(iter(free.values()))}
    need = need_of(method)
    problem = problem_of(world, order, need) if need is not None and need.wants == "problem" else None
    told: dict[str, Any] = {}
    began, busy = time.perf_counter(), time.process_time()
    sides = None
    if need is not None and need.wants in _KINDS:
        # Values of an option that are tried share statistics; a model that is reported pays for its own.
        compute = _sides if split == "validation" else _sides.__wrapped__
        sides = [compute(setup, task, experts[task], name, _frozen(options)) for task in order]
    fit = fit_of_method(method)
    renew = None if fit is None else renewing(fit)
    merged = apply(
        method, start, list(free.values()), weights, problem=problem, renew=renew, sides=sides, told=told
    )
    seconds, cpu = time.perf_counter() - began, time.process_time() - busy
    whole = {**base, **merged}
    scores: dict[str, Score] = {task: score_of(world, whole, task, split) for task in order}
    return {
        "scores": scores,
        "version": state_dict_digest(whole),
        "seconds": seconds,
        "cpu": cpu,
        "fit": told.get("fit"),
        "known": told.get("known"),
        "work": None if problem is None else problem.record()["work"],
    }


def problem_of(world: World, order: Sequence[str], need: Need) -> Problem:
    """The losses of the tasks on the examples that a method asks for."""
    return Problem({task: _objective(world, task, need) for task in order})


def _objective(world: World, task: str, need: Need) -> Objective:
    from plait.problem.stored import draw

    validates = "validation" in need.splits or world.suite.expert is not None
    drawn = draw(world.tasks[task], "validation" if validates else "train", min(need.samples, MOST), 0)
    base = world.tensors(Model(world.setup.base))
    return Objective(
        world.network, world.head(task), drawn.examples, batch=BATCH, fixed={**world.rest, **base}
    )


def free_tensors(world: World, expert: Path) -> dict[str, Tensor]:
    """The tensors of an expert that are merged, by the base's names."""
    from plait.checkpoint import open_checkpoint
    from plait.line.build import mergeable

    names = mergeable(open_checkpoint(world.setup.base), world.suite.private)
    found = world.tensors(Model(expert, expert=True))
    return {name: found[name] for name in names}


_KINDS = {"moments": "moment", "fisher": "fisher"}


def _frozen(options: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """The options that statistics may depend on, as a key; the scale of an update is none."""
    kept = {key: value for key, value in options.items() if key != "scale"}
    return tuple(sorted((key, value) for key, value in kept.items() if isinstance(value, (int, float, str))))


@lru_cache(maxsize=64)
def _sides(
    setup: Setup, task: str, expert: Path, name: str, options: tuple[tuple[str, Any], ...]
) -> dict[str, Tensor]:
    """What `TensorMethod.sides` asks for, of one expert under its own weights: fp32."""
    from plait.methods.base import Where
    from plait.methods.pieces import whole
    from plait.methods.registry import make
    from plait.problem.moments import each_second_moment

    world = world_of(setup)
    method = make(name, dict(options))
    need = need_of(method)
    assert isinstance(method, TensorMethod)
    assert need is not None
    own = free_tensors(world, expert)
    objective = _objective(world, task, need)
    kind = _KINDS[need.wants]
    places: dict[str, Where] = {n: whole(n, tensor) for n, tensor in own.items()}
    asked = {n: method.sides(p.shape, n, p.dtype).get(kind) for n, p in places.items()}
    if need.wants == "fisher":
        found = objective.fisher(own, [n for n, shape in asked.items() if shape is not None])
        return {f"{kind}/{n}": tensor.float() for n, tensor in found.items()}
    kernels = any(shape and len(own[n].shape) == 4 for n, shape in asked.items())
    wanted = [n for n, shape in asked.items() if shape]
    made = each_second_moment(objective, own, wanted, convolutions=kernels, at_once=None, strict=False)
    moments = {moment.name: moment for moment in made}
    return {
        f"{kind}/{n}": (moments[n].matrix / moments[n].count).float()
        for n, shape in asked.items()
        if n in moments and shape == tuple(moments[n].matrix.shape) and not moments[n].inputs_first
    }


def cosines(setup: Setup, experts: Mapping[str, Path]) -> list[list[float]]:
    """The cosines between the experts' task vectors, (N, N), over all merged tensors."""
    from plait.tensors import torch

    world = world_of(setup)
    base = world.tensors(Model(setup.base))
    total = torch.zeros(len(experts), len(experts), dtype=torch.float64)
    own = [free_tensors(world, expert) for expert in experts.values()]
    for name in own[0]:
        rows = torch.stack([(one[name].double() - base[name].double()).flatten() for one in own])
        total += rows @ rows.T
    norms = total.diagonal().sqrt()
    found: list[list[float]] = (total / (norms[:, None] * norms)).tolist()
    return found
