"""What a line remembers of a member, and how a checkpoint becomes one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.checkpoint.format import FileWriter, hash_tensor, read_header
from plait.checkpoint.keys import Accounting, account
from plait.checkpoint.layout import Checkpoint, open_checkpoint, root_digest
from plait.errors import NonFinite, RefusedInput, UsageError
from plait.methods.base import Weight
from plait.types import TASK_NAME, TensorRef, is_task_name
from plait.words import plural

if TYPE_CHECKING:
    from plait.engine import Intake

MERGED, PRIVATE = "merged/", "private/"  # prefixes of tensors inside a member's object


@dataclass(frozen=True)
class Member:
    """One task that is in the line. Plain values: it is what the ledger keeps of it."""

    task: str
    weight: Weight
    digest: str  # root digest of the checkpoint as it was handed in
    source: str  # last part of the path it came from
    object: str | None = None  # its changed tensors in the store; None where the line keeps no members
    config: str | None = None  # where it has private tensors: its config.json and its names for tensors
    private: tuple[str, ...] = ()
    known: str | None = None  # what the method's `prepare` returned, in the store
    descends: dict[str, Any] | None = None  # {"version": digest, "tasks": [...]}: what it was trained from
    data: str | None = None  # digest of its stored task, where the method looks at data
    side: str | None = None  # digest of the statistics that were computed from them
    examples: dict[str, Any] | None = None  # by split of `data`: {"count", "of", "digest"}
    objects: tuple[str, ...] = ()  # those of `data` and `side` that are in the store

    def plain(self) -> dict[str, Any]:
        row = asdict(self)
        row["private"], row["objects"] = list(self.private), list(self.objects)
        return row

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Member:
        tuples = {"private": tuple(row["private"]), "objects": tuple(row.get("objects", ()))}
        return cls(**{**row, **tuples})

    @property
    def identity(self) -> tuple[str, Weight, str | None, str | None]:
        """What decides its share of the model: checkpoint, weight and data."""
        return self.digest, self.weight, self.data, self.side


@dataclass(frozen=True)
class Arrival:
    """A checkpoint that passed every check, with its changed tensors in a file of their own."""

    member: Member
    refs: dict[str, TensorRef]  # changed mergeable tensors, in that file
    file: Path
    own: dict[str, Any] | None  # what an export with its private tensors needs
    accounting: dict[str, Any]  # how every tensor was classed
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Allow:
    """What is let pass that is refused otherwise."""

    nonfinite: bool = False  # NaN and infinity: the base's value is taken there
    distant: bool = False  # a task vector longer than the base
    pickle: bool = False  # PyTorch pickles, read in a child process


def task_of(checkpoint: str | Path) -> str:
    """A task's name where none was given: the folder's (`gpt-3.5` stays whole), or the file's without suffix."""
    path = Path(checkpoint).resolve()
    return path.stem if path.is_file() else path.name


def check_task(task: str) -> str:
    if not is_task_name(task):
        raise UsageError(
            f"task name {task!r} cannot be used; expected {TASK_NAME}; give one with --task NAME"
        )
    return task


def patterns(private: Sequence[str] | str) -> tuple[str, ...]:
    """Patterns of private tensors; one string is one pattern, not its letters."""
    return (private,) if isinstance(private, str) else tuple(private)


def seed_of(line_seed: int, digest: str) -> bytes:
    """The root of a member's random numbers: depends on the line and the checkpoint, not on name or order."""
    return sha256(f"plait {line_seed} {digest}".encode()).digest()


def receive(
    path: str | Path,
    task: str,
    base: Checkpoint,
    base_digests: Mapping[str, str],
    into: Path,
    *,
    weight: Weight = 1.0,
    private: Sequence[str] = (),
    untouched: frozenset[str] = frozenset(),
    allow: Allow,
) -> Arrival:
    """Read and check a checkpoint; write its changed and private tensors to `into`, losslessly.

    untouched: tensors that no member so far has changed, for the hint when the base seems to be another one.
    Raises RefusedInput (KeyMismatch, NonFinite, FormatError) and leaves nothing behind but `into`.
    """
    from plait import engine

    expert = open_checkpoint(path, allow_pickle=allow.pickle)
    found = account(base, expert, private)
    refs = {n: r for n, r in found.merge.items() if r.numel}
    looked = engine.intake({n: base.tensors[n] for n in refs}, refs, engine.Settings())
    if not allow.nonfinite:
        refuse_nonfinite(task, looked.nonfinite)
    if not allow.distant:
        _refuse_distant(task, looked, untouched)
    changed = {n: refs[n] for n in refs if n in looked.changed}
    places = _write_subset(changed, found.private, into)
    equal = [n for n, r in found.merge.items() if n not in changed and r.dtype == base.tensors[n].dtype]
    member = Member(
        task=task,
        weight=weight,
        digest=identity(found, {n: base_digests[n] for n in equal}, places),
        source=Path(path).resolve().name,
        private=tuple(sorted(found.private)),
    )
    counted = {
        "merged": len(changed),
        "frozen": len(found.merge) - len(changed),
        "private": len(found.private),
        "buffer": len(found.buffers),
        "tied": len(found.tied),
        "nonfinite": looked.elements_nonfinite,
        "distance": looked.distance / looked.norm if looked.norm else None,
    }
    notes = list(found.notes)
    if not changed:
        notes.append("the checkpoint equals the base in every tensor that is merged")
    own = None
    if found.private:
        renamed = bool(found.removed or found.added)
        own = {"config": expert.config, "names": dict(found.names) if renamed else None}
    return Arrival(member, refs_of(into), into, own, counted, tuple(notes))


def refuse_nonfinite(owner: str, found: Sequence[tuple[str, tuple[int, ...]]]) -> None:
    """NonFinite that names the first tensor and index, where there is any."""
    if not found:
        return
    name, index = found[0]
    more = (
        f" (and {plural(len(found) - 1, 'more tensor holds', 'more tensors hold')} such)"
        if len(found) > 1
        else ""
    )
    raise NonFinite(
        f"{owner}: {name}[{', '.join(map(str, index))}] is NaN or infinite{more}, finite numbers are needed; "
        "repair the checkpoint, or use --allow-nonfinite to take the base's value there"
    )


def _refuse_distant(task: str, looked: Intake, untouched: frozenset[str]) -> None:
    if looked.norm == 0 or looked.distance < looked.norm:  # a model of zeros is as far as the base is long
        return
    differ = sorted(untouched & looked.changed)
    count = plural(
        len(differ), "tensor that no member has changed differs", "tensors that no member has changed differ"
    )
    hint = f"; {count}, such as {differ[0]}" if differ else ""
    raise RefusedInput(
        f"{task}: its task vector is {looked.distance / looked.norm:.2f} times as long as the base itself{hint}; "
        "expected a checkpoint fine-tuned from this base: check its origin, or use --allow-distant to merge it "
        "all the same"
    )


def _write_subset(
    changed: Mapping[str, TensorRef], private: Mapping[str, TensorRef], into: Path
) -> dict[str, TensorRef]:
    """Copy tensors into a safetensors file of their own, under `merged/` and `private/`."""
    from plait import engine

    rows = {MERGED + n: r for n, r in changed.items()} | {PRIVATE + n: r for n, r in private.items()}
    into.parent.mkdir(parents=True, exist_ok=True)
    writer = FileWriter(into, [(n, r.dtype, r.shape) for n, r in rows.items()], {"format": "plait member"})
    try:
        engine.copy([(r, writer.places[n]) for n, r in rows.items()], engine.Settings())
    finally:
        writer.close()
    return dict(writer.places)


def identity(
    found: Accounting, known: Mapping[str, str] | None = None, places: Mapping[str, TensorRef] | None = None
) -> str:
    """A checkpoint's root digest, over the base's names for its tensors.

    known: digests of tensors that need not be hashed again. places: copies to hash in their stead, so that
    digest and merged bytes cannot drift apart while the source is being written.
    """
    rows = dict(known or {})
    copies = places or {}
    for name, ref in (*found.merge.items(), *found.buffers.items(), *found.duplicates.items()):
        if name not in rows:
            rows[name] = hash_tensor(copies.get(MERGED + name, ref))
    for name, ref in found.private.items():
        rows[name] = hash_tensor(copies.get(PRIVATE + name, ref))
    return root_digest(rows)


def refs_of(file: Path) -> dict[str, TensorRef]:
    """The changed tensors in a member's file, by the base's names."""
    return _under(MERGED, file)


def private_refs(file: Path) -> dict[str, TensorRef]:
    """A member's private tensors, by their own names."""
    return _under(PRIVATE, file)


def _under(prefix: str, file: Path) -> dict[str, TensorRef]:
    return {
        name.removeprefix(prefix): replace(ref, name=name.removeprefix(prefix))
        for name, ref in read_header(file).tensors.items()
        if name.startswith(prefix)
    }
