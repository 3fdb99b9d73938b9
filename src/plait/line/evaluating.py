"""Measuring a line on tasks: what is missing is measured, and all that is known of the tasks is put together."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from plait.errors import UsageError
from plait.evaluation.bootstrap import interval
from plait.evaluation.matrix import Matrix, accuracies, matrix
from plait.evaluation.rows import Condition, Row, Rows
from plait.evaluation.summary import figures, removals
from plait.line import views
from plait.line.build import Setting
from plait.line.measuring import Run
from plait.line.planning import How, Plan, condition_of, named, plan_of, subjects_of
from plait.line.subjects import Gone, Subject, check
from plait.problem.base import Task
from plait.store import Store


def evaluate(
    store: Store,
    setting: Callable[[], Setting],
    tasks: str | Path | Mapping[str, Task],
    how: How,
    *,
    only: Sequence[str] = (),
    version: str | None = None,
    every: bool = False,
) -> dict[str, Any]:
    """Fill the accuracy matrix: the base, a version (or every one) and its members' experts, on every task.

    What was measured before in the same way is not measured again. Each result is on the disk before the next is
    begun, so an interrupted command goes on where it was. The lock is held only where something is missing.
    Returns plain values; see docs/command-line.md for the keys.
    """
    began = time.monotonic()
    if every and version is not None:
        raise UsageError("one version and all of them were asked for; give --version or --all, not both")
    chosen = named(tasks, only)
    wanted = None if version is None else views.find(store, version)["version"]
    conditions = {name: condition_of(store, task, how) for name, task in chosen.items()}

    def planned() -> Plan:
        return plan_of(store, chosen, conditions, subjects_of(store, wanted, every))

    plan = planned()
    computed: list[Row] = []
    if plan.missing:
        with store.lock("eval"):
            plan = planned()
            computed = Run(store, setting(), how, plan).all()
    return _result(store, chosen, how, plan, computed, time.monotonic() - began)


def _result(
    store: Store, tasks: Mapping[str, Task], how: How, plan: Plan, computed: Sequence[Row], seconds: float
) -> dict[str, Any]:
    rows = [_fresh(row, how) for row in (*plan.have, *computed)]
    whole = matrix(plan.entries, Rows(store).all(), plan.conditions)
    order = {subject.digest + subject.role: place for place, subject in enumerate(plan.subjects)}
    rows.sort(key=lambda row: (order[row.digest + row.role], list(tasks).index(row.task)))
    now = [m["task"] for m in plan.entries[-1]["members"]]
    return {
        "split": how.split,
        "tasks": [_task(task, plan.conditions[name], name in now) for name, task in tasks.items()],
        "members": now,
        "rows": [row.plain() for row in rows],
        "matrix": _plain(whole),
        "figures": figures(whole).plain(),
        "removals": [removal.plain() for removal in removals(whole)],
        "computed": len(computed),
        "reused": len(plan.have),
        "skipped": plan.skipped,
        "lost": _lost(store, plan, whole),
        "notes": _notes(rows, [name for name in now if name not in tasks]),
        "seconds": round(seconds, 3),
    }


def _lost(store: Store, plan: Plan, whole: Matrix) -> list[str]:
    """The members without an accuracy of the expert, or of the version with which it came, that cannot be measured
    any more: what the plasticity gap needs."""
    latest = {entry["version"]: entry for entry in plan.entries}
    now = {m["task"]: m for m in plan.entries[-1]["members"]}
    found = []
    for column in whole.members():
        task, came = whole.tasks[column], whole.arrival[column]
        needs = []
        if whole.experts[column] is None:
            needs.append(Subject("expert", now[task]["digest"], plan.entries[-1], now[task]))
        if came is not None and whole.cells[came][column] is None:
            version = whole.steps[came].version
            needs.append(Subject("version", version, latest[version]))
        if any(_gone(store, subject) for subject in needs):
            found.append(task)
    return found


def _gone(store: Store, subject: Subject) -> bool:
    try:
        check(store, subject)
    except Gone:
        return True
    return False


def _fresh(row: Row, how: How) -> Row:
    """The row with an interval of the level and seed asked for."""
    if (row.level, row.seed) == (how.level, how.seed):
        return row
    _, low, high = interval(row.answers, groups=row.groups, level=how.level, seed=how.seed)
    return replace(row, low=low, high=high, level=how.level, seed=how.seed)


def _task(task: Task, condition: Condition, member: bool) -> dict[str, Any]:
    words = asdict(condition)
    return {
        **{k: v for k, v in words.items() if k != "task"},
        "name": task.name,
        "kind": task.kind,
        "member": member,
    }


def _notes(rows: Sequence[Row], unmeasured: Sequence[str]) -> list[str]:
    found = []
    if unmeasured:
        found.append(f"no task is given for {', '.join(unmeasured)}; the figures are over the other members")
    for row in rows:
        if row.undefined:
            found.append(
                f"{row.undefined} of {row.count} answers of {row.role} {row.digest[:12]} on {row.task} are NaN; "
                "they count as wrong"
            )
    return found


def _plain(whole: Matrix) -> dict[str, Any]:
    def ends(name: str) -> list[list[float | None]]:
        return [[None if cell is None else getattr(cell, name) for cell in row] for row in whole.cells]

    return {
        "tasks": list(whole.tasks),
        "steps": [
            {"sequence": s.sequence, "verb": s.verb, "task": s.task, "version": s.version}
            for s in whole.steps
        ],
        "values": whole.values(),
        "low": ends("low"),
        "high": ends("high"),
        "base": accuracies(whole.base),
        "experts": accuracies(whole.experts),
        "arrival": list(whole.arrival),
    }
