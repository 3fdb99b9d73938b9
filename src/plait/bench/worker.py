"""What runs in a process of its own, with one thread: training an expert, a model on a task.

A process keeps what does not change: the network, the texts as tokens, the heads, and the model that it ran last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from plait.bench.results import Score
from plait.bench.suites import Sources, Suite, find
from plait.problem.base import Head, Network, Split, Task
from plait.tensors import Tensor, torch

BATCH = 64


@dataclass(frozen=True)
class Setup:
    """All that a process needs to know. base: the folder of the base. test: test examples of a task at most."""

    suite: str
    sources: Sources
    base: Path
    test: int | None
    device: str = "cpu"


@dataclass(frozen=True)
class Model:
    """A checkpoint folder. expert: it may lack or add tensors that are not merged: the base's are taken then."""

    folder: Path
    expert: bool = False


def begin() -> None:
    """Before the first job: one thread, so that a result does not depend on how many processes there are."""
    torch.set_num_threads(1)


def measure(setup: Setup, model: Model, task: str, split: Split) -> Score:
    """A model on a task."""
    world = world_of(setup)
    return score_of(world, world.weights(model), task, split)


def score_of(world: World, weights: Mapping[str, Tensor], task: str, split: Split) -> Score:
    """Weights on a task; those of the network that are missing are the base's."""
    from plait.evaluation.measure import measure as run

    ready = {**world.rest, **weights}
    found = run(world.head(task), world.network, ready, world.tasks[task].examples(split), BATCH)
    return Score(sum(found.answers), len(found.answers), found.undefined)


def describe(setup: Setup, task: str) -> dict[str, Any]:
    """What a task is: its classes, its head, its examples by split. Reads all of its data."""
    from plait.evaluation.measure import head_digest

    made = world_of(setup).tasks[task]
    found: dict[str, Any] = {"name": task, "classes": len(made.classes), "head": made.head.kind}
    found["head_digest"] = head_digest(made)
    for split in _splits(find(setup.suite)):
        examples = made.examples(split)
        found[split] = {"examples": len(examples), "data": examples.digest}
    return found


def train(setup: Setup, task: str, out: Path) -> dict[str, Any]:
    """Make the expert of a task. Returns the record that `finetune` writes beside it."""
    from plait.training import Recipe, finetune

    world = world_of(setup)
    suite = world.suite
    return finetune(
        setup.base,
        world.tasks[task],
        out,
        Recipe(**suite.recipe),
        network=suite.network,
        device=setup.device,
        threads=1,
    )


def _splits(suite: Suite) -> tuple[Split, ...]:
    return ("validation", "test") if suite.expert else ("train", "validation", "test")


@lru_cache(maxsize=1)
def world_of(setup: Setup) -> World:
    """The suite, made once in a process."""
    return World(setup)


class World:
    """A suite with its data and its base, ready to be run."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.suite = find(setup.suite)
        self.tasks: dict[str, Task] = self.suite.load(setup.sources, setup.test)
        self._heads: dict[str, Head] = {}
        self._last: tuple[Model, dict[str, Tensor]] | None = None

    @cached_property
    def network(self) -> Network:
        from plait.problem.network import open_network

        folder = self._whole or self.setup.base
        where = self.suite.network or folder
        return remembering(open_network(where, self.suite.kind, device=self.setup.device, folder=folder))

    @property
    def _whole(self) -> Path | None:
        models = self.setup.sources.models
        return self.suite.whole(models) if self.suite.whole and models else None

    @cached_property
    def rest(self) -> dict[str, Tensor]:
        """Tensors of the network that are no part of what is merged."""
        if self._whole is None:
            return {}
        from plait.checkpoint import open_checkpoint

        return self._load(open_checkpoint(self._whole).tensors)

    def head(self, task: str) -> Head:
        """The task's head, made once by the base."""
        from plait.problem.heads import make_head

        if task not in self._heads:
            base = self.weights(Model(self.setup.base))
            self._heads[task] = make_head(self.tasks[task], self.network, base)
        return self._heads[task]

    def weights(self, model: Model) -> dict[str, Tensor]:
        """The tensors of a model by the base's names, and the rest of the network's."""
        if self._last is None or self._last[0] != model:
            self._last = None  # lets go of the last model first
            self._last = model, {**self.rest, **self.tensors(model)}
        return self._last[1]

    def tensors(self, model: Model) -> dict[str, Tensor]:
        """The tensors of a model by the base's names, read from disk: those of the base once in a process."""
        if model == Model(self.setup.base):
            return self._base
        return self._load(self._refs(model))

    @cached_property
    def _base(self) -> dict[str, Tensor]:
        return self._load(self._refs(Model(self.setup.base)))

    def _refs(self, model: Model) -> Mapping[str, Any]:
        from plait.checkpoint import account, open_checkpoint

        opened = open_checkpoint(model.folder)
        if not model.expert:
            return opened.tensors
        base = open_checkpoint(self.setup.base)
        return {**base.tensors, **account(base, opened, self.suite.private).merge}

    def _load(self, refs: Mapping[str, Any]) -> dict[str, Tensor]:
        from plait.line.subjects import load

        return load(refs, self.setup.device, torch.float32)


def remembering(network: Network) -> Network:
    """The network, which turns a text into tokens only once: what `encode` gave for it is kept. Images are not kept:
    they are encoded as they are."""
    from plait.problem.module import ModuleNetwork

    if not isinstance(network, ModuleNetwork):
        return network
    kept: dict[str, Any] = {}

    def encode(inputs: Any) -> Sequence[Any]:
        if not all(isinstance(one, str) for one in inputs):
            return network.encode(inputs)
        fresh = [text for text in dict.fromkeys(inputs) if text not in kept]
        kept.update(zip(fresh, network.encode(fresh) if fresh else [], strict=True))
        return [kept[text] for text in inputs]

    return replace(network, encoder=encode)
