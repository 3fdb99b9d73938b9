"""The problem of a line: the losses of its members' tasks as functions of the merged tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.errors import RefusedInput
from plait.line.build import Setting, mergeable
from plait.line.data import stored_task
from plait.line.member import Member
from plait.line.networks import Networks
from plait.tensors import Tensor

if TYPE_CHECKING:
    from plait.problem.base import Head, Network, Split, Task, Weights
    from plait.problem.objective import Objective
    from plait.problem.problem import Problem
    from plait.types import TensorRef


def networks_of(setting: Setting) -> Networks:
    """The networks of a line's tasks, as the line's settings say."""
    words = setting.compute
    return Networks(setting, words.network, words.device, words.dtype)


def problem_of(
    setting: Setting,
    members: Sequence[Member],
    split: Split = "calibration",
    *,
    only: Sequence[str] | None = None,
    files: Mapping[str, Path] | None = None,
) -> Problem:
    """The losses of members' tasks on the examples that the line stores of them, in the order of the members.

    For a method that drives a line with losses, and for fits of coefficients at merge time (after a Gram pass, say).
    `members` are those after the change, the one that comes in among them: its set is an object of the line by then.
    Weights are mappings of the mergeable tensors (`build.mergeable`), fp32 or fp64, on any device; what else the
    networks need (buffers, tensors outside the merge, a member's private ones) lies in the objectives. `.seen(k)` are
    the first k members, `.last` is the newest.

    split: `calibration` or `validation`; a method names those that it looks at in `splits`. only: names of members
    whose data are looked at; the others are there, and say why they cannot be used where they are asked for anything.
    files: stored tasks that are not objects of the line, by member.
    Run it, and all that is computed with it, inside `setting.compute.running()`: bytes depend on threads and device.

    Cost: the base in memory (it makes the heads), the examples, and what the networks keep of them once encoded.
    RefusedInput where the line stores no such examples of a member.
    """
    from plait.problem.problem import Problem

    networks = networks_of(setting)
    with setting.compute.running():
        tasks = {m.task: _task(setting, m, only, files or {}) for m in members}
        for member in members:  # all networks first: weights are loaded in their dtype
            if (task := tasks[member.task]) is not None:
                networks.of(task, head_of(member, task))
        base = networks.load(setting.base.tensors)
        return Problem(
            {
                m.task: Absent(m.task)  # type: ignore[misc]
                if (task := tasks[m.task]) is None
                else objective_of(setting, networks, m, task, split, base=base)
                for m in members
            }
        )


def _task(
    setting: Setting, member: Member, only: Sequence[str] | None, files: Mapping[str, Path]
) -> Task | None:
    if member.task in files:
        from plait.problem.stored import read_stored

        return read_stored(files[member.task])
    if only is not None and member.task not in only:
        return None
    if member.data is None or member.data not in member.objects:
        raise RefusedInput(
            f"{member.task}: the line stores no examples of it; put it in again with `plait replace` and --tasks"
        )
    return stored_task(setting, member.data)


def head_of(member: Member, task: Task) -> dict[str, Any] | None:
    """The member's ledger row where the task's head, or its network, is made of its private tensors."""
    from plait.line.planning import stored

    return member.plain() if member.private and stored(task) else None


def objective_of(
    setting: Setting,
    networks: Networks,
    member: Member,
    task: Task,
    split: Split,
    *,
    base: Weights | None = None,
    private: Mapping[str, TensorRef] | None = None,
    head: bool = True,
) -> Objective:
    """The loss of one member's task as a function of the mergeable tensors.

    base: the base's tensors in memory, where they are there already. private: where the member's private tensors lie;
    None for the store. head: False where only inner layers are looked at, so that no head is made.
    """
    from plait.problem.objective import Objective
    from plait.problem.stored import head_of as made_head

    row = head_of(member, task)
    if row is not None and task.head.kind == "model" and member.object is None:
        raise RefusedInput(
            f"{member.task}: its head is the network's own, and this line (retention "
            f"{setting.store.settings['retention']}) does not keep the checkpoint that describes it; use vectors, or "
            "a head of another kind"
        )
    network = networks.of(task, row)
    whole = networks.with_private(
        task, row, base if base is not None else networks.load(setting.base.tensors), private
    )
    _names_fit(setting, task, network)
    free = mergeable(setting.base, setting.private)
    fixed = {name: tensor for name, tensor in whole.items() if name in network.names and name not in free}
    made: Head = made_head(task, network, whole) if head or task.head.kind == "model" else Features()
    return Objective(network, made, task.examples(split), batch=setting.compute.batch, fixed=fixed)


def _names_fit(setting: Setting, task: Task, network: Network) -> None:
    """RefusedInput where the network takes a tensor under a second name, under which no weights are handed in."""
    second = next((name for name in network.names if name in setting.base.aliases), None)
    if second is not None:
        raise RefusedInput(
            f"{task.name}: the network takes {second}, which is a second name of {setting.base.aliases[second]} in "
            "the base; let it take that name (see docs/networks.md, names)"
        )


class Features:
    """A head that puts out the features, for looking at the layers before it."""

    def logits(self, network: Network, weights: Weights, batch: Any) -> Tensor:
        return network.features(weights, batch)


class Absent:
    """In the place of the objective of a member whose data are not looked at."""

    def __init__(self, task: str) -> None:
        from plait.problem.totals import Work

        self.task, self.work, self.digest = task, Work(), ""

    def __len__(self) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        raise RefusedInput(
            f"{self.task}: its data are not at hand: the method says that it looks at those of the task that comes "
            "in only"
        )
