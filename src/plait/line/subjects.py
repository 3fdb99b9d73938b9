"""The models of a line that can be measured: its base, its versions, its members' own checkpoints, one at a time."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.errors import PlaitError
from plait.evaluation.rows import Role
from plait.line.algebra import again, combination
from plait.line.build import Setting, open_version
from plait.line.exporting import put_private
from plait.line.member import Member, private_refs, refs_of
from plait.store import Store
from plait.tensors import Tensor, torch
from plait.types import TensorRef

WORKSPACE = "eval-"
"""What the names of workspaces begin with."""


@dataclass(frozen=True)
class Subject:
    """A model. digest: of a version, or of a member's checkpoint. entry: the newest ledger entry with the version;
    for an expert that of its member."""

    role: Role
    digest: str
    entry: Mapping[str, Any]
    member: Mapping[str, Any] | None = None

    @property
    def title(self) -> str:
        """Who it is, in a word or two."""
        name = f"expert {self.member['task']}" if self.member else self.role
        return "base" if self.role == "base" else f"{name} {self.digest[:12]}"


class Gone(PlaitError):
    """A model, or a member's private tensors, cannot be had; the message says why."""


def kept(store: Store, member: Mapping[str, Any] | None) -> bool:
    """Whether the line has a member's tensors."""
    return bool(member and member["object"] and store.objects.has(member["object"]))


def complete(store: Store, member: Mapping[str, Any]) -> bool:
    """Whether the line has all that a member gives to a model: tensors, and what the method needs of its data."""
    return kept(store, member) and all(map(store.objects.has, member.get("objects", ())))


def check(store: Store, subject: Subject) -> None:
    """Gone where the model can neither be read nor be made again."""
    if subject.member is not None:
        if not kept(store, subject.member):
            raise Gone(_why(store, "its checkpoint is not kept"))
        return
    if store.versions.has(subject.digest):
        return
    inexact = subject.entry.get("inexact")
    if inexact and combination(store, subject.entry) is None:
        raise Gone(
            _why(store, f"it is not on disk any more, and is no function of its members ({inexact['note']})")
        )
    lost = [m["task"] for m in subject.entry["members"] if not complete(store, m)]
    if lost:
        raise Gone(_why(store, f"it is not on disk any more, and what is kept lacks {', '.join(lost)}"))


def _why(store: Store, what: str) -> str:
    return f"{what} (this line has retention {store.settings['retention']}, keep {store.settings['keep']})"


@contextmanager
def tensors(setting: Setting, subject: Subject) -> Iterator[dict[str, TensorRef]]:
    """Where every tensor of a model lies, for the length of the block. A version that is gone is built again from its
    members, in a workspace. An expert is the base with the member's changed tensors in place, without `private` ones.

    Raises Gone where it cannot be had, or where the members give other bytes than those recorded.
    """
    check(setting.store, subject)
    if subject.member is not None:
        yield _expert(setting, Member.of(subject.member))
    elif setting.store.versions.has(subject.digest):
        yield open_version(setting.store.versions.path(subject.digest)).tensors
    else:
        with workspace(setting.store, subject.digest[:16]) as work:
            yield _built_again(setting, subject, work)


def _built_again(setting: Setting, subject: Subject, work: Path) -> dict[str, TensorRef]:
    built = again(setting, subject.entry, work)
    if built.folder is None or built.digest != subject.digest:
        raise Gone(
            f"its members give {built.digest[:12]} now; it was made by another stack of software "
            f"({'; '.join(subject.entry['stack'])})"
        )
    return open_version(built.folder).tensors


def _expert(setting: Setting, member: Member) -> dict[str, TensorRef]:
    base = setting.base
    changed = refs_of(setting.store.objects.path(member.object or ""))
    return {name: changed.get(base.aliases.get(name, name), ref) for name, ref in base.tensors.items()}


def check_private(store: Store, member: Mapping[str, Any]) -> None:
    """Gone where the line does not keep a member's private tensors."""
    if not kept(store, member):
        raise Gone(_why(store, f"the private tensors of {member['task']} are not kept"))


def private(setting: Setting, member: Mapping[str, Any]) -> dict[str, TensorRef]:
    """A member's private tensors. Gone where the line does not keep them."""
    check_private(setting.store, member)
    return private_refs(setting.store.objects.path(member["object"]))


def load(
    refs: Mapping[str, TensorRef], device: str | torch.device, dtype: torch.dtype | None
) -> dict[str, Tensor]:
    """Tensors in memory, of their shapes; floating-point ones in `dtype`, one after the other, so that there is never
    more than the model and one tensor."""
    from plait.engine.desk import Desk

    desk = Desk()
    try:
        found = {}
        for name, ref in refs.items():
            raw = desk.read(ref, 0, ref.numel, "model").view(ref.shape)
            wanted = dtype if raw.is_floating_point() else None
            found[name] = raw.to(device=device, dtype=wanted or raw.dtype, copy=True)
        return found
    finally:
        desk.close()


@contextmanager
def folder(setting: Setting, member: Mapping[str, Any] | None) -> Iterator[Path]:
    """The base's folder (or file), for the length of the block; for a member with private tensors the base with these
    and with the member's config.json, as `export --task` would write it."""
    base = setting.store.versions.path(setting.base_digest)
    if setting.base.kind == "file":
        yield Path(setting.base.path)
    elif member is None or not member["private"] or not kept(setting.store, member):
        yield base
    else:
        with workspace(setting.store, f"head-{member['digest'][:16]}") as work:
            shutil.copytree(base, work / "folder", copy_function=_link_weights)
            put_private(setting.store, member, work / "folder")
            yield work / "folder"


def own_names(store: Store, member: Mapping[str, Any]) -> dict[str, str]:
    """The names that tensors have in the folder that `folder` gives for a member, by the line's names, where these
    differ: those of the member's own checkpoint."""
    own = json.loads(store.objects.get(member["config"])) if member["config"] else {}
    return dict(own.get("names") or {})


def _link_weights(source: str, target: str) -> None:
    """Weight files are only ever replaced as a whole, so a second name will do; other files are copied."""
    if source.endswith(".safetensors"):
        with suppress(OSError):
            os.link(source, target)
            return
    shutil.copyfile(source, target)


@contextmanager
def workspace(store: Store, name: str) -> Iterator[Path]:
    """A workspace that is empty at first and gone afterwards."""
    _sweep(store)
    try:
        yield store.workspace(WORKSPACE + name)
    finally:
        _sweep(store)


def _sweep(store: Store) -> None:
    """Remove this module's workspaces, also those of a command that was killed; others may want to go on."""
    store.clear_workspaces(*(name for name in store.workspaces() if not name.startswith(WORKSPACE)))
