"""Fine-tuning and scoring. Every job runs in one process with one thread, so its bytes do not depend on how
many jobs run beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from plait.demo.minilm import LONGEST, Encoder, Weights, load, save
from plait.demo.tasks import Example, Task
from plait.problem.content import make_examples
from plait.problem.heads import ZeroShot
from plait.problem.network import open_network
from plait.training.loop import train
from plait.training.recipe import Recipe

SHARPNESS = 20.0  # logits are this times the cosine: what a cosine of 1 is worth against one of 0


RECIPE = Recipe(epochs=4, examples=0)


@dataclass(frozen=True)
class Score:
    """Right answers out of `count` examples."""

    right: int
    count: int

    @property
    def accuracy(self) -> float:
        return self.right / self.count


def class_head(encoder: Encoder, base: Weights, classes: Sequence[str]) -> Tensor:
    """(classes, width): the frozen head of a task, the base's own embeddings of the class names."""
    return encoder.embed_all(base, classes)


@cache
def _base(folder: Path) -> tuple[Encoder, dict[str, Tensor]]:
    return Encoder.of(folder), load(folder)


def fine_tune(base: Path, task: Task, recipe: Recipe, seed: int, out: Path) -> float:
    """Fine-tune the base on a task and save the expert as a Hugging Face folder. Returns the last loss."""
    torch.set_num_threads(1)
    encoder, start = _base(base)
    head = ZeroShot(class_head(encoder, start, task.classes), SHARPNESS)
    network = open_network(base, "text-classification", longest=LONGEST)
    examples = make_examples([text for text, _ in task.train], [label for _, label in task.train])
    trained = train(network, head, start, examples, replace(recipe, seed=seed), what=task.name)
    save(out, trained.weights, base)
    return trained.losses[-1]


def score(base: Path, weights: Weights, task: Task, examples: Sequence[Example]) -> Score:
    """How many of `examples` the encoder with `weights` puts into the right class of the frozen head."""
    encoder, start = _base(base)
    head = class_head(encoder, start, task.classes)
    embeddings = encoder.embed_all(weights, [text for text, _ in examples])
    labels = torch.tensor([label for _, label in examples])
    return Score(int(((embeddings @ head.T).argmax(-1) == labels).sum()), len(examples))


def fine_tune_and_score(base: Path, task: Task, recipe: Recipe, seed: int, out: Path) -> Score:
    """Fine-tune, save, and score what was saved on the task's test examples."""
    fine_tune(base, task, recipe, seed, out)
    return score_folder(base, out, [task])[0]


def score_folder(base: Path, folder: Path, tasks: Sequence[Task]) -> list[Score]:
    """Test scores of the model in `folder` on each task."""
    torch.set_num_threads(1)
    weights = load(folder)
    return [score(base, weights, task, task.test) for task in tasks]


def score_scale(base: Path, experts: Sequence[Path], scale: float, tasks: Sequence[Task]) -> list[Score]:
    """Validation scores of base + scale * sum of (expert - base): what the scale is chosen by."""
    torch.set_num_threads(1)
    _, start = _base(base)
    merged = {name: weight.clone() for name, weight in start.items()}
    for folder in experts:
        for name, weight in load(folder).items():
            merged[name] += scale * (weight - start[name])
    return [score(base, merged, task, task.validation) for task in tasks]
