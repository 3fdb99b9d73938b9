"""Lines with a history and with measurements, made without a network: only accuracies are invented."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from plait import Line
from plait.evaluation.bootstrap import interval
from plait.evaluation.rows import Row, Rows, pack
from tests.line.models import base_tensors, expert_tensors, write_folder

COUNT = 200
"""Test examples of a task."""


def make(folder: Path, tasks: Sequence[str], method: str = "task_arithmetic", **settings: object) -> Line:
    """A line with these tasks merged in order, from checkpoints under `folder`."""
    base = base_tensors()
    write_folder(folder / "base", base)
    options = {"scale": 0.4} if method == "task_arithmetic" else {}
    line = Line.create(folder / "line", folder / "base", method, keep=200, **options, **settings)  # type: ignore[arg-type]
    for number, task in enumerate(tasks):
        expert = expert_tensors(base, number, step=2e-3 * (1 + number % 4))
        line.merge(write_folder(folder / task, expert), task)
    return line


def row(line: Line, digest: str, task: str, share: float, role: str = "version", seed: int = 0) -> Row:
    """A measurement of `share` on a task."""
    dice = random.Random(f"{digest} {task} {seed}")
    right = round(COUNT * share)
    answers = [True] * right + [False] * (COUNT - right)
    dice.shuffle(answers)
    value, low, high = interval(answers, resamples=400)
    return Row(
        digest=digest,
        role=role,  # type: ignore[arg-type]
        task=task,
        member=task if role == "expert" else None,
        own=None,
        split="test",
        metric="accuracy",
        data="d" * 64,
        head="e" * 64,
        network="minilm float32",
        value=value,
        right=right,
        count=COUNT,
        low=low,
        high=high,
        level=0.95,
        seed=seed,
        device="cpu",
        time="2026-01-31T12:00:00.000Z",
        software={"plait": "0.1.0"},
        bits=pack(answers),
    )


def measure(line: Line, tasks: Iterable[str], entries: Iterable[int] | None = None) -> None:
    """Invent accuracies for the base, the experts and the versions after these entries (all by default)."""
    ledger = line.store.ledger.entries()
    chosen = set(entries) if entries is not None else {e["sequence"] for e in ledger}
    rows = []
    for place, task in enumerate(tasks):
        dice = random.Random(f"{task} {place}")
        base, expert = dice.uniform(0.2, 0.6), dice.uniform(0.85, 0.98)
        experts = {m["digest"] for e in ledger for m in e["members"] if m["task"] == task}
        rows += [row(line, digest, task, expert, "expert") for digest in sorted(experts)]
        seen = set()
        for entry in ledger:
            if entry["version"] in seen or not (entry["sequence"] in chosen or entry["sequence"] == 0):
                continue
            seen.add(entry["version"])
            inside = any(m["task"] == task for m in entry["members"])
            learned = (
                (expert - base) * (0.9 - 0.25 * min(1.0, len(entry["members"]) / 20)) if inside else 0.02
            )
            share = base if entry["sequence"] == 0 else min(1.0, base + learned + dice.uniform(-0.02, 0.02))
            rows.append(row(line, entry["version"], task, share))
    Rows(line.store).put(rows)
