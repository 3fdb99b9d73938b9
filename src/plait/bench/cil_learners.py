"""How each entrant goes from one model to the next when a group of classes arrives."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from typing import Any

from plait.bench.at_once import MOST
from plait.bench.cil_data import World
from plait.bench.cil_methods import Ema, Ewc, Gem, Joint, Own, Sequential, made
from plait.bench.gem import project
from plait.bench.worker import BATCH
from plait.line.data import need_of
from plait.methods.base import MemberFacts, Method, ModelMethod, TensorMethod
from plait.problem.base import Examples, Head
from plait.problem.objective import Objective
from plait.tensors import Tensor, torch
from plait.training.loop import Adjust, train

Model = dict[str, Tensor]
"""The tensors that are trained and merged."""


@dataclass(frozen=True)
class Lesson:
    """What arrives. place: which group, from 0. head: over all classes so far. model: what there is."""

    place: int
    head: Head
    examples: Examples
    model: Model


@dataclass
class Learner:
    """Sequential fine-tuning; the others add to it. seed: of the run.

    training, merging: processor seconds of the last lesson. models: how many models of the base's size it holds
    between two lessons, the current one and the base among them where it needs them. samples: examples that it keeps.
    """

    world: World
    seed: int
    training: float = 0.0
    merging: float = 0.0
    models: float = 1.0
    samples: int = 0

    def learn(self, lesson: Lesson) -> Model:
        """The model after the lesson."""
        began = time.process_time()
        found = self.train(lesson, self.adjust(lesson))
        self.training = time.process_time() - began
        began = time.process_time()
        model = self.take(lesson, found)
        self.merging = time.process_time() - began
        return model

    def adjust(self, lesson: Lesson) -> Adjust | None:
        """What is done to gradients."""
        return None

    def take(self, lesson: Lesson, trained: Model) -> Model:
        """From what was trained to the next model."""
        return trained

    def train(self, lesson: Lesson, adjust: Adjust | None) -> Model:
        world = self.world
        recipe = replace(world.setup.recipe, seed=1000 * self.seed + lesson.place)
        return train(
            world.network,
            lesson.head,
            {**world.base, **lesson.model},
            lesson.examples,
            recipe,
            names=world.names,
            what=f"group {lesson.place}",
            adjust=adjust,
        ).weights

    def objective(self, lesson: Lesson, examples: Examples) -> Objective:
        """The loss on examples, under the lesson's head."""
        return Objective(self.world.network, lesson.head, examples, batch=BATCH, fixed=self.world.base)


@dataclass
class EwcLearner(Learner):
    rule: Ewc = field(default_factory=Ewc)
    fisher: dict[str, Tensor] = field(default_factory=dict)

    def adjust(self, lesson: Lesson) -> Adjust | None:
        if not self.fisher:
            return None

        def add(leaves: Mapping[str, Tensor]) -> None:
            for name, leaf in leaves.items():
                pull = self.rule.strength * self.fisher[name] * (leaf.detach() - lesson.model[name])
                leaf.grad = pull if leaf.grad is None else leaf.grad + pull

        return add

    def take(self, lesson: Lesson, trained: Model) -> Model:
        drawn = self.objective(lesson, lesson.examples).sample(self.rule.samples, self.seed)
        for name, one in drawn.fisher(trained, self.world.names).items():
            self.fisher[name] = self.fisher[name] + one.float() if name in self.fisher else one.float()
        self.models = 2.0
        return trained


@dataclass
class GemLearner(Learner):
    rule: Gem = field(default_factory=Gem)
    memory: list[Examples] = field(default_factory=list)

    def adjust(self, lesson: Lesson) -> Adjust | None:
        if not self.memory:
            return None
        kept = [self.objective(lesson, examples) for examples in self.memory]
        step = 0

        def turn(leaves: Mapping[str, Tensor]) -> None:
            nonlocal step
            step += 1
            seed = _number(self.seed, lesson.place, step)
            size = self.rule.batch
            drawn = [one.sample(size, seed) if size else one for one in kept]
            weights = {name: leaf.detach() for name, leaf in leaves.items()}
            old = (one.loss_and_gradient(weights)[1] for one in drawn)
            own = {
                n: torch.zeros_like(w) if leaves[n].grad is None else leaves[n].grad
                for n, w in weights.items()
            }
            found = project({n: slope for n, slope in own.items() if slope is not None}, old, self.rule.gamma)
            for name, slope in (found or {}).items():
                leaves[name].grad = slope

        return turn

    def take(self, lesson: Lesson, trained: Model) -> Model:
        examples = _draw(lesson.examples, self.rule.memory, self.seed)
        self.memory.append(examples)
        self.samples = sum(map(len, self.memory))
        return trained


@dataclass
class EmaLearner(Learner):
    rule: Ema = field(default_factory=Ema)

    def take(self, lesson: Lesson, trained: Model) -> Model:
        if lesson.place == 0:
            return trained
        alpha = self.rule.alpha
        return {name: torch.lerp(lesson.model[name], tensor, alpha) for name, tensor in trained.items()}


@dataclass
class TensorLearner(Learner):
    """A method that sees tensors: the model is what it makes of all task vectors so far."""

    rule: TensorMethod | None = None

    def __post_init__(self) -> None:
        from plait.methods.memory import Table

        assert self.rule is not None
        self.table = Table(self.rule, {name: self.world.base[name] for name in self.world.names})

    def take(self, lesson: Lesson, trained: Model) -> Model:
        assert self.rule is not None
        self.table.enter(trained)
        self.models = 1 + _state(self.world, self.rule, lesson.place + 1)
        return self.table.merged()


@dataclass
class ModelLearner(Learner):
    """A method that sees whole models and losses."""

    rule: ModelMethod | None = None
    members: list[MemberFacts] = field(default_factory=list)
    kept: dict[str, Examples] = field(default_factory=dict)
    state: Model = field(default_factory=dict)

    def take(self, lesson: Lesson, trained: Model) -> Model:
        assert self.rule is not None
        start = {name: self.world.base[name] for name in self.world.names}
        self.state = self.state or self.rule.start(start)
        self.members.append(MemberFacts(1.0, {}))
        problem = self._problem(lesson)
        self.state, _ = self.rule.step(self.state, start, trained, tuple(self.members), problem)
        self.models = 1 + _state(self.world, self.rule, lesson.place + 1)
        return {name: self.state[name].float() for name in start}

    def _problem(self, lesson: Lesson) -> Any:
        """The losses of all tasks so far where the method looks at all, else of the newest."""
        from plait.line.problem import Absent
        from plait.problem.problem import Problem

        assert self.rule is not None
        need = need_of(self.rule)
        if need is None:
            return None
        newest = _draw(lesson.examples, min(need.samples, MOST), self.seed)
        self.kept[str(lesson.place)] = newest
        held: dict[str, Any] = {}
        for name, examples in self.kept.items():
            looked = need.every or examples is newest
            held[name] = self.objective(lesson, examples) if looked else Absent(name)
        self.samples = sum(map(len, self.kept.values())) if need.every else 0
        return Problem(held)


def learner(world: World, name: str, options: Mapping[str, Any], seed: int) -> Learner:
    """The learner of an entrant; a method that draws does so by the run's seed."""
    rule: Own | Method = made(name, dict(options))
    if isinstance(rule, Method) and any(f.name == "seed" for f in fields(rule)):
        rule = replace(rule, seed=seed)  # type: ignore[call-arg]
    if isinstance(rule, TensorMethod):
        return TensorLearner(world, seed, rule=rule)
    if isinstance(rule, ModelMethod):
        return ModelLearner(world, seed, rule=rule)
    if isinstance(rule, Ewc):
        return EwcLearner(world, seed, rule=rule)
    if isinstance(rule, Gem):
        return GemLearner(world, seed, rule=rule)
    if isinstance(rule, Ema):
        return EmaLearner(world, seed, models=2.0, rule=rule)
    assert isinstance(rule, (Sequential, Joint))
    return Learner(world, seed)


def _state(world: World, method: TensorMethod | ModelMethod, members: int) -> float:
    """What a line of this method keeps beside the base, in models; task vectors where it has no state."""
    from plait.checkpoint import open_checkpoint
    from plait.engine import size_of
    from plait.line.build import keeps_no_state

    if keeps_no_state(method):
        return float(members)
    tensors = open_checkpoint(world.setup.base).tensors
    refs = {name: tensors[name] for name in world.names}
    return size_of(method, refs) / sum(ref.numel * 4 for ref in refs.values())


def _draw(examples: Examples, count: int, seed: int) -> Examples:
    """At most `count` of the examples, in their order."""
    from random import Random

    from plait.problem.feed import take

    assert examples.labels is not None
    rows = sorted(Random(seed).sample(range(len(examples)), min(count, len(examples))))
    return Examples(take(examples.inputs, rows), examples.labels[rows], f"{examples.digest} {rows}")


def _number(*words: int) -> int:
    return int.from_bytes(sha256(repr(words).encode()).digest()[:6], "little")
