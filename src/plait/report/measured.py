"""What was measured on a line, as plain values: accuracies by version and task, figures over the stream, removals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plait.evaluation.bootstrap import difference
from plait.evaluation.matrix import Entry, Matrix, Step, latest, matrix
from plait.evaluation.metrics import Cell, removal_fidelity, removal_forget, removal_retain
from plait.evaluation.rows import Condition, Row, Rows
from plait.evaluation.summary import figures
from plait.store import Store


@dataclass(frozen=True)
class Measured:
    """The rows of a line in their places. conditions: how each measured task was measured last. matrix: a column for
    each of them and for members that were never measured."""

    rows: tuple[Row, ...]
    conditions: Mapping[str, Condition]
    matrix: Matrix

    @classmethod
    def of(cls, store: Store, entries: Sequence[Entry]) -> Measured:
        rows = tuple(Rows(store).all())
        known = latest(rows)
        never = {m["task"]: Condition(m["task"], "", "", "", "", "") for m in entries[-1]["members"]}
        return cls(rows, known, matrix(entries, rows, {**never, **known}))

    def figures(self) -> list[dict[str, Any]]:
        """The figures after every step, over the members of then that were measured."""
        full = self.matrix
        experts = {(r.digest, r.task): r for r in self.rows if r.role == "expert" and r.member == r.task}
        experts = {k: r for k, r in experts.items() if r.condition == self.conditions.get(r.task)}
        columns = [i for i, task in enumerate(full.tasks) if task in self.conditions]
        since: dict[str, tuple[str, int]] = {}
        found = []
        for k, step in enumerate(full.steps):
            here = {m["task"]: m for m in step.entry["members"]}
            since = {t: _since(since.get(t), m["digest"], k) for t, m in here.items()}
            tasks = tuple(full.tasks[i] for i in columns)
            part = Matrix(
                full.steps[: k + 1],
                tasks,
                tuple(tuple(row[i] for i in columns) for row in full.cells[: k + 1]),
                tuple(full.base[i] for i in columns),
                tuple(experts.get((here[t]["digest"], t)) if t in here else None for t in tasks),
                tuple(since[t][1] if t in here else None for t in tasks),
                tuple(here[t]["weight"] if t in here else None for t in tasks),
            )
            found.append(figures(part).plain())
        return found


def _since(before: tuple[str, int] | None, digest: str, step: int) -> tuple[str, int]:
    """(digest, the step from which on it is there without a break)."""
    return before if before is not None and before[0] == digest else (digest, step)


def evaluation(measured: Measured) -> dict[str, Any]:
    """Accuracies and figures.

    A cell is {value, low, high (ends of its interval), level, right, count, undefined (answers that were NaN, counted
    as wrong)} or null where nothing was measured; values are shares from 0 to 1.

    rows   number of measurements that the line keeps
    other  how many of them were made otherwise than the newest of their task, and are not told here
    tasks  list of {task, member (whether it is one now), now, base, expert: cells, split, metric, data, network}, in
           order of arrival; tasks that were measured, and members that were not
    steps  list of {sequence, verb, task, version, members (for every column whether the task is a member), cells (by
           column), measured (whether any is), figures (see `evaluation.summary.Figures`)}: the ledger entries that
           changed the members
    """
    table, told = measured.matrix, measured.figures()
    return {
        "rows": len(measured.rows),
        "other": sum(row.condition != measured.conditions.get(row.task) for row in measured.rows),
        "tasks": [_task(measured, i) for i in range(len(table.tasks))],
        "steps": [
            {
                "sequence": step.sequence,
                "verb": step.verb,
                "task": step.task,
                "version": step.version,
                "members": [task in step.members for task in table.tasks],
                "cells": [cell(row) for row in rows],
                "measured": any(rows),
                "figures": of_step,
            }
            for step, rows, of_step in zip(table.steps, table.cells, told, strict=True)
        ],
    }


def _task(measured: Measured, column: int) -> dict[str, Any]:
    table = measured.matrix
    name = table.tasks[column]
    known = measured.conditions.get(name)
    return {
        "task": name,
        "member": table.arrival[column] is not None,
        "now": cell(table.cells[-1][column] if table.cells else table.base[column]),
        "base": cell(table.base[column]),
        "expert": cell(table.experts[column]),
        **{key: getattr(known, key, None) for key in ("split", "metric", "data", "network")},
    }


def cell(row: Row | None) -> dict[str, Any] | None:
    """A measurement as the report tells it."""
    if row is None:
        return None
    return {k: getattr(row, k) for k in ("value", "low", "high", "level", "right", "count", "undefined")}


def _same_answers(one: Row, two: Row) -> bool:
    """Whether two measurements are of the same answers in the same order."""
    return one.condition == two.condition and one.count == two.count and one.groups == two.groups


def removals(entries: Sequence[Entry], measured: Measured) -> list[dict[str, Any]]:
    """Every unmerge: its receipt, the versions before and after, and what it did to every task that was measured.

    List of {sequence, time, task, weight, how, exact, note, before, after, never_merged (digests), same_bytes (after
    is never_merged), again (other ledger entries with the version after), retain, fidelity, forget (see
    `evaluation.metrics`), tasks: list of {task, gone, base, before, after, never: cells, change: {value, low, high}
    from before to after on the same examples}}.
    """
    table = measured.matrix
    places = {step.sequence: k for k, step in enumerate(table.steps)}
    found = []
    for entry in entries:
        if entry["verb"] == "unmerge" and entry["sequence"] in places:
            k = places[entry["sequence"]]
            found.append(_removal(entries, entry, table, k))
    return found


def _removal(entries: Sequence[Entry], entry: Entry, table: Matrix, k: int) -> dict[str, Any]:
    receipt = entry["receipt"] or {}
    after = table.steps[k]
    same = receipt.get("never_merged") == entry["version"] and bool(receipt.get("exact"))
    columns = [i for i in range(len(table.tasks)) if _concerned(table, k, i, after)]
    effects = [_effect(table, k, i, after, same) for i in columns]
    return {
        "sequence": entry["sequence"],
        "time": entry["time"],
        "task": entry["task"],
        **{key: receipt.get(key) for key in ("weight", "how", "exact", "note", "never_merged")},
        "before": entries[entry["sequence"] - 1]["version"],
        "after": entry["version"],
        "same_bytes": same,
        "again": [n for n in _left(entries, entry["version"]) if n < entry["sequence"]],
        **_figures(effects, same),
        "tasks": effects,
    }


def _left(entries: Sequence[Entry], version: str) -> list[int]:
    """The entries that made this version the deployed one; exports and purges only found it there."""
    return [
        e["sequence"] for e in entries if e["version"] == version and e["verb"] not in ("export", "purge")
    ]


def _figures(effects: Sequence[Mapping[str, Any]], same: bool) -> dict[str, Cell]:
    """What the removal cost the tasks that stayed, how far it is from never merged, and what is left of the task."""

    def values(key: str, *, gone: bool) -> list[Cell]:
        return [row[key] and row[key]["value"] for row in effects if row["gone"] is gone]

    before, after = (
        [None, *values(key, gone=False)] for key in ("before", "after")
    )  # the first place is the task's
    left = zip(values("after", gone=True), values("base", gone=True), strict=True)
    return {
        "retain": removal_retain(before, after, 0),
        "fidelity": removal_fidelity(after, after, 0) if same else None,
        "forget": next((removal_forget(now, base) for now, base in left), None),
    }


def _concerned(table: Matrix, k: int, column: int, after: Step) -> bool:
    """Whether a task belongs in the table of an unmerge: it left or stayed, and was measured before or after."""
    task = table.tasks[column]
    known = table.cells[k][column] or (table.cells[k - 1][column] if k else None)
    return known is not None and (task == after.task or task in after.members)


def _effect(table: Matrix, k: int, column: int, after: Step, same: bool) -> dict[str, Any]:
    two = table.cells[k][column]
    one = table.cells[k - 1][column] if k else None
    change = None
    if one is not None and two is not None and _same_answers(one, two):
        change = difference(one.answers, two.answers, groups=one.groups)._asdict()
    return {
        "task": table.tasks[column],
        "gone": table.tasks[column] == after.task,
        "base": cell(table.base[column]),
        "before": cell(one),
        "after": cell(two),
        "never": cell(two) if same else None,
        "change": change,
    }
