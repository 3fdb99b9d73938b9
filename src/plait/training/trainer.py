"""The same for the `Trainer` of transformers (extra `hf`): a callback that merges what was trained."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.errors import RefusedInput
from plait.training.handing import Turn, check_experts, hand_out, take_back

if TYPE_CHECKING:
    from plait.line import Line

NOTE = "plait_start.json"
"""In the folder of the trainer's checkpoints: what model was handed out, for a run that is taken up again."""


def merge_callback(
    line: str | Path | Line,
    name: str,
    tasks: str | Path | Mapping[str, Any] | None = None,
    experts: str | Path | None = None,
    **words: Any,
) -> Any:
    """A `transformers.TrainerCallback`: when training begins the model becomes the line's, when it ends it is merged
    as the task `name`. `callback.merged` is then what `Line.merge` returned.

    A run that is taken up from one of the trainer's checkpoints goes on with its weights. Only the main process
    merges; a model whose weights are spread over processes cannot be merged so. tasks, words: as for `Line.merge`;
    experts: as for `MergeEachTask`.
    Errors: PlaitError where transformers is not installed, else those of `handing.hand_out` and `Line.merge`.
    """
    from plait.line import Line
    from plait.problem.hf import callback_class

    if isinstance(tasks, (str, PathLike)):
        from plait.problem.task import load_tasks

        tasks = load_tasks(tasks)
    held = line if isinstance(line, Line) else Line.open(line)
    check_experts(held, experts)

    class Merge(callback_class()):  # type: ignore[misc]
        """See `merge_callback`."""

        turn: Turn | None = None
        merged: dict[str, Any] | None = None

        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **more: Any) -> None:
            note = Path(args.output_dir) / NOTE
            if state.global_step:
                self.turn = _again(note, name, model)
                return
            self.turn = hand_out(held, name, tasks, model, experts)
            if state.is_world_process_zero:
                note.parent.mkdir(parents=True, exist_ok=True)
                told = {"task": name, "start": self.turn.start, "tasks": list(self.turn.held)}
                note.write_text(json.dumps(told) + "\n", encoding="utf-8")

        def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **more: Any) -> None:
            if state.is_world_process_zero and self.turn is not None:
                self.turn.module = model
                self.merged = take_back(held, self.turn, tasks, experts, **words)

    return Merge()


def _again(note: Path, name: str, model: Any) -> Turn:
    """The turn of a run that is taken up again."""
    try:
        told = json.loads(note.read_text(encoding="utf-8"))
        found = Turn(told["task"], None, told["start"], tuple(told["tasks"]), model)
    except (OSError, ValueError, KeyError, TypeError):
        raise RefusedInput(
            f"{note}: is not there or makes no sense, and it tells what this run was begun from; train from the start"
        ) from None
    if found.name != name:
        raise RefusedInput(f"{note}: is of task {found.name}, this run is of {name}; take another output_dir")
    return found
