"""Merging experts one after the other into a line, and what that costs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from plait.bench import machine
from plait.bench.suites import find
from plait.bench.worker import Setup
from plait.line import Line
from plait.methods.base import ModelMethod
from plait.methods.registry import find as find_method
from plait.problem.base import Examples, Split, Task

LONG = 32
"""Numbers of a list beyond which its ends are told alone."""


@dataclass(frozen=True)
class Merged:
    """The line after one merge.

    seconds: wall time of the whole verb, checks, hashes and fsync included; cpu: processor seconds of its threads.
    memory: the most that was held meanwhile, in bytes, beside interpreter and libraries; None where that cannot be
    found out. members, state: bytes that the line keeps of its members and of the method's state. told: what a
    method that sees whole models found on its way, as far as it is short.
    """

    task: str
    version: str
    folder: Path
    seconds: float
    cpu: float
    memory: int | None
    members: int
    state: int
    told: Mapping[str, Any] = field(default_factory=dict)


def stream(
    folder: Path,
    base: Path,
    method: str,
    options: Mapping[str, Any],
    experts: Mapping[str, Path],
    order: Sequence[str],
    private: Sequence[str] = (),
    setup: Setup | None = None,
    weights: Mapping[str, float] | None = None,
) -> Iterator[Merged]:
    """Merge the experts in this order into a new line in `folder`. All versions stay on disk.

    weights: by task; 1 where none are given. setup: the suite whose tasks are handed in with the experts, for methods
    that look at data; None for others. The merges run in a process of their own: what was done before in this one
    would hide in its memory.
    """
    from plait.bench.pool import executor

    with executor(1, _begin) as alone:
        words = {"private": tuple(private), "keep": len(order) + 1, **options}
        alone.submit(_create, folder, base, method, words, setup).result()
        for task in order:
            weight = 1.0 if weights is None else weights[task]
            yield alone.submit(_merge, task, experts[task], weight).result()


@dataclass
class _Here:
    """What the process of a stream holds."""

    line: Line | None = None
    before: int | None = None
    tasks: Mapping[str, Task] | None = None
    walks: bool = False  # whether the method sees whole models, and tells what it found in each step


_HERE = _Here()


def _begin() -> None:
    import_module("torch")  # what libraries take is not the merge's
    _HERE.before = machine.held()


def _create(folder: Path, base: Path, method: str, words: Mapping[str, Any], setup: Setup | None) -> None:
    runs: dict[str, Any] = {}
    if setup is not None:
        suite = find(setup.suite)
        given = suite.expert is not None
        _HERE.tasks = {t: Handed(task, given) for t, task in suite.load(setup.sources, setup.test).items()}
        runs = {"network": suite.network, "device": setup.device}
    _HERE.walks = issubclass(find_method(method), ModelMethod)
    _HERE.line = Line.create(folder, base, method, **words, **runs)


@dataclass(frozen=True, eq=False)
class Handed:
    """A task as it is handed to a line: its calibration examples are those that it was trained on, or the validation
    examples where the experts are given and nothing is known of their training."""

    task: Task
    given: bool

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def examples(self, split: Split) -> Examples:
        if split == "calibration":
            return self.task.examples("validation" if self.given else "train")
        return self.task.examples(split)


def _merge(task: str, expert: Path, weight: float) -> Merged:
    line, before = _HERE.line, _HERE.before
    assert line is not None
    machine.forget_peak()
    began, busy = time.perf_counter(), time.process_time()
    line.merge(expert, task, weight=weight, tasks=_HERE.tasks)
    seconds, cpu, most = time.perf_counter() - began, time.process_time() - busy, machine.peak()
    memory = None if most is None or before is None else max(0, most - before)
    kept = line.status()["bytes"]
    told = brief(line.show(task)["known"]) if _HERE.walks else {}
    return Merged(task, line.digest, line.model, seconds, cpu, memory, kept["members"], kept["state"], told)


def brief(known: Mapping[str, Any]) -> dict[str, Any]:
    """What a step found, but for long lists and what is told by task: numbers, words, and lists of a few dozen
    numbers."""
    plain = (bool, int, float, str, type(None))
    found: dict[str, Any] = {}
    for key, value in known.items():
        if isinstance(value, plain) or key == "work":
            found[key] = value
        elif key == "refined":
            found[key] = brief(value)
        elif isinstance(value, list) and all(isinstance(v, plain) for v in value):
            found[key] = value if len(value) <= LONG else {"least": min(value), "most": max(value)}
    return found
