"""What one merge is asked to do: the call's words, checked, and the fingerprint by which an interrupted one is
known again."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plait.engine.drive import Driver
from plait.engine.journal import Sums
from plait.engine.plan import Job, Settings, in_file_order, jobs, whole
from plait.engine.source import Incoming, Source
from plait.engine.state import DENSE, SPARSE
from plait.methods.base import Known, MemberFacts, TensorMethod
from plait.methods.coefficients import STATELESS, Coefficients
from plait.methods.sides import check_sides
from plait.tensors import compiled, torch
from plait.types import TensorRef

INNER = "inner.json"
"""Of a state of family coefficients: the inner products of the members."""

COMPILED_FROM = 1 << 26
"""Elements of all inputs from which on loading the compiled loops pays, a few tenths of a second."""


@dataclass
class Merge:
    """The words of one merge, and what is found on the way."""

    method: TensorMethod
    base: Mapping[str, TensorRef]
    members: Sequence[Incoming]
    enter: Sequence[Incoming]
    leave: Sequence[Incoming]
    out: Mapping[str, TensorRef]
    driver: Driver
    known: dict[str, Known] = field(default_factory=dict)
    concluded: Known = field(default_factory=dict)
    overflowed: dict[str, int] = field(default_factory=dict)
    sums: Sums = field(default_factory=dict)
    alpha: Coefficients | None = None
    coefficients: Coefficients | None = None

    @property
    def settings(self) -> Settings:
        return self.driver.settings

    @property
    def source(self) -> Source:
        return Source(self.base, self.settings.allow_nonfinite)

    @property
    def compiled(self) -> bool:
        """Whether compiled loops are used where the method has them. Loads them if so."""
        wanted = self.settings.compiled
        if wanted is None:
            size = sum(ref.numel for ref in self.base.values()) * (1 + len(self.enter))
            wanted = size >= COMPILED_FROM
        return wanted and compiled.works()

    def plan(self, names: set[str]) -> list[Job]:
        order = in_file_order(self.base, names)
        return jobs([whole(self.base[n], n) for n in order], self.method.grain, self.settings.chunk)

    def lost(self, names: Iterable[tuple[str, int]]) -> None:
        """Add up what passes tell: (tensor, elements that became infinite)."""
        for name, count in names:
            if count:
                self.overflowed[name] = self.overflowed.get(name, 0) + count

    def facts(self) -> tuple[MemberFacts, ...]:
        """The members after the operation, with what is known of each."""
        return tuple(MemberFacts(m.weight, m.known or self.known.get(m.task, {})) for m in self.members)


@dataclass(frozen=True)
class Identities:
    """What the inputs are, whatever file they lie in: digests of the base and of the state, "" where not
    known."""

    base: str = ""
    state: str = ""


def check(
    method: TensorMethod,
    base: Mapping[str, TensorRef],
    members: Sequence[Incoming],
    enter: Sequence[Incoming],
    leave: Sequence[Incoming],
    out: Mapping[str, TensorRef],
) -> None:
    """Catch a caller's mistake before a tensor is read."""
    method.check_count(len(members))
    for member in (*members, *enter, *leave):
        for name, ref in member.refs.items():
            if name not in base or ref.shape != base[name].shape:
                raise ValueError(f"{member.task}: {name} {ref.shape} does not fit the base")
            if not (ref.mergeable and base[name].mergeable):
                raise ValueError(f"{member.task}: {name} is {ref.dtype} and cannot be merged")
    merged = [whole(ref, name) for name, ref in base.items() if ref.mergeable]
    for member in (*enter, *leave):
        held = {key: (ref.dtype, ref.shape) for key, ref in member.side.items()}
        check_sides(method, member.task, merged, held)
        if method.draws() and not member.seed:
            raise ValueError(f"{member.task}: method {method.name} draws random numbers and needs a seed")
    if leave and method.facts.family != "additive":
        raise ValueError(f"method {method.name} has no inverse: fold again without {leave[0].task}")
    tasks = [m.task for m in members]
    if method.facts.family in STATELESS and [m.task for m in enter] != tasks:
        raise ValueError(
            f"method {method.name} keeps no state to go on from: let all members enter, in order"
        )
    if len(set(tasks)) != len(tasks):
        raise ValueError(f"two members have one name: {tasks}")
    for name, place in out.items():
        if name not in base or place.shape != base[name].shape:
            raise ValueError(f"output {name} {place.shape} does not fit the base")


def fingerprint(
    merge: Merge, identities: Identities, state: Path | None, new_state: Path | None
) -> list[Any]:
    """All that decides which bytes a merge writes where: an interrupted one goes on only if this is the
    same.

    An input whose identity is known may lie in another file by then; of the others, path, size and time of
    change must be the same.
    """

    from plait import __version__

    def row(member: Incoming) -> list[Any]:
        refs = _refs(member.refs, placed=not member.identity)
        side = [member.side_identity, _refs(member.side, placed=not member.side_identity)]
        return [member.task, member.weight, member.identity, refs, member.known, member.seed.hex(), side]

    groups = (merge.members, merge.enter, merge.leave)
    members = [m for group in groups for m in group]
    files = {ref.file for m in members if not m.identity for ref in m.refs.values()}
    files |= {ref.file for m in members if not m.side_identity for ref in m.side.values()}
    if not identities.base:
        files |= {ref.file for ref in merge.base.values()}
    if state is not None and not identities.state:
        files |= {str(state / name) for name in (DENSE, SPARSE, INNER)}
    return [
        [__version__, torch.__version__],
        [merge.method.name, merge.method.options()],
        *([row(m) for m in group] for group in groups),
        [identities.base, _refs(merge.base, placed=not identities.base), _refs(merge.out, placed=True)],
        in_file_order(merge.base, set(merge.base)),  # the order of the jobs, which are known by their number
        [state is not None, identities.state or str(state), str(new_state)],
        [merge.settings.chunk, merge.settings.allow_nonfinite],
        [merge.alpha, merge.coefficients],
        [_stamp(file) for file in sorted(files)],
    ]


def _stamp(file: str) -> list[Any]:
    """A file as it is now. One that is missing is not an error here: it may be a member's that is not
    read."""
    try:
        status = os.stat(file)
    except OSError:
        return [file]
    return [file, status.st_size, status.st_mtime_ns]


def _refs(refs: Mapping[str, TensorRef], *, placed: bool) -> list[list[Any]]:
    """Tensors as data, with or without the place of their bytes."""
    return [
        [n, r.dtype, list(r.shape), *((r.file, r.start) if placed else ())] for n, r in sorted(refs.items())
    ]
