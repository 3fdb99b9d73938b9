"""Cutting rows into calibration, validation, test and train, so that no two of them share an example.

Rows are drawn and put in order by hashes of their content. So a split depends on the content of its rows and on the
seed: not on the file format, the order of rows in it, the platform or the state of a random generator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import combinations, groupby
from math import floor
from typing import Literal

from plait.errors import RefusedInput
from plait.problem.base import Split

SPLITS: tuple[Split, ...] = ("test", "validation", "calibration", "train")
"""In the order in which they draw from rows that they share."""


Pool = tuple[str, tuple[str, ...] | None]
"""A file or folder, and the values of its split column that are taken; None: all rows."""


@dataclass(frozen=True)
class Row:
    """One row of a data file, and what it is told apart by."""

    source: str  # the file or folder
    index: int  # of the row in it
    key: bytes  # shared by equal examples
    exact: str  # the text itself; "" for images, whose keys say all
    label: int | None
    where: str  # the row in words, for messages

    @property
    def place(self) -> tuple[bytes, str, int]:
        """Examples stand in this order: any beginning of a split is a random sample of it."""
        return self.key, self.exact, -1 if self.label is None else self.label


@dataclass(frozen=True)
class Share:
    """What a split takes of its rows: `count` or `share` of the different examples, or all that are left."""

    rows: Sequence[Row]
    pool: Pool  # splits with the same one take from the same rows
    count: int | None = None
    share: float | None = None

    @property
    def draws(self) -> bool:
        return self.count is not None or self.share is not None


def cut(
    task: str,
    shares: Mapping[Split, Share],
    *,
    seed: int = 0,
    most: Mapping[Split, int] | None = None,
    overlap: Literal["refuse", "drop"] = "refuse",
) -> dict[Split, list[Row]]:
    """The rows of every split, in the order of `Row.place`.

    shares: what each split takes. Of the rows that several of them take from, those that draw do so in the order of
    SPLITS, and one that does not draw takes the rest. Equal examples count once when they are drawn.
    most: largest size of a split; which rows stay is drawn. overlap: what is done with an example that two splits
    hold because they take from different rows: refused, or taken out, before anything is drawn, of the rows of the
    split that comes later in SPLITS (of all rows that it shares with other splits).
    RefusedInput: an empty split, a count that is too large, two splits that take the rest, an overlap.
    """
    found: dict[Split, list[Row]] = {}
    seen: set[bytes] = set()
    for pool in dict.fromkeys(shares[s].pool for s in SPLITS if s in shares):
        sharing = {s: shares[s] for s in SPLITS if s in shares and shares[s].pool == pool}
        rows = [row for row in next(iter(sharing.values())).rows if row.key not in seen]
        found |= _divide(task, rows, sharing, seed)
        if overlap == "drop":
            seen |= {row.key for row in rows}
    ordered = {s: found[s] for s in SPLITS if s in found}
    for split, rows in ordered.items():
        if not rows:
            raise RefusedInput(
                f"{task}: {split} is empty; expected at least one example: look at splits.{split}"
            )
    refuse_overlap(task, ordered, "change splits, or write overlap: drop to take it out of one of them")
    limits = most or {}
    kept = {s: drawn(rows, seed)[: limits.get(s, len(rows))] for s, rows in ordered.items()}
    return {s: sorted(rows, key=lambda row: row.place) for s, rows in kept.items()}


def drawn(rows: Iterable[Row], seed: int) -> list[Row]:
    """The rows in the order in which they are drawn: by sha256 of the seed and the row's key."""

    def lot(row: Row) -> tuple[bytes, tuple[bytes, str, int]]:
        return sha256(f"plait split {seed} ".encode() + row.key).digest(), row.place

    return sorted(rows, key=lot)


def _divide(
    task: str, rows: Sequence[Row], shares: Mapping[Split, Share], seed: int
) -> dict[Split, list[Row]]:
    """Divide rows among the splits that take from them."""
    rest = [s for s, share in shares.items() if not share.draws]
    if len(rest) > 1:
        raise RefusedInput(
            f"{task}: {rest[0]} and {rest[1]} take the same rows of {shares[rest[0]].pool[0]}; expected at most one "
            f"split that takes all: give the other a count, a share or rows of its own in splits.{rest[1]}"
        )
    different = [next(equal) for _, equal in groupby(drawn(rows, seed), key=lambda row: row.key)]
    total, used, found = len(different), 0, {}
    for split, share in shares.items():
        if not share.draws:
            continue
        count = floor(share.share * total) if share.share is not None else share.count or 0
        if used + count > total:
            raise RefusedInput(
                f"{task}: {split} draws {count} examples, but {total - used} of the {total} different ones in "
                f"{share.pool[0]} are left; lower splits.{split}"
            )
        found[split] = different[used : used + count]
        used += count
    taken = {row.key for row in different[:used]}
    for split in rest:
        found[split] = [row for row in rows if row.key not in taken]
    return found


def refuse_overlap(task: str, splits: Mapping[Split, Sequence[Row]], advice: str) -> None:
    """RefusedInput that names two equal examples of two splits, where there are such. advice: what to do then."""
    for one, other in combinations(splits, 2):
        held = {row.key: row for row in splits[one]}
        both = [row for row in splits[other] if row.key in held]
        if not both:
            continue
        places = {(row.source, row.index) for row in splits[one]}
        same = next((row for row in both if (row.source, row.index) in places), None)
        what = f"{held[both[0].key].where} and {both[0].where} are equal"
        if same is not None:
            what = f"both take {same.where}"
        more = f" ({len(both)} such examples)" if len(both) > 1 else ""
        raise RefusedInput(
            f"{task}: {other} and {one} overlap: {what}{more}; expected splits that share no example: {advice}"
        )
