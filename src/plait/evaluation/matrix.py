"""The accuracy matrix of a line: its history from the ledger, its numbers from the rows. Computes nothing new."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from plait.evaluation.metrics import Cell
from plait.evaluation.rows import Condition, Row

Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Step:
    """A ledger entry that changed the members."""

    sequence: int
    verb: str
    task: str
    version: str
    members: tuple[str, ...]
    entry: Entry


@dataclass(frozen=True)
class Matrix:
    """Rows are steps of the line, columns are tasks. None: not measured.

    tasks: first in the order in which they arrived, then those that never were members. cells[k][i]: the model after
    step k on task i. base[i], experts[i]: the base, and the last checkpoint that was merged under the task's name.
    arrival[i]: the step at which the checkpoint that is a member now came; None where the task is no member now.
    weights[i]: its weight now, text where it has one for each tensor, or None.
    """

    steps: tuple[Step, ...]
    tasks: tuple[str, ...]
    cells: tuple[tuple[Row | None, ...], ...]
    base: tuple[Row | None, ...]
    experts: tuple[Row | None, ...]
    arrival: tuple[int | None, ...]
    weights: tuple[float | str | None, ...]

    def values(self) -> list[list[Cell]]:
        """The accuracies alone: a[k][i]."""
        return [accuracies(row) for row in self.cells]

    def members(self) -> list[int]:
        """The columns of tasks that are members now."""
        return [i for i, step in enumerate(self.arrival) if step is not None]


def accuracies(rows: Iterable[Row | None]) -> list[Cell]:
    return [None if row is None else row.value for row in rows]


def steps(entries: Sequence[Entry]) -> tuple[Step, ...]:
    """The events after which the members, their weights or their checkpoints are others than before."""
    found = []
    for before, entry in pairwise(entries):
        if _state(before) != _state(entry):
            names = tuple(m["task"] for m in entry["members"])
            found.append(
                Step(entry["sequence"], entry["verb"], entry["task"] or "", entry["version"], names, entry)
            )
    return tuple(found)


def latest(rows: Iterable[Row], split: str = "test") -> dict[str, Condition]:
    """For each task how it was measured last: what a reader without the task file goes by."""
    newest: dict[str, Row] = {}
    for row in rows:
        if row.split == split and (row.task not in newest or row.time >= newest[row.task].time):
            newest[row.task] = row
    return {task: row.condition for task, row in newest.items()}


def matrix(entries: Sequence[Entry], rows: Sequence[Row], conditions: Mapping[str, Condition]) -> Matrix:
    """Put rows in their places.

    entries: the whole ledger. conditions: for each task how it is measured; rows of others are left out. The columns
    are the tasks of `conditions`.
    """
    events = steps(entries)
    last = members(entries)
    columns = _order(entries, conditions)
    table = _Table(rows, conditions)
    base = entries[0]["version"]
    now = {m["task"]: m for m in entries[-1]["members"]}
    return Matrix(
        events,
        tuple(columns),
        tuple(tuple(table.version(s.version, t, holder(s.entry, last, t)) for t in columns) for s in events),
        tuple(table.version(base, t, last.get(t)) for t in columns),
        tuple(table.expert(t, last.get(t)) for t in columns),
        tuple(_arrival(events, t) if t in now else None for t in columns),
        tuple(now[t]["weight"] if t in now else None for t in columns),
    )


def members(entries: Sequence[Entry]) -> dict[str, Mapping[str, Any]]:
    """Every task that ever was a member, as it last was, in the order in which they first came."""
    found: dict[str, Mapping[str, Any]] = {}
    for entry in entries:
        for member in entry["members"]:
            found[member["task"]] = member
    return found


def holder(entry: Entry, last: Mapping[str, Mapping[str, Any]], task: str) -> Mapping[str, Any] | None:
    """The member whose private tensors serve a task in a version: its own there, else as it last was."""
    return next((m for m in entry["members"] if m["task"] == task), last.get(task))


class _Table:
    """Rows by model and task, those of the given conditions only."""

    def __init__(self, rows: Iterable[Row], conditions: Mapping[str, Condition]) -> None:
        self._versions: dict[tuple[str, str, str | None], Row] = {}
        self._experts: dict[tuple[str, str, str | None], Row] = {}
        for row in rows:
            if row.condition == conditions.get(row.task):
                if row.role == "expert":
                    self._experts[row.digest, row.task, row.member] = row
                else:
                    self._versions[row.digest, row.task, row.own] = row

    def version(self, digest: str, task: str, member: Mapping[str, Any] | None) -> Row | None:
        own = member["digest"] if member and member["private"] else None
        return self._versions.get((digest, task, own)) or self._versions.get((digest, task, None))

    def expert(self, task: str, member: Mapping[str, Any] | None) -> Row | None:
        return self._experts.get((member["digest"], task, task)) if member else None


def _state(entry: Entry) -> list[tuple[Any, ...]]:
    return [(m["task"], m["weight"], m["digest"]) for m in entry["members"]]


def _order(entries: Sequence[Entry], conditions: Mapping[str, Condition]) -> list[str]:
    came = [task for task in members(entries) if task in conditions]
    return came + [task for task in conditions if task not in came]


def _arrival(events: Sequence[Step], task: str) -> int:
    """The step at which the checkpoint that is there now came in."""
    wanted = next(m["digest"] for m in events[-1].entry["members"] if m["task"] == task)
    found = len(events) - 1
    for place in range(len(events) - 1, -1, -1):
        if not any(m["task"] == task and m["digest"] == wanted for m in events[place].entry["members"]):
            break
        found = place
    return found
