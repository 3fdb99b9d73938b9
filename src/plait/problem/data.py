"""Data files of texts: parquet, jsonl, CSV and lines. Each is read whole, by columns; images are in `images`.

What a file holds is not believed: whatever is missing, torn or of the wrong type is RefusedInput with the file, the
row and what was expected.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Protocol

from plait.errors import RefusedInput, shown
from plait.problem.content import key

TABLES = (".parquet", ".jsonl", ".csv")
LINES = ".txt"

Label = int | str
"""As data spells it: a class's number, counted from 0, or its name."""


class Source(Protocol):
    """Rows of a data file or folder. Labels and splits are read at once, content when it is asked for."""

    @property
    def path(self) -> Path: ...

    def __len__(self) -> int:
        """The number of rows."""

    @property
    def splits(self) -> Sequence[str] | None:
        """The split that each row is said to belong to; None where the data says nothing of it."""

    @property
    def labels(self) -> Sequence[Label] | None: ...

    def where(self, row: int) -> str:
        """The row in words, for messages."""

    def keys(self, rows: Sequence[int]) -> list[bytes]:
        """What equal examples share, see `content.key`. Holds one example at a time."""

    def exact(self, row: int) -> str:
        """The text; "" for images."""

    def take(self, rows: Sequence[int]) -> Any:
        """The inputs of these rows: texts, or a uint8 array (n, height, width, 3)."""


@dataclass(frozen=True)
class Texts:
    """A table of texts, in memory."""

    path: Path
    texts: Sequence[str]
    labels: Sequence[Label] | None
    splits: Sequence[str] | None
    unit: str = "row"  # counted from 1; blank lines and the header of a CSV file are none

    def __len__(self) -> int:
        return len(self.texts)

    def where(self, row: int) -> str:
        return f"{self.unit} {row + 1} of {self.path}"

    def keys(self, rows: Sequence[int]) -> list[bytes]:
        return [key(self.texts[row]) for row in rows]

    def exact(self, row: int) -> str:
        return self.texts[row]

    def take(self, rows: Sequence[int]) -> list[str]:
        return [self.texts[row] for row in rows]


def read_texts(path: Path, columns: Mapping[str, str], *, labelled: bool) -> Texts:
    """Read a file of texts.

    columns: the file's names for `text`, `label` and `split`; left out they are called so. A column for splits need
    not exist unless it is named here. labelled: whether labels are read; without, a .txt file may be given, in which
    every line that is not blank is an example. RefusedInput names the file, the row and what was expected.
    """
    if path.suffix == LINES:
        lines = [line.rstrip("\r") for line in _text(path).split("\n") if line.strip()]
        return Texts(path, lines, None, None, "text")
    wanted = [columns.get("text", "text")] + ([columns.get("label", "label")] if labelled else [])
    named = columns.get("split", "split")
    read = {".parquet": _parquet, ".jsonl": _jsonl, ".csv": _csv}[path.suffix]
    table = read(path, (*wanted, named))
    for name in (*wanted, *([named] if "split" in columns else [])):
        if not table.names:
            raise RefusedInput(f"{path}: is empty; expected rows with the columns {', '.join(wanted)}")
        if name not in table.columns:
            raise RefusedInput(
                f"{path}: there is no column {shown(name)}; it has {', '.join(table.names)}: "
                "name the right one in columns"
            )
    where = Texts(path, (), None, None).where
    texts = [_as_text(value, where(i), wanted[0]) for i, value in enumerate(table.columns[wanted[0]])]
    labels = None
    if labelled:
        labels = [_as_label(value, where(i)) for i, value in enumerate(table.columns[wanted[1]])]
    splits = table.columns.get(named)
    if splits is not None:
        splits = [_as_text(value, where(i), named) for i, value in enumerate(splits)]
    return Texts(path, texts, labels, splits)


@dataclass(frozen=True)
class _Table:
    names: Sequence[str]  # of all columns
    columns: Mapping[str, list[Any]]  # those of them that were asked for


def _as_text(value: Any, where: str, column: str) -> str:
    if not isinstance(value, str):
        raise RefusedInput(f"{where}: {column} is {shown(value)}; expected text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise RefusedInput(f"{where}: {column} holds half a character (a surrogate); expected text") from None
    return value


def _as_label(value: Any, where: str) -> Label:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise RefusedInput(
            f"{where}: the label is {shown(value)}; expected a whole number or the name of a class"
        )
    return value


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RefusedInput(
            f"{path}: is not UTF-8 text (byte {error.start}); expected {path.suffix[1:]} in UTF-8"
        ) from None
    except OSError as error:
        raise RefusedInput(f"{path}: cannot be read: {error.strerror}") from None


def _jsonl(path: Path, wanted: Sequence[str]) -> _Table:
    """One JSON object a line. Every line must hold the columns of the first."""
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            what = error.msg if isinstance(error, json.JSONDecodeError) else "it is nested too deeply"
            raise RefusedInput(
                f"{path}: line {number} is not JSON ({what}); expected one object a line: is the file cut off?"
            ) from None
        if not isinstance(row, dict):
            raise RefusedInput(
                f"{path}: line {number} is {shown(row)}; expected an object such as {{text: …}}"
            )
        rows.append(row)
    names = list(rows[0]) if rows else []
    columns: dict[str, list[Any]] = {}
    for name in wanted:
        if any(name in row for row in rows):
            columns[name] = [row.get(name) for row in rows]
    return _Table(names, columns)


def _csv(path: Path, wanted: Sequence[str]) -> _Table:
    """Comma-separated values with a header; fields that hold commas, quotes or line ends stand in quotes."""
    reader = csv.reader(StringIO(_text(path), newline=""), strict=True)
    try:
        rows = [row for row in reader if row]
    except csv.Error as error:
        raise RefusedInput(
            f"{path}: line {reader.line_num} is not CSV ({error}); expected fields between commas: "
            "is the file cut off?"
        ) from None
    header = rows[0] if rows else []
    _once(path, header, wanted)
    for number, row in enumerate(rows[1:], 1):
        if len(row) != len(header):
            raise RefusedInput(
                f"{path}: row {number} has {len(row)} fields; expected {len(header)}, as the header has: "
                "is the file cut off, or is a field with a comma not in quotes?"
            )
    return _Table(header, {n: [r[header.index(n)] for r in rows[1:]] for n in wanted if n in header})


def _once(path: Path, names: Sequence[str], wanted: Sequence[str]) -> None:
    for name in wanted:
        if names.count(name) > 1:
            raise RefusedInput(f"{path}: has {names.count(name)} columns {shown(name)}; expected one")


def _parquet(path: Path, wanted: Sequence[str]) -> _Table:
    from importlib import import_module

    try:
        parquet, arrow = import_module("pyarrow.parquet"), import_module("pyarrow")
    except ImportError:
        raise RefusedInput(
            f"{path}: reading parquet needs pyarrow; install it with: pip install 'plait[data]'"
        ) from None
    try:
        with parquet.ParquetFile(path) as file:
            names = list(file.schema_arrow.names)
            _once(path, names, wanted)
            table = file.read(columns=[name for name in dict.fromkeys(wanted) if name in names])
        return _Table(names, {name: table.column(name).to_pylist() for name in table.column_names})
    except (arrow.ArrowException, OSError, ValueError) as error:
        what = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RefusedInput(
            f"{path}: is no whole parquet file ({what}); is it cut off? get it again"
        ) from None
