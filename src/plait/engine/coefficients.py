"""Merges by methods whose coefficients follow from the inner products of task vectors.

Two passes at most: one for the inner products that are not known yet, one that adds the members up. Inner products
are kept in a file and handed in again: each is a function of its two members alone, so that no bit shows which road
led to a list of members.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from zlib import crc32

from plait.engine.call import INNER, Merge
from plait.engine.inner import measure
from plait.engine.journal import Sums as Files
from plait.engine.source import Incoming
from plait.errors import VerificationError
from plait.methods.base import MemberFacts
from plait.methods.coefficients import CoefficientMethod, Coefficients, Combination, Products, told
from plait.tensors import Tensor, torch

COMBINED = "combination.json"
"""Of a state: the coefficients that were made of the inner products."""


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
    rows = merge.coefficients
    if rows is None:
        found = _inner(merge, method, _read(state) if state is not None else Kept())
        made = method.combine(products(found, merge.enter), _facts(merge.enter), merge.alpha)
        rows = made.coefficients
        merge.concluded = {**_plain(rows, made.found), "notes": list(made.notes)}
        if new_state is not None:
            merge.sums = _keep(new_state, found, merge.enter, merge.alpha, made)
    else:
        merge.concluded = _plain(rows, {})
    merge.enter = [replace(m, known=told(rows, i)) for i, m in enumerate(merge.enter)]
    merge.members = [replace(m, known=told(rows, i)) for i, m in enumerate(merge.members)]


def remember(state: Path, members: Sequence[Incoming]) -> tuple[Products, Coefficients | None]:
    """What a state knows of its members without a look at a tensor: their inner products, and the numbers that a fit
    chose. VerificationError where it lacks one of `members`, or cannot be read."""
    return products(_read(state), members), chosen_for(state, members)


def chosen_for(state: Path, members: Sequence[Incoming]) -> Coefficients | None:
    """The numbers that a fit chose for exactly these members, in this order; None where `state` is of others."""
    chosen = _json(state / COMBINED, "members", "alpha")
    same = chosen["members"] == keys_of(members)
    found: Coefficients | None = chosen["alpha"] if same else None
    return found


def shorten(
    method: CoefficientMethod, members: Sequence[Incoming], index: int, state: Path, new_state: Path
) -> Files:
    """Write the state of `members`, of which `state` was made, without member `index`, as a merge of the others
    writes it; what a fit chose for them stays. Returns the sums of its files."""
    alpha = chosen_for(state, members)
    kept = [i for i in range(len(members)) if i != index]
    fewer = None if alpha is None else {group: [row[i] for i in kept] for group, row in alpha.items()}
    others = [members[i] for i in kept]
    order = list(dict.fromkeys(keys_of(others)))
    found = Kept(order, _triangles(method, others, order, _read(state).at))
    made = method.combine(products(found, others), _facts(others), fewer)
    return _keep(new_state, found, others, fewer, made)


def products(found: Kept, members: Sequence[Incoming]) -> Products:
    """The inner products of `members`. VerificationError where one of them is not known."""
    keys = keys_of(members)
    lost = [m.task for m, key in zip(members, keys, strict=True) if key not in found.place]
    if lost:
        raise VerificationError(
            f"the inner products of {', '.join(lost)} are not kept; rebuild the line from its members"
        )
    at = [found.place[key] for key in keys]
    inner = {group: _square(rows)[at][:, at] for group, rows in found.inner.items()}
    return Products(tuple(m.task for m in members), inner)


def _inner(merge: Merge, method: CoefficientMethod, old: Kept) -> Kept:
    """The inner products of all members: what is known, and the rest in one pass over the files."""
    unique = dict(zip(keys_of(merge.enter), merge.enter, strict=True))
    order = list(unique)
    place = {key: number for number, key in enumerate(order)}
    fresh = [number for number, key in enumerate(order) if key not in old.place]
    found = measure(merge, method, list(unique.values()), fresh) if fresh else {}

    def at(group: str, one: str, other: str) -> float:
        if one in old.place and other in old.place:
            return old.at(group, one, other)
        i, j = sorted((place[one], place[other]))
        return found.get(group, {}).get((i, j), 0.0)

    return Kept(order, _triangles(method, merge.enter, order, at))


def _triangles(
    method: CoefficientMethod,
    members: Sequence[Incoming],
    order: Sequence[str],
    at: Callable[[str, str, str], float],
) -> dict[str, list[list[float]]]:
    """Lower triangles over `order`, for every group that a member changes."""
    groups = sorted({method.group(name) for m in members for name, ref in m.refs.items() if ref.numel})
    return {g: [[at(g, one, two) for one in order[: j + 1]] for j, two in enumerate(order)] for g in groups}


def _keep(
    folder: Path,
    found: Kept,
    members: Sequence[Incoming],
    alpha: Coefficients | None,
    made: Combination,
) -> Files:
    """Write the files of a state; the sums that tell them again."""
    chosen = None if alpha is None else {group: list(row) for group, row in alpha.items()}
    combined = {"members": keys_of(members), "alpha": chosen, **_plain(made.coefficients, made.found)}
    return {
        INNER: _write(folder / INNER, {"members": list(found.keys), "inner": found.inner}),
        COMBINED: _write(folder / COMBINED, combined),
    }


def _plain(rows: Coefficients, found: Mapping[str, Any]) -> dict[str, Any]:
    return {"coefficients": {group: list(row) for group, row in rows.items()}, **found}


def _facts(members: Sequence[Incoming]) -> list[MemberFacts]:
    return [MemberFacts(m.weight, {}) for m in members]


def _square(rows: Sequence[Sequence[float]]) -> Tensor:
    """The symmetric matrix of a lower triangle."""
    full = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for j, row in enumerate(rows):
        full[j, : j + 1] = full[: j + 1, j] = torch.tensor(row, dtype=torch.float64)
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


def _write(path: Path, value: Mapping[str, Any]) -> list[list[int]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    path.unlink(missing_ok=True)  # what an interrupted run left may be read-only
    path.write_bytes(data)
    return [[0, len(data), crc32(data)]]


def _read(folder: Path) -> Kept:
    value = _json(folder / INNER, "members", "inner")
    return Kept(list(value["members"]), dict(value["inner"]))


def _json(path: Path, *keys: str) -> dict[str, Any]:
    """A file of a state. VerificationError where it cannot be read, or lacks a key."""
    try:
        value: dict[str, Any] = json.loads(path.read_bytes())
        return {key: value[key] for key in keys}
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise VerificationError(
            f"{path}: what is known of task vectors cannot be read from it ({problem}); rebuild the line from its "
            "members"
        ) from problem
