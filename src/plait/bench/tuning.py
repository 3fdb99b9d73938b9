"""The main option of a method, chosen on validation examples."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.bench.at_once import merge_and_measure
from plait.bench.grids import grid
from plait.bench.pool import Pool
from plait.bench.results import Score
from plait.bench.specs import Spec
from plait.bench.worker import Model
from plait.line import merge_files
from plait.methods.choosing import fit_of_method
from plait.problem.base import Split


@dataclass(frozen=True)
class Stock:
    """What is merged: the base, an expert for each task, and the tasks in the suite's own order."""

    base: Path
    experts: Mapping[str, Path]
    tasks: Sequence[str]
    private: Sequence[str] = ()


def tune(
    spec: Spec,
    stock: Stock,
    budget: int,
    pool: Pool,
    work: Path,
    weights: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """What the results say of a method: its facts, options, and how its main option was chosen.

    For each of at most `budget` values all experts are merged, in the suite's own order; the value with the best mean
    accuracy on the validation examples of all tasks is taken, weighted where tasks weigh differently; of equals the
    smallest. An order-free method sees the
    same model there that ends its streams; for others the order is one of many. Nothing is chosen where the option
    was named, or where the method fits its numbers itself.
    """
    option, values = grid(spec.name, spec.kind, budget)
    if option in spec.given or fit_of_method(spec.made()) is not None:
        option, values = None, []
    means = (_at_once if spec.whole else _by_files)(spec, str(option), values, stock, pool, work, weights)
    chosen = max(means, key=lambda value: (means[value], -value)) if means else None
    method = spec.made(**({} if option is None else {option: chosen}))
    facts = method.facts
    return {
        "options": method.options(),
        "family": facts.family,
        "removal": facts.removal,
        "data": facts.data,
        "order": facts.order,
        "tuning": {
            "option": option,
            "tried": [{"value": value, "accuracy": mean} for value, mean in means.items()],
            "chosen": chosen,
            "edge": len(means) > 1 and chosen in (min(means), max(means)),
        },
    }


def _by_files(
    spec: Spec,
    option: str,
    values: Sequence[Any],
    stock: Stock,
    pool: Pool,
    work: Path,
    weights: Mapping[str, float] | None,
) -> dict[Any, float]:
    """Value -> mean accuracy on validation examples, of models that are merged here."""
    jobs: dict[Any, list[Future[Score]]] = {}
    for number, value in enumerate(values):
        folder = work / f"tuned-{number}"
        made = merge_files(
            stock.base,
            [stock.experts[task] for task in stock.tasks],
            folder,
            spec.name,
            private=stock.private,
            weights=None if weights is None else [weights[task] for task in stock.tasks],
            **{**spec.given, option: value},
        )
        jobs[value] = [pool.score(Model(folder), made["version"], task, "validation") for task in stock.tasks]
    means = {
        value: _mean(dict(zip(stock.tasks, (job.result() for job in row), strict=True)), weights)
        for value, row in jobs.items()
    }
    for number in range(len(values)):
        shutil.rmtree(work / f"tuned-{number}")
    return means


def _at_once(
    spec: Spec,
    option: str,
    values: Sequence[Any],
    stock: Stock,
    pool: Pool,
    work: Path,
    weights: Mapping[str, float] | None,
) -> dict[Any, float]:
    """The same by merges in the processes of the pool."""
    words = {value: spec.words(**{option: value}) for value in values}
    jobs = {
        value: submit_at_once(pool, stock, stock.tasks, spec.name, words[value], "validation", weights)
        for value in values
    }
    found = {value: job.result()["scores"] for value, job in jobs.items()}
    return {value: _mean(row, weights) for value, row in found.items()}


def _mean(row: Mapping[str, Score], weights: Mapping[str, float] | None) -> float:
    """The mean accuracy over tasks, each with its weight."""
    shares = {task: 1.0 if weights is None else weights[task] for task in row}
    return sum(share * row[task].value for task, share in shares.items()) / sum(shares.values())


def submit_at_once(
    pool: Pool,
    stock: Stock,
    order: Sequence[str],
    name: str,
    options: Mapping[str, Any],
    split: Split,
    weights: Mapping[str, float] | None = None,
) -> Future[dict[str, Any]]:
    """A job of `at_once.merge_and_measure`."""
    experts = {task: stock.experts[task] for task in order}
    shares = None if weights is None else tuple(weights[task] for task in order)
    return pool.submit(merge_and_measure, experts, tuple(order), name, dict(options), split, shares)
