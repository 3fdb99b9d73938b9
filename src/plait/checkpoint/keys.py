"""Which tensor of an expert belongs to which of the base. Nothing is dropped: it fits, or it is refused."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from plait.checkpoint.format import same_bytes
from plait.checkpoint.names import map_names, matcher, suggest
from plait.checkpoint.ties import is_embedding, is_head, says_tied, twin
from plait.errors import KeyMismatch
from plait.types import DTYPES, TensorRef
from plait.words import plural

if TYPE_CHECKING:
    from plait.checkpoint.layout import Checkpoint

__all__ = ["Accounting", "Class", "account", "matcher", "untied"]

Class = Literal["merged", "private", "buffer", "tied", "kept"]

_SHOWN = 20
_TIES = 16  # an expert that differs in more names is not searched for tied weights: it is another model
_COUNT = "num_batches_tracked"
_QUANTISED = re.compile(r"\.(qweight|qzeros|g_idx|SCB|weight_format|absmax|quant_map|weight_packed)$")


@dataclass(frozen=True)
class Accounting:
    """Where every tensor of a base and of an expert goes. All names are canonical."""

    merge: dict[str, TensorRef]  # name in the base -> the expert's bytes
    private: dict[str, TensorRef]  # name -> the expert's bytes, kept beside the merged model
    buffers: dict[
        str, TensorRef
    ]  # name in the base -> the expert's bytes: equal to the base's, or counts of batches
    of_base: dict[str, Class]  # every tensor of the base: merged, buffer, tied, or kept as it is in the base
    of_expert: dict[
        str, Class
    ]  # every tensor of the expert, by its name there: merged, buffer, tied or private
    tied: dict[str, str]  # alias -> name in the base whose bytes it shares; private aliases are not in it
    names: dict[str, str] = field(default_factory=dict)  # name in the base (or private) -> name in the expert
    removed: str = ""  # prefix that was taken off the expert's names to fit the base's
    added: str = ""  # prefix that was put before them
    notes: tuple[str, ...] = ()
    duplicates: dict[str, TensorRef] = field(
        default_factory=dict
    )  # alias -> the expert's bytes, equal to another's of it

    @property
    def stored(self) -> dict[str, TensorRef]:
        """Every tensor of the expert, once, by its name in the base (or private). `names` has its own names.

        Under the names of the expert these are the rows of the expert's root digest, tied ones included.
        """
        every = self.merge | self.buffers | self.private | self.duplicates
        return {name: every[name] for name in self.names}

    @property
    def counts(self) -> dict[str, int]:
        """How many tensors of the base and how many private ones there are in each class."""
        totals = Counter[str](self.of_base.values())
        totals["private"] += len(self.private)
        return dict(totals)


def account(base: Checkpoint, expert: Checkpoint, private: Sequence[str] = ()) -> Accounting:
    """Put every tensor of both checkpoints into exactly one class, or refuse the expert.

    private: shell patterns of canonical names, such as `classifier.*`: tensors of one task, never merged. A
    tied name that matches is a tensor of its own here: see `untied`.
    Reads bytes of integer tensors, of tied weights, and of tensors that one side lacks; of nothing else.
    Errors: KeyMismatch, whose `problems` lists every tensor that does not fit.
    """
    return _Account(base, expert, private).run()


def untied(base: Checkpoint, private: Sequence[str]) -> frozenset[str]:
    """Aliases of the base that are private, so that they do not follow the merged weights: for `plan_output`."""
    is_private = matcher(private)
    return frozenset(name for name in base.aliases if is_private(name)) if private else frozenset()


@dataclass
class _Account:
    base: Checkpoint
    expert: Checkpoint
    patterns: Sequence[str]
    merge: dict[str, TensorRef] = field(default_factory=dict)
    private: dict[str, TensorRef] = field(default_factory=dict)
    buffers: dict[str, TensorRef] = field(default_factory=dict)
    of_base: dict[str, Class] = field(default_factory=dict)
    of_expert: dict[str, Class] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)
    duplicates: dict[str, TensorRef] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    counted: int = 0  # counts of batches that differ from the base's
    problems: dict[str, str] = field(default_factory=dict)  # offending name -> what is wrong
    extra: list[str] = field(default_factory=list)
    apart: list[str] = field(default_factory=list)  # offending names that --private may help
    hints: list[str] = field(default_factory=list)

    def run(self) -> Accounting:
        self.is_private = matcher(self.patterns)
        # name in the base -> name in the expert
        self.names, removed, added = map_names(
            list(self.base.tensors), list(self.expert.tensors), self.is_private
        )
        self.notes += self.expert.notes
        if removed:
            self.notes.append(f"prefix {removed!r} of the expert's names was removed")
        if added:
            self.notes.append(f"prefix {added!r} was put before the expert's names")
        for name in self.names:
            if self.is_private(name):
                self._keep_apart(name)
        self._aliases()
        for name, ref in self.base.tensors.items():
            if name not in self.of_base:
                self._pair(name, ref)
        for name, theirs in self.names.items():
            if theirs not in self.of_expert and name not in self.problems:
                self._extra(name)
        self._note_unused()
        if self.problems:
            raise self._refusal()
        self._note_dtypes()
        return Accounting(
            self.merge,
            self.private,
            self.buffers,
            self.of_base,
            self.of_expert,
            self.tied,
            self.names,
            removed,
            added,
            tuple(self.notes),
            self.duplicates,
        )

    def _keep_apart(self, name: str) -> None:
        self.private[name] = self._theirs(name)
        self.of_expert[self.names[name]] = "private"

    def _theirs(self, name: str) -> TensorRef:
        """The expert's tensor that has this name in the base."""
        ref = self.expert.tensors[self.names[name]]
        return TensorRef(name, ref.dtype, ref.shape, ref.file, ref.start, ref.end)

    def _aliases(self) -> None:
        """Names that the base ties: the expert may have one of the two, or both with equal bytes."""
        for alias, kept in self.base.aliases.items():
            if self.is_private(alias):
                continue  # a tensor of its own
            self.of_base[alias] = "tied"
            self.tied[alias] = kept
            if alias not in self.names:
                continue
            if kept not in self.names:
                self.names[kept] = self.names.pop(alias)
                self.notes.append(f"{alias} of the expert is {kept} of the base: they are tied")
                if self.is_private(kept):
                    self._keep_apart(kept)
            elif same_bytes(self._theirs(alias), self._theirs(kept)):
                self.of_expert[self.names[alias]] = "tied"
                self.duplicates[alias] = self._theirs(alias)
            else:
                self._untied(alias, kept)

    def _untied(self, alias: str, kept: str) -> None:
        self.problems[alias] = f"untied: differs from {kept} in the expert, while the base ties the two"
        self.hints.append(
            "the expert was trained with untied weights: train it with tie_word_embeddings, or use a "
            "base whose config.json says that they are not tied"
        )

    def _pair(self, name: str, ref: TensorRef) -> None:
        """A tensor of the base that follows no other: find the expert's."""
        if self.is_private(name):
            self.of_base[name] = "kept"
            return
        if name not in self.names:
            self._missing(name, ref)
            return
        theirs = self._theirs(name)
        fault = self._fault(ref, theirs)
        if fault is not None:
            self.problems[name] = fault
            return
        kind: Class = "merged" if ref.mergeable else "buffer"
        (self.merge if ref.mergeable else self.buffers)[name] = theirs
        self.of_base[name] = kind
        self.of_expert[self.names[name]] = kind

    def _missing(self, name: str, ref: TensorRef) -> None:
        """The expert lacks a tensor: it fits only if the base has the same bytes under another name."""
        found = None
        if ref.mergeable and len(self.apart) < _TIES:
            shared = self.names.keys() - self.private.keys()
            found = twin(
                ref, [o for o in self.base.tensors.values() if o.shape == ref.shape and o.name in shared]
            )
        if found is None:
            self.problems[name] = f"{_kind(ref)} is in the base, not in the expert"
            self.apart.append(name)
            return
        theirs = self._theirs(found)
        self.merge[name] = TensorRef(name, theirs.dtype, theirs.shape, theirs.file, theirs.start, theirs.end)
        self.of_base[name] = "merged"
        self.notes.append(f"{name} is not in the expert; the base ties it to {found}")

    def _extra(self, name: str) -> None:
        """A tensor that the base lacks: an alias of one that the base has, or refused."""
        ref = self._theirs(name)
        same: list[TensorRef] = []
        if ref.mergeable and len(self.extra) < _TIES:
            fitting = [n for n in self.names if n in self.base.tensors and n not in self.private]
            same = [self._theirs(n) for n in fitting if self.expert.tensors[self.names[n]].shape == ref.shape]
        found = twin(ref, same)
        if found is not None:
            self.of_expert[self.names[name]] = "tied"
            self.tied[name] = found
            self.duplicates[name] = ref
            self.notes.append(f"{name} of the expert is tied to {found}; the base stores only the latter")
            return
        kept = next((o.name for o in same if is_embedding(o.name)), None)
        if is_head(name) and kept is not None and says_tied(self.base.config):
            self._untied(name, kept)
            return
        self.problems[name] = f"{_kind(ref)} is in the expert, not in the base"
        self.extra.append(name)
        self.apart.append(name)

    def _fault(self, ref: TensorRef, theirs: TensorRef) -> str | None:
        """Why a pair of tensors does not fit; None if it does."""
        if ref.shape != theirs.shape:
            if (
                len(ref.shape) == 2
                and ref.shape[1:] == theirs.shape[1:]
                and (is_embedding(ref.name) or is_head(ref.name))
            ):
                self.hints.append(
                    "the vocabularies differ in size: resize the expert's embeddings, or keep them apart "
                    "with --private"
                )
            self.apart.append(ref.name)
            return f"expert has {_shape(theirs)}, base has {_shape(ref)}"
        if ref.mergeable and theirs.mergeable:
            return None
        if same_bytes(ref, theirs):
            return None
        if self._counts_batches(ref, theirs):
            self.counted += 1
            return None
        if _quantised(ref) or _quantised(theirs):
            self.hints.append(
                "quantised weights cannot be merged: use the checkpoints from before quantisation"
            )
            return f"quantised: expert has {_kind(theirs)}, base has {_kind(ref)}"
        if ref.dtype != theirs.dtype:
            return f"expert has dtype {theirs.dtype}, base has {ref.dtype}"
        self.hints.append(f"{ref.dtype} tensors must equal the base's: they cannot be merged")
        self.apart.append(ref.name)
        return f"{_kind(ref)} differs from the base"

    def _counts_batches(self, ref: TensorRef, theirs: TensorRef) -> bool:
        """Whether a tensor counts the batches that a BatchNorm layer was trained on: no output depends on it."""
        stem, _, last = ref.name.rpartition(".")
        beside = f"{stem}.running_mean".lstrip(".")
        return last == _COUNT and ref.dtype == theirs.dtype and beside in self.base.tensors

    def _refusal(self) -> KeyMismatch:
        lines = tuple(f"{name}: {why}" for name, why in self.problems.items())
        shown = "; ".join(lines[:_SHOWN])
        if len(lines) > _SHOWN:
            shown += f"; and {len(lines) - _SHOWN} more (--json lists all)"
        hints = list(dict.fromkeys(self.hints))
        fitting = [*self.merge, *self.buffers]
        if not fitting:
            hints.append("nothing fits: this is another architecture than the base")
        elif self.apart:
            patterns = suggest(self.apart, set(fitting))
            options = " ".join(f"--private '{pattern}'" for pattern in patterns[:6])
            hints.append(f"was it fine-tuned from another base? if these belong to its task alone: {options}")
        return KeyMismatch(
            f"{self.expert.path} does not fit the base in {plural(len(lines), 'tensor')}: {shown}; "
            + "; ".join(hints),
            lines,
        )

    def _note_unused(self) -> None:
        names = [*self.names, *self.base.tensors]
        for pattern in self.patterns:
            if not any(map(matcher([pattern]), names)):
                self.notes.append(f"--private '{pattern}' matches no tensor")

    def _note_dtypes(self) -> None:
        pairs = Counter(
            (theirs.dtype, self.base.tensors[name].dtype)
            for name, theirs in self.merge.items()
            if theirs.dtype != self.base.tensors[name].dtype
        )
        if self.counted:
            number = plural(self.counted, "tensor differs", "tensors differ")
            self.notes.append(
                f"num_batches_tracked of BatchNorm: {number} in the expert; the base's stay: no output depends on it"
            )
        for (theirs, ours), count in pairs.items():
            number = plural(count, "tensor is", "tensors are")
            self.notes.append(f"{number} {theirs} in the expert and {ours} in the base: merged in {ours}")


def _quantised(ref: TensorRef) -> bool:
    kind = DTYPES[ref.dtype].kind
    packed = kind == "int" and DTYPES[ref.dtype].size == 1 and len(ref.shape) > 1
    return kind == "float8" or packed or _QUANTISED.search(ref.name) is not None


def _shape(ref: TensorRef) -> str:
    return str(ref.shape)


def _kind(ref: TensorRef) -> str:
    return f"{ref.dtype} {ref.shape}"
