"""A line's model, handed out to be trained on a task by the user's loop, and taken back as that task's expert."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.checkpoint.format import FileWriter
from plait.checkpoint.names import map_names
from plait.checkpoint.sidecars import TRAINING
from plait.errors import RefusedInput, UsageError
from plait.tensors import Tensor, torch
from plait.types import DTYPES

if TYPE_CHECKING:
    from plait.line import Line
    from plait.line.build import Setting
    from plait.line.data import Tasks
    from plait.problem.base import Task

Module = Any
"""A torch.nn.Module."""


@dataclass
class Turn:
    """The model that is to be trained on a task.

    name: of the task. task: its data, None where the tasks are only named. start: root digest of the model that was
    handed out; held: the tasks whose influence it carries. module: the user's module, which holds the model; None
    where there is none. weights: without a module, the model's tensors by the base's names, new ones: train these in
    place, or put others in.
    """

    name: str
    task: Task | None
    start: str
    held: tuple[str, ...]
    module: Module = None
    weights: dict[str, Tensor] = field(default_factory=dict)


def hand_out(
    line: Line, name: str, tasks: Tasks | None, module: Module = None, experts: str | Path | None = None
) -> Turn:
    """The line's model, in the module's tensors where there is a module. experts: as for `take_back`.

    RefusedInput where the expert's folder is there already, or the merge would be refused for what is known before
    training: the line's method looks at data, and there is none of this task; the head does not tell the labels
    apart; the module is not the base's network. UsageError where the method looks at data and no tasks came.
    """
    from plait.line.build import open_version
    from plait.line.subjects import load
    from plait.line.views import holds, last

    if any(member.task == name for member in line.members):
        raise RefusedInput(f"task {name} is a member already; nothing is to be trained for it")
    _free(experts, name)
    setting = line._setting()
    head = last(line.store)
    weights = load(open_version(line.model).tensors, "cpu", None)
    check_data(setting, name, tasks, weights)
    held = tuple(sorted(holds(head))) if head["version"] != setting.base_digest else ()
    task = tasks.get(name) if isinstance(tasks, Mapping) else None
    turn = Turn(name, task, str(head["version"]), held, module)
    if module is None:
        turn.weights = weights
    else:
        fill(module, weights, setting)
    return turn


def check_experts(line: Line, experts: str | Path | None) -> None:
    """UsageError for a line that needs its members' checkpoints again to take them out, where nobody keeps them."""
    if line.store.settings["retention"] == "statistics" and experts is None:
        raise UsageError(
            "this line keeps sums only, and a member is taken out with its checkpoint, which a loop leaves nowhere: "
            "give experts, a folder to keep them in, or make the line with retention vectors"
        )


def take_back(
    line: Line, turn: Turn, tasks: Tasks | None, experts: str | Path | None = None, **words: Any
) -> dict[str, Any]:
    """Merge what was trained; returns what `Line.merge` does. The expert lies beside the line until it is a member,
    and stays there where the merge fails. experts: a folder to which it then goes, under the task's name; None
    deletes it."""
    place = _beside(line, turn.name)
    shutil.rmtree(place, ignore_errors=True)
    write(place, turn, line._setting())
    try:
        _free(experts, turn.name)
        done = line.merge(place, turn.name, tasks=tasks if _looks(line) else None, **words)
    except Exception as error:
        error.add_note(f"the expert is in {place}; merge it by hand, or train it again")
        raise
    if experts is None:
        shutil.rmtree(place)
    else:
        keep_expert(line, turn.name, experts)
    return done


def keep_expert(line: Line, name: str, experts: str | Path) -> None:
    """Move the expert of a task that is a member from beside the line into its folder, if it lies there: a run that
    was killed may have left it."""
    place = _beside(line, name)
    if place.exists() and not (Path(experts) / name).exists():
        Path(experts).mkdir(parents=True, exist_ok=True)
        shutil.move(place, Path(experts) / name)


def _beside(line: Line, name: str) -> Path:
    return line.path.with_name(f".{line.path.name}.{name}")


def _free(experts: str | Path | None, name: str) -> None:
    if experts is not None and (Path(experts) / name).exists():
        raise RefusedInput(
            f"{Path(experts) / name} exists, and the expert of {name} is to lie there; move it away"
        )


def _looks(line: Line) -> bool:
    from plait.line.data import need_of

    return need_of(line._setting().method) is not None


def check_data(
    setting: Setting, name: str, tasks: Tasks | None, weights: Mapping[str, Tensor] | None = None
) -> None:
    """What the line's method needs of a task is there, and its labels are among what the head tells apart."""
    from plait.line.data import find_task, need_of

    need = need_of(setting.method)
    if need is None:
        return
    task = find_task(setting.method, need, tasks, name)
    for split in need.splits:
        found = task.examples(split)
        if not len(found):
            raise RefusedInput(
                f"{name}: has 0 {split} examples, and method {setting.method.name} looks at them; add some"
            )
        if found.labels is None or not need.head or not task.classes:
            continue
        highest = int(found.labels.max())
        if highest >= len(task.classes):
            raise RefusedInput(
                f"{name}: its head tells {len(task.classes)} classes apart and there is a label {highest}; give it "
                "all classes of the task"
            )
        if task.head.kind == "model" and weights is not None:
            _check_own_head(setting, task, found.inputs[:1], weights)


def _check_own_head(setting: Setting, task: Task, inputs: Any, weights: Mapping[str, Tensor]) -> None:
    """RefusedInput where the network's own head has not a place for each class. One example is run."""
    from plait.line.problem import networks_of
    from plait.problem.heads import make_head

    networks = networks_of(setting)
    network = networks.of(task)
    if set(network.names) <= set(weights):  # else the head is private, and comes with the expert
        with torch.no_grad():
            batch = network.collate(network.encode(inputs))
            make_head(task, network, weights).logits(network, weights, batch)


def fill(module: Module, weights: Mapping[str, Tensor], setting: Setting) -> None:
    """Write the model into the module's tensors. UsageError where it is no module; RefusedInput, before any is
    touched, where a tensor is missing or has another shape. One prefix before the module's names, or one that they
    lack, is no difference."""
    if not isinstance(module, torch.nn.Module):
        raise UsageError(f"module is a {type(module).__name__}, expected the torch.nn.Module that is trained")
    own = module.state_dict()
    names, _, _ = map_names(list(weights), list(own))
    aliases = setting.base.aliases
    lacking = [name for name in weights if name not in names and name not in aliases]
    if lacking:
        raise RefusedInput(
            f"the module lacks {len(lacking)} of the {len(weights)} tensors of the line's model, {lacking[0]} first; "
            "expected the network of the line's base"
        )
    for name, tensor in weights.items():
        if name in names and own[names[name]].shape != tensor.shape:
            raise RefusedInput(
                f"the module's {names[name]} is {tuple(own[names[name]].shape)}, in the line's model it is "
                f"{tuple(tensor.shape)}; expected the network of the line's base"
            )
    with torch.no_grad():
        for name, tensor in weights.items():
            if name in names:
                own[names[name]].copy_(tensor)


def write(place: Path, turn: Turn, setting: Setting) -> None:
    """The expert as a checkpoint folder, with the record that tells what it was trained from."""
    from plait.line.descent import FORMAT

    tensors = turn.weights if turn.module is None else turn.module.state_dict()
    held = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    place.mkdir(parents=True)
    kinds = {
        getattr(torch, dtype.torch): dtype.name for dtype in DTYPES.values() if hasattr(torch, dtype.torch)
    }
    entries = [(name, kinds[tensor.dtype], tuple(tensor.shape)) for name, tensor in held.items()]
    with FileWriter(place / "model.safetensors", entries) as writer:
        for name, tensor in held.items():
            raw: Any = tensor.reshape(-1).view(torch.uint8).numpy()
            writer.write(name, 0, raw)
    described = _config(turn.module) or setting.base.config
    if described is not None:
        (place / "config.json").write_text(json.dumps(described) + "\n", encoding="utf-8")
    record = {
        "format": FORMAT,
        "task": turn.name,
        "base": {"name": setting.base_name, "digest": setting.base_digest},
        "start": {"digest": turn.start, "tasks": list(turn.held)},
    }
    (place / TRAINING).write_text(json.dumps(record) + "\n", encoding="utf-8")


def _config(module: Module) -> Any:
    """What a network of transformers says of itself; None for any other."""
    say = getattr(getattr(module, "config", None), "to_json_string", None)
    return None if say is None else json.loads(say())
