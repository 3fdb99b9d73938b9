"""The main option of a method, chosen on validation examples."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.bench.grids import grid
from plait.bench.pool import Pool
from plait.bench.results import Score
from plait.bench.worker import Model
from plait.line import merge_files
from plait.methods.base import Method
from plait.methods.registry import make


@dataclass(frozen=True)
class Stock:
    """What is merged: the base, an expert for each task, and the tasks in the suite's own order."""

    base: Path
    experts: Mapping[str, Path]
    tasks: Sequence[str]
    private: Sequence[str] = ()


def tune(
    name: str, method: type[Method], stock: Stock, budget: int, pool: Pool, work: Path
) -> dict[str, Any]:
    """What the results say of a method: its facts, options, and how its main option was chosen.

    For each of at most `budget` values all experts are merged, in the suite's own order; the value with the best mean
    accuracy on the validation examples of all tasks is taken, the smallest of equals. An order-free method sees the
    same model there that ends its streams; for others the order is one of many.
    """
    option, values = grid(name, method, budget)
    jobs: dict[Any, list[Future[Score]]] = {}
    for number, value in enumerate(values):
        folder = work / f"{name}-{number}"
        made = merge_files(
            stock.base,
            [stock.experts[task] for task in stock.tasks],
            folder,
            name,
            private=stock.private,
            **{str(option): value},
        )
        jobs[value] = [pool.score(Model(folder), made["version"], task, "validation") for task in stock.tasks]
    means = {value: sum(job.result().value for job in row) / len(row) for value, row in jobs.items()}
    for number in range(len(values)):
        shutil.rmtree(work / f"{name}-{number}")
    chosen = max(means, key=lambda value: (means[value], -value)) if means else None
    facts = method.facts
    return {
        "options": make(name, {} if option is None else {option: chosen}).options(),
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
