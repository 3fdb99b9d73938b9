"""Splits: disjoint in rows and in content, drawn by hashes, told by nothing but content and seed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.errors import RefusedInput
from plait.problem.base import Split
from plait.problem.splits import Row, Share, cut

ALL = ("data", None)


def rows(texts: Sequence[str], source: str = "data", labels: Sequence[int] | None = None) -> list[Row]:
    """Rows whose keys are written out here, not by the code that is tested."""
    return [
        Row(
            source,
            i,
            sha256(text.casefold().encode()).digest(),
            text,
            None if labels is None else labels[i],
            f"row {i + 1} of {source}",
        )
        for i, text in enumerate(texts)
    ]


def texts_of(found: Mapping[Split, Sequence[Row]]) -> dict[Split, list[str]]:
    return {split: [row.exact for row in held] for split, held in found.items()}


@given(
    st.lists(st.sampled_from("aAbBcCdefghijklmnop"), max_size=40),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(0, 3),
)
def test_splits_of_one_pool_share_nothing_and_lose_nothing(
    texts: list[str], some: int, more: int, seed: int
) -> None:
    pool = rows(texts)
    shares: dict[Split, Share] = {
        "train": Share(pool, ALL),
        "calibration": Share(pool, ALL, count=some),
        "validation": Share(pool, ALL, count=more),
    }
    different = {text.casefold() for text in texts}
    if len(different) <= some + more:
        with pytest.raises(RefusedInput):
            cut("t", shares, seed=seed)
        return
    found = cut("t", shares, seed=seed)
    assert len(found["calibration"]) == some
    assert len(found["validation"]) == more
    folded = {split: {text.casefold() for text in held} for split, held in texts_of(found).items()}
    assert len(folded["calibration"]) == some
    assert sum(len(held) for held in folded.values()) == len(different) == len(set().union(*folded.values()))
    left = sum(text.casefold() in folded["train"] for text in texts)
    assert len(found["train"]) == left  # rows that are equal among themselves stay


def test_order_is_that_of_the_keys_and_drawing_that_of_seed_and_key() -> None:
    words = [f"text {i}" for i in range(30)]
    pool = rows(words)
    found = cut("t", {"test": Share(pool, ALL, count=5), "train": Share(pool, ALL)}, seed=7)
    by_lot = sorted(words, key=lambda w: sha256(b"plait split 7 " + sha256(w.encode()).digest()).digest())
    by_key = sorted(by_lot[:5], key=lambda w: sha256(w.encode()).digest())
    assert texts_of(found)["test"] == by_key


@pytest.mark.parametrize("overlap", ["refuse", "drop"])
def test_nothing_but_content_and_seed_matters(overlap: str) -> None:
    words = [f"text {i % 25}".upper() if i % 2 else f"text {i % 25}" for i in range(40)]
    labels = [i % 3 for i in range(40)]

    def made(order: Sequence[int], source: str, seed: int) -> list[list[tuple[str, int | None]]]:
        pool = rows([words[i] for i in order], source, [labels[i] for i in order])
        shares: dict[Split, Share] = {
            "train": Share(pool, (source, None)),
            "calibration": Share(pool, (source, None), 9),
        }
        found = cut("t", shares, seed=seed, most={"train": 12}, overlap=overlap)  # type: ignore[arg-type]
        return [[(row.exact, row.label) for row in found[split]] for split in ("train", "calibration")]

    one = made(range(40), "a.csv", 3)
    assert made(range(39, -1, -1), "b.parquet", 3) == one
    assert made(range(40), "a.csv", 4) != one


def test_equal_texts_stand_in_the_order_of_their_letters() -> None:
    for words in (["a", "A", "a"], ["a", "a", "A"]):
        assert texts_of(cut("t", {"test": Share(rows(words), ALL)}))["test"] == ["A", "a", "a"]
        assert texts_of(cut("t", {"test": Share(rows(words), ALL, count=1)}))["test"] == ["A"]


def test_the_order_of_a_split_does_not_depend_on_the_seed() -> None:
    pool = rows([f"text {i}" for i in range(30)])
    found = [cut("t", {"test": Share(pool, ALL)}, seed=seed) for seed in (0, 1)]
    assert found[0] == found[1]


def test_shares_and_limits() -> None:
    pool, other = rows([f"a{i}" for i in range(30)]), rows([f"b{i}" for i in range(10)], "test")
    shares: dict[Split, Share] = {
        "train": Share(pool, ALL, share=0.5),
        "validation": Share(pool, ALL, share=0.25),
        "test": Share(other, ("test", None)),
    }
    sizes = {split: len(held) for split, held in cut("t", shares, most={"test": 4, "train": 11}).items()}
    assert sizes == {"test": 4, "validation": 7, "train": 11}


def test_a_limit_draws() -> None:
    pool = rows([f"text {i}" for i in range(30)])
    one, other = (cut("t", {"test": Share(pool, ALL)}, seed=s, most={"test": 10})["test"] for s in (0, 1))
    assert one != other
    assert [row.place for row in one] == sorted(row.place for row in one)


def refusal(shares: dict[Split, Share]) -> str:
    with pytest.raises(RefusedInput) as caught:
        cut("t", shares)
    return str(caught.value)


def test_refusals() -> None:
    pool, other = rows(["a", "b", "c", "c"]), rows(["x", "B", "C"], "test.csv")
    there = ("test.csv", None)
    assert refusal({"test": Share(other, there), "calibration": Share(pool, ALL)}) == (
        "t: calibration and test overlap: row 2 of test.csv and row 2 of data are equal (3 such examples); expected "
        "splits that share no example: change splits, or write overlap: drop to take it out of one of them"
    )
    part = ("data", ("x",))
    assert refusal({"validation": Share(pool, ALL), "train": Share(pool[2:3], part)}) == (
        "t: train and validation overlap: both take row 3 of data; expected splits that share no example: change "
        "splits, or write overlap: drop to take it out of one of them"
    )
    assert refusal({"validation": Share(pool, ALL, 2), "train": Share(pool, ALL, 2)}) == (
        "t: train draws 2 examples, but 1 of the 3 different ones in data are left; lower splits.train"
    )
    assert refusal({"test": Share(pool, ALL), "train": Share(pool, ALL)}) == (
        "t: test and train take the same rows of data; expected at most one split that takes all: give the other a "
        "count, a share or rows of its own in splits.train"
    )
    assert refusal({"test": Share(pool, ALL, 3), "train": Share(pool, ALL)}) == (
        "t: train is empty; expected at least one example: look at splits.train"
    )


def test_overlaps_are_dropped_before_anything_is_drawn() -> None:
    pool, other = rows(["a", "b", "c", "d"]), rows(["B", "x"], "test.csv")
    shares: dict[Split, Share] = {
        "train": Share(pool, ALL),
        "calibration": Share(pool, ALL, count=2),
        "test": Share(other, ("test.csv", None)),
    }
    for seed in range(8):
        found = texts_of(cut("t", shares, seed=seed, overlap="drop"))
        assert sorted(found["test"]) == ["B", "x"]
        assert len(found["calibration"]) == 2
        assert sorted(found["calibration"] + found["train"]) == ["a", "c", "d"]
    with pytest.raises(RefusedInput, match=re.escape("calibration draws 4 examples, but 3 of the 3")):
        cut("t", {**shares, "calibration": Share(pool, ALL, count=4)}, overlap="drop")
