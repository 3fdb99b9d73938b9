"""Data files for tests, written without plait's readers."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy
import pytest
from numpy.typing import NDArray
from PIL import Image

from plait.errors import RefusedInput
from plait.problem.task import load_tasks

Pixels = NDArray[numpy.uint8]
COLOURS = ("amber", "blue", "coral")


def write_table(path: Path, columns: Mapping[str, Sequence[Any]]) -> Path:
    """A table in the format of the path's suffix."""
    names, rows = list(columns), list(zip(*columns.values(), strict=True))
    if path.suffix == ".parquet":
        table = import_module("pyarrow").table({n: list(c) for n, c in columns.items()})
        import_module("pyarrow.parquet").write_table(table, path)
    elif path.suffix == ".jsonl":
        lines = [json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False) for row in rows]
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([names, *rows])
    return path


def texts(train: int = 40, test: int = 10, classes: int = 3) -> dict[str, list[Any]]:
    """Rows with the columns text, label, split; no two alike."""
    splits = ["train"] * train + ["test"] * test
    said = [f'Sentence {i}, "quoted"\nover two lines: é' for i in range(len(splits))]
    return {"text": said, "label": [i % classes for i in range(len(splits))], "split": splits}


def pictures(count: int, height: int = 6, width: int = 8, first: int = 0) -> Pixels:
    """Images of noise, no two alike."""
    made = numpy.random.default_rng(first).integers(0, 256, (count, height, width, 3))
    return made.astype(numpy.uint8)


def encoded(pixels: Pixels, form: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, form)
    return out.getvalue()


def packed(files: Sequence[bytes]) -> tuple[Pixels, NDArray[numpy.int64]]:
    """Files one after the other, and their places."""
    places = numpy.cumsum([0, *map(len, files)], dtype=numpy.int64)
    return numpy.frombuffer(b"".join(files), dtype=numpy.uint8), places


def write_tasks(folder: Path, text: str) -> Path:
    path = folder / "tasks.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def refused(folder: Path, text: str, split: Any = None) -> str:
    """The one line with which tasks.yaml, or a split of its task `t`, is refused. The folder is written as DIR."""

    def read() -> None:
        tasks = load_tasks(write_tasks(folder, text))
        if split is not None:
            tasks["t"].examples(split)

    with pytest.raises(RefusedInput) as caught:
        read()
    message = str(caught.value)
    assert caught.value.exit_code == 5
    assert "\n" not in message
    return message.replace(str(folder), "DIR")
