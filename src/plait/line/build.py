"""From a list of members to a version on disk: state in, state and model out. All verbs end here."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.checkpoint.header import read_header
from plait.checkpoint.keys import matcher, untied
from plait.checkpoint.layout import Checkpoint, open_checkpoint, root_digest
from plait.checkpoint.output import plan_output
from plait.errors import PlaitError, UsageError
from plait.line.member import Member, refs_of, seed_of
from plait.line.surroundings import Compute, stack_words
from plait.methods.base import ModelMethod
from plait.methods.choosing import fit_of_method
from plait.methods.coefficients import STATELESS, Coefficients
from plait.types import TensorRef
from plait.words import plural

if TYPE_CHECKING:
    from plait.engine import Folded, Incoming, Modelled, Settings, Sums
    from plait.line.points import Asked
    from plait.methods.base import TensorMethod
    from plait.store import Store

StateObjects = dict[str, str]
"""File name inside a state folder -> object digest."""


@dataclass(frozen=True)
class Setting:
    """What stays the same over a line's life."""

    store: Store
    base: Checkpoint
    base_digests: dict[str, str]
    base_digest: str
    base_name: str
    method: TensorMethod | ModelMethod
    seed: int
    private: tuple[str, ...]
    snapshots: int
    workers: int | None = None
    chunk: int | None = None
    quiet: bool = True
    compute: Compute = field(default_factory=Compute)
    points: Asked | None = None  # points of a path that are to be written on the way


def mergeable(base: Checkpoint, private: Sequence[str]) -> dict[str, TensorRef]:
    """The base's tensors that a member may change."""
    own = matcher(private)
    return {n: r for n, r in base.tensors.items() if r.mergeable and n not in base.aliases and not own(n)}


@dataclass(frozen=True)
class Operand:
    """A member whose tensors are at hand."""

    member: Member
    refs: Mapping[str, TensorRef]
    side: Mapping[str, TensorRef] = field(default_factory=dict)  # statistics of its data, by "side/tensor"
    data: Path | None = None  # its stored task, where the store does not keep it


@dataclass(frozen=True)
class Built:
    """What a build made, still in the workspace."""

    folder: Path | None  # the new version; None where it is the base itself
    digest: str
    tensors: dict[str, str]  # per-tensor digests of the version
    members: tuple[Member, ...]
    state: Path | None
    snapshots: dict[int, Path]  # state after so many members
    counts: dict[str, Any]
    notes: tuple[str, ...]
    sums: dict[Path, Sums] = field(default_factory=dict)  # by folder, of the files of `state` and `snapshots`
    stored: dict[Path, str] = field(default_factory=dict)  # those of these files that are objects already
    ran: dict[str, Any] = field(default_factory=dict)  # threads, device and libraries, where networks ran
    fitted: dict[str, Any] = field(default_factory=dict)  # what a fit has chosen


def operand(setting: Setting, member: Member) -> Operand:
    """A member that the store keeps, ready to be read."""
    if member.object is None:
        raise PlaitError(
            f"{member.task}: this line keeps no members; hand its checkpoint in with --checkpoint"
        )
    side = member.side if member.side in member.objects else None
    return Operand(
        member,
        refs_of(setting.store.objects.path(member.object)),
        read_header(setting.store.objects.path(side)).tensors if side else {},
    )


def build(
    setting: Setting,
    after: Sequence[Member],
    work: Path,
    *,
    enter: Sequence[Operand],
    leave: Sequence[Operand] = (),
    state: StateObjects | None = None,
    coefficients: Coefficients | None = None,
) -> Built:
    """Make the version whose members are `after`. What an interrupted run of the same left in `work` is used.

    state: the state that `enter` is added to and `leave` taken from; None: from nothing.
    For a fold, `state` is that of a prefix of `after`, and `enter` the rest in order. Where no state is folded on,
    all members enter, `enter` has those that may not be in the store yet, and `state` is what is known of them.
    coefficients: of the members' task vectors, where they are not those that follow from the members.
    """
    from plait import engine

    if not after:
        return Built(None, setting.base_digest, setting.base_digests, (), None, {}, {}, ())
    making = _Making(setting, work, list(after), link_state(setting, state, work / "state-in"), state)
    making.coefficients = coefficients
    if keeps_no_state(setting.method):
        handed = {o.member.task: o for o in enter}
        enter = [handed.get(m.task) or operand(setting, m) for m in after]
    stages = _stages(setting, after, enter)
    for position, stage in stages[:-1]:
        folder = work / f"snapshot-{position}"
        making.fold(position, stage, (), folder, {})
        making.snapshots[position] = making.state = folder
        making.identity = f"snapshot {position}"
    output = plan_output(
        setting.base,
        version_place(setting.base, work / "version"),
        untie=untied(setting.base, setting.private),
    )
    base = mergeable(setting.base, setting.private)
    folded = making.fold(
        len(after), stages[-1][1], leave, work / "state", {n: output.places[n] for n in base}
    )
    if setting.snapshots and len(after) % setting.snapshots == 0 and _folds(setting.method):
        making.snapshots[len(after)] = work / "state"
    rest = [n for n in output.places if n not in base]
    engine.copy([(setting.base.tensors[n], output.places[n]) for n in rest], making.settings)
    output.finish()
    digests = open_version(work / "version").digests()
    return Built(
        work / "version",
        root_digest(digests),
        digests,
        tuple(making.after),
        work / "state",
        making.snapshots,
        {**folded.counts, "bytes_read": making.read, "bytes_written": making.written},
        (*overflow(folded.overflowed), *making.notes),
        making.sums,
        ran=making.ran,
        fitted=making.fitted,
    )


@dataclass
class _Making:
    """A build on its way: members with what is known of them so far, and the state to go on from. read, written:
    bytes that its folds moved so far."""

    setting: Setting
    work: Path
    after: list[Member]
    state: Path | None
    objects: StateObjects | None
    snapshots: dict[int, Path] = field(default_factory=dict)
    sums: dict[Path, Sums] = field(default_factory=dict)
    identity: str = ""
    read: int = 0
    written: int = 0
    notes: tuple[str, ...] = ()
    coefficients: Coefficients | None = None
    ran: dict[str, Any] = field(default_factory=dict)
    fitted: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.settings = engine_settings(self.setting.workers, self.setting.chunk, True)
        self.identity = " ".join(sorted(self.objects.values())) if self.objects else "nothing"

    def fold(
        self,
        position: int,
        enter: Sequence[Operand],
        leave: Sequence[Operand],
        folder: Path,
        out: Mapping[str, TensorRef],
    ) -> Folded | Modelled:
        setting, members = self.setting, self.after[:position]
        folded: Folded | Modelled
        if isinstance(setting.method, ModelMethod):
            from plait.line.calibration import step

            folded, self.ran = step(
                setting, members, enter, self.state, folder, out, self.work, self.identity
            )
        elif fit_of_method(setting.method) is not None and self.coefficients is None and out:
            from plait.line.fitting import Asked, fold_fitted

            asked = Asked(setting, members, enter, self.work)
            folded, chosen = fold_fitted(asked, setting.method, leave, self.state, folder, out, self._fold)
            self.ran, self.fitted = chosen.ran, chosen.words()
            self.notes = (*self.notes, chosen.note())
        else:
            folded = self._fold(setting.method, members, enter, leave, self.state, folder, out)
        self.sums[folder] = folded.sums
        self.read += folded.bytes_read
        self.written += folded.bytes_written
        self.after = learn(setting, self.after, folded.known, self.work)
        return folded

    def _fold(
        self,
        method: TensorMethod,
        members: Sequence[Member],
        enter: Sequence[Operand],
        leave: Sequence[Operand],
        state: Path | None,
        folder: Path | None,
        out: Mapping[str, TensorRef],
        *,
        part: str = "",
        alpha: Coefficients | None = None,
    ) -> Folded:
        """One call of the engine. part: which of several that make one fold; each has a journal of its own."""
        from plait import engine

        setting, position = self.setting, len(members)
        refs: Mapping[str, TensorRef] = {}
        if len(members) == 1 and members[0].object is not None:  # may come back as it is
            refs = operand(setting, members[0]).refs
        folded = engine.fold(
            method,
            mergeable(setting.base, setting.private),
            [incoming(setting, Operand(m, refs)) for m in members],
            enter=[incoming(setting, o) for o in enter],
            leave=[incoming(setting, o) for o in leave],
            state=state,
            new_state=folder,
            out=out,
            settings=self.settings,
            progress=engine.Progress() if out and not setting.quiet else None,
            journal=self.work / f"journal-{position}{part}",
            base_identity=setting.base_digest,
            state_identity=self.identity if state == self.state else "",
            alpha=alpha,
            coefficients=self.coefficients,
        )
        self.notes = tuple(folded.concluded.get("notes", ()))
        return folded


def overflow(found: Mapping[str, int]) -> tuple[str, ...]:
    """A note on elements of the merged model that are too large for its dtype."""
    if not found:
        return ()
    name = max(found, key=lambda n: found[n])
    most = f", most of them in {name}" if len(found) > 1 else f", in {name}"
    return (
        f"{plural(sum(found.values()), 'element of the merged model is', 'elements of the merged model are')} "
        f"infinite in its dtype{most}; lower scale or weights",
    )


def version_place(base: Checkpoint, folder: Path) -> Path:
    """Where a checkpoint in the base's layout goes inside a version's folder: the folder, or a file in it."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder if base.kind == "folder" else folder / base.shards[0].name


def _stages(
    setting: Setting, after: Sequence[Member], enter: Sequence[Operand]
) -> list[tuple[int, list[Operand]]]:
    """Cut what enters a fold where a snapshot is due: [(members after the stage, operands), ...], at least one."""
    if not _folds(setting.method) or not setting.snapshots:
        return [(len(after), list(enter))]
    stages: list[tuple[int, list[Operand]]] = []
    stage: list[Operand] = []
    for position, member in enumerate(enter, start=len(after) - len(enter) + 1):
        stage.append(member)
        if position == len(after) or position % setting.snapshots == 0:
            stages.append((position, stage))
            stage = []
    return stages or [(len(after), [])]


def _folds(method: TensorMethod | ModelMethod) -> bool:
    """Whether members step into a state in their order."""
    return method.facts.family != "additive" and not keeps_no_state(method)


def keeps_no_state(method: TensorMethod | ModelMethod) -> bool:
    """Whether the model is made from all members each time."""
    return method.facts.family in STATELESS


def check_kept(method: TensorMethod | ModelMethod, retention: str, snapshots: int) -> None:
    """UsageError where a line that keeps no state would lack its members, or would keep snapshots of it."""
    if keeps_no_state(method) and retention != "vectors":
        raise UsageError(
            f"retention is {retention}, and {method.name} makes the model from all task vectors at each change; use "
            "vectors"
        )
    if keeps_no_state(method) and snapshots:
        raise UsageError(
            f"snapshots is {snapshots}, and {method.name} has no state to keep: nothing is folded again when a "
            "member leaves; use 0"
        )


def learn(
    setting: Setting, members: Sequence[Member], known: Mapping[str, dict[str, Any]], work: Path
) -> list[Member]:
    """Keep what a fold found out about members in the store. It can be long (scalars of every tensor), and
    every ledger entry lists every member: there only its digest stands."""
    objects = setting.store.objects

    def keep(found: dict[str, Any]) -> str | None:
        return objects.put_file(write_json(work / "known.json", found)) if found else None

    return [replace(m, known=keep(known[m.task])) if m.task in known else m for m in members]


def knowledge(setting: Setting, member: Member) -> dict[str, Any] | None:
    """What the method found out about a member; None where it never looked."""
    if member.known is None:
        return None
    found: dict[str, Any] = json.loads(setting.store.objects.get(member.known))
    return found


def incoming(setting: Setting, operand: Operand) -> Incoming:
    """A member as the engine sees it."""
    from plait import engine

    member = operand.member
    return engine.Incoming(
        task=member.task,
        weight=member.weight,
        refs=dict(operand.refs),
        known=knowledge(setting, member),
        seed=seed_of(setting.seed, member.digest),
        identity=member.digest,
        side=dict(operand.side),
        side_identity=member.side or "",
    )


def engine_settings(workers: int | None, chunk: int | None, allow_nonfinite: bool) -> Settings:
    from plait import engine

    given = {"workers": workers, "chunk": chunk}
    chosen: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
    return engine.Settings(**chosen, allow_nonfinite=allow_nonfinite)


def link_state(setting: Setting, state: StateObjects | None, folder: Path) -> Path | None:
    """Present objects under the names that the engine gave them."""
    shutil.rmtree(folder, ignore_errors=True)
    if not state:
        return None
    folder.mkdir(parents=True)
    for name, digest in state.items():
        os.symlink(setting.store.objects.path(digest).resolve(), folder / name)
    return folder


def version_digest(folder: Path) -> str:
    """The root digest of what lies in a version's folder; the check that `verify` hands to the store."""
    return root_digest(open_version(folder).digests())


def open_version(folder: Path) -> Checkpoint:
    """Open a version's folder, whether it holds a Hugging Face folder or one bare file."""
    entries = sorted(p for p in folder.iterdir() if p.name != "README.md")
    if len(entries) == 1 and entries[0].suffix == ".safetensors":
        return open_checkpoint(entries[0])
    return open_checkpoint(folder)


def software(method_uses_torch: bool = True) -> dict[str, Any]:
    """The versions that made the bytes."""
    from plait import __version__

    row: dict[str, Any] = {"plait": __version__, "python": platform.python_version()}
    if method_uses_torch:
        import torch

        row["torch"] = torch.__version__
        row["cpu"] = torch.backends.cpu.get_cpu_capability()
    return row


def stack_of(before: Sequence[str], ran: Mapping[str, Any] | None = None) -> list[str]:
    """Every stack that had a hand in a state: those before, and this one. Matrix factorisations may differ
    between stacks in their last bits, and networks between numbers of threads too (ran: see `Compute.record`)."""
    now = software()
    return sorted({*before, f"torch {now['torch']}, {now['cpu']}{stack_words(ran or {})}"})


def write_json(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # what an interrupted command left may be read-only
    path.write_text(json.dumps(value, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
