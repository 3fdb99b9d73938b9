"""The line: a base, a method and the ordered members, kept in a folder; the verbs that change it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from plait.checkpoint.layout import open_checkpoint
from plait.errors import NotRemovable, PlaitError, RefusedInput, UsageError
from plait.line import removal, views
from plait.line.build import (
    Built,
    Operand,
    Setting,
    StateObjects,
    build,
    open_version,
    operand,
    software,
    version_digest,
    write_json,
)
from plait.line.exporting import export
from plait.line.member import Arrival, Member, check_task, check_weight, receive, task_of
from plait.line.opening import open_setting, publish_base
from plait.methods.base import TensorMethod
from plait.methods.registry import make
from plait.store import Store

Retention = Literal["vectors", "statistics", "none"]


class Line:
    """One deployed model and how it came to be.

    The merged model is a pure function of base, method, options, seed and the ordered members; the ledger in
    the folder records every change. Every verb returns plain values (see docs/command-line.md, "JSON").
    A verb that fails changes nothing.
    """

    def __init__(self, store: Store, *, workers: int | None = None, chunk: int | None = None) -> None:
        self.store = store
        self.workers = workers
        self.chunk = chunk
        self.quiet = True

    # making and opening

    @classmethod
    def create(
        cls,
        path: str | Path,
        base: str | Path,
        method: str = "average",
        *,
        private: Sequence[str] = (),
        retention: Retention = "vectors",
        seed: int = 0,
        keep: int = 2,
        snapshots: int = 0,
        allow_pickle: bool = False,
        **options: Any,
    ) -> Line:
        """Start a line from a base checkpoint (a file or a Hugging Face folder, copied into the line).

        private: patterns of tensor names that are a task's own (its head); kept, never merged.
        retention: what is kept of members. "vectors": their changed tensors; "statistics": sums only, for
        additive methods, and a member's checkpoint is handed in again at removal; "none": nothing, and no
        member can be removed.
        keep: versions on disk, the current one among them. snapshots: for folds, keep the state after every
        so many members (0: only the last), which bounds how far a removal has to fold again.
        Raises UsageError or RefusedInput; nothing is left behind then.
        """
        chosen = make(method, options)
        if not isinstance(chosen, TensorMethod):
            raise UsageError(
                f"method {method} needs a problem with losses; it cannot drive a line from files"
            )
        additive = chosen.facts.family == "additive"
        if retention not in ("vectors", "statistics", "none"):
            raise UsageError(f"retention is {retention!r}, expected vectors, statistics or none")
        if retention == "statistics" and not additive:
            raise UsageError(
                f"retention statistics needs an additive method, {method} is a {chosen.facts.family}; "
                "use vectors, or none if nothing will ever be removed"
            )
        if keep < 1 or snapshots < 0:
            raise UsageError(f"keep is {keep} and snapshots {snapshots}, expected at least 1 and 0")
        checkpoint = open_checkpoint(base, allow_pickle=allow_pickle)
        settings = {
            "method": method,
            "options": chosen.options(),
            "private": list(private),
            "retention": retention,
            "seed": seed,
            "keep": keep,
            "snapshots": snapshots,
        }
        store = publish_base(Path(path), checkpoint, Path(base).resolve().name, settings)
        return cls(store)

    @classmethod
    def open(cls, path: str | Path) -> Line:
        """Open an existing line. RefusedInput where the folder is not one or is of a newer format."""
        return cls(Store.open(Path(path)))

    @property
    def path(self) -> Path:
        return self.store.path

    @property
    def members(self) -> tuple[Member, ...]:
        """The members in order of arrival."""
        return tuple(Member.of(row) for row in self._head()["members"])

    @property
    def digest(self) -> str:
        """The root digest of the current version."""
        return str(self._head()["version"])

    @property
    def model(self) -> Path:
        """The folder of the current version: read it, never write into it."""
        return self.store.versions.path(self.digest)

    # verbs that change the line

    def merge(
        self,
        checkpoint: str | Path,
        task: str | None = None,
        *,
        weight: float = 1.0,
        private: Sequence[str] = (),
        allow_nonfinite: bool = False,
        allow_distant: bool = False,
        allow_pickle: bool = False,
        descends_from: str | None = None,
    ) -> dict[str, Any]:
        """Merge a fine-tuned checkpoint into the line under the name `task` (the folder's name by default).

        descends_from: the version that it was fine-tuned from, where that is not the base: a digest or the
        number of a ledger entry. It is recorded, so that removing one of that version's members tells that
        this checkpoint still carries it.
        """
        task = check_task(task if task is not None else task_of(checkpoint))
        weight = check_weight(weight)
        began = time.monotonic()
        with self.store.lock("merge"):
            members = self.members
            if any(m.task == task for m in members):
                raise RefusedInput(
                    f"task {task} is a member already; use replace to change its checkpoint, reweight to "
                    "change its weight, or another name"
                )
            setting = self._setting()
            work = self.store.workspace(f"merge-{task}")
            arrival = receive(
                checkpoint,
                task,
                setting.base,
                setting.base_digests,
                work / "member.safetensors",
                weight=weight,
                private=(*setting.private, *private),
                untouched=self._untouched(),
                allow_nonfinite=allow_nonfinite,
                allow_distant=allow_distant,
                allow_pickle=allow_pickle,
            )
            member = arrival.member
            if descends_from is not None:
                member = replace(member, descends=views.descent(self.store, descends_from))
            member = self._keep(work, arrival, member)
            built = build(
                setting,
                [*members, member],
                work,
                enter=[Operand(member, _stored(self, member, arrival))],
                state=self._state(),
            )
            return self._commit(
                "merge",
                task,
                built,
                work,
                began,
                receipt=None,
                accounting=arrival.accounting,
                notes=arrival.notes,
            )

    def unmerge(self, task: str, *, checkpoint: str | Path | None = None) -> dict[str, Any]:
        """Take a member out. The result has the bytes it would have had, had the task never been merged.

        checkpoint: the member's own checkpoint, needed under retention "statistics".
        Raises RefusedInput where the task is no member, NotRemovable where the line cannot take it out.
        """
        began = time.monotonic()
        with self.store.lock("unmerge"):
            members = self.members
            index = self._index(task)
            setting = self._setting()
            self._removable("unmerge", task)
            work = self.store.workspace(f"unmerge-{task}")
            after = [m for m in members if m.task != task]
            if self._additive(setting):
                gone = self._at_hand(setting, members[index], checkpoint, work)
                built = build(setting, after, work, enter=(), leave=[gone], state=self._state())
                how = "subtraction"
            else:
                built = self._refold(setting, after, index, work)
                how = "refold"
            receipt = removal.receipt(members[index], after, how, built.digest)
            return self._commit("unmerge", task, built, work, began, receipt=receipt)

    def reweight(self, task: str, weight: float, *, checkpoint: str | Path | None = None) -> dict[str, Any]:
        """Change a member's weight, as if it had been merged with that weight."""
        weight = check_weight(weight)
        began = time.monotonic()
        with self.store.lock("reweight"):
            members = self.members
            index = self._index(task)
            setting = self._setting()
            self._removable("reweight", task)
            work = self.store.workspace(f"reweight-{task}")
            old = members[index]
            new = replace(old, weight=weight)
            after = [new if m.task == task else m for m in members]
            if self._additive(setting):
                hand = self._at_hand(setting, old, checkpoint, work)
                leave, enter = [hand], [Operand(new, hand.refs)]
                built = build(setting, after, work, enter=enter, leave=leave, state=self._state())
            else:
                built = self._refold(setting, after, index, work)
            receipt = {"weight_before": old.weight, "weight_after": weight}
            return self._commit("reweight", task, built, work, began, receipt=receipt)

    def replace(
        self,
        task: str,
        checkpoint: str | Path,
        *,
        weight: float | None = None,
        private: Sequence[str] = (),
        old_checkpoint: str | Path | None = None,
        allow_nonfinite: bool = False,
        allow_distant: bool = False,
        allow_pickle: bool = False,
        descends_from: str | None = None,
    ) -> dict[str, Any]:
        """Put another checkpoint in a member's place in the order, as if it had been merged then."""
        began = time.monotonic()
        with self.store.lock("replace"):
            members = self.members
            index = self._index(task)
            setting = self._setting()
            self._removable("replace", task)
            work = self.store.workspace(f"replace-{task}")
            old = members[index]
            arrival = receive(
                checkpoint,
                task,
                setting.base,
                setting.base_digests,
                work / "member.safetensors",
                weight=check_weight(old.weight if weight is None else weight),
                private=(*setting.private, *private),
                untouched=self._untouched(),
                allow_nonfinite=allow_nonfinite,
                allow_distant=allow_distant,
                allow_pickle=allow_pickle,
            )
            new = arrival.member
            if descends_from is not None:
                new = replace(new, descends=views.descent(self.store, descends_from))
            new = self._keep(work, arrival, new)
            after = [new if m.task == task else m for m in members]
            if self._additive(setting):
                hand = self._at_hand(setting, old, old_checkpoint, work)
                enter = [Operand(new, _stored(self, new, arrival))]
                built = build(setting, after, work, enter=enter, leave=[hand], state=self._state())
            else:
                built = self._refold(setting, after, index, work)
            receipt = {"digest_before": old.digest, "digest_after": new.digest}
            return self._commit(
                "replace",
                task,
                built,
                work,
                began,
                receipt=receipt,
                accounting=arrival.accounting,
                notes=arrival.notes,
            )

    def purge(self, task: str) -> dict[str, Any]:
        """Delete what the line still keeps of a task that was unmerged; tell which exports still hold it."""
        with self.store.lock("purge"):
            return removal.purge(self.store, task)

    def gc(self, *, dry_run: bool = False, grace: float = 24.0) -> dict[str, Any]:
        """Delete objects, versions and workspaces that nothing needs and that are older than `grace` hours."""
        with self.store.lock("gc"):
            return removal.collect(self.store, dry_run=dry_run, grace_seconds=grace * 3600)

    # verbs that only read

    def status(self) -> dict[str, Any]:
        """What is deployed and of what it is made."""
        return views.status(self.store)

    def log(self) -> list[dict[str, Any]]:
        """All events, oldest first."""
        return views.log(self.store)

    def show(self, what: str) -> dict[str, Any]:
        """A ledger entry (by number), a member (by task) or a version (by digest or its first characters)."""
        return views.show(self.store, what)

    def diff(self, a: str, b: str) -> dict[str, Any]:
        """How two versions differ: members and tensors. `a` and `b` as in `show`, or "base"."""
        return views.diff(self.store, a, b)

    def export(
        self, out: str | Path, *, version: str | None = None, task: str | None = None, force: bool = False
    ) -> dict[str, Any]:
        """Write a version to `out` as an ordinary checkpoint, complete or not at all.

        task: add that member's private tensors (its head) and its config.json.
        force: replace `out` where it exists.
        """
        return export(self.store, Path(out), version=version, task=task, force=force)

    def verify(self, *, replay: bool = False) -> dict[str, Any]:
        """Hash everything again; with `replay`, make the current model anew from its members and compare bytes.

        The result's "problems" is empty where all is well; "replay" is "equal", "not comparable: ..." or None.
        """
        from plait.line.checking import verify

        return verify(self.store, self._setting() if replay else None, replay=replay)

    # parts of the verbs

    def _head(self) -> dict[str, Any]:
        return views.last(self.store)

    def _state(self) -> StateObjects | None:
        return self._head()["state"] or None

    def _index(self, task: str) -> int:
        tasks = [m.task for m in self.members]
        if task not in tasks:
            raise RefusedInput(
                f"task {task!r} is not a member; members are: {', '.join(tasks) or 'none yet'}"
            )
        return tasks.index(task)

    def _setting(self) -> Setting:
        return open_setting(self.store, workers=self.workers, chunk=self.chunk, quiet=self.quiet)

    def _additive(self, setting: Setting) -> bool:
        return setting.method.facts.family == "additive"

    def _removable(self, verb: str, task: str) -> None:
        if self.store.settings["retention"] == "none":
            raise NotRemovable(
                f"cannot {verb} {task}: this line keeps nothing of its members (retention none); the version "
                "before the merge can be exported while it is kept, and a new line with retention vectors can"
            )

    def _untouched(self) -> frozenset[str]:
        """Tensors that are still the base's after at least one merge; only a hint in an error message."""
        head = self._head()
        if not head["members"]:
            return frozenset()
        base, now = (views.tensors(self.store, e) for e in (self.store.ledger.entry(0), head))
        return frozenset(n for n, d in now.items() if base.get(n) == d)

    def _keep(self, work: Path, arrival: Arrival, member: Member) -> Member:
        """Store a member's tensors where the line's retention says so."""
        if self.store.settings["retention"] != "vectors":
            return member
        config = None
        if arrival.own is not None:
            config = self.store.objects.put_file(write_json(work / "own.json", arrival.own))
        return replace(member, object=self.store.objects.put_file(arrival.file), config=config)

    def _at_hand(
        self, setting: Setting, member: Member, checkpoint: str | Path | None, work: Path
    ) -> Operand:
        """The member's tensors: from the store, else from its checkpoint, which must be the very same."""
        if member.object is not None:
            return operand(setting, member)
        if checkpoint is None:
            raise UsageError(
                f"this line keeps sums, not members: hand in the checkpoint of {member.task} "
                f"(sha256 root {member.digest[:12]}…, it was called {member.source}) with --checkpoint"
            )
        arrival = receive(
            checkpoint,
            member.task,
            setting.base,
            setting.base_digests,
            work / "removed.safetensors",
            weight=member.weight,
            private=(*setting.private, *member.private),
            allow_nonfinite=True,
            allow_distant=True,
            allow_pickle=True,
        )
        if arrival.member.digest != member.digest:
            raise RefusedInput(
                f"{checkpoint}: its digest is {arrival.member.digest[:12]}…, {member.task} was merged from "
                f"{member.digest[:12]}…; hand in that very checkpoint"
            )
        return Operand(member, arrival.refs)

    def _refold(self, setting: Setting, after: list[Member], index: int, work: Path) -> Built:
        """Fold again from the last state that does not know what changed at `index`."""
        kept = {int(count): state for count, state in self._head()["snapshots"].items()}
        start = max((count for count in kept if count <= index), default=0)
        enter = [operand(setting, m) for m in after[start:]]
        return build(setting, after, work, enter=enter, state=kept.get(start))

    def _commit(
        self,
        verb: str,
        task: str,
        built: Built,
        work: Path,
        began: float,
        *,
        receipt: dict[str, Any] | None,
        accounting: dict[str, Any] | None = None,
        notes: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Objects, then the version, then the ledger entry, which is the commit; then tidy up."""
        store, head = self.store, self._head()
        if built.folder is not None:
            store.versions.publish(built.folder, built.digest)
        state = _put_state(store, built.state) if built.state else None
        entry = store.ledger.append(
            {
                "verb": verb,
                "task": task,
                "method": store.settings["method"],
                "options": store.settings["options"],
                "seed": store.settings["seed"],
                "members": [m.plain() for m in built.members],
                "version": built.digest,
                "tensors": store.objects.put_file(write_json(work / "tensors.json", built.tensors)),
                "state": state,
                "snapshots": self._snapshots(head, built, state),
                "accounting": accounting,
                "counts": built.counts,
                "notes": list(notes),
                "receipt": receipt,
                "software": software(),
                "seconds": round(time.monotonic() - began, 3),
            }
        )
        row = {**views.event(entry), "path": str(store.versions.path(built.digest))}
        try:
            removal.retire(store)
        except (PlaitError, OSError) as error:  # the change is made and recorded; only tidying up failed
            row["notes"] = [*row["notes"], f"old files could not be removed ({error}); plait gc tries again"]
        return row

    def _snapshots(
        self, head: dict[str, Any], built: Built, state: StateObjects | None
    ) -> dict[str, StateObjects]:
        """States of prefixes of the member list: those that stay true, and those that were just made."""
        rows = {c: kept for c, kept in head["snapshots"].items() if _same_prefix(head, built, int(c))}
        for count, folder in built.snapshots.items():
            rows[str(count)] = state if state and folder == built.state else _put_state(self.store, folder)
        return rows


def _same_prefix(head: dict[str, Any], built: Built, count: int) -> bool:
    before = [(m["digest"], m["weight"]) for m in head["members"][:count]]
    return before == [(m.digest, m.weight) for m in built.members[:count]] and len(before) == count


def _put_state(store: Store, folder: Path) -> StateObjects:
    return {file.name: store.objects.put_file(file) for file in sorted(folder.iterdir())}


def _stored(line: Line, member: Member, arrival: Arrival) -> dict[str, Any]:
    """The arrival's tensors, from the object they now are where they were stored."""
    if member.object is None:
        return dict(arrival.refs)
    file = str(line.store.objects.path(member.object))
    return {n: replace(r, file=file) for n, r in arrival.refs.items()}


__all__ = ["Line", "open_version", "version_digest"]
