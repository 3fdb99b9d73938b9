"""A line on a toy network, with tasks in files: texts of five letters are counted, mixed and told apart."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plait.problem.base import Network
from plait.problem.network import module_network
from tests.line.models import write_folder

LETTERS = "abcdefghij"
WIDTH = 8
NETWORK = "python:tests.evaluation.world:letters"
opened: list[str] = []  # folders for which `letters` was called
ran: list[int] = []  # rows of every batch that a network ran on


class Letters(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = torch.nn.Linear(len(LETTERS), WIDTH)

    def forward(self, counts: Tensor) -> Tensor:
        ran.append(len(counts))
        return torch.tanh(self.mix(counts))


def letters(folder: str | None, device: Any, dtype: Any) -> Network:
    """A network of `mix.weight` and `mix.bias`."""
    opened.append(str(folder))
    return module_network(
        Letters(), encode=count, features=lambda module, batch: module(batch), device=device, dtype=dtype
    )


def count(texts: Sequence[str]) -> list[Tensor]:
    return [torch.tensor([float(text.count(letter)) for letter in LETTERS]) for text in texts]


def base_weights() -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    weight = torch.randn(WIDTH, len(LETTERS), generator=g)
    return {"mix.weight": weight, "mix.bias": torch.randn(WIDTH, generator=g) * 0.1}


def expert_weights(seed: int, classes: int = 3) -> dict[str, Tensor]:
    """The base, moved, with a head of its own."""
    g = torch.Generator().manual_seed(100 + seed)
    moved = {n: t + 0.4 * torch.randn(t.shape, generator=g) for n, t in base_weights().items()}
    return {**moved, "classifier.weight": torch.randn(classes, WIDTH, generator=g)}


CLASSES = ("aab", "bcd", "efg")


def texts(seed: int, number: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    made: dict[str, int] = {}
    while len(made) < number:
        made.setdefault("".join(rng.choices(LETTERS, k=7)), rng.randrange(3))
    return [{"text": text, "label": label} for text, label in made.items()]


def write_task(folder: Path, name: str, seed: int, number: int = 40) -> Path:
    """Its test and train rows, as jsonl."""
    rows = [
        {**row, "split": "test" if i < number else "train"} for i, row in enumerate(texts(seed, number + 20))
    ]
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


STORED = {"kind": "linear", "weight": "classifier.weight"}


def write_tasks(folder: Path, names: str, head: Any = "zero-shot", **more: Mapping[str, Any]) -> Path:
    """tasks.yaml; JSON is YAML."""
    tasks = {}
    for i, name in enumerate(names):
        data = write_task(folder, name, i)
        tasks[name] = {
            "kind": "text-classification",
            "data": data.name,
            "classes": list(CLASSES),
            "head": head,
        }
        tasks[name].update(more.get(name, {}))
    file = folder / "tasks.yaml"
    file.write_text(json.dumps({"tasks": tasks}), encoding="utf-8")
    return file


def write_models(folder: Path, names: str = "abc") -> None:
    write_folder(folder / "base", base_weights())
    for i, name in enumerate(names):
        write_folder(folder / name, expert_weights(i))


# the same arithmetic, in other words


def features(weights: Mapping[str, Tensor], inputs: Sequence[str]) -> Tensor:
    rows = []
    for text in inputs:
        counts = [sum(letter == other for other in text) for letter in LETTERS]
        rows.append(torch.tanh(weights["mix.weight"] @ torch.tensor(counts).float() + weights["mix.bias"]))
    return torch.stack(rows)


def zero_shot(weights: Mapping[str, Tensor], inputs: Sequence[str]) -> list[int]:
    """The class whose name, embedded by the base, is nearest."""
    named = features(base_weights(), CLASSES)
    found = []
    for one in features(weights, inputs):
        cosines = [float(one @ other / one.norm() / other.norm()) for other in named]
        found.append(cosines.index(max(cosines)))
    return found


def linear(weights: Mapping[str, Tensor], inputs: Sequence[str]) -> list[int]:
    scores = features(weights, inputs) @ weights["classifier.weight"].T
    return [int(row.argmax()) for row in scores]
