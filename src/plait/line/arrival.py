"""A checkpoint that is handed in: it becomes a member, with what the method needs of its data."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING

from plait.checkpoint.layout import open_checkpoint
from plait.errors import RefusedInput, UsageError
from plait.line import views
from plait.line.build import Operand, Setting, operand, write_json
from plait.line.data import Need, Tasks, collect, find_task, need_of, stored_task, why
from plait.line.descent import check_last, descent_of
from plait.line.member import Allow, Arrival, Member, private_refs, receive
from plait.methods.base import Weight
from plait.methods.varied import idle_weight
from plait.store import Store

if TYPE_CHECKING:
    from plait.problem.stored import StoredTask


@dataclass(frozen=True)
class Handed:
    """What a user hands in for a member. checkpoint: None where the line keeps it. tasks: a tasks.yaml, or tasks by
    name; None where there are none."""

    checkpoint: str | Path | None
    task: str
    weight: Weight = 1.0
    private: tuple[str, ...] = ()
    allow: Allow = field(default_factory=Allow)
    descends_from: str | None = None
    tasks: Tasks | None = None


def arrive(
    setting: Setting, work: Path, handed: Handed, old: Member | None = None
) -> tuple[Operand, Arrival]:
    """Read a checkpoint that comes in, and keep of it and of its data what the line's retention says.

    old: the member in whose place it comes; its examples are used again where no tasks were handed in.
    """
    store = setting.store
    try:
        need = need_of(setting.method)
        if need is not None:
            if handed.checkpoint and not os.path.lexists(handed.checkpoint):
                open_checkpoint(handed.checkpoint)  # says that it is not there
            _check_tasks(setting, need, handed, old)
        check_last(store, handed.checkpoint or "", handed.descends_from, old)
        descends, notes = descent_of(store, handed.checkpoint or "", handed.descends_from)
        arrival = _received(setting, handed, work / "member.safetensors", _untouched(store))
    except RefusedInput:
        store.clear_workspaces()
        raise
    if need is None and handed.tasks is not None:
        notes = (*notes, f"method {setting.method.name} looks at no data; --tasks was not used")
    member = replace(arrival.member, descends=descends)
    new = Operand(member, arrival.refs)
    if store.settings["retention"] == "vectors":
        config = None
        if arrival.own is not None:
            config = store.objects.put_file(write_json(work / "own.json", arrival.own))
        kept = store.objects.put_file(arrival.file)
        new = operand(setting, replace(member, object=kept, config=config))
    if need is not None:
        try:
            new, more = with_data(setting, work, need, new, handed.tasks, old, arrival.file)
        except RefusedInput:
            store.clear_workspaces()
            raise
        notes = (*notes, *more)
    idle = idle_weight(handed.weight, setting.base.tensors)
    return new, replace(arrival, notes=(*arrival.notes, *notes, *idle))


def _check_tasks(setting: Setting, need: Need, handed: Handed, old: Member | None) -> None:
    """What is wrong with the tasks is said before a checkpoint is read."""
    if handed.tasks is None and old is not None and old.data in old.objects:
        return
    find_task(setting.method, need, handed.tasks, handed.task)


def _received(
    setting: Setting, handed: Handed, into: Path, untouched: frozenset[str] = frozenset()
) -> Arrival:
    return receive(
        handed.checkpoint or "",
        handed.task,
        setting.base,
        setting.base_digests,
        into,
        weight=handed.weight,
        private=(*setting.private, *handed.private),
        untouched=untouched,
        allow=handed.allow,
    )


def _untouched(store: Store) -> frozenset[str]:
    """Tensors that are still the base's after at least one merge; only a hint in an error message."""
    head = views.last(store)
    if not head["members"]:
        return frozenset()
    base, now = (views.tensors(store, e) for e in (store.ledger.entry(0), head))
    return frozenset(n for n, d in now.items() if base.get(n) == d)


def with_data(
    setting: Setting,
    work: Path,
    need: Need,
    new: Operand,
    tasks: Tasks | None,
    old: Member | None,
    file: Path,
) -> tuple[Operand, tuple[str, ...]]:
    """The member with its stored examples and its statistics, and notes. file: where its tensors lie."""
    from plait.problem.stored import read_stored

    objects = setting.store.objects
    keeps = setting.store.settings["retention"] == "vectors"
    member = new.member
    if tasks is None and old is not None and old.data is not None and old.data in old.objects:
        member = replace(member, data=old.data, examples=old.examples)
        task = stored_task(setting, old.data)
    else:
        place = work / "data.safetensors"
        found = find_task(setting.method, need, tasks, member.task)
        examples = collect(setting, need, found, place)
        digest = _put(setting, place, keeps)
        member = replace(member, data=digest, examples=examples)
        task = read_stored(objects.path(digest) if keeps else place)
    if keeps and member.data is not None:
        member = replace(member, objects=(member.data,))
    if need.wants == "problem":
        return replace(new, member=member, data=None if keeps else work / "data.safetensors"), ()
    lies = objects.path(member.object) if member.object is not None else file
    return _with_side(setting, work, need, replace(new, member=member), task, lies)


def _with_side(
    setting: Setting, work: Path, need: Need, new: Operand, task: StoredTask, file: Path
) -> tuple[Operand, tuple[str, ...]]:
    from plait.line.sides import side_refs, write_side

    place = work / "side.safetensors"
    notes = write_side(setting, need, new.member, task, new.refs, private_refs(file), place)
    keeps = bool(new.member.objects)
    digest = _put(setting, place, keeps)
    kept = (*new.member.objects, digest) if keeps else ()
    member = replace(new.member, side=digest, objects=kept)
    refs = side_refs(setting.store.objects.path(digest) if keeps else place)
    return replace(new, member=member, side=refs), notes


def _put(setting: Setting, file: Path, keeps: bool) -> str:
    """The digest of a file, which becomes an object where the line keeps it."""
    from plait.store.files import hash_file

    return setting.store.objects.put_file(file) if keeps else hash_file(file)


def at_hand(setting: Setting, work: Path, member: Member, handed: Handed) -> Operand:
    """A member's tensors and statistics: from the store, else from what is handed in, which must be the very same."""
    if member.object is not None:
        return operand(setting, member)
    need = need_of(setting.method)
    if handed.checkpoint is None:
        raise UsageError(
            f"this line keeps sums, not members: hand in the checkpoint of {member.task} "
            f"(sha256 root {member.digest[:12]}…, it was called {member.source}) with --checkpoint"
        )
    if need is not None and handed.tasks is None:
        raise UsageError(
            f"this line keeps sums, not examples, and {why(setting.method, need)}: hand in the tasks.yaml that "
            f"{member.task} was merged with, with --tasks"
        )
    words = replace(
        handed,
        weight=member.weight,
        private=tuple(map(escape, member.private)),
        allow=Allow(nonfinite=True, distant=True, pickle=handed.allow.pickle),
    )
    arrival = _received(setting, words, work / "removed.safetensors")
    if arrival.member.digest != member.digest:
        raise RefusedInput(
            f"{handed.checkpoint}: its digest is {arrival.member.digest[:12]}…, {member.task} was merged from "
            f"{member.digest[:12]}…; hand in that very checkpoint"
        )
    gone = Operand(member, arrival.refs)
    if need is None:
        return gone
    again, _ = with_data(setting, work, need, gone, handed.tasks, None, arrival.file)
    _check_same(member, again.member)
    return replace(again, member=member)


def _check_same(member: Member, again: Member) -> None:
    """RefusedInput where other data or other statistics came out than those that the member was merged with."""
    if again.data != member.data:
        raise RefusedInput(
            f"{member.task}: the examples that were handed in are not those that it was merged with (digest "
            f"{(again.data or '')[:12]}…, expected {(member.data or '')[:12]}…); hand in that very tasks.yaml"
        )
    if again.side != member.side:
        raise RefusedInput(
            f"{member.task}: the same checkpoint and examples give other statistics here (digest "
            f"{(again.side or '')[:12]}…, expected {(member.side or '')[:12]}…): another number of threads, device "
            "or stack of software ran then; take it out there (plait show tells which)"
        )
