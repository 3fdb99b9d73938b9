"""The tasks: honest splits, enough test examples, the same everywhere."""

from __future__ import annotations

from hashlib import sha256

import pytest

from plait.demo.tasks import HUES, Sizes, hue_family, load_tasks


def test_splits_share_no_text_and_are_large_enough() -> None:
    for task in load_tasks(0):
        texts = [text for split in (task.train, task.validation, task.test) for text, _ in split]
        assert len(texts) == len(set(texts))
        assert len(task.test) >= 200
        assert len(task.validation) >= 100
        assert len(task.train) >= 500


def test_every_class_is_trained_and_tested() -> None:
    for task in load_tasks(0):
        every = set(range(len(task.classes)))
        assert {label for _, label in task.train} == every
        assert {label for _, label in task.test} == every


def test_the_seed_decides_the_splits() -> None:
    sizes = Sizes(20, 5, 10)
    assert load_tasks(1, sizes) == load_tasks(1, sizes)
    for one, other in zip(load_tasks(1, sizes), load_tasks(2, sizes), strict=True):
        assert one.test != other.test


def test_no_text_has_two_labels() -> None:
    entity = load_tasks(0)[3]
    texts = {text for split in (entity.train, entity.validation, entity.test) for text, _ in split}
    assert "armenian" not in texts  # a language and a script


def test_the_order_of_examples_is_the_hash_of_seed_and_text() -> None:
    polarity = load_tasks(5, Sizes(20, 5, 10))[0]
    digests = [sha256(f"5/polarity/{text}".encode()).digest() for text, _ in polarity.test]
    assert digests == sorted(digests)


@pytest.mark.parametrize(
    ("code", "family"),
    [
        ("#e50000", "red"),
        ("#f97306", "orange"),
        ("#ffff14", "yellow"),
        ("#15b01a", "green"),
        ("#06c2ac", "turquoise"),
        ("#0343df", "blue"),
        ("#7e1e9c", "purple"),
        ("#ff81c0", "pink"),
        ("#653700", "brown"),
        ("#929591", "grey"),
        ("#000000", "grey"),
        ("#ffffff", "grey"),
    ],
)
def test_hue_families(code: str, family: str) -> None:
    """The codes are XKCD's own for the plain names."""
    red, green, blue = (int(code[i : i + 2], 16) / 255 for i in (1, 3, 5))
    assert HUES[hue_family(red, green, blue)] == family
