"""Taking one of several merged tasks out: by a line, or by subtracting its task vector as scripts do."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from typing import Any, Literal, Protocol

from plait.bench.tuning import Stock
from plait.bench.writing import write_tensors
from plait.line import Line, merge_files
from plait.tensors import Tensor, torch

How = Literal["exact", "algebraic"]
WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Held:
    """A model on disk. digest: its root digest."""

    folder: Path
    digest: str


@dataclass(frozen=True)
class Taken:
    """The model after a removal. seconds, cpu: wall time and processor seconds of it, with all that is read and
    written. members, state: bytes that were kept for it. receipt: what a line says of it."""

    model: Held
    seconds: float
    cpu: float
    members: int
    state: int
    receipt: dict[str, Any] = field(default_factory=dict)


class Way(Protocol):
    """A merge of all tasks, from which any one can be taken out. Each model gets a folder of its own.

    merged: the model of all tasks. base: the folder of the model that all of them are measured from. work: where
    all of it lies.
    """

    merged: Held
    base: Path
    work: Path

    def take(self, index: int) -> Taken:
        """Take out the task at a place of the order; `merged` is as before afterwards."""
        ...

    def never(self, index: int) -> Held:
        """The model of the other tasks, made from nothing."""
        ...


class ByLine:
    """A line with all tasks; every removal is done in a copy of it.

    work: an empty folder. how: as in `Line.unmerge`.
    """

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any],
        how: How,
        stock: Stock,
        order: Sequence[str],
        work: Path,
    ) -> None:
        self.stock, self.order, self.work, self.how = stock, order, work, how
        self.name, self.options = name, dict(options)
        self.base = stock.base
        self.line = Line.create(work / "line", stock.base, name, private=stock.private, **self.options)
        for task in order:
            self.line.merge(stock.experts[task], task)
        self.merged = Held(self.line.model, self.line.digest)

    def take(self, index: int) -> Taken:
        line = Line.open(copied(self.line.path, self.work / f"taken-{index}"))
        kept = line.status()["bytes"]
        began, busy = time.perf_counter(), time.process_time()
        done = line.unmerge(self.order[index], how=self.how)
        seconds, cpu = time.perf_counter() - began, time.process_time() - busy
        keys = ("how", "exact", "remaining", "distance")
        receipt = {key: done["receipt"][key] for key in keys if key in done["receipt"]}
        return Taken(Held(line.model, line.digest), seconds, cpu, kept["members"], kept["state"], receipt)

    def never(self, index: int) -> Held:
        folder = self.work / f"never-{index}"
        others = [self.stock.experts[task] for task in without(self.order, index)]
        made = merge_files(
            self.stock.base, others, folder, self.name, private=self.stock.private, **self.options
        )
        return Held(folder, made["version"])


class BySubtraction:
    """Task arithmetic as a script does it, with the model kept in `dtype` and all arithmetic in it: theta +
    scale * tau for every task that comes, theta - scale * tau for one that goes, tau = expert - base.

    What is kept for a removal is the experts: bytes of their weights. The time of one is that of reading model, base
    and expert, of the arithmetic, and of writing the result; nothing is checked, hashed or synced.
    """

    def __init__(self, dtype: str, scale: float, stock: Stock, order: Sequence[str], work: Path) -> None:
        self.stock, self.order, self.work = stock, order, work
        self.dtype: torch.dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
        self.scale = scale
        self.base = self._write("base", self._base()).folder
        self.merged = self._write("merged", self._sum(order))

    def take(self, index: int) -> Taken:
        began, busy = time.perf_counter(), time.process_time()
        theta = weights(self.merged.folder, self.dtype)
        for name, tau in self._taus(self.order[index], self._base()):
            theta[name] = theta[name] - self.scale * tau
        folder = self._folder(f"taken-{index}", theta)
        seconds, cpu = time.perf_counter() - began, time.process_time() - busy
        return Taken(Held(folder, _digest(theta)), seconds, cpu, self._kept(), 0)

    def never(self, index: int) -> Held:
        return self._write(f"never-{index}", self._sum(without(self.order, index)))

    def _sum(self, order: Sequence[str]) -> dict[str, Tensor]:
        base = self._base()
        theta = dict(base)
        for task in order:
            for name, tau in self._taus(task, base):
                theta[name] = theta[name] + self.scale * tau
        return theta

    def _base(self) -> dict[str, Tensor]:
        return weights(self.stock.base, self.dtype)

    def _taus(self, task: str, base: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
        """By name, those of tied weights under both of their names."""
        from plait.checkpoint import account, open_checkpoint
        from plait.line.build import mergeable
        from plait.line.subjects import load

        opened = open_checkpoint(self.stock.base)
        found = account(opened, open_checkpoint(self.stock.experts[task]), self.stock.private)
        wanted = mergeable(opened, self.stock.private)
        expert = load({n: ref for n, ref in found.merge.items() if n in wanted}, "cpu", self.dtype)
        kept = {name: opened.aliases.get(name, name) for name in base}
        return [(name, expert[own] - base[own]) for name, own in kept.items() if own in expert]

    def _write(self, name: str, theta: Mapping[str, Tensor]) -> Held:
        return Held(self._folder(name, theta), _digest(theta))

    def _folder(self, name: str, theta: Mapping[str, Tensor]) -> Path:
        folder = self.work / name
        folder.mkdir(parents=True)
        write_tensors(folder / WEIGHTS, theta)
        return folder

    def _kept(self) -> int:
        files = [f for task in self.order for f in self.stock.experts[task].glob("*.safetensors")]
        return sum(file.stat().st_size for file in files)


def drop(way: Way, index: int) -> None:
    """Delete what `take` and `never` made for a place."""
    for what in ("taken", "never"):
        shutil.rmtree(way.work / f"{what}-{index}")


def without(order: Sequence[str], index: int) -> list[str]:
    return [task for place, task in enumerate(order) if place != index]


def weights(folder: Path, dtype: Any = None) -> dict[str, Tensor]:
    """The tensors of a model, floating-point ones in `dtype` (None: their own)."""
    from plait.checkpoint import open_checkpoint
    from plait.line.subjects import load

    return load(open_checkpoint(folder).tensors, "cpu", dtype)


def norms(unmerged: Path, never: Path, base: Path) -> tuple[float, float]:
    """||unmerged - never|| and ||never - base||, Euclidean norms over all floating-point tensors, in fp64."""
    one, two, start = weights(unmerged), weights(never), weights(base)
    apart = moved = 0.0
    for name, tensor in two.items():
        if tensor.is_floating_point():
            here = tensor.double()
            apart += float((one[name].double() - here).square().sum())
            moved += float((here - start[name].double()).square().sum())
    return sqrt(apart), sqrt(moved)


def copied(line: Path, to: Path) -> Path:
    """A second line with the bytes of the first. Objects and versions are links: a line never writes into them."""
    for part in line.iterdir():
        if not part.is_dir():
            to.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(part, to / part.name)
        else:
            linked = part.name in ("objects", "versions")
            shutil.copytree(part, to / part.name, copy_function=os.link if linked else shutil.copyfile)
    return to


def _digest(theta: Mapping[str, Tensor]) -> str:
    from plait.line.once import state_dict_digest

    return state_dict_digest(theta)
