"""Tasks that a function of the user makes: `python: module:function` in tasks.yaml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from plait.errors import PlaitError, RefusedInput, shown
from plait.problem.base import Examples, HeadSpec, Kind, Split, Task
from plait.problem.content import key
from plait.problem.spec import Places
from plait.problem.splits import Row, refuse_overlap
from plait.recipe.findings import Findings
from plait.tensors import Tensor, torch


@dataclass(frozen=True, eq=False)
class PythonTask:
    """A task that a function of the user made. Its examples are looked over once, then kept."""

    made: Task
    _kept: dict[Split, Examples] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        return self.made.name

    @property
    def kind(self) -> Kind:
        return self.made.kind

    @property
    def classes(self) -> tuple[str, ...]:
        return self.made.classes

    @property
    def head(self) -> HeadSpec:
        return self.made.head

    def examples(self, split: Split) -> Examples:
        """RefusedInput where there are none, where labels do not fit, or where they overlap with a split that was
        read before (texts and images; other inputs are not compared)."""
        if split not in self._kept:
            found = self.made.examples(split)
            self._look_over(split, found)
            self._kept[split] = found
        return self._kept[split]

    def _look_over(self, split: Split, found: Examples) -> None:
        """Refuse what is empty, labels that are no classes, and overlaps with splits that were read before."""
        at = f"{self.name}: {split}"
        if not isinstance(found, Examples) or len(found) == 0:
            raise RefusedInput(
                f"{at} is empty or no Examples ({shown(found)}); expected at least one example"
            )
        labels, classes = found.labels, len(self.classes)
        if labels is not None:
            whole = labels.dtype == torch.int64 and tuple(labels.shape) == (len(found),)
            if not whole or int(labels.min()) < 0 or int(labels.max()) >= classes:
                what = f"go from {int(labels.min())} to {int(labels.max())}" if whole else _form(labels)
                raise RefusedInput(
                    f"{at}: the labels {what}; expected int64 ({len(found)},), one number from 0 to {classes - 1} "
                    "for each example"
                )
        elif self.classes:
            raise RefusedInput(f"{at}: has classes but no labels; expected {len(found)} numbers of classes")
        read = {s: _rows_of(s, examples) for s, examples in {**self._kept, split: found}.items()}
        refuse_overlap(self.name, read, "change what the function returns")


def _rows_of(split: Split, examples: Examples) -> list[Row]:
    first = examples.inputs[0]
    if not isinstance(first, str) and getattr(getattr(first, "dtype", None), "name", "") != "uint8":
        return []  # numbers of tokens and the like have no notion of equality here
    return [
        Row(split, i, key(one), "", None, f"{split} example {i + 1}") for i, one in enumerate(examples.inputs)
    ]


def _form(labels: Tensor) -> str:
    return f"are {str(labels.dtype).removeprefix('torch.')} {tuple(labels.shape)}"


def call(name: str, row: Mapping[str, Any], places: Places, findings: Findings) -> PythonTask | None:
    """Call the function of a `python: module:function` with the task's other keys, `name` and `folder`."""
    word = row["python"]
    if not isinstance(word, str) or not re.fullmatch(r"[\w.]+:\w+", word):
        findings.refuse(f"{name}.python is {shown(word)}, expected module:function")
        return None
    if row.get("kind", "python") != "python":
        findings.refuse(f"{name} has a kind and python; expected one of them: remove the other")
        return None
    words = {k: v for k, v in row.items() if k not in ("python", "kind")}
    if "data" in words:
        words["data"] = str(places.of(f"{name}.data", words["data"], findings))
    if findings.wrong:
        return None
    module, _, function = word.partition(":")
    try:
        made = getattr(import_module(module), function)({**words, "name": name, "folder": str(places.folder)})
    except PlaitError:
        raise
    except Exception as error:
        what = str(error).splitlines()[0] if str(error) else "it gives no reason"
        raise RefusedInput(
            f"{findings.source}: {name}: {word} failed ({type(error).__name__}: {what}); expected a function that "
            "takes the task's keys and returns a Task"
        ) from error
    lacking = [part for part in ("name", "kind", "classes", "head", "examples") if not hasattr(made, part)]
    if lacking or made.name != name:
        what = f"without {', '.join(lacking)}" if lacking else f"called {shown(made.name)}"
        raise RefusedInput(
            f"{findings.source}: {name}: {word} returned {shown(made)}, {what}; expected a Task called {name!r}"
        )
    return PythonTask(made)
