"""Suites are data: tasks, orders, class names, and what is said where files are missing."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from plait.bench import clip, text
from plait.bench.suites import SUITES, Sources, find
from plait.errors import RefusedInput, UsageError

DATA = Path(os.environ.get("PLAIT_DATA", "nowhere"))


def test_tasks_of_every_suite() -> None:
    counts = {"text8": 8, "text12": 12, "vision8": 8, "clip8": 8, "clip14": 14, "clip20": 20, "tiny": 3}
    assert {name: len(set(suite.tasks)) for name, suite in SUITES.items()} == counts
    for long, short in (("text12", "text8"), ("clip14", "clip8"), ("clip20", "clip14")):
        assert find(long).tasks[: len(find(short).tasks)] == find(short).tasks


def test_orders_are_those_of_python_shuffles() -> None:
    assert find("clip8").order(42) == [
        "eurosat", "svhn", "mnist", "dtd", "resisc45", "gtsrb", "sun397", "stanford-cars",
    ]  # fmt: skip
    names = list(text.TEXT8)
    random.Random(46).shuffle(names)
    assert find("text8").order(46) == names
    assert find("text8").order(46) == names, "an order must not depend on the one before"


def test_numbers_of_classes_of_the_clip_tasks() -> None:
    # as the papers of the data sets count them
    counts = {
        "sun397": 397, "stanford-cars": 196, "resisc45": 45, "eurosat": 10, "svhn": 10, "gtsrb": 43, "mnist": 10,
        "dtd": 47, "oxford_flowers102": 102, "pcam": 2, "fer2013": 7, "oxford-iiit-pet": 37, "stl10": 10,
        "cifar100": 100, "cifar10": 10, "food101": 101, "fashion_mnist": 10, "emnist_letters": 26, "kmnist": 10,
        "rendered-sst2": 2,
    }  # fmt: skip
    assert {task: len(set(classes)) for task, (classes, _) in clip.PROMPTS.items()} == counts
    assert tuple(counts) == clip.CLIP20
    for task, (_, templates) in clip.PROMPTS.items():
        assert len(set(templates)) == len(templates), task
        assert all(template.count("{}") == 1 for template in templates), task


def test_templates_of_cifar_are_read_as_sentences() -> None:
    templates = clip.PROMPTS["cifar10"][1]
    assert len(templates) == 18
    assert {"a photo of a {}.", "a blurry photo of the {}.", "a photo of the big {}."} <= set(templates)


@pytest.mark.skipif(not DATA.is_dir(), reason="PLAIT_DATA is not set")
@pytest.mark.parametrize("task", text.TEXT12)
def test_every_class_of_the_text_data_has_a_name(task: str) -> None:
    known = json.loads((DATA / f"{task}.classes.json").read_text(encoding="utf-8"))
    assert len(text.TASKS[task]["classes"]) == len(known)
    assert len(set(text.TASKS[task]["classes"])) == len(known)


@pytest.mark.skipif(not DATA.is_dir(), reason="PLAIT_DATA is not set")
@pytest.mark.parametrize("task", ["banking77", "stackoverflow20", "clinc150", "ag_news"])
def test_names_stand_in_the_order_of_the_labels(task: str) -> None:
    """Where a name and a label share a word, they must share more words than with most other labels."""
    known = json.loads((DATA / f"{task}.classes.json").read_text(encoding="utf-8"))
    labels = [
        set(label.lower().replace("_", " ").replace("/", " ").replace("?", "").split()) for label in known
    ]
    names = [set(name.lower().replace("?", "").split()) for name in text.TASKS[task]["classes"]]
    shared = [bool(label & name) for label, name in zip(labels, names, strict=True)]
    assert sum(shared) >= 0.6 * len(shared)


def test_an_unknown_suite_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"suite 'text9' is not known; choose one of: text8, text12"):
        find("text9")


@pytest.mark.parametrize("suite", ["text8", "vision8"])
def test_a_suite_without_a_folder_of_data(suite: str) -> None:
    with pytest.raises(
        UsageError, match=f"suite {suite} needs data: give its folder with --data, or set PLAIT_DATA"
    ):
        find(suite).check(Sources())


def test_the_first_missing_file_is_named(tmp_path: Path) -> None:
    for task in text.TEXT8[:3]:
        (tmp_path / f"{task}.parquet").touch()
    with pytest.raises(RefusedInput) as caught:
        find("text8").check(Sources(tmp_path))
    said = str(caught.value)
    assert said.startswith(
        f"{tmp_path / 'banking77.parquet'}: is not there, and suite text8 needs it for banking77"
    )
    assert "4 more of 8" in said
    assert "--data" in said
    (tmp_path / "all").mkdir()
    for task in text.TEXT8:
        (tmp_path / "all" / f"{task}.parquet").touch()
    find("text8").check(Sources(tmp_path / "all"))


def test_missing_checkpoints_of_the_clip_suites(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"clip14 needs checkpoints: give the folder that holds them with --models"
    ):
        find("clip14").check(Sources(tmp_path))
    (tmp_path / clip.BASE).mkdir()
    with pytest.raises(RefusedInput) as caught:
        find("clip14").check(Sources(tmp_path / "data", tmp_path))
    said = str(caught.value)
    assert said.startswith(f"{tmp_path / 'clip-vit-base-patch32_sun397'}: is not there")
    assert "the expert of sun397" in said
    assert "--models" in said


def test_tiny_has_splits_that_share_nothing() -> None:
    for task in find("tiny").load(Sources(), None).values():
        splits = {name: set(task.examples(name).inputs) for name in ("train", "validation", "test")}
        assert sum(map(len, splits.values())) == len(set().union(*splits.values()))
        assert len(splits["test"]) == 24
        labels = task.examples("test").labels
        assert labels is not None
        assert set(labels.tolist()) == set(range(len(task.classes)))
    capped = find("tiny").load(Sources(), 5)["kind"]
    assert len(capped.examples("test")) == 5
    with pytest.raises(RefusedInput, match="kind: has no calibration examples"):
        capped.examples("calibration")
