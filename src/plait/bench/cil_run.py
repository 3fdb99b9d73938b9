"""One run: a data set, an order of its classes and an entrant. A job of a worker process."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from plait.bench.cil_data import Setup, Stream, World, together, world_of
from plait.bench.cil_learners import Learner, Lesson, Model, learner
from plait.bench.worker import BATCH
from plait.evaluation import metrics
from plait.problem.base import Split
from plait.problem.heads import predict
from plait.tensors import torch


def run_stream(
    setup: Setup, dataset: str, count: int, seed: int, name: str, options: Mapping[str, Any], split: Split
) -> dict[str, Any]:
    """Learn one group of classes after the other, each from the model before; after each, measure on all groups seen.

    split: on whose examples. Returns `right`, [k][i] answers after group k on the i-th group, None for those to come;
    `counts` of examples by group; processor seconds by group of `training` and of `merging` (what is done with the
    trained model, statistics included), and `seconds` of both by the clock; `models` and `samples` kept at the end;
    and the `figures`.
    """
    world = world_of(setup)
    stream = Stream(world, dataset, count, seed)
    world.rows(dataset)  # made here, so that no group pays for it
    goes = learner(world, name, options, seed)
    groups = len(stream)
    found: dict[str, Any] = {"right": [], "training": [], "merging": [], "seconds": []}
    model: Model = {tensor: world.base[tensor] for tensor in world.names}
    joint = name == "joint"
    for place in [groups - 1] if joint else range(groups):
        began = time.perf_counter()
        shown = [stream.examples("train", i) for i in (range(groups) if joint else [place])]
        model = goes.learn(Lesson(place, stream.head(place + 1), together(shown), model))
        found["seconds"].append(round(time.perf_counter() - began, 3))
        found["training"].append(round(goes.training, 3))
        found["merging"].append(round(goes.merging, 3))
        found["right"].append(_right(world, stream, model, place + 1, split))
    if joint:
        goes.samples = sum(len(stream.examples("train", i)) for i in range(groups))
        found["right"] = [*[[None] * groups] * (groups - 1), found["right"][0]]
    found["counts"] = [len(stream.examples(split, i)) for i in range(groups)]
    found["classes"] = [len(group) for group in stream.groups]
    return {**found, **_kept(goes), "figures": figures(found["right"], found["counts"])}


def _kept(goes: Learner) -> dict[str, Any]:
    return {"models": round(goes.models, 3), "samples": goes.samples}


def _right(world: World, stream: Stream, model: Model, seen: int, split: Split) -> list[int | None]:
    """Right answers on each group seen, among all classes seen; None for groups to come. NaN is wrong."""
    parts = [stream.examples(split, place) for place in range(seen)]
    whole = together(parts)
    assert whole.labels is not None
    logits = predict(stream.head(seen), world.network, {**world.base, **model}, whole, BATCH)
    hits = (logits.argmax(1) == whole.labels) & ~torch.isnan(logits).any(1)
    found = [int(part.sum()) for part in torch.split(hits, [len(part) for part in parts])]
    return [*found, *[None] * (len(stream) - seen)]


def figures(right: Sequence[Sequence[int | None]], counts: Sequence[int]) -> dict[str, Any]:
    """final: accuracy over all classes at the end, every test example counting once. average: the mean over groups of
    the accuracy over all classes seen by then. forgetting: see `metrics.forgetting`, of the groups' accuracies. None
    where it was not measured."""

    def seen(row: Sequence[int | None]) -> float | None:
        known = [(hits, count) for hits, count in zip(row, counts, strict=True) if hits is not None]
        return sum(h for h, _ in known) / sum(c for _, c in known) if known else None

    by_step = [seen(row) for row in right]
    matrix = [[None if h is None else h / c for h, c in zip(row, counts, strict=True)] for row in right]
    return {
        "final": by_step[-1],
        "average": metrics.accuracy(by_step),
        "forgetting": metrics.forgetting(matrix),
        "seen": by_step,
    }
