"""One stream: a method and an order, with the accuracies after every merge."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from plait.bench import results
from plait.bench.pool import Pool
from plait.bench.results import Score
from plait.bench.stream import Merged, brief, stream
from plait.bench.tuning import Stock
from plait.bench.worker import Model


def measure_stream(
    name: str,
    options: Mapping[str, Any],
    stock: Stock,
    order: Sequence[str],
    rows: Mapping[str, Any],
    pool: Pool,
    work: Path,
    looks: bool = False,
    weights: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Merge the experts in this order; each model is measured on the tasks that are in it while the next is merged.

    rows: the accuracies of the base and of the experts. looks: the method looks at data of the tasks. weights: by
    task, where they are not all 1. Returns the cell of the results, without seed and run.
    """
    work.mkdir(parents=True, exist_ok=True)
    folder = work / "line"
    steps: list[Merged] = []
    jobs: list[list[Future[Score]]] = []
    setup = pool.setup if looks else None
    for merged in stream(
        folder, stock.base, name, options, stock.experts, order, stock.private, setup, weights
    ):
        steps.append(merged)
        model, version = Model(merged.folder), merged.version
        jobs.append([pool.score(model, version, task, "test") for task in order[: len(steps)]])
    scores = [[job.result() for job in row] for row in jobs]
    shutil.rmtree(folder)
    values = _matrix(scores, lambda score: score.value)
    return {
        "method": name,
        "order": list(order),
        "versions": [step.version for step in steps],
        "right": _matrix(scores, lambda score: score.right),
        "undefined": _matrix(scores, lambda score: score.undefined),
        "values": values,
        "low": _matrix(scores, lambda score: results.interval(score.right, score.count)[0]),
        "high": _matrix(scores, lambda score: results.interval(score.right, score.count)[1]),
        "seconds": [round(step.seconds, 3) for step in steps],
        "cpu": [round(step.cpu, 3) for step in steps],
        "memory": [step.memory for step in steps],
        "bytes": {"members": [s.members for s in steps], "state": [s.state for s in steps]},
        "figures": results.figures(order, values, rows, weights),
        **({"known": [step.told for step in steps]} if any(step.told for step in steps) else {}),
    }


def last_cell(
    name: str,
    order: Sequence[str],
    rows: Mapping[str, Any],
    found: Mapping[str, Any],
    weights: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """The cell of a model of all tasks that was merged at once; nothing is known of the models before it.

    found: what `at_once.merge_and_measure` returned.
    """
    scores = [found["scores"][task] for task in order]
    before = [[None] * len(order)] * (len(order) - 1)

    def matrix(of: Callable[[Score], Any]) -> list[list[Any]]:
        return [*before, [of(score) for score in scores]]

    values = matrix(lambda score: score.value)
    more = {key: found[key] for key in ("fit", "work") if found[key] is not None}
    if found["known"] is not None:
        more["known"] = [brief(known) for known in found["known"]]
    return {
        "method": name,
        "order": list(order),
        "last": True,
        "versions": [*[None] * (len(order) - 1), found["version"]],
        "right": matrix(lambda score: score.right),
        "undefined": matrix(lambda score: score.undefined),
        "values": values,
        "low": matrix(lambda score: results.interval(score.right, score.count)[0]),
        "high": matrix(lambda score: results.interval(score.right, score.count)[1]),
        "seconds": [round(found["seconds"], 3)],
        "cpu": [round(found["cpu"], 3)],
        "memory": [None],
        "bytes": None,
        "figures": results.last_figures(values[-1], order, rows, weights),
        **more,
    }


def _matrix(scores: Sequence[Sequence[Score]], of: Callable[[Score], Any]) -> list[list[Any]]:
    """Rows of full length: None for tasks that are not in yet."""
    return [[*map(of, row), *[None] * (len(scores) - len(row))] for row in scores]
