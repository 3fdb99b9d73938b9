"""From a list of members to a version on disk: state in, state and model out. All verbs end here."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.checkpoint.layout import Checkpoint, open_checkpoint, root_digest
from plait.checkpoint.output import plan_output
from plait.errors import PlaitError
from plait.line.member import Member, refs_of, seed_of
from plait.types import TensorRef

if TYPE_CHECKING:
    from plait.engine import Incoming
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
    method: TensorMethod
    seed: int
    private: tuple[str, ...]
    snapshots: int
    workers: int | None = None
    chunk: int | None = None
    quiet: bool = True

    def mergeable(self) -> dict[str, TensorRef]:
        """The base's tensors that a member may change."""
        from fnmatch import fnmatchcase

        return {
            n: r
            for n, r in self.base.tensors.items()
            if r.mergeable and n not in self.base.aliases and not any(fnmatchcase(n, p) for p in self.private)
        }


@dataclass(frozen=True)
class Operand:
    """A member whose tensors are at hand."""

    member: Member
    refs: Mapping[str, TensorRef]


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


def operand(setting: Setting, member: Member) -> Operand:
    """A member that the store keeps, ready to be read."""
    if member.object is None:
        raise PlaitError(
            f"{member.task}: this line keeps no members; hand its checkpoint in with --checkpoint"
        )
    return Operand(member, refs_of(setting.store.objects.path(member.object)))


def build(
    setting: Setting,
    after: Sequence[Member],
    work: Path,
    *,
    enter: Sequence[Operand],
    leave: Sequence[Operand] = (),
    state: StateObjects | None = None,
) -> Built:
    """Make the version whose members are `after`. What an interrupted run of the same left in `work` is used.

    state: the state that `enter` is added to and `leave` taken from; None: from nothing.
    For a fold, `state` is that of a prefix of `after`, and `enter` the rest in order.
    """
    from plait import engine

    if not after:
        return Built(None, setting.base_digest, setting.base_digests, (), None, {}, {})
    state_in = _link_state(setting, state, work / "state-in") if state else None
    after = list(after)
    snapshots: dict[int, Path] = {}
    settings = _engine_settings(setting)
    base = setting.mergeable()
    stages = _stages(setting, after, enter, additive=_additive(setting.method))
    for position, stage in stages[:-1]:
        folder = work / f"snapshot-{position}"
        folded = engine.fold(
            setting.method,
            base,
            [_incoming(setting, m, {}) for m in after[:position]],
            enter=[_incoming(setting, o.member, o.refs) for o in stage],
            leave=(),
            state=state_in,
            new_state=folder,
            out={},
            settings=settings,
            journal=work / f"journal-{position}",
        )
        after = _learn(setting, after, folded.known, work)
        snapshots[position] = state_in = folder
    output = plan_output(setting.base, version_place(setting.base, work / "version"))
    progress = None if setting.quiet else engine.Progress()
    new_state = work / "state"
    folded = engine.fold(
        setting.method,
        base,
        [_incoming(setting, m, {}) for m in after],
        enter=[_incoming(setting, o.member, o.refs) for o in stages[-1][1]],
        leave=[_incoming(setting, o.member, o.refs) for o in leave],
        state=state_in,
        new_state=new_state,
        out={n: output.places[n] for n in base},
        settings=settings,
        progress=progress,
        journal=work / "journal",
    )
    after = _learn(setting, after, folded.known, work)
    if setting.snapshots and len(after) % setting.snapshots == 0 and not _additive(setting.method):
        snapshots[len(after)] = new_state
    rest = [n for n in output.places if n not in base]
    engine.copy([(setting.base.tensors[n], output.places[n]) for n in rest], settings)
    output.finish()
    digests = open_version(work / "version").digests()
    made = root_digest(digests)
    return Built(work / "version", made, digests, tuple(after), new_state, snapshots, dict(folded.counts))


def version_place(base: Checkpoint, folder: Path) -> Path:
    """Where a checkpoint in the base's layout goes inside a version's folder: the folder, or a file in it."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder if base.kind == "folder" else folder / base.shards[0].name


def _stages(
    setting: Setting, after: Sequence[Member], enter: Sequence[Operand], *, additive: bool
) -> list[tuple[int, list[Operand]]]:
    """Cut what enters a fold where a snapshot is due: [(members after the stage, operands), ...]."""
    if additive or not setting.snapshots:
        return [(len(after), list(enter))]
    stages: list[tuple[int, list[Operand]]] = []
    stage: list[Operand] = []
    for position, member in enumerate(enter, start=len(after) - len(enter) + 1):
        stage.append(member)
        if position == len(after) or position % setting.snapshots == 0:
            stages.append((position, stage))
            stage = []
    return stages


def _additive(method: TensorMethod) -> bool:
    return method.facts.family == "additive"


def _learn(
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


def _incoming(setting: Setting, member: Member, refs: Mapping[str, TensorRef]) -> Incoming:
    from plait import engine

    return engine.Incoming(
        task=member.task,
        weight=member.weight,
        refs=dict(refs),
        known=knowledge(setting, member),
        seed=seed_of(setting.seed, member.digest),
    )


def _engine_settings(setting: Setting) -> Any:
    from plait import engine

    chosen = {"workers": setting.workers, "chunk": setting.chunk}
    return engine.Settings(**{k: v for k, v in chosen.items() if v is not None}, allow_nonfinite=True)


def _link_state(setting: Setting, state: StateObjects, folder: Path) -> Path:
    """Present objects under the names that the engine gave them."""
    shutil.rmtree(folder, ignore_errors=True)
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


def write_json(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
