"""Methods that look at data, registered for tests only, and a line on the toy network of the evaluation's tests."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from plait import Line
from plait.methods import registry
from plait.methods.average import Average
from plait.methods.base import Facts, Known, MemberFacts, ModelMethod, Part, Slot, Wants
from plait.tensors.exact import Exact, difference
from tests.evaluation.world import CLASSES, NETWORK, base_weights, features, write_models, write_tasks

SPLITS = {"test": {}, "train": {}, "calibration": {"count": 12}, "validation": {"count": 6}}


@dataclass(frozen=True)
class Refined(ModelMethod):
    """Half-way to the expert, then gradient steps on all tasks so far."""

    steps: int = 3
    samples: int = 8
    facts: ClassVar[Facts] = Facts("", "calibrated", "refold", "labelled all", True, "", "", "")

    def step(
        self,
        state: Mapping[str, Tensor],
        base: Mapping[str, Tensor],
        expert: Mapping[str, Tensor],
        members: Sequence[MemberFacts],
        problem: Any,
    ) -> tuple[dict[str, Tensor], Known]:
        crash = os.environ.get("PLAIT_TEST_CRASH_AT")
        if crash == str(len(members)):
            raise SystemExit(9)
        seen = problem.seen(len(members))
        theta = {name: weight + (expert[name] - weight) / len(members) for name, weight in state.items()}
        losses = []
        for _ in range(self.steps):
            loss, gradient = seen.loss_and_gradient(theta)
            losses.append(loss)
            theta = {name: weight - 0.3 * gradient[name] for name, weight in theta.items()}
        return theta, {"losses": losses, "tasks": list(seen), "last": seen.last}


@dataclass(frozen=True)
class Newest(Refined):
    """Half-way to the expert, then gradient steps on the task that comes in; nothing is kept."""

    facts: ClassVar[Facts] = Facts("", "storage-free", "never", "labelled new", True, "", "", "")

    def step(
        self,
        state: Mapping[str, Tensor],
        base: Mapping[str, Tensor],
        expert: Mapping[str, Tensor],
        members: Sequence[MemberFacts],
        problem: Any,
    ) -> tuple[dict[str, Tensor], Known]:
        seen = problem.seen(len(members))
        loss, gradient = seen[seen.last].loss_and_gradient(expert)
        return {n: (w + expert[n]) / 2 - gradient[n] for n, w in state.items()}, {"loss": loss}


@dataclass(frozen=True)
class Summed(Average):
    """The average, and beside it the sum of a statistic, which moves the model."""

    kind: ClassVar[str] = "fisher"
    wants: ClassVar[Wants] = "fisher"
    facts: ClassVar[Facts] = Facts("", "additive", "subtract", "labelled new", False, "", "", "")

    def grain(self, shape: tuple[int, ...], name: str = "") -> Any:
        return "matrix"

    def sides(self, shape: tuple[int, ...], name: str, dtype: str) -> dict[str, tuple[int, ...]]:
        return {self.kind: shape}

    def slots(self, shape: tuple[int, ...], dtype: str) -> dict[str, Slot]:
        return {"delta": Slot("exact")}

    def statistic(self, part: Part) -> dict[str, Exact]:
        side = part.side[self.kind].to(part.base.dtype).flatten()
        return {"delta": difference(side, part.expert.new_zeros(part.expert.shape))}

    def quick(self, *words: Any) -> None:
        return None


@dataclass(frozen=True)
class Moments(Summed):
    """The same with the first row of each weight's second moment."""

    kind: ClassVar[str] = "moment"
    wants: ClassVar[Wants] = "moments"
    facts: ClassVar[Facts] = Facts("", "additive", "subtract", "unlabelled", False, "", "", "")

    def sides(self, shape: tuple[int, ...], name: str, dtype: str) -> dict[str, tuple[int, ...]]:
        return {"moment": (shape[1], shape[1])} if len(shape) == 2 else {}

    def statistic(self, part: Part) -> dict[str, Exact]:
        rows = part.base.view(part.where.shape)
        held = part.side.get("moment")
        moved = rows.clone().zero_() if held is None else (rows * 0 + held[0]).contiguous()
        return {"delta": difference(moved.flatten(), part.base.new_zeros(part.base.shape))}


METHODS = {kind.__name__.lower(): kind for kind in (Refined, Newest, Summed, Moments)}


def register(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, str]:
    """Make the methods known by name, here and in commands that get the returned environment."""
    place = folder / "package"
    facts = place / "plait_tests-0.dist-info"
    facts.mkdir(parents=True)
    lines = [f"{name} = {kind.__module__}:{kind.__qualname__}" for name, kind in METHODS.items()]
    (facts / "entry_points.txt").write_text("\n".join(["[plait.methods]", *lines]) + "\n")
    patch.syspath_prepend(str(place))
    registry._points.cache_clear()
    given = os.environ.get("PYTHONPATH")
    paths = [str(place), str(Path(__file__).parents[2]), *([given] if given else [])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def write_world(folder: Path, head: Any = "zero-shot", names: str = "abc") -> Path:
    """Base, experts and tasks.yaml; returns the latter."""
    write_models(folder, names)
    return write_tasks(folder, names, head, **{name: {"splits": SPLITS} for name in names})


def make(
    folder: Path, name: str, order: str, method: str = "refined", *, private: Any = (), **options: Any
) -> Line:
    line = Line.create(
        folder / name, folder / "base", method, network=NETWORK, private=private or "classifier.*", **options
    )
    for task in order:
        line.merge(folder / task, tasks=folder / "tasks.yaml")
    return line


def forget_data(folder: Path) -> None:
    """The user's own files are gone."""
    (folder / "tasks.yaml").unlink()
    for file in folder.glob("*.jsonl"):
        file.unlink()


def mean_loss(weights: Any, examples: Any) -> torch.Tensor:
    """Cross-entropy of 20 * the cosine with the base's embedding of each class."""
    named = torch.nn.functional.normalize(features(base_weights(), CLASSES), dim=1)
    found = torch.nn.functional.normalize(features(weights, examples.inputs), dim=1)
    return -(20 * found @ named.T).log_softmax(1)[range(len(found)), examples.labels].mean()
