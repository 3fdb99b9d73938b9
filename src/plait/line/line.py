"""The line: a base, a method and the ordered members, kept in a folder; the verbs that change it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from plait.errors import NotRemovable, RefusedInput, UsageError
from plait.line import algebra, removal, views
from plait.line.arrival import Handed, arrive, at_hand
from plait.line.build import (
    Built,
    Operand,
    Setting,
    StateObjects,
    keeps_no_state,
    open_version,
    operand,
    stack_of,
    version_digest,
)
from plait.line.commit import commit
from plait.line.data import Tasks
from plait.line.exporting import export
from plait.line.member import Allow, Member, check_task, patterns, task_of
from plait.line.opening import open_setting
from plait.line.points import Asked
from plait.line.resume import build_or_find
from plait.line.starting import start
from plait.methods.base import Weight, check_weight
from plait.methods.varied import idle_weight, member_weight
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
        self.device: str | None = None
        """Where networks run in what this object does; None for where the line's settings say."""
        self.quiet = True

    # making and opening

    @classmethod
    def create(
        cls,
        path: str | Path,
        base: str | Path,
        method: str = "average",
        *,
        private: Sequence[str] | str = (),
        retention: Retention = "vectors",
        seed: int = 0,
        keep: int = 2,
        snapshots: int = 0,
        descent: Literal["any", "last"] = "any",
        allow_nonfinite: bool = False,
        allow_pickle: bool = False,
        network: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
        **options: Any,
    ) -> Line:
        """Start a line from a base checkpoint (a file or a Hugging Face folder, copied into the line).

        private: patterns of tensor names that are a task's own (its head); kept, never merged.
        retention: what is kept of members. "vectors": their changed tensors; "statistics": sums only, for
        additive methods, and a member's checkpoint is handed in again at removal; "none": nothing, and no
        member can be removed.
        seed: of random numbers; also of the method's own, where it has an option `seed`.
        keep: versions on disk, the current one among them. snapshots: for folds, keep the state after every
        so many members (0: only the last), which bounds how far a removal has to fold again.
        descent: "last": an expert that comes in must have been trained from the line's last model, as methods assume
        that keep two models only. Its own record tells, or the user (see `merge`).
        allow_nonfinite: take a base with NaN or infinity; these elements stay as they are in every version.
        network, device, dtype: for methods that look at data. Which network runs (python:module:function; None for
        what the base's config.json describes), where, and in what it computes; cpu and float32 by default.
        Raises UsageError or RefusedInput; nothing is left behind then.
        """
        return cls(
            start(
                Path(path),
                base,
                method,
                options,
                private=private,
                retention=retention,
                seed=seed,
                keep=keep,
                snapshots=snapshots,
                descent=descent,
                allow_nonfinite=allow_nonfinite,
                allow_pickle=allow_pickle,
                network=network,
                device=device,
                dtype=dtype,
            )
        )

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
        weight: Weight = 1.0,
        private: Sequence[str] | str = (),
        allow_nonfinite: bool = False,
        allow_distant: bool = False,
        allow_pickle: bool = False,
        descends_from: str | None = None,
        tasks: Tasks | None = None,
        path_points: str | Path | None = None,
        path_at: Sequence[float] | None = None,
    ) -> dict[str, Any]:
        """Merge a fine-tuned checkpoint into the line under the name `task` (the folder's name by default).

        weight: a number from 2^-20 to 2^11, or rules (see `plait.methods.rules`) that give one for each tensor, 0
        where it takes no part, for methods that merge every tensor by itself.
        private: patterns of this checkpoint's own tensors, beside the line's.
        allow_nonfinite: take the base's value where the checkpoint holds NaN or infinity.
        descends_from: the version that it was fine-tuned from, where that is not the base: a digest or the
        number of a ledger entry. It is recorded, so that removing one of that version's members tells that
        this checkpoint still carries it. What `plait finetune` made says so itself.
        tasks: a tasks.yaml, or tasks by name, one of them called `task`; needed by methods that look at data. What
        they need of it is kept in the line.
        path_points: a folder for points of the path, for methods that follow one (ode_m): a checkpoint like the base
        for each t of `path_at`, from 0, the model before, to 1, the expert, as far as the path goes; None for the end
        of each of its steps. The result tells of them under "points".
        """
        task = check_task(task_of(checkpoint) if task is None else task)
        weight = self._weight(weight)
        if path_at is not None and path_points is None:
            raise UsageError(
                "path_at says where points of the path lie, and path_points, their folder, is missing"
            )
        began = time.monotonic()
        with self.store.lock("merge"):
            members = self.members
            if any(m.task == task for m in members):
                raise RefusedInput(
                    f"task {task} is a member already; use replace to change its checkpoint, reweight to "
                    "change its weight, or another name"
                )
            setting = self._setting()
            if path_points is not None:
                words = (self.digest, task, weight, str(Path(checkpoint).resolve()))
                setting = replace(setting, points=Asked.of(setting.method, path_points, path_at, words))
            work = self.store.workspace(f"merge-{task}")
            allow = Allow(allow_nonfinite, allow_distant, allow_pickle)
            handed = Handed(checkpoint, task, weight, patterns(private), allow, descends_from, tasks)
            new, arrival = arrive(setting, work, handed)
            built = build_or_find(setting, [*members, new.member], work, enter=[new], state=self._state())
            told: dict[str, Any] = {"accounting": arrival.accounting, "notes": arrival.notes}
            fresh = not members or keeps_no_state(setting.method)
            done = commit(self.store, "merge", task, built, work, began, fresh=fresh, **told)
            if setting.points is None:
                return done
            notes = [*(done.get("notes") or ()), *setting.points.lacking()]
            return {**done, "points": setting.points.told(), "notes": notes}

    def unmerge(
        self,
        task: str,
        *,
        checkpoint: str | Path | None = None,
        allow_pickle: bool = False,
        tasks: Tasks | None = None,
        how: Literal["exact", "algebraic"] = "exact",
    ) -> dict[str, Any]:
        """Take a member out. The result has the bytes it would have had, had the task never been merged.

        how: "algebraic" subtracts the member's direction instead, for methods that have such a removal (mdm_oc). That
        is not exact: the receipt says what stays of the member. The next change is exact again.
        checkpoint: the member's own checkpoint, needed under retention "statistics"; tasks: as for merge, needed
        there too where the method looks at data.
        Raises RefusedInput where the task is no member, NotRemovable where the line cannot take it out.
        """
        began = time.monotonic()
        with self.store.lock("unmerge"):
            setting, work, members, index = self._begin("unmerge", task)
            if how == "algebraic":
                algebra.check(setting.method)
                if len(members) > 1:  # of a single member, nothing is left: that is exact
                    return algebra.unmerge(setting, work, members, index, began)
            elif how != "exact":
                raise UsageError(f"how is {how!r}, expected exact or algebraic")
            after = [m for m in members if m.task != task]
            back = Handed(checkpoint, task, allow=Allow(pickle=allow_pickle), tasks=tasks)
            built, way, fresh = self._without(setting, work, members[index], after, index, (), back)
            stack = stack_of([] if fresh else self._head()["stack"], built.ran)
            receipt = removal.receipt(members[index], after, way, built.digest, stack)
            return commit(self.store, "unmerge", task, built, work, began, fresh=fresh, receipt=receipt)

    def reweight(
        self,
        task: str,
        weight: Weight,
        *,
        checkpoint: str | Path | None = None,
        allow_pickle: bool = False,
        tasks: Tasks | None = None,
    ) -> dict[str, Any]:
        """Change a member's weight, as if it had been merged with that weight. checkpoint, tasks: see unmerge."""
        weight = self._weight(weight)
        began = time.monotonic()
        with self.store.lock("reweight"):
            setting, work, members, index = self._begin("reweight", task)
            old = members[index]
            new = replace(old, weight=weight)
            after = [new if m.task == task else m for m in members]
            back = Handed(checkpoint, task, allow=Allow(pickle=allow_pickle), tasks=tasks)
            built, _, fresh = self._without(setting, work, old, after, index, [new], back)
            told: dict[str, Any] = {"notes": idle_weight(weight, setting.base.tensors)}
            told["receipt"] = {"weight_before": old.weight, "weight_after": weight}
            return commit(self.store, "reweight", task, built, work, began, fresh=fresh, **told)

    def replace(
        self,
        task: str,
        checkpoint: str | Path,
        *,
        weight: Weight | None = None,
        private: Sequence[str] | str = (),
        old_checkpoint: str | Path | None = None,
        allow_nonfinite: bool = False,
        allow_distant: bool = False,
        allow_pickle: bool = False,
        descends_from: str | None = None,
        tasks: Tasks | None = None,
        old_tasks: Tasks | None = None,
    ) -> dict[str, Any]:
        """Put another checkpoint in a member's place in the order, as if it had been merged then.

        old_checkpoint: the one that leaves, needed under retention "statistics". tasks: as for merge; None for the
        examples that the line keeps of the member. old_tasks: those that it was merged with, where they are needed
        as for unmerge; `tasks` by default.
        """
        began = time.monotonic()
        with self.store.lock("replace"):
            setting, work, members, index = self._begin("replace", task)
            old = members[index]
            weight = self._weight(old.weight if weight is None else weight)
            allow = Allow(allow_nonfinite, allow_distant, allow_pickle)
            handed = Handed(checkpoint, task, weight, patterns(private), allow, descends_from, tasks)
            new, arrival = arrive(setting, work, handed, old)
            after = [new.member if m.task == task else m for m in members]
            back = Handed(old_checkpoint, task, allow=Allow(pickle=allow_pickle), tasks=old_tasks or tasks)
            built, _, fresh = self._without(setting, work, old, after, index, [new], back)
            receipt = {"digest_before": old.digest, "digest_after": new.member.digest}
            told: dict[str, Any] = {"accounting": arrival.accounting, "notes": arrival.notes}
            return commit(
                self.store, "replace", task, built, work, began, fresh=fresh, receipt=receipt, **told
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
        self,
        out: str | Path,
        *,
        version: str | None = None,
        task: str | None = None,
        force: bool = False,
        batchnorm: bool = False,
        tasks: Tasks | None = None,
        samples: int | None = None,
        network: str | None = None,
        device: str | None = None,
    ) -> dict[str, Any]:
        """Write a version to `out` as an ordinary checkpoint, complete or not at all.

        task: add that member's private tensors (its head) and its config.json.
        force: replace `out` where it exists.
        batchnorm: compute the running statistics of BatchNorm layers anew, in what is written to `out` only, from at
        most `samples` (256) unlabelled calibration examples of each member's task in `tasks`, a tasks.yaml or tasks
        by name; of the current version, so that only tasks that are members now are looked at. network, device:
        which network runs and where, see `create`.
        """
        from plait.line.renewing import check_words, renewal

        words = {"tasks": tasks, "samples": samples, "network": network, "device": device}
        check_words(batchnorm, words)
        renew = renewal(self._setting(), **words) if batchnorm else None  # type: ignore[arg-type]
        return export(self.store, Path(out), version=version, task=task, force=force, renew=renew)

    def evaluate(
        self,
        tasks: str | Path | Mapping[str, Any],
        *,
        version: str | None = None,
        every: bool = False,
        only: Sequence[str] = (),
        **how: Any,
    ) -> dict[str, Any]:
        """Measure a version (the current one by default), the base and the experts on tasks; keep the results.

        tasks: a tasks.yaml, or tasks by name. every: all versions. only: names of tasks. how: split, batch, device,
        dtype, network (by default the one that the line runs itself, if any), level and seed, see
        `plait.line.planning.How`. The keys of the result are those of
        `plait eval --json`, in docs/command-line.md.
        """
        from plait.line.evaluating import evaluate
        from plait.line.planning import How

        if how.get("network") is None:
            how["network"] = (self.store.settings.get("compute") or {}).get("network")
        asked = How(quiet=self.quiet, **how)
        return evaluate(self.store, self._setting, tasks, asked, only=only, version=version, every=every)

    def verify(self, *, replay: bool = False) -> dict[str, Any]:
        """Hash everything again; with `replay`, make the current model anew from its members and compare bytes.

        The result's "problems" is empty where all is well; "replay" is "equal", "not comparable: ..." or None.
        """
        from plait.line.checking import verify

        return verify(self.store, self._setting, replay=replay)

    # parts of the verbs

    def _head(self) -> dict[str, Any]:
        return views.last(self.store)

    def _state(self) -> StateObjects | None:
        return self._head()["state"] or None

    def _setting(self) -> Setting:
        return open_setting(
            self.store, workers=self.workers, chunk=self.chunk, quiet=self.quiet, device=self.device
        )

    def _weight(self, weight: Weight) -> Weight:
        """The weight of a member, checked."""
        if isinstance(weight, (int, float)):
            return check_weight(weight)
        setting = self._setting()
        return member_weight(weight, setting.method, setting.base.tensors)

    def _begin(self, verb: str, task: str) -> tuple[Setting, Path, tuple[Member, ...], int]:
        """What every verb on a member needs, after the checks that need no tensor."""
        members = self.members
        tasks = [m.task for m in members]
        if task not in tasks:
            raise RefusedInput(
                f"task {task!r} is not a member; members are: {', '.join(tasks) or 'none yet'}"
            )
        if self.store.settings["retention"] == "none":
            raise NotRemovable(
                f"cannot {verb} {task}: this line keeps nothing of its members (retention none); the version "
                "before the merge can be exported while it is kept, and a new line with retention vectors can"
            )
        setting = self._setting()
        if setting.method.facts.removal == "never":
            raise NotRemovable(
                f"cannot {verb} {task}: method {setting.method.name} keeps nothing that a member could be taken out "
                "of; the version before the merge can be exported while it is kept"
            )
        return setting, self.store.workspace(f"{verb}-{task}"), members, tasks.index(task)

    def _without(
        self,
        setting: Setting,
        work: Path,
        old: Member,
        after: Sequence[Member],
        index: int,
        enter: Sequence[Operand | Member],
        back: Handed,
    ) -> tuple[Built, str, bool]:
        """The line with `old`, which is at `index`, gone and `enter` in its place. back: what was handed in of it.
        Returns also how, and whether the state was made from nothing."""
        if keeps_no_state(setting.method):
            new = [o for o in enter if isinstance(o, Operand)]
            built = build_or_find(setting, after, work, enter=new, state=self._state())
            return built, "recomputation", True
        if setting.method.facts.family == "additive":
            gone = at_hand(setting, work, old, back)
            new = [o if isinstance(o, Operand) else replace(gone, member=o) for o in enter]
            built = build_or_find(setting, after, work, enter=new, leave=[gone], state=self._state())
            return built, "subtraction", False
        kept = {int(count): state for count, state in self._head()["snapshots"].items()}
        start = max((count for count in kept if count <= index), default=0)
        again = [operand(setting, m) for m in after[start:]]
        return build_or_find(setting, after, work, enter=again, state=kept.get(start)), "refold", start == 0


__all__ = ["Line", "open_version", "version_digest"]
