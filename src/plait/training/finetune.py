"""From a base and a task to an expert on disk."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.checkpoint import Checkpoint
from plait.errors import NonFinite, RefusedInput, UsageError
from plait.problem.base import Examples, Head, Network, Task
from plait.tensors import Tensor, torch
from plait.training.choice import chosen
from plait.training.recipe import Recipe
from plait.training.start import Start, find_start
from plait.training.writing import check_place, write_expert
from plait.types import DTYPES

if TYPE_CHECKING:
    from plait.line import Line
    from plait.training.loop import Trained

CURVE = 100
"""Points of the loss curve at most."""


def finetune(
    base: str | Path | None,
    task: Task,
    out: str | Path,
    recipe: Recipe | None = None,
    *,
    line: str | Path | Line | None = None,
    version: str | None = None,
    network: str | None = None,
    device: str = "cpu",
    threads: int | None = None,
    progress: Any = None,
) -> dict[str, Any]:
    """Fine-tune a base on a task and write the expert to `out`: a folder of the base's layout, whole or not at all.

    base: a checkpoint folder. Or None with `line`: training then starts from a version of the line (the current one
    by default), and the base is the line's own. The head is made of the base in either case and is frozen, but for
    `model`: the network's own head is trained with the rest. network: python:module:function, where config.json does
    not describe the network. threads: of torch, its own choice by default. progress: as of the engine, counts steps.

    Beside the weights lies plait_training.json: all that decides the bytes, the loss curve, and what the expert
    carries of other tasks; `plait merge` reads the latter. Same inputs, recipe, threads, device and versions of
    software give the same bytes.

    Returns its values, and `out` and `seconds`; docs/command-line.md lists the keys.
    Errors: RefusedInput where `out` exists, base, network and task do not fit, there is nothing to train or nothing
    to train on; NonFinite where training diverges; UsageError for a word out of its range.
    """
    from plait.line.descent import FORMAT
    from plait.line.surroundings import steady, versions

    began = time.monotonic()
    recipe = recipe or Recipe()
    place = Path(out)
    if threads is not None and (type(threads) is not int or threads < 1):
        raise UsageError(f"threads is {threads!r}, expected a whole number of at least 1")
    check_place(place, ())
    start = find_start(base, line, version)
    check_place(place, start.inputs)
    examples, told = _examples(task, recipe)
    with steady(threads, device):
        job = _Job(start, task, recipe, network, device)
        trained, tensors = job.run(examples, progress)
        record = {
            "format": FORMAT,
            "task": task.name,
            "kind": task.kind,
            "classes": list(task.classes),
            "head": {**asdict(task.head), "templates": list(task.head.templates)},
            **start.plain(),
            "recipe": recipe.plain(),
            "data": told,
            "network": network,
            "device": device,
            "threads": torch.get_num_threads(),
            "software": versions(job.network),
            **_outcome(trained),
        }
    done = write_expert(start.base, tensors, place, record)
    return {**done, "out": str(place), "seconds": round(time.monotonic() - began, 3)}


def _examples(task: Task, recipe: Recipe) -> tuple[Examples, dict[str, Any]]:
    """The first examples of the train split, and what the record says of them."""
    whole = task.examples("train")
    if not len(whole):
        raise RefusedInput(f"{task.name}: has 0 train examples; expected at least one")
    count = min(recipe.examples or len(whole), len(whole))
    told = {"split": "train", "digest": whole.digest, "count": count, "of": len(whole)}
    if count == len(whole):
        return whole, told
    labels = None if whole.labels is None else whole.labels[:count]
    return Examples(whole.inputs[:count], labels, f"{whole.digest}, the first {count}"), told


class _Job:
    """One training: the network and the head are made, weights are read, and the loop runs."""

    def __init__(self, start: Start, task: Task, recipe: Recipe, network: str | None, device: str) -> None:
        from plait.problem.network import open_network

        self.start, self.task, self.recipe = start, task, recipe
        where = network or start.base.path
        self.network: Network = open_network(
            where, task.kind, device=device, dtype=_dtype(start.base), folder=start.base.path
        )
        self.names = chosen(self.network, recipe, task, start.base)

    def run(self, examples: Examples, progress: Any) -> tuple[Trained, dict[str, Tensor]]:
        """What was trained, and every tensor of the expert by its name in the base."""
        from plait.line.subjects import load
        from plait.training.loop import train

        held = load(self.start.tensors, "cpu", None)
        try:
            trained = train(
                self.network,
                self._head(held),
                held,
                examples,
                self.recipe,
                names=self.names,
                what=self.task.name,
                progress=progress,
            )
        except RefusedInput as error:
            if str(error).startswith(f"{self.task.name}: "):
                raise
            raise RefusedInput(f"{self.task.name}: {error}") from error
        aliases = self.start.base.aliases
        kept = {aliases.get(name, name): self._stored(name, one) for name, one in trained.weights.items()}
        return trained, {**held, **kept}

    def _head(self, held: Mapping[str, Tensor]) -> Head:
        from plait.line.subjects import load
        from plait.problem.heads import make_head

        if self.task.head.kind == "model" or self.start.is_base:
            return make_head(self.task, self.network, held)
        return make_head(self.task, self.network, load(self.start.base.tensors, "cpu", None))

    def _stored(self, name: str, tensor: Tensor) -> Tensor:
        """A trained tensor in the base's dtype. NonFinite where it does not fit into it."""
        stored = tensor.to(
            device="cpu", dtype=getattr(torch, DTYPES[self.start.base.tensors[name].dtype].torch)
        )
        if not bool(torch.isfinite(stored).all()):
            raise NonFinite(
                f"{self.task.name}: {name} is too large for the base's dtype {stored.dtype}; lower the rate"
            )
        return stored


def _dtype(base: Checkpoint) -> str:
    """In which to train: what loses nothing of the base, and small steps neither."""
    return "float64" if any(ref.dtype == "F64" for ref in base.tensors.values()) else "float32"


def _outcome(trained: Trained) -> dict[str, Any]:
    """What the record says of what came of it."""
    losses = trained.losses
    every = -(-len(losses) // CURVE)
    parts = [losses[first : first + every] for first in range(0, len(losses), every)]
    elements = sum(tensor.numel() for tensor in trained.weights.values())
    return {
        "steps": len(losses),
        "trained": {"tensors": len(trained.weights), "elements": elements},
        "loss": {"every": every, "values": [sum(part) / len(part) for part in parts]},
    }
