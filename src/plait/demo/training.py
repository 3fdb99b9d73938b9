"""Fine-tuning and scoring. Every job runs in one process with one thread, so its bytes do not depend on how
many jobs run beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import cos, pi
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from plait.demo.minilm import WORDS, Encoder, Weights, load, save
from plait.demo.tasks import Example, Task
from plait.problem.batching import batches_by_length

SHARPNESS = 20.0  # logits are this times the cosine: what a cosine of 1 is worth against one of 0


@dataclass(frozen=True)
class Recipe:
    """How an expert is fine-tuned: AdamW; the rate goes up over the first `warmup` of the steps, then down a
    cosine."""

    epochs: int = 4
    rate: float = 1e-4
    batch: int = 32
    warmup: float = 0.1


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
    head = class_head(encoder, start, task.classes)
    # Words that no text has get no gradient, so only the rows of the others are trained: same result, half the
    # time. Nor does the pooler, which mean pooling does not use.
    used, numbers = _vocabulary(encoder.tokens([text for text, _ in task.train]))
    weights = {**start, WORDS: start[WORDS][used]}
    trained = {n: w.clone().requires_grad_() for n, w in weights.items() if not n.startswith("pooler.")}
    optimiser = torch.optim.AdamW(trained.values(), lr=recipe.rate, weight_decay=0.0, fused=True)
    labels = torch.tensor([label for _, label in task.train])
    chance = torch.Generator().manual_seed(seed)
    steps = recipe.epochs * -(-len(numbers) // recipe.batch)
    step = 0
    loss = torch.zeros(())
    for _ in range(recipe.epochs):
        for rows in _epoch(numbers, recipe.batch, chance):
            for group in optimiser.param_groups:
                group["lr"] = recipe.rate * _schedule(step / steps, recipe.warmup)
            embeddings = encoder.embed(trained, [numbers[r] for r in rows])
            loss = F.cross_entropy(SHARPNESS * embeddings @ head.T, labels[rows])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            step += 1
    words = start[WORDS].clone()
    words[used] = trained[WORDS].detach()
    save(out, {**trained, WORDS: words}, base)
    return loss.item()


def _vocabulary(tokens: Sequence[Sequence[int]]) -> tuple[Tensor, list[list[int]]]:
    """The token numbers that occur, sorted, and the texts in terms of their ranks."""
    used = sorted({token for text in tokens for token in text})
    rank = {token: i for i, token in enumerate(used)}
    return torch.tensor(used), [[rank[token] for token in text] for text in tokens]


def _schedule(done: float, warmup: float) -> float:
    """Share of the learning rate when `done` of all steps are over."""
    return (done + 1e-3) / warmup if done < warmup else 0.5 * (1 + cos(pi * (done - warmup) / (1 - warmup)))


def _epoch(tokens: Sequence[Sequence[int]], batch: int, chance: torch.Generator) -> list[list[int]]:
    """Batches of one epoch: texts of like length in random order, then the batches shuffled."""
    mixed = torch.randperm(len(tokens), generator=chance).tolist()
    cut = [[mixed[i] for i in rows] for rows in batches_by_length([len(tokens[m]) for m in mixed], batch)]
    return [cut[i] for i in torch.randperm(len(cut), generator=chance).tolist()]


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
