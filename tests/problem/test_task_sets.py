"""The data sets of PLAIT_DATA, where it is set: every one loads, and holds what a plain loader finds in it."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

import numpy
import pytest
from PIL import Image

from plait.problem.base import Split
from plait.problem.task import load_tasks
from tests.problem.tables import write_tasks

DATA = Path(os.environ.get("PLAIT_DATA", ""))
pytestmark = pytest.mark.skipif("PLAIT_DATA" not in os.environ, reason="PLAIT_DATA is not set")

TEXTS = {
    "ag_news": (4, 2000), "trec6": (6, 500), "sst2": (2, 1821), "subj": (2, 2000), "banking77": (77, 3079),
    "clinc150": (150, 4500), "clinc_domain10": (10, 2000), "stackoverflow20": (20, 2000), "snips7": (7, 699),
    "tweet_emotion": (4, 1421), "tweet_hate": (2, 2000), "tweet_offensive": (2, 848),
}  # fmt: skip
IMAGES = {
    "cifar10": (10, 2000, 32), "gtsrb": (43, 2000, 32), "flowers5": (5, 1400, 64), "mnist": (10, 2000, 28),
    "fashion_mnist": (10, 2000, 28), "intel_scenes": (6, 1500, 64), "sign_digits": (10, 684, 64),
    "trashnet": (6, 838, 64),
}  # fmt: skip
SPLITS: tuple[Split, ...] = ("test", "validation", "calibration", "train")
TASK = """
tasks:
  t:
    kind: {}
    data: $PLAIT_DATA/{}
    splits: {{train: {{}}, test: {{}}, calibration: {{count: 64}}, validation: {{share: 0.1}}}}
"""


def apart(splits: Iterable[Iterable[object]]) -> bool:
    sets = [set(split) for split in splits]
    return len(set().union(*sets)) == sum(map(len, sets))


@pytest.mark.parametrize("name", TEXTS)
def test_texts(tmp_path: Path, name: str) -> None:
    task = load_tasks(write_tasks(tmp_path, TASK.format("text-classification", f"{name}.parquet")))["t"]
    table = import_module("pyarrow.parquet").read_table(DATA / f"{name}.parquet").to_pylist()
    names = json.loads((DATA / f"{name}.classes.json").read_text())
    assert list(task.classes) == names
    found = {split: task.examples(split) for split in SPLITS}
    assert (len(names), len(found["test"])) == TEXTS[name]
    assert apart([text.casefold() for text in examples.inputs] for examples in found.values())
    for split, examples in found.items():
        assert examples.labels is not None
        there = {
            (row["text"], row["label"])
            for row in table
            if row["split"] == ("test" if split == "test" else "train")
        }
        pairs = set(zip(examples.inputs, examples.labels.tolist(), strict=True))
        assert pairs <= there
        assert split != "test" or pairs == there
    assert sum(map(len, found.values())) == len(table)  # no text is there twice


@pytest.mark.parametrize("name", IMAGES)
def test_images(tmp_path: Path, name: str) -> None:
    text = TASK.format("image-classification", f"{name}.npz") + "    overlap: drop\n"
    task = load_tasks(write_tasks(tmp_path, text))["t"]
    test = task.examples("test")
    classes, count, side = IMAGES[name]
    assert (len(task.classes), test.inputs.shape) == (classes, (count, side, side, 3))
    with numpy.load(DATA / f"{name}.npz") as arrays:
        if "x_test" in arrays:
            plain = arrays["x_test"]
        else:
            packed, off = arrays["jpeg_test"], arrays["off_test"]
            files = [packed[off[i] : off[i + 1]].tobytes() for i in range(count)]
            plain = numpy.stack(
                [numpy.asarray(Image.open(io.BytesIO(file)).convert("RGB")) for file in files]
            )
        labels = arrays["y_test"].tolist()
        assert list(task.classes) == arrays["classes"].tolist()
    assert test.labels is not None
    want = sorted((one.tobytes(), label) for one, label in zip(plain, labels, strict=True))
    assert (
        sorted((one.tobytes(), label) for one, label in zip(test.inputs, test.labels.tolist(), strict=True))
        == want
    )
    assert apart([one.tobytes() for one in task.examples(split).inputs] for split in SPLITS)


@pytest.mark.parametrize(("name", "count"), [("flowers5", " (2 such examples)"), ("intel_scenes", "")])
def test_sets_that_overlap_as_they_come(tmp_path: Path, name: str, count: str) -> None:
    from plait.errors import RefusedInput

    task = load_tasks(write_tasks(tmp_path, TASK.format("image-classification", f"{name}.npz")))["t"]
    with pytest.raises(RefusedInput) as caught:
        task.examples("test")
    assert str(caught.value).startswith("t: train and test overlap: test image ")
    assert f" are equal{count}; expected splits that share no example" in str(caught.value)
