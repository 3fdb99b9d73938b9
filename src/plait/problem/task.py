"""Tasks of a tasks.yaml. See docs/tasks.md for its keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from plait.errors import RefusedInput, shown
from plait.problem.base import Examples, HeadSpec, Kind, Split, Task
from plait.problem.content import make_examples
from plait.problem.data import Source, read_texts
from plait.problem.images import Folder
from plait.problem.labels import class_names, numbers
from plait.problem.npz import Npz
from plait.problem.python import call
from plait.problem.spec import Part, Places, TaskSpec, read_spec
from plait.problem.splits import Pool, Row, Share, cut
from plait.recipe.findings import Findings, stands
from plait.recipe.reader import load_yaml, read_text
from plait.types import TASK_NAME, is_task_name


def load_tasks(path: str | Path, data: str | Path | None = None) -> dict[str, Task]:
    """The tasks of a tasks.yaml by name, in its order. No data is read before examples are asked for.

    data: the folder that $PLAIT_DATA stands for in the file; None takes the environment's. RefusedInput names all
    that is wrong with the file on one line: unknown keys, kinds and values, names that no task can have, files that
    do not exist.
    """
    file = Path(path)
    found = load_yaml(read_text(file, "list of tasks"), str(file), "list of tasks")
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        what = "empty" if found is None else shown(found)
        raise RefusedInput(f"{file}: is {what}; expected the key tasks, and defaults where they have any")
    findings = Findings(str(file))
    findings.keys("", found, ("tasks", "defaults"))
    defaults = findings.mapping("defaults", found.get("defaults"))
    places = Places(file.parent, None if data is None else Path(data))
    tasks: dict[str, Task] = {}
    for name, row in _named(found.get("tasks"), findings):
        made = _made(name, row, defaults, places, findings)
        if made is not None:
            tasks[name] = made
    findings.settle()
    return tasks


def _made(
    name: str, row: Mapping[str, Any], defaults: Mapping[str, Any], places: Places, findings: Findings
) -> Task | None:
    if "python" in row:
        return call(name, row, places, findings)
    spec = read_spec(name, {**defaults, **row}, places, findings)
    return None if spec is None else FileTask(spec)


def _named(value: Any, findings: Findings) -> list[tuple[str, dict[str, Any]]]:
    """Names and words of all tasks, from a mapping by name or from a list with a `name` in each."""
    if not isinstance(value, (dict, list)) or not value:
        findings.refuse(
            f"tasks {stands(value)}, expected tasks by name, or a list of tasks with a name in each"
        )
        return []
    if isinstance(value, dict):
        rows = [(name, findings.mapping(f"tasks.{name}", row)) for name, row in value.items()]
    else:
        listed = [row for _, row in findings.rows("tasks", value, "name")]
        rows = [(row.get("name"), {k: v for k, v in row.items() if k != "name"}) for row in listed]
    named: dict[str, dict[str, Any]] = {}
    for name, row in rows:
        if not isinstance(name, str) or not is_task_name(name):
            findings.refuse(f"the task name {shown(name)} cannot be used; expected {TASK_NAME}")
        elif name in named:
            findings.refuse(f"two tasks are called {shown(name)}; expected a name of its own for each")
        else:
            named[name] = row
    return list(named.items())


@dataclass(frozen=True, eq=False)
class FileTask:
    """A task whose examples are in files."""

    spec: TaskSpec
    _kept: dict[Split, Examples] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def kind(self) -> Kind:
        return self.spec.kind

    @property
    def head(self) -> HeadSpec:
        return self.spec.head

    @property
    def classes(self) -> tuple[str, ...]:
        return self._names[0]

    def examples(self, split: Split) -> Examples:
        """Read once, then kept. RefusedInput where the data does not hold what the task says of it, or where two of
        the task's splits overlap. To know that, all of them are walked through, but only `split` is kept."""
        if split not in self.spec.parts:
            raise RefusedInput(
                f"{self.name}: has no {split} examples; expected splits.{split} in tasks.yaml, where it has "
                f"{', '.join(self.spec.parts)}"
            )
        if split not in self._kept:
            rows = self._rows[split]
            inputs = self._sources[self.spec.parts[split].data].take([row.index for row in rows])
            labels = [row.label for row in rows if row.label is not None]
            self._kept[split] = make_examples(inputs, None if self.kind == "causal-lm" else labels)
        return self._kept[split]

    @cached_property
    def _names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return class_names(self.spec)

    @cached_property
    def _sources(self) -> dict[Path, Source]:
        return {
            path: _open(self.spec, path) for path in {part.data: None for part in self.spec.parts.values()}
        }

    @cached_property
    def _rows(self) -> dict[Split, list[Row]]:
        spec = self.spec
        _ = self._names  # what is wrong with the classes is said first
        pools: dict[Pool, list[Row]] = {}
        shares = {split: self._share(split, part, pools) for split, part in spec.parts.items()}
        most: dict[Split, int] = {}
        if spec.max_test is not None:
            most["test"] = spec.max_test
        if spec.max_train is not None:
            most["train"] = spec.max_train
        return cut(spec.name, shares, seed=spec.seed, most=most, overlap=spec.overlap)

    def _share(self, split: Split, part: Part, pools: dict[Pool, list[Row]]) -> Share:
        """What a split takes. pools: rows that were read already, for splits that share them."""
        source = self._sources[part.data]
        pool = str(source.path.resolve()), None if source.splits is None else part.rows
        if pool not in pools:
            rows = _chosen(self.name, split, part, source)
            labels: Sequence[int | None] = [None] * len(rows)
            if source.labels is not None:
                labels = numbers(self.name, source, rows, self._names[1])
            pools[pool] = [
                Row(pool[0], row, key, source.exact(row), label, source.where(row))
                for row, key, label in zip(rows, source.keys(rows), labels, strict=True)
            ]
        return Share(pools[pool], pool, part.count, part.share)


def _open(spec: TaskSpec, path: Path) -> Source:
    if path.is_dir():
        return Folder(path, spec.size)
    if path.suffix == ".npz":
        return Npz(path, spec.columns, spec.size)
    return read_texts(path, spec.columns, labelled=spec.kind != "causal-lm")


def _chosen(task: str, split: Split, part: Part, source: Source) -> list[int]:
    """The rows that a split takes or draws from."""
    if source.splits is None:
        if part.named:
            raise RefusedInput(
                f"{task}: splits.{split} takes rows {', '.join(part.rows or ())}, but {source.path} says of no row "
                "which split it is of; expected a column for that: name it in columns.split, or remove rows"
            )
        found = list(range(len(source)))
    else:
        found = [i for i, name in enumerate(source.splits) if part.rows is None or name in part.rows]
    if not found:
        what = (
            "rows"
            if source.splits is None or part.rows is None
            else f"rows of the split {', '.join(part.rows)}"
        )
        there = f"it has {', '.join(sorted(set(source.splits)))}" if source.splits else "it is empty"
        raise RefusedInput(
            f"{task}: {split} is empty: {source.path} has no {what}; {there}: correct splits.{split} or remove it"
        )
    return found
