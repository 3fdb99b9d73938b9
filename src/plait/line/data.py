"""The data of a member: which of a task's examples a method needs, and how they come into the line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.errors import RefusedInput, UsageError
from plait.methods.base import Method, ModelMethod, Wants

if TYPE_CHECKING:
    from plait.line.build import Setting
    from plait.problem.base import Split, Task
    from plait.problem.heads import Linear
    from plait.problem.stored import StoredTask

SAMPLES = 1024
"""Examples of a split that are drawn where the method has no option `samples`."""

Tasks = str | Path | Mapping[str, Any]
"""A tasks.yaml, or tasks by name."""


@dataclass(frozen=True)
class Need:
    """What a method needs of a member's task. wants: see `Method.wants`. splits: of which examples are drawn, at most
    `samples` each. every: whether the examples of all members are needed at each merge, not those of the one that
    comes in only."""

    wants: Wants
    splits: tuple[Split, ...]
    samples: int
    every: bool

    @property
    def data(self) -> str:
        """The same in the words of `Facts.data`."""
        if self.wants == "moments":
            return "unlabelled"
        return "labelled all" if self.every else "labelled new"

    @property
    def head(self) -> bool:
        """Whether the task's head is needed: moments are those of the network's inner layers."""
        return self.wants != "moments"


def need_of(method: Method) -> Need | None:
    """None for a method that looks at no data.

    A method says `wants`; it may have an option `samples`, and an attribute `splits`, the names of the splits that it
    looks at (calibration alone where it has none). Where 0 stands for a number of its own, `resolved()` has it.
    """
    wants: Wants = method.wants
    if isinstance(method, ModelMethod):
        wants = "" if method.facts.data == "none" else "problem"
    if not wants:
        return None
    splits = tuple(getattr(method, "splits", ("calibration",)))
    resolved = getattr(method, "resolved", lambda: method)()
    samples = int(getattr(resolved, "samples", SAMPLES))
    return Need(wants, splits, samples or SAMPLES, wants == "problem" and method.facts.data != "labelled new")


def why(method: Method, need: Need) -> str:
    """What a method needs, in words."""
    what = {
        "moments": "second moments of what goes into each linear layer",
        "fisher": "the Fisher information of each task",
        "problem": "losses on each task" if need.every else "losses on the task that comes in",
    }[need.wants]
    return f"method {method.name} computes {what} from {' and '.join(need.splits)} examples"


def check_retention(method: Method, retention: str) -> None:
    """UsageError where a line that keeps so little cannot give the method what it needs at each merge."""
    need = need_of(method)
    if need is not None and need.every and retention != "vectors":
        raise UsageError(
            f"{why(method, need)} at each merge, and retention {retention} keeps no examples; use vectors"
        )


def find_task(method: Method, need: Need, tasks: Tasks | None, name: str) -> Task:
    """The task of a member. UsageError where no tasks were handed in; RefusedInput where it is not among them."""
    if tasks is None:
        raise UsageError(
            f"{why(method, need)}: hand in a tasks.yaml that says where those of {name} are with --tasks FILE (see "
            "docs/tasks.md)"
        )
    if not isinstance(tasks, Mapping):
        from plait.problem.task import load_tasks

        tasks = load_tasks(tasks)
    if name not in tasks:
        raise RefusedInput(
            f"task {name!r} is not among the tasks that were handed in; there are {', '.join(tasks) or 'none'}; give "
            "the member the name of its task"
        )
    found: Task = tasks[name]
    return found


def collect(setting: Setting, need: Need, task: Task, file: Path) -> dict[str, Any]:
    """Draw the examples that are needed and write them, with all that makes the task's head, into `file`.

    Returns what the ledger says of them: {split: {count, of, digest}}. RefusedInput where they cannot be stored.
    """
    from plait.problem.stored import draw, write_stored

    drawn = {split: draw(task, split, need.samples, setting.seed) for split in need.splits}
    if any(one.examples.labels is None for one in drawn.values()) and task.kind != "causal-lm" and need.head:
        raise RefusedInput(f"{task.name}: its examples have no labels, and losses need them")
    fitted = fit(setting, task) if need.head and is_fitted(task) else None
    words: dict[str, Any] = write_stored(file, task, drawn, fitted)["splits"]
    return words


def is_fitted(task: Task) -> bool:
    """Whether a task's head is fitted to its training examples."""
    return task.head.kind == "linear" and not task.head.weight


def fit(setting: Setting, task: Task) -> Linear:
    """A linear head on the base's features."""
    from plait.line.problem import networks_of
    from plait.problem.heads import Linear, make_head

    networks = networks_of(setting)
    network = networks.of(task)
    made = make_head(task, network, networks.load(setting.base.tensors))
    if not isinstance(made, Linear):
        raise TypeError(f"{task.name}: expected a linear head, found {type(made).__name__}")
    return made


def stored_task(setting: Setting, digest: str) -> StoredTask:
    """The task that an object of the line holds."""
    from plait.problem.stored import read_stored

    return read_stored(setting.store.objects.path(digest))
