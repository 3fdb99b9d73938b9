"""docs/tasks.md: its example is read with data of the forms that it names, its tables hold what the code knows."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy
import pytest
from PIL import Image

from plait.problem.base import Split, Task
from plait.problem.spec import COLUMNS, KEYS, PART
from plait.problem.task import FileTask, load_tasks
from tests.problem.tables import pictures, texts, write_table, write_tasks

DOCS = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text(encoding="utf-8")

MODULE = """
from plait.problem.base import HeadSpec
from plait.problem.content import make_examples

class Own:
    kind, classes, head = "text-classification", ("odd", "even"), HeadSpec()

    def __init__(self, name, depth):
        self.name, self.depth = name, depth

    def examples(self, split):
        return make_examples([f"{split} {i}" for i in range(self.depth)], [i % 2 for i in range(self.depth)])

def make(words):
    return Own(words["name"], words["depth"])
"""


def write_data(folder: Path) -> None:
    """All that the example names."""
    write_table(folder / "news.parquet", texts(200, 20, classes=4))
    rows = texts(200, 20, classes=2)
    stars = [("NEG", "POS")[label] for label in rows["label"]]
    write_table(folder / "reviews.csv", {"review": rows["text"], "stars": stars, "part": rows["split"]})
    write_table(folder / "stories.jsonl", {"text": [f"Once {i}" for i in range(30)]})
    seen = pictures(120)
    seen[119] = seen[0]
    numpy.savez(
        folder / "signs.npz",
        x_train=seen[:100],
        y_train=numpy.arange(100) % 3,
        x_test=seen[100:],
        y_test=numpy.arange(20) % 3,
        classes=numpy.array(["stop", "yield", "turn"]),
    )
    for i, pixels in enumerate(pictures(40, 90, 70, first=1)):
        place = folder / "photos" / ("test" if i < 10 else "train") / ("cats", "dogs")[i % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place / f"{i}.png")
    (folder / "my_tasks.py").write_text(MODULE)


def sizes(task: Task) -> list[int]:
    """Of train, calibration, validation and test, as far as the task has them."""
    splits: tuple[Split, ...] = ("train", "calibration", "validation", "test")
    there = task.spec.parts if isinstance(task, FileTask) else splits
    return [len(task.examples(split)) for split in splits if split in there]


def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(tmp_path)
    monkeypatch.setenv("PLAIT_DATA", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    blocks = re.findall(r"```yaml\n(.*?)```", DOCS, re.DOTALL)
    assert len(blocks) == 1
    tasks = load_tasks(write_tasks(tmp_path, blocks[0]))
    sys.modules.pop("my_tasks")
    assert {name: sizes(task) for name, task in tasks.items()} == {
        "news": [116, 64, 20, 20],
        "reviews": [116, 64, 20, 20],
        "signs": [26, 64, 9, 20],  # one train image is also a test image
        "photos": [22, 8, 10],
        "stories": [10, 20],
        "own": [3, 3, 3, 3],
    }  # fmt: skip
    assert tasks["reviews"].classes == ("a bad film", "a good film")
    assert tasks["signs"].classes == ("stop", "yield", "turn")
    assert tasks["photos"].examples("test").inputs.shape == (10, 64, 64, 3)
    assert tasks["news"].head.templates == ("a text about {}", "news: {}")


def test_the_tables_hold_all_keys() -> None:
    def first_cells(heading: str) -> set[str]:
        part = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", DOCS, re.M | re.S)
        assert part is not None
        return set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`[^|]*) \|", part[1], re.M))))

    assert first_cells("Keys of a task") == {key for keys in KEYS.values() for key in keys}
    assert first_cells("Splits") == set(PART)
    for kind in ("text-classification", "causal-lm"):
        row = re.search(rf"^\| {kind.removesuffix('-classification')} \|.*\| (.*) \|$", DOCS, re.M)
        assert row is not None
        assert tuple(re.findall(r"`(\w+)`", row[1])) == COLUMNS[kind]
    arrays = set(re.findall(r"`(\w+)_SPLIT`", DOCS))
    assert arrays == {name.split("_")[0] for name in COLUMNS["image-classification"]} - {"classes"}
