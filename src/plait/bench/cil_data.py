"""What a process knows of a class-incremental suite: network, base, and the groups of classes as they arrive."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from plait.bench import cil
from plait.bench.suites import Sources
from plait.bench.worker import BATCH, remembering
from plait.problem.base import Examples, Head, Network, Split, Task, Weights
from plait.problem.content import make_examples
from plait.problem.feed import take
from plait.problem.heads import ZeroShot, make_head, predict
from plait.tensors import Tensor, torch
from plait.training import Recipe


@dataclass(frozen=True)
class Setup:
    """All that a process needs to know. base: folder of the base. each: train examples of a class at most. test: test
    examples of a data set at most. recipe: of every training."""

    suite: str
    sources: Sources
    base: Path
    each: int
    test: int | None
    recipe: Recipe
    device: str = "cpu"


@lru_cache(maxsize=1)
def world_of(setup: Setup) -> World:
    """Made once in a process."""
    return World(setup)


class World:
    """A suite with its base, ready to be run."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.suite = cil.find(setup.suite)
        self.sets: dict[str, Task] = self.suite.suite.load(setup.sources, setup.test)
        self._rows: dict[str, Tensor] = {}

    @cached_property
    def network(self) -> Network:
        from plait.problem.network import open_network

        suite, base = self.suite.suite, self.setup.base
        return remembering(
            open_network(suite.network or base, suite.kind, device=self.setup.device, folder=base)
        )

    @cached_property
    def base(self) -> dict[str, Tensor]:
        """All tensors of the base, fp32."""
        from plait.checkpoint import open_checkpoint
        from plait.line.subjects import load

        return load(open_checkpoint(self.setup.base).tensors, self.setup.device, torch.float32)

    @cached_property
    def names(self) -> list[str]:
        """The tensors that are trained and merged."""
        from plait.training.choice import parameters

        return [name for name in parameters(self.network) if name in self.base]

    def examples(self, name: str, split: Split) -> Examples:
        """Of a data set; train examples are the first `each` of every class."""
        found = self.sets[name].examples(split)
        assert found.labels is not None
        if split != "train":
            return found
        count = [0] * len(self.sets[name].classes)
        rows = []
        for row, label in enumerate(found.labels.tolist()):
            count[label] += 1
            if count[label] <= self.setup.each:
                rows.append(row)
        return Examples(take(found.inputs, rows), found.labels[rows], "")

    def rows(self, name: str) -> Tensor:
        """(classes, width): what each class of a data set is told apart by, of length 1. A row is made of what
        belongs to its class alone."""
        if name not in self._rows:
            by_name = self.suite.head == "names"
            self._rows[name] = self._named(name) if by_name else self._means(name)
        return self._rows[name]

    def _named(self, name: str) -> Tensor:
        head = make_head(self.sets[name], self.network, self.base)
        assert isinstance(head, ZeroShot)
        return head.classes

    def _means(self, name: str) -> Tensor:
        examples = self.examples(name, "train")
        assert examples.labels is not None
        found = torch.nn.functional.normalize(
            predict(_Features(), self.network, self.base, examples, BATCH), dim=1
        )
        means = [found[examples.labels == label].mean(0) for label in range(len(self.sets[name].classes))]
        return torch.nn.functional.normalize(torch.stack(means), dim=1)


class _Features:
    """A head that puts out the features."""

    def logits(self, network: Network, weights: Weights, batch: Any) -> Tensor:
        return network.features(weights, batch)


class Stream:
    """A data set whose classes arrive in groups. Labels are places in the order of arrival, so that the classes seen
    so far are the first ones."""

    def __init__(self, world: World, name: str, count: int, seed: int) -> None:
        self.world, self.name = world, name
        self.order = cil.order(len(world.sets[name].classes), seed)
        self.groups = cil.groups(self.order, count)
        self._place = {label: place for place, label in enumerate(self.order)}
        self._split: dict[Split, list[Examples]] = {}

    def __len__(self) -> int:
        return len(self.groups)

    def head(self, number: int) -> Head:
        """Over the classes of the first `number` groups."""
        seen = [label for group in self.groups[:number] for label in group]
        spec = self.world.sets[self.name].head
        return ZeroShot(self.world.rows(self.name)[seen], spec.scale, self.name)

    def examples(self, split: Split, place: int) -> Examples:
        """Those of a group."""
        if split not in self._split:
            self._split[split] = self._cut(self.world.examples(self.name, split))
        return self._split[split][place]

    def _cut(self, whole: Examples) -> list[Examples]:
        assert whole.labels is not None
        labels = [self._place[label] for label in whole.labels.tolist()]
        found, first = [], 0
        for group in self.groups:
            rows = [row for row, label in enumerate(labels) if first <= label < first + len(group)]
            found.append(make_examples(take(whole.inputs, rows), [labels[row] for row in rows]))
            first += len(group)
        return found


def together(parts: list[Examples]) -> Examples:
    """Several groups as one."""
    first = parts[0].inputs
    labels = [label for part in parts if part.labels is not None for label in part.labels.tolist()]
    if hasattr(first, "shape"):
        import numpy

        return make_examples(numpy.concatenate([part.inputs for part in parts]), labels)
    return make_examples([one for part in parts for one in part.inputs], labels)


def describe(setup: Setup, name: str) -> dict[str, Any]:
    """What the results say of a data set. Reads all of it."""
    world = world_of(setup)
    task = world.sets[name]
    found: dict[str, Any] = {"name": name, "classes": len(task.classes), "head": world.suite.head}
    splits: tuple[Split, ...] = ("train", "validation", "test")
    for split in splits:
        examples = world.examples(name, split)
        assert examples.labels is not None
        made = make_examples(examples.inputs, examples.labels.tolist())
        found[split] = {"examples": len(made), "data": made.digest}
    return found
