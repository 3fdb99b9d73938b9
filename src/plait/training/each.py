"""A continual run in an ordinary loop: train on a task, merge, go on from the merged model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from inspect import signature
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.errors import UsageError
from plait.training.handing import Module, Turn, check_experts, hand_out, keep_expert, take_back

if TYPE_CHECKING:
    from plait.line import Line


class MergeEachTask:
    """Tasks one after the other: each gets the line's model as it is then, and what was trained is merged into the
    line when the loop asks for the next.

        for turn in MergeEachTask("line", "tasks.yaml", module):
            train(module, turn.task)

    Tasks that are members already are passed over, so that a run that ended goes on where it was. The task at hand is
    not merged where the loop is left by `break` or an error. Every expert says what it was trained from: the line
    knows the descent, and one with descent "last" takes nothing else.

    line: a line, or its folder; of any method. tasks: a tasks.yaml, or tasks by name, in the order in which they
    come; names alone will do where the method looks at no data. module: a torch module with the tensors of the line's
    base, and possibly private ones; it is filled with the model at each turn, in place. None: see `Turn.weights`.
    experts: a folder in which each expert stays as a checkpoint, under its task's name; needed under retention
    "statistics", where a member is taken out with its checkpoint. None: what the line keeps is all there is.
    words: of `Line.merge`, the same for all tasks, such as `private`.
    """

    def __init__(
        self,
        line: str | Path | Line,
        tasks: str | Path | Mapping[str, Any] | Sequence[str],
        module: Module = None,
        experts: str | Path | None = None,
        **words: Any,
    ) -> None:
        """RefusedInput where there is no line, or where the tasks.yaml makes no sense; UsageError for no tasks,
        for words that `Line.merge` does not take, or where experts that are needed again would lie nowhere."""
        from plait.line import Line

        self.line = line if isinstance(line, Line) else Line.open(line)
        if isinstance(tasks, (str, PathLike)):
            from plait.problem.task import load_tasks

            tasks = load_tasks(tasks)
        if tasks is None:
            raise UsageError(
                "tasks is None, expected a tasks.yaml, tasks by name, or names of tasks in their order"
            )
        own = {"self", "checkpoint", "task", "tasks"}  # given for each task
        strange = sorted(set(words) - (set(signature(Line.merge).parameters) - own))
        if strange:
            raise UsageError(
                f"{', '.join(strange)}: expected arguments of Line.merge that hold for every task, such as private"
            )
        check_experts(self.line, experts)
        self.experts = experts
        self.names = tuple(tasks)
        self.tasks = tasks if isinstance(tasks, Mapping) else None
        self.module = module
        self.words = words
        self.merged: dict[str, dict[str, Any]] = {}
        """What `Line.merge` returned, by task."""

    def __iter__(self) -> Iterator[Turn]:
        """Errors: those of `handing.hand_out` before a task is trained, those of `Line.merge` after."""
        for name in self.names:
            if any(member.task == name for member in self.line.members):
                if self.experts is not None:
                    keep_expert(self.line, name, self.experts)
                continue
            turn = hand_out(self.line, name, self.tasks, self.module, self.experts)
            yield turn
            self.merged[name] = take_back(self.line, turn, self.tasks, self.experts, **self.words)
