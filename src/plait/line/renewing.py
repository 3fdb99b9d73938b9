"""BatchNorm statistics of an exported copy, computed anew from unlabelled examples of the members' tasks.

A version is a function of its members alone, so it keeps the statistics that the method gives it; a copy that is
handed out may have those of the activations that it really has.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from plait.errors import RefusedInput, UsageError
from plait.line import views
from plait.line.build import Setting, mergeable, open_version, software, version_digest
from plait.line.data import Tasks
from plait.line.exporting import Renew
from plait.line.member import Member
from plait.words import plural

if TYPE_CHECKING:
    from plait.problem.base import Examples, HeadSpec, Kind, Split, Task
    from plait.problem.objective import Objective
    from plait.tensors import Tensor
    from plait.types import TensorRef

SAMPLES = 256
"""Examples of a task where nothing else is asked for."""

SPLIT: Split = "calibration"


def check_words(batchnorm: bool, words: Mapping[str, Any]) -> None:
    """UsageError where words for the statistics are given and none are asked for, or the other way round."""
    if batchnorm and words["tasks"] is None:
        raise UsageError(
            "BatchNorm statistics are computed from examples of the members' tasks: hand in a tasks.yaml with "
            "--tasks FILE (see docs/tasks.md)"
        )
    given = [name for name, word in words.items() if word is not None]
    if given and not batchnorm:
        raise UsageError(
            f"{', '.join(given)} {'was' if len(given) == 1 else 'were'} given, and no BatchNorm statistics are asked "
            "for; add --batchnorm, or leave it out"
        )
    samples = words["samples"]
    if samples is not None and (type(samples) is not int or samples < 1):
        raise UsageError(f"samples is {samples!r}, expected a whole number of at least 1")


def renewal(
    setting: Setting, tasks: Tasks, samples: int | None, network: str | None, device: str | None
) -> Renew:
    """What `export` does to the copy of a version: see `Line.export`."""
    from plait.problem.module import parse_device

    words = {"network": network, "device": device}
    compute = replace(setting.compute, **{k: v for k, v in words.items() if v is not None})  # type: ignore[arg-type]
    parse_device(compute.device)
    placed = replace(setting, compute=compute)
    return lambda entry, folder: _renew(placed, tasks, samples or SAMPLES, entry, folder)


def _renew(
    setting: Setting, tasks: Tasks, samples: int, entry: Mapping[str, Any], folder: Path
) -> dict[str, Any]:
    """Put new statistics into the copy in `folder`. Returns what was done, see docs/command-line.md."""
    from plait.problem.batchnorm import population_statistics

    members = _members(setting, entry)
    sampled = {m.task: _sampled(task, samples, setting.seed) for m, task in _paired(members, tasks)}
    refs = open_version(folder).tensors
    with setting.compute.running():
        objectives, weights = _objectives(setting, members, sampled, refs)
        found = population_statistics(objectives, weights)
        ran = setting.compute.record(one.network for one in objectives.values())
    _overwrite(refs, found)
    used = {name: one.words() for name, one in sampled.items()}
    return {
        "tensors": sorted(found),
        "split": SPLIT,
        "tasks": used,
        "digest": version_digest(folder),
        "software": {**software(), **ran},
        "notes": _notes(len(found) // 2, used, str(entry["version"])),
    }


def _members(setting: Setting, entry: Mapping[str, Any]) -> list[Member]:
    """The members of the version, which must be the current one."""
    current = views.last(setting.store)
    if entry["version"] != current["version"]:
        raise UsageError(
            f"version {entry['version'][:12]} is not the current one, {current['version'][:12]}; BatchNorm "
            "statistics are computed from the tasks that are members now: leave --version out, or --batchnorm"
        )
    if not current["members"]:
        raise RefusedInput(
            "the line has no members: its model is the base, whose BatchNorm statistics are its own; export it "
            "without --batchnorm"
        )
    return [Member.of(row) for row in current["members"]]


def _paired(members: Sequence[Member], tasks: Tasks) -> list[tuple[Member, Task]]:
    """Each member with its task."""
    if not isinstance(tasks, Mapping):
        from plait.problem.task import load_tasks

        tasks = load_tasks(tasks)
    missing = [m.task for m in members if m.task not in tasks]
    if missing:
        raise RefusedInput(
            f"the tasks that were handed in lack {', '.join(missing)}; there are {', '.join(tasks) or 'none'}: "
            "BatchNorm statistics need examples of every member's task"
        )
    return [(m, tasks[m.task]) for m in members]


@dataclass(frozen=True, eq=False)
class _Sampled:
    """Some examples of a task, without labels; `of`: of how many. Of its head only whether the network brings it."""

    name: str
    kind: Kind
    head: HeadSpec
    drawn: Examples
    of: int
    classes: tuple[str, ...] = ()

    def examples(self, split: Split) -> Examples:
        return self.drawn

    def words(self) -> dict[str, Any]:
        return {"count": len(self.drawn), "of": self.of, "digest": self.drawn.digest}


def _sampled(task: Task, samples: int, seed: int) -> _Sampled:
    """At most `samples` of the calibration examples, in their order, drawn without replacement by `seed`. The digest
    of a part is sha256 over that of all, a space, and the list of rows as Python writes it."""
    from plait.problem.base import Examples, HeadSpec
    from plait.problem.feed import take

    found = task.examples(SPLIT)
    total = len(found)
    head = HeadSpec("model" if task.head.kind == "model" or task.kind == "causal-lm" else "zero-shot")
    if samples >= total:
        drawn = Examples(found.inputs, None, found.digest)
    else:
        rows = sorted(Random(seed).sample(range(total), samples))
        digest = sha256(f"{found.digest} {rows}".encode()).hexdigest()
        drawn = Examples(take(found.inputs, rows), None, digest)
    return _Sampled(task.name, task.kind, head, drawn, total)


def _objectives(
    setting: Setting,
    members: Sequence[Member],
    sampled: Mapping[str, _Sampled],
    refs: Mapping[str, TensorRef],
) -> tuple[dict[str, Objective], dict[str, Tensor]]:
    """The objective of each task, and the merged tensors in memory; running statistics in the dtypes of their file,
    so that what runs is what is written."""
    from plait.line.problem import head_of, networks_of, objective_of
    from plait.line.subjects import load
    from plait.problem.batchnorm import layers

    networks = networks_of(setting)
    for member in members:  # all networks first: weights are loaded in their dtype
        networks.of(sampled[member.task], head_of(member, sampled[member.task]))
    whole = networks.load(refs)
    objectives = {
        m.task: objective_of(setting, networks, m, sampled[m.task], SPLIT, base=whole, head=False)
        for m in members
    }
    weights = {name: whole[name] for name in mergeable(setting.base, setting.private)}
    found = {layer for one in objectives.values() for layer in layers(one.network, weights)}
    names = sorted(name for layer in found for name in (layer.mean, layer.variance))
    return objectives, weights | load({name: refs[name] for name in names}, setting.compute.device, None)


def _overwrite(refs: Mapping[str, TensorRef], found: Mapping[str, Tensor]) -> None:
    """Put tensors in the place of those in a copy, which keep their dtypes and shapes."""
    from plait.tensors import torch

    for name, tensor in found.items():
        ref = refs[name]
        data = tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes()
        if len(data) != ref.nbytes:
            raise ValueError(f"{name}: {len(data)} bytes for the {ref.nbytes} of {ref.dtype} {ref.shape}")
        with open(ref.file, "r+b") as file:
            os.pwrite(file.fileno(), data, ref.start)


def _notes(layers: int, used: Mapping[str, Mapping[str, Any]], version: str) -> list[str]:
    """What the model card says."""
    parts = (
        f"{task} ({one['count']} of {plural(one['of'], 'example')}, sha256 {one['digest']})"
        for task, one in used.items()
    )
    return [
        f"The running statistics of {plural(layers, 'BatchNorm layer')} were computed anew from unlabelled {SPLIT} "
        f"examples, each task counting alike, of: {', '.join(parts)}.",
        f"But for these statistics it is the merged model of digest {version}.",
    ]
