"""Which models of a line are to be measured on which tasks, and which of that is known already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from plait.errors import RefusedInput, UsageError
from plait.evaluation.bootstrap import LEVEL, interval
from plait.evaluation.matrix import Entry, holder, members, steps
from plait.evaluation.rows import Condition, Key, Row, Rows, key_of
from plait.line import subjects
from plait.line.subjects import Gone, Subject
from plait.problem.base import Split, Task
from plait.store import Store

BATCH = 64
SPLITS: tuple[Split, ...] = get_args(Split)


@dataclass(frozen=True)
class How:
    """What `evaluate` was asked for, beside models and tasks. network: python:module:function, or None for the one
    that the base's config.json describes."""

    split: Split = "test"
    batch: int = BATCH
    device: str = "cpu"
    dtype: str = "float32"
    network: str | None = None
    level: float = LEVEL
    seed: int = 0
    quiet: bool = True

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise UsageError(f"split is {self.split!r}, expected one of {', '.join(SPLITS)}")
        if type(self.batch) is not int or self.batch < 1:
            raise UsageError(f"batch is {self.batch!r}, expected a whole number of at least 1")
        interval([True], level=self.level, seed=self.seed, resamples=1)


@dataclass(frozen=True)
class Cell:
    """One model on one task. head_of: the member whose private tensors are put in place, if any. member: the task
    whose checkpoint serves this one, with private tensors or without; None where none was ever merged."""

    subject: Subject
    task: Task
    head_of: Mapping[str, Any] | None
    key: Key
    member: str | None = None

    @property
    def own(self) -> str:
        return self.head_of["digest"] if self.head_of else ""

    @property
    def place(self) -> tuple[str, str]:
        """What names its head."""
        return self.task.name, self.own


@dataclass
class Plan:
    """What there is and what is to be measured."""

    entries: Sequence[Entry]
    conditions: Mapping[str, Condition]
    subjects: list[Subject]
    have: list[Row] = field(default_factory=list)
    missing: list[Cell] = field(default_factory=list)
    skipped: list[dict[str, Any]] = field(default_factory=list)


def named(tasks: str | Path | Mapping[str, Task], only: Sequence[str]) -> dict[str, Task]:
    if not isinstance(tasks, Mapping):
        from plait.problem.task import load_tasks

        tasks = load_tasks(tasks)
    unknown = [name for name in only if name not in tasks]
    if unknown:
        raise RefusedInput(
            f"task {unknown[0]!r} is not among the tasks; there are {', '.join(tasks) or 'none'}"
        )
    return {name: task for name, task in tasks.items() if not only or name in only}


def condition_of(store: Store, task: Task, how: How) -> Condition:
    from plait.evaluation.measure import condition

    return condition(task, how.split, f"{how.network or store.settings['base']['name']} {how.dtype}")


def subjects_of(store: Store, version: str | None, every: bool) -> list[Subject]:
    """The base, versions oldest first, experts in order of arrival: each once."""
    entries = store.ledger.entries()
    base = entries[0]["version"]
    latest = {e["version"]: e for e in entries}
    head = entries[-1] if version is None else latest[version]
    wanted = dict.fromkeys(s.version for s in steps(entries)) if every else [head["version"]]
    own = members(entries) if every else {m["task"]: m for m in head["members"]}
    return [
        Subject("base", base, entries[0]),
        *(Subject("version", v, latest[v]) for v in wanted if v != base),
        *(Subject("expert", m["digest"], head, m) for m in own.values()),
    ]


def plan_of(
    store: Store, tasks: Mapping[str, Task], conditions: Mapping[str, Condition], asked: Sequence[Subject]
) -> Plan:
    entries = store.ledger.entries()
    plan = Plan(entries, conditions, list(asked))
    rows = {row.key: row for row in Rows(store).all()}
    last = members(entries)
    for subject in asked:
        mine = [t for t in tasks if subject.member is None or subject.member["task"] == t]
        for name in mine:
            member = subject.member or holder(subject.entry, last, name)
            try:
                cell = _cell(store, subject, tasks[name], conditions[name], member)
                if cell.key in rows:
                    plan.have.append(rows[cell.key])
                    continue
                subjects.check(store, subject)
                if cell.head_of is not None:
                    subjects.check_private(store, cell.head_of)
                plan.missing.append(cell)
            except Gone as error:
                plan.skipped.append(skipped(subject, name, error))
    return plan


def _cell(
    store: Store, subject: Subject, task: Task, condition: Condition, member: Mapping[str, Any] | None
) -> Cell:
    head_of = member if member and member["private"] else None
    if head_of is not None and not subjects.kept(store, head_of) and not stored(task):
        head_of = None  # the head does without them
    name = subject.member["task"] if subject.member else None
    own = head_of["digest"] if head_of else None
    key = key_of(condition, subject.digest, subject.role, name, own)
    return Cell(subject, task, head_of, key, member["task"] if member else None)


def stored(task: Task) -> bool:
    """Whether a task's head is made of a checkpoint's own tensors."""
    return task.head.kind == "model" or (task.head.kind == "linear" and bool(task.head.weight))


def skipped(subject: Subject, task: str, why: object) -> dict[str, Any]:
    name = subject.member["task"] if subject.member else None
    return {"role": subject.role, "digest": subject.digest, "member": name, "task": task, "why": str(why)}
