"""What the steps of the demo share: where things lie, who prints, who computes; and how scores are shown."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plait.checkpoint.layout import open_checkpoint, root_digest
from plait.demo.screen import Screen, percent
from plait.demo.tasks import Sizes, Task
from plait.demo.training import RECIPE, Score, score_folder
from plait.training.recipe import Recipe

Options = dict[str, dict[str, Any]]
"""Method -> its options, one entry for each line."""

Rows = dict[str, list[tuple[str, dict[str, Score]]]]
"""Method -> [(what was done, test scores after it)], in order."""


@dataclass(frozen=True)
class Effort:
    """How much of everything."""

    sizes: Sizes = field(default_factory=Sizes)
    recipe: Recipe = RECIPE
    scales: tuple[float, ...] = (0.4, 0.5, 0.6, 0.7, 0.8, 1.0)
    cut: tuple[int, int] | None = None  # only so many layers and words of the base


QUICK = Effort(Sizes(32, 8, 16), Recipe(epochs=1, batch=8), (0.7,), (1, 4096))
"""The same road for a test, with a small part of the base: the accuracies mean nothing."""


@dataclass(frozen=True)
class Walk:
    """One run of the demo."""

    out: Path
    seed: int
    effort: Effort
    screen: Screen
    pool: Executor  # processes of one thread each

    @property
    def base(self) -> Path:
        return self.out / "base"

    def expert(self, task: str) -> Path:
        return self.out / "experts" / task

    def scores(self, folders: Sequence[Path], tasks: Sequence[Task]) -> list[dict[str, Score]]:
        """Test scores of each model on each task; all of them side by side."""
        with self.screen.timed("evaluate"):
            jobs = [[self.pool.submit(score_folder, self.base, f, [t]) for t in tasks] for f in folders]
            return [{t.name: j.result()[0] for t, j in zip(tasks, row, strict=True)} for row in jobs]


def digest_of(folder: Path) -> str:
    """Root digest of what lies in a model folder now: every tensor is read and hashed."""
    return root_digest(open_checkpoint(folder).digests())


def matrix_row(name: str, scores: dict[str, Score], merged: Sequence[str]) -> list[str]:
    """A row of an accuracy matrix, with brackets where a task is not among `merged`."""
    cells = [
        f"{percent(x.accuracy)} " if task in merged else f"({percent(x.accuracy)})"
        for task, x in scores.items()
    ]
    return [name, *cells, percent(mean(list(scores.values())))]


def mean(scores: Sequence[Score]) -> float:
    """Mean accuracy, every task counting the same."""
    return sum(x.accuracy for x in scores) / len(scores)


def plain(scores: dict[str, Score]) -> dict[str, dict[str, Any]]:
    """Scores as JSON values."""
    return {n: {"right": x.right, "count": x.count, "accuracy": x.accuracy} for n, x in scores.items()}
