"""The suite of the tests: three tasks made of a few word lists, and one layer of the encoder. Seconds, no data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import product
from pathlib import Path

from plait.errors import RefusedInput
from plait.problem.base import Examples, HeadSpec, Kind, Split
from plait.problem.content import make_examples

CUT = (1, 4096)
"""Layers of the encoder and words of its vocabulary that are kept."""

_WORDS: Mapping[str, tuple[tuple[str, ...], Mapping[str, str]]] = {
    "kind": (
        ("the {} was there", "she looked at a {}", "a {} on the road", "we saw the old {}", "my {} is small"),
        {
            "animal": "dog cat horse bird fish bear wolf lion snake mouse",
            "vehicle": "car train bus truck ship boat plane aircraft bike cab",
            "person": "man woman king doctor teacher brother sister soldier friend player",
        },
    ),
    "mood": (
        ("this was {}", "a {} day", "the film is {}", "it felt {} to me", "what a {} song"),
        {
            "good": "great good happy beautiful nice wonderful perfect excellent sweet fine",
            "bad": "bad terrible sad sick wrong dead cold angry poor lost",
        },
    ),
    "when": (
        ("we met in {}", "until {}", "the party is on {}", "see you after {}", "{} was long"),
        {
            "month": "january february march april june july august september october november",
            "day": "monday tuesday wednesday thursday friday saturday sunday today tomorrow yesterday",
        },
    ),
}
TASKS = tuple(_WORDS)


@dataclass(frozen=True, eq=False)
class MadeTask:
    """A task whose examples were made in memory (see `plait.problem.base.Task`)."""

    name: str
    kind: Kind
    classes: tuple[str, ...]
    head: HeadSpec
    splits: Mapping[Split, Examples]

    def examples(self, split: Split) -> Examples:
        if split not in self.splits:
            raise RefusedInput(f"{self.name}: has no {split} examples; it has {', '.join(self.splits)}")
        return self.splits[split]


def make(name: str, most: int | None = None) -> MadeTask:
    """A task: every word of a list in every frame, in an order by hash, cut into splits. most: test examples."""
    frames, lists = _WORDS[name]
    pairs = [
        (frame.format(word), label)
        for label, words in enumerate(lists.values())
        for word, frame in product(words.split(), frames)
    ]
    pairs.sort(key=lambda pair: sha256(f"{name} {pair[0]}".encode()).digest())
    test, validation, train = pairs[:24], pairs[24:40], pairs[40:]
    parts: dict[Split, list[tuple[str, int]]] = {
        "test": test[:most],
        "validation": validation,
        "train": train,
    }
    splits = {s: make_examples([t for t, _ in rows], [n for _, n in rows]) for s, rows in parts.items()}
    head = HeadSpec("zero-shot", ("{}", "a {}"))
    return MadeTask(name, "text-classification", tuple(lists), head, splits)


def make_all(most: int | None = None) -> MadeTask:
    """All of them as one task: its classes are those of the three, one after the other."""
    parts = [make(name, most) for name in TASKS]
    classes = tuple(name for part in parts for name in part.classes)
    splits: dict[Split, Examples] = {}
    for split in parts[0].splits:
        texts: list[str] = []
        labels: list[int] = []
        for part in parts:
            held = part.splits[split]
            assert held.labels is not None
            texts += held.inputs
            labels += [classes.index(part.classes[label]) for label in held.labels.tolist()]
        splits[split] = make_examples(texts, labels)
    return MadeTask("words", "text-classification", classes, parts[0].head, splits)


def lay_base(folder: Path) -> None:
    """Write a small part of the packaged sentence encoder."""
    from plait.demo.minilm import cut_base

    cut_base(folder, *CUT)
