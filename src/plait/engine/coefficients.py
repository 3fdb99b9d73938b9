"""Merges by methods whose coefficients follow from the inner products of task vectors.

Two passes at most: one for the inner products that are not known yet, one that adds the members up. Inner products
are kept in a file and handed in again: each is a function of its two members alone, so that no bit shows which road
led to a list of members.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from zlib import crc32

from plait.engine.call import INNER, Merge
from plait.engine.desk import Desk
from plait.engine.plan import Job
from plait.engine.source import Incoming, Source
from plait.errors import RefusedInput, VerificationError
from plait.methods.base import MemberFacts, Where
from plait.methods.coefficients import CoefficientMethod, Coefficients, Products, told
from plait.tensors import BLOCK, Tensor, torch
from plait.tensors.inner import LEAF, block_products, expansion, leaf_products

COMBINED = "combination.json"
"""Of a state: the coefficients that were made of the inner products."""

ROOM = 1 << 21
"""Numbers that a thread holds of all members together, 16 MiB: more members get shorter runs."""

JOBS = 64
"""Jobs of one pass whose sums lie in memory at once."""

Sums = dict[str, Tensor]
"""Group -> (fresh, members, blocks): sums over blocks."""

Parts = dict[str, dict[tuple[int, int], list[float]]]
"""Group -> pair of members -> their inner product so far, as an expansion."""


@dataclass(frozen=True)
class Kept:
    """Inner products by the keys of members. keys: of the members, each once. inner: group -> rows of the lower
    triangle, in the order of the keys."""

    keys: Sequence[str] = ()
    inner: Mapping[str, list[list[float]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "place", {key: number for number, key in enumerate(self.keys)})

    place: Mapping[str, int] = field(init=False)

    def at(self, group: str, one: str, other: str) -> float:
        """0 where both leave the whole group alone."""
        i, j = sorted((self.place[one], self.place[other]))
        return self.inner[group][j][i] if group in self.inner else 0.0


def weigh(merge: Merge, state: Path | None, new_state: Path | None) -> None:
    """Give every member that enters its coefficients; with `new_state`, write what they were made of there.

    state: the folder that an earlier call wrote, None where there is none. Errors: RefusedInput by the method, and
    where inner products overflow; VerificationError for a state that cannot be read.
    """
    method = merge.method
    if not isinstance(method, CoefficientMethod):
        return
    if merge.coefficients is None:
        facts = tuple(MemberFacts(m.weight, {}) for m in merge.members)
        products = products_of(merge, state, new_state)
        made = method.combine(products, facts, merge.alpha)
        rows: Coefficients = {group: list(row) for group, row in made.coefficients.items()}
        merge.concluded = {"coefficients": rows, **made.found, "notes": list(made.notes)}
        if new_state is not None:
            chosen = None if merge.alpha is None else {g: list(row) for g, row in merge.alpha.items()}
            keys = keys_of(merge.members)
            value = {"members": keys, "alpha": chosen, "coefficients": rows, **made.found}
            merge.sums[COMBINED] = _write(new_state / COMBINED, value)
    else:
        rows = merge.coefficients
        merge.concluded = {"coefficients": {group: list(row) for group, row in rows.items()}}
    place = {m.task: i for i, m in enumerate(merge.members)}
    merge.enter = [replace(m, known=told(rows, place[m.task])) for m in merge.enter]
    merge.members = [replace(m, known=told(rows, i)) for i, m in enumerate(merge.members)]


def products_of(merge: Merge, state: Path | None, new_state: Path | None) -> Products:
    """The inner products of the members: what `state` knows, and the rest in one pass over the files. Kept in
    `new_state`."""
    method = merge.method
    assert isinstance(method, CoefficientMethod)
    members = merge.members
    keys = keys_of(members)
    old = _read(state) if state is not None else Kept()
    unique = dict(zip(keys, members, strict=True))
    fresh = [number for number, key in enumerate(unique) if key not in old.place]
    found = _measure(merge, list(unique.values()), fresh) if fresh else {}
    order = list(unique)

    def product(group: str, i: int, j: int) -> float:
        if order[i] in old.place and order[j] in old.place:
            return old.at(group, order[i], order[j])
        return found.get(group, {}).get((i, j), 0.0)

    groups = sorted({method.group(name) for m in members for name, ref in m.refs.items() if ref.numel})
    inner = {g: [[product(g, i, j) for i in range(j + 1)] for j in range(len(order))] for g in groups}
    if new_state is not None:
        merge.sums[INNER] = _write(new_state / INNER, {"members": order, "inner": inner})
    at = [order.index(key) for key in keys]
    return Products(
        tuple(m.task for m in members), {g: _square(g, rows)[at][:, at] for g, rows in inner.items()}
    )


def _square(group: str, rows: Sequence[Sequence[float]]) -> Tensor:
    """The symmetric matrix of a lower triangle."""
    full = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for j, row in enumerate(rows):
        full[j, : j + 1] = full[: j + 1, j] = torch.tensor(row, dtype=torch.float64)
    if not bool(torch.isfinite(full).all()):
        raise RefusedInput(
            f"inner products of task vectors are too large for fp64 ({group}), expected experts near the base; check "
            "their origin"
        )
    return full


def keys_of(members: Sequence[Incoming]) -> list[str]:
    """What names a member's task vector. Where its identity is not known, it is its place, and nothing is used
    again."""

    def key(place: int, member: Incoming) -> str:
        if not member.identity:
            return f"#{place}"
        names = json.dumps(sorted(member.refs)).encode()
        return sha256(f"{member.identity} {sha256(names).hexdigest()}".encode()).hexdigest()

    return [key(place, member) for place, member in enumerate(members)]


def _measure(
    merge: Merge, members: Sequence[Incoming], fresh: Sequence[int]
) -> dict[str, dict[tuple[int, int], float]]:
    """Inner products of the `fresh` members with all: group -> (smaller, larger number) -> value, where not 0."""
    journal = merge.driver.journal
    if journal is not None and "inner" in journal.values:
        return {g: {(i, j): v for i, j, v in rows} for g, rows in journal.values["inner"].items()}
    method = merge.method
    assert isinstance(method, CoefficientMethod)
    task = InnerPass(method, merge.source, tuple(members), tuple(fresh))
    names = {name for number in fresh for name, ref in members[number].refs.items() if ref.numel}
    plan = merge.plan(names)
    parts: Parts = {}
    for start in range(0, len(plan), JOBS):
        some = plan[start : start + JOBS]
        for sums in merge.driver.survey("inner products", some, task, task.total(some)):
            _add(parts, sums, fresh)
    found = {g: {pair: (row or [0.0])[0] for pair, row in rows.items()} for g, rows in parts.items()}
    if journal is not None:
        journal.value(
            "inner", {g: [[i, j, v] for (i, j), v in sorted(rows.items())] for g, rows in found.items()}
        )
    return found


def _add(parts: Parts, sums: Sums, fresh: Sequence[int]) -> None:
    for group, blocks in sums.items():
        mine = parts.setdefault(group, {})
        for slot, number in enumerate(fresh):
            for other in range(blocks.shape[1]):
                if other in fresh and other < number:
                    continue  # found the other way round
                pair = (min(number, other), max(number, other))
                values: list[float] = blocks[slot, other].tolist()
                if any(values):
                    mine[pair] = expansion([*mine.get(pair, ()), *values])


@dataclass(frozen=True)
class InnerPass:
    """Products of the fresh members' task vectors with those of all, one read of every file."""

    method: CoefficientMethod
    source: Source
    members: tuple[Incoming, ...]
    fresh: tuple[int, ...]

    def __call__(self, job: Job, desk: Desk) -> Sums:
        found: dict[str, list[Tensor]] = {}
        for piece in job.pieces:
            found.setdefault(self.method.group(piece.name), []).append(self._piece(piece, desk))
        return {group: torch.cat(blocks, dim=2) for group, blocks in found.items()}

    def total(self, plan: Iterable[Job]) -> int:
        """Bytes to be read, about."""
        count = 0
        for piece in (piece for job in plan for piece in job.pieces):
            refs = [m.refs[piece.name] for m in self.members if piece.name in m.refs]
            count += sum(
                piece.count * ref.nbytes // ref.numel for ref in (self.source.base[piece.name], *refs)
            )
        return count

    def _piece(self, piece: Where, desk: Desk) -> Tensor:
        """(fresh, members, blocks)."""
        run = BLOCK
        while run > LEAF and 2 * run * len(self.fresh) > ROOM:
            run //= 2
        leaves = [
            self._run(piece, first, min(run, piece.count - first), desk)
            for first in range(0, piece.count, run)
        ]
        return block_products(torch.cat(leaves, dim=2))

    def _run(self, piece: Where, first: int, count: int, desk: Desk) -> Tensor:
        """(fresh, members, leaves) of a run of a piece."""
        where = Where(piece.name, piece.shape, piece.dtype, piece.first + first, count)
        base = self.source.load(desk, where)
        start = base.values.double()

        def vector(number: int) -> Tensor:
            return self.source.part(desk, base, self.members[number]).expert.double() - start

        here = [slot for slot, number in enumerate(self.fresh) if piece.name in self.members[number].refs]
        rows = torch.empty(len(here), count, dtype=torch.float64)
        for row, slot in enumerate(here):
            rows[row] = vector(self.fresh[slot])
        out = torch.zeros(len(self.fresh), len(self.members), -(-count // LEAF), dtype=torch.float64)
        row_of = {self.fresh[slot]: row for row, slot in enumerate(here)}
        for number, member in enumerate(self.members):
            if piece.name not in member.refs:
                continue
            # Of two fresh ones the later multiplies the earlier: rows up to its own.
            upto = row_of.get(number, len(here) - 1) + 1
            other = rows[row_of[number]] if number in row_of else vector(number)
            out[here[:upto], number] = leaf_products(rows[:upto], other)
        return out


def _write(path: Path, value: Mapping[str, Any]) -> list[list[int]]:
    """Write a file of a state; the sums that tell it again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    path.unlink(missing_ok=True)  # what an interrupted run left may be read-only
    path.write_bytes(data)
    return [[0, len(data), crc32(data)]]


def _read(folder: Path) -> Kept:
    try:
        value = json.loads((folder / INNER).read_bytes())
        return Kept(list(value["members"]), dict(value["inner"]))
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise VerificationError(
            f"{folder / INNER}: no inner products of task vectors can be read from it ({problem}); rebuild the line "
            "from its members"
        ) from problem
