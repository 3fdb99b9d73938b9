"""Which tensor of an expert belongs to which of the base. Nothing is dropped: it fits, or it is refused."""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from plait.checkpoint.format import same_bytes
from plait.checkpoint.ties import is_embedding, is_head, ties_heads, twin
from plait.errors import FormatError, KeyMismatch
from plait.types import DTYPES, TensorRef

if TYPE_CHECKING:
    from plait.checkpoint.layout import Checkpoint

WRAPPERS = ("module.", "_orig_mod.", "base_model.model.")
"""Prefixes that wrappers (DataParallel, torch.compile, peft) put before every name."""

Class = Literal["merged", "private", "buffer", "tied", "kept"]

_SHOWN = 20
_QUANTISED = re.compile(r"\.(qweight|qzeros|g_idx|SCB|weight_format|absmax|quant_map|weight_packed)$")


@dataclass(frozen=True)
class Accounting:
    """Where every tensor of a base and of an expert goes. All names are canonical."""

    merge: dict[str, TensorRef]  # name in the base -> the expert's bytes
    private: dict[str, TensorRef]  # name -> the expert's bytes, kept beside the merged model
    buffers: dict[str, TensorRef]  # name in the base -> the expert's bytes, equal to the base's
    of_base: dict[str, Class]  # every tensor of the base: merged, buffer, tied, or kept as it is in the base
    of_expert: dict[
        str, Class
    ]  # every tensor of the expert, by its name there: merged, buffer, tied or private
    tied: dict[str, str]  # alias -> name in the base whose bytes it shares
    notes: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """How many tensors of the base and how many private ones there are in each class."""
        totals = Counter[str](self.of_base.values())
        totals["private"] += len(self.private)
        return dict(totals)


def canonical_names(path: str, names: Sequence[str]) -> tuple[dict[str, str], str]:
    """Names without the prefixes that wrappers put before all of them: (name -> canonical name, prefix).

    Errors: FormatError where two names become one.
    """
    prefix = ""
    while True:
        found = next(
            (w for w in WRAPPERS if all(n.startswith(prefix + w) and n != prefix + w for n in names)), None
        )
        if found is None:
            break
        prefix += found
    return {name: name[len(prefix) :] for name in names}, prefix


def account(base: Checkpoint, expert: Checkpoint, private: Sequence[str] = ()) -> Accounting:
    """Put every tensor of both checkpoints into exactly one class, or refuse the expert.

    private: shell patterns of canonical names, such as `classifier.*`: tensors of one task, never merged.
    Reads bytes of integer tensors, of tied weights, and of tensors that one side lacks; of nothing else.
    Errors: KeyMismatch, whose `problems` lists every tensor that does not fit.
    """
    return _Account(base, expert, private).run()


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
    notes: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)  # offending name -> what is wrong
    extra: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)

    def run(self) -> Accounting:
        self.names, note = map_names(
            list(self.base.tensors), list(self.expert.tensors)
        )  # in base -> in expert
        self.notes += [*self.expert.notes, *([note] if note else [])]
        self.is_private = matcher(self.patterns)
        for name in self.names:
            if self.is_private(name):
                self.private[name] = self._theirs(name)
                self.of_expert[self.names[name]] = "private"
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
            tuple(self.notes),
        )

    def _theirs(self, name: str) -> TensorRef:
        """The expert's tensor that has this name in the base."""
        ref = self.expert.tensors[self.names[name]]
        return TensorRef(name, ref.dtype, ref.shape, ref.file, ref.start, ref.end)

    def _aliases(self) -> None:
        """Names that the base ties: the expert may have one of the two, or both with equal bytes."""
        for alias, kept in self.base.aliases.items():
            self.of_base[alias] = "tied"
            self.tied[alias] = kept
            if alias not in self.names or alias in self.private:
                continue
            if kept not in self.names:
                self.names[kept] = self.names.pop(alias)
                self.notes.append(f"{alias} of the expert is {kept} of the base: they are tied")
            elif same_bytes(self._theirs(alias), self._theirs(kept)):
                self.of_expert[self.names[alias]] = "tied"
            else:
                self._untied(alias, kept)

    def _untied(self, alias: str, kept: str) -> None:
        self.problems[alias] = f"untied: differs from {kept} in the expert, while the base ties the two"
        self.hints.append(
            "the expert was trained with untied weights: train it with tie_word_embeddings, or use a "
            "base whose config.json says that they are not tied"
        )

    def _pair(self, name: str, ref: TensorRef) -> None:
        """A tensor of the base that is no alias: find the expert's."""
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
        same = [
            other
            for other in self.base.tensors.values()
            if other.shape == ref.shape and other.dtype == ref.dtype and other.name in self.names
        ]
        found = twin(ref, same) if ref.mergeable else None
        if found is None:
            self.problems[name] = f"{_kind(ref)} is in the base, not in the expert"
            self.missing.append(name)
            return
        theirs = self._theirs(found)
        self.merge[name] = TensorRef(name, theirs.dtype, theirs.shape, theirs.file, theirs.start, theirs.end)
        self.of_base[name] = "merged"
        self.notes.append(f"{name} is not in the expert; the base ties it to {found}")

    def _extra(self, name: str) -> None:
        """A tensor that the base lacks: an alias of one that the base has, or refused."""
        ref = self._theirs(name)
        same = [
            self._theirs(other)
            for other in self.names
            if other in self.base.tensors and self.expert.tensors[self.names[other]].shape == ref.shape
        ]
        found = twin(ref, same) if ref.mergeable else None
        if found is not None:
            self.of_expert[self.names[name]] = "tied"
            self.tied[name] = found
            self.notes.append(f"{name} of the expert is tied to {found}; the base stores only the latter")
            return
        kept = next((o.name for o in same if is_embedding(o.name)), None)
        if is_head(name) and kept is not None and self.base.config and ties_heads(self.base.config):
            self._untied(name, kept)
            return
        self.problems[name] = f"{_kind(ref)} is in the expert, not in the base"
        self.extra.append(name)

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
            return f"expert has {_shape(theirs)}, base has {_shape(ref)}"
        if ref.mergeable and theirs.mergeable:
            return None
        if same_bytes(ref, theirs):
            return None
        if _quantised(ref) or _quantised(theirs):
            self.hints.append(
                "quantised weights cannot be merged: use the checkpoints from before quantisation"
            )
            return f"quantised: expert has {_kind(theirs)}, base has {_kind(ref)}"
        if ref.dtype != theirs.dtype:
            return f"expert has dtype {theirs.dtype}, base has {ref.dtype}"
        self.hints.append("buffers of whole numbers cannot be merged: keep them apart with --private")
        return f"{_kind(ref)} differs from the base"

    def _refusal(self) -> KeyMismatch:
        lines = tuple(f"{name}: {why}" for name, why in self.problems.items())
        shown = "; ".join(lines[:_SHOWN])
        if len(lines) > _SHOWN:
            shown += f"; and {len(lines) - _SHOWN} more"
        hints = list(dict.fromkeys(self.hints))
        if self.extra and len(self.extra) == len(self.names):
            hints.append("no name fits: this is another architecture than the base")
        elif self.extra or self.missing:
            patterns = suggest(self.extra + self.missing, set(self.base.tensors) - set(self.missing))
            options = " ".join(f"--private '{pattern}'" for pattern in patterns[:6])
            hints.append(f"if they belong to this task alone: {options}")
        hints.append("was it fine-tuned from another base?") if not hints else None
        return KeyMismatch(
            f"{self.expert.path} does not fit {self.base.path} in {len(lines)} tensors: {shown}; "
            + "; ".join(hints),
            lines,
        )

    def _note_unused(self) -> None:
        names = [*self.names, *self.base.tensors]
        for pattern in self.patterns:
            if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
                self.notes.append(f"--private '{pattern}' matches no tensor")

    def _note_dtypes(self) -> None:
        pairs = Counter(
            (theirs.dtype, self.base.tensors[name].dtype)
            for name, theirs in self.merge.items()
            if theirs.dtype != self.base.tensors[name].dtype
        )
        for (theirs, ours), count in pairs.items():
            self.notes.append(
                f"{count} tensors are {theirs} in the expert and {ours} in the base: merged in {ours}"
            )


def map_names(base: Sequence[str], expert: Sequence[str]) -> tuple[dict[str, str], str | None]:
    """Fit an expert's names to the base's by adding or removing one common prefix, such as `bert.`.

    Returns (name in the base -> name in the expert, what was done). Names that do not carry the prefix, such
    as those of a task's head, stay. The prefix that fits most tensors is taken; none if none helps.
    Errors: FormatError where two names become one.
    """
    ours, theirs = set(base), set(expert)
    best, note = {name: name for name in expert}, None
    most = len(ours & theirs)
    if most < len(ours):
        for prefix in _prefixes(base, expert):
            fit = [n for n in expert if n.startswith(prefix) and n[len(prefix) :] in ours]
            if len(fit) > most:
                chosen = set(fit)
                best, most = _unique([(n[len(prefix) :] if n in chosen else n, n) for n in expert]), len(fit)
                note = f"prefix {prefix!r} of the expert's names was removed"
        for prefix in _prefixes(expert, base):
            fit = [n for n in expert if prefix + n in ours]
            if len(fit) > most:
                chosen = set(fit)
                best, most = _unique([(prefix + n if n in chosen else n, n) for n in expert]), len(fit)
                note = f"prefix {prefix!r} was put before the expert's names"
    return best, note


def _prefixes(short: Sequence[str], long: Sequence[str]) -> list[str]:
    """Prefixes that turn some name of `short` into one of `long`."""
    samples = sorted(short, key=lambda name: (-name.count("."), name))[:4]  # deep names are the telling ones
    found = {n[: -len(s)] for s in samples for n in long if n.endswith("." + s)}
    return sorted(found)


def _unique(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    table: dict[str, str] = {}
    for name, theirs in pairs:
        if name in table:
            raise FormatError(
                f"expert: {table[name]} and {theirs} would both be {name} of the base; rename one of the two"
            )
        table[name] = theirs
    return table


def matcher(patterns: Sequence[str]) -> Callable[[str], bool]:
    """A test whether a name matches any of the shell patterns. Upper and lower case differ."""
    if not patterns:
        return lambda name: False
    match = re.compile("|".join(f"(?:{fnmatch.translate(pattern)})" for pattern in patterns)).match
    return lambda name: match(name) is not None


def suggest(names: Sequence[str], others: set[str]) -> list[str]:
    """Shell patterns that match all of `names` and none of `others`, few and short where possible."""
    patterns: dict[str, None] = {}
    endings = Counter(".".join(name.split(".")[-2:]) for name in names)
    for name in names:
        parts = name.split(".")
        ending = ".".join(parts[-2:])
        if len(parts) > 2 and endings[ending] > 2 and not any(o.endswith("." + ending) for o in others):
            patterns[f"*.{ending}"] = None
            continue
        for length in range(1, len(parts)):
            prefix = ".".join(parts[:length]) + "."
            if not any(other.startswith(prefix) for other in others):
                patterns[prefix + "*"] = None
                break
        else:
            patterns[name] = None
    return list(patterns)


def _quantised(ref: TensorRef) -> bool:
    kind = DTYPES[ref.dtype].kind
    packed = kind == "int" and DTYPES[ref.dtype].size == 1 and len(ref.shape) > 1
    return kind == "float8" or packed or _QUANTISED.search(ref.name) is not None


def _shape(ref: TensorRef) -> str:
    return str(ref.shape)


def _kind(ref: TensorRef) -> str:
    return f"{ref.dtype} {ref.shape}"
