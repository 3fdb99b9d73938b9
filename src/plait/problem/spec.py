"""What tasks.yaml says of a task, checked key by key; no data is read. The words are those of docs/tasks.md."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, Literal, get_args

from plait.errors import shown
from plait.problem.base import HeadSpec, Kind, Split
from plait.problem.data import LINES, TABLES
from plait.problem.npz import ARRAYS
from plait.recipe.findings import Findings

KINDS: tuple[Kind, ...] = tuple(k for k in get_args(Kind) if k != "python")
SPLITS: tuple[Split, ...] = get_args(Split)
_LABELLED = ("classes", "labels")
_COMMON = ("kind", "data", "columns", "splits", "head", "max_test", "max_train", "seed", "overlap")
KEYS: Mapping[Kind, tuple[str, ...]] = {
    "text-classification": (*_COMMON, *_LABELLED),
    "image-classification": (*_COMMON, *_LABELLED, "size"),
    "causal-lm": _COMMON,
}
COLUMNS: Mapping[Kind, tuple[str, ...]] = {
    "text-classification": ("text", "label", "split"),
    "image-classification": ARRAYS,
    "causal-lm": ("text", "split"),
}
PART = ("data", "rows", "count", "share")


@dataclass(frozen=True)
class Part:
    """Where a split comes from. rows: values of the split column; None: all rows. named: tasks.yaml says which rows,
    so the column must exist. count, share: how much is drawn; all that is left where both are None."""

    data: Path
    rows: tuple[str, ...] | None = None
    named: bool = False
    count: int | None = None
    share: float | None = None


@dataclass(frozen=True)
class TaskSpec:
    """A task of tasks.yaml. classes: names, or the file that lists them; labels: how the data spells them."""

    name: str
    kind: Kind
    parts: Mapping[Split, Part]
    columns: Mapping[str, str] = field(default_factory=dict)
    classes: tuple[str, ...] | Path | None = None
    labels: tuple[str, ...] | None = None
    head: HeadSpec = field(default_factory=HeadSpec)
    max_test: int | None = None
    max_train: int | None = None
    seed: int = 0
    overlap: Literal["refuse", "drop"] = "refuse"
    size: int | None = None


@dataclass(frozen=True)
class Places:
    """From words of tasks.yaml to paths. folder: of tasks.yaml; data: what $PLAIT_DATA stands for, where given."""

    folder: Path
    data: Path | None

    def of(self, where: str, value: Any, findings: Findings) -> Path | None:
        """A file or folder that exists; None, and a finding, where there is none."""
        word = findings.text(where, value)
        for name in re.findall(r"\$(?:\{(\w+)\}|(\w+))", word):
            if self._value(name[0] or name[1]) is None:
                findings.refuse(
                    f"${name[0] or name[1]} is not set; set it to the folder that holds the data, or write the path"
                )
                return None
        full = re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda m: self._value(m[1] or m[2]) or "", word)
        place = self.folder / Path(full).expanduser()
        if word and not place.exists():
            findings.refuse(
                f"{where}: {place} does not exist (relative paths start at the folder of tasks.yaml); correct it"
            )
        return place if word and place.exists() else None

    def _value(self, name: str) -> str | None:
        if name == "PLAIT_DATA" and self.data is not None:
            return str(self.data)
        return os.environ.get(name) or None


def read_spec(name: str, row: Mapping[str, Any], places: Places, findings: Findings) -> TaskSpec | None:
    """The task `name`; None where a finding keeps it from being made."""
    at = f"{name}."
    before = len(findings.wrong)
    kind = row.get("kind")
    if kind not in KINDS:
        findings.refuse(
            f"{at}kind is {shown(kind)}, expected {', '.join(KINDS)}, or python: module:function in its stead"
        )
        return None
    findings.keys(at, row, KEYS[kind])
    spec = TaskSpec(
        name=name,
        kind=kind,
        parts=_parts(at, kind, row, places, findings),
        columns=_columns(at, kind, row, findings),
        classes=_classes(at, row, places, findings),
        labels=_names(f"{at}labels", row["labels"], findings) if "labels" in row else None,
        head=_head(at, kind, row.get("head", "model"), findings),
        max_test=_most(f"{at}max_test", row.get("max_test"), findings),
        max_train=_most(f"{at}max_train", row.get("max_train"), findings),
        seed=findings.whole(f"{at}seed", row.get("seed", 0)),
        overlap=row.get("overlap", "refuse"),
        size=_most(f"{at}size", row.get("size"), findings),
    )
    if spec.overlap not in ("refuse", "drop"):
        findings.refuse(f"{at}overlap is {shown(spec.overlap)}, expected refuse or drop")
    if isinstance(spec.classes, tuple) and spec.labels and len(spec.classes) != len(spec.labels):
        findings.refuse(
            f"{at}classes has {len(spec.classes)} names and {at}labels {len(spec.labels)}; expected one class for "
            "each label, in the same order"
        )
    return spec if len(findings.wrong) == before else None


def _most(where: str, value: Any, findings: Findings) -> int | None:
    return None if value is None else findings.whole(where, value, 1)


def _columns(at: str, kind: Kind, row: Mapping[str, Any], findings: Findings) -> dict[str, str]:
    given = findings.mapping(f"{at}columns", row.get("columns"))
    findings.keys(f"{at}columns.", given, COLUMNS[kind])
    return {key: findings.text(f"{at}columns.{key}", value) for key, value in given.items()}


def _names(where: str, value: Any, findings: Findings) -> tuple[str, ...]:
    """At least two different names."""
    if not isinstance(value, list) or len(value) < 2:
        findings.refuse(f"{where} is {shown(value)}, expected a list of at least two names")
        return ()
    for i, name in enumerate(value):
        if not isinstance(name, str) or not name:
            findings.refuse(
                f"{where}[{i}] is {shown(name)}, expected text: put numbers and words like yes in quotes"
            )
            return ()
    twice = next((name for name in value if value.count(name) > 1), None)
    if twice is not None:
        findings.refuse(f"{where} lists {shown(twice)} twice; expected different names")
    return tuple(value)


def _classes(
    at: str, row: Mapping[str, Any], places: Places, findings: Findings
) -> tuple[str, ...] | Path | None:
    value = row.get("classes")
    if isinstance(value, str):
        return places.of(f"{at}classes", value, findings)
    return None if value is None else _names(f"{at}classes", value, findings)


def _parts(
    at: str, kind: Kind, row: Mapping[str, Any], places: Places, findings: Findings
) -> dict[Split, Part]:
    """All splits that tasks.yaml names; train and test where it names none."""
    given = findings.mapping(f"{at}splits", row.get("splits", {"train": {}, "test": {}}))
    findings.keys(f"{at}splits.", given, SPLITS)
    data = places.of(f"{at}data", row["data"], findings) if "data" in row else None
    if data is not None:
        _check_data(f"{at}data", kind, data, findings)
    parts: dict[Split, Part] = {}
    for split in SPLITS:
        if split not in given:
            continue
        where = f"{at}splits.{split}"
        words = findings.mapping(where, given[split])
        findings.keys(f"{where}.", words, PART)
        own = places.of(f"{where}.data", words["data"], findings) if "data" in words else None
        if own is not None:
            _check_data(f"{where}.data", kind, own, findings)
        elif "data" not in words and "data" not in row:
            findings.refuse(f"{where}: there is no data; expected {at}data or {where}.data, a file or folder")
        drawn = _drawn(where, words, findings)
        rows, named = _rows(where, split, words, drawn != (None, None), findings)
        parts[split] = Part(own or data or Path(), rows, named, *drawn)
    if not given and "splits" in row:
        findings.refuse(f"{at}splits is empty, expected at least one of {', '.join(SPLITS)}")
    return parts


def _check_data(where: str, kind: Kind, place: Path, findings: Findings) -> None:
    """Whether data of this form can be read for tasks of this kind."""
    if kind == "image-classification":
        fits, forms = place.is_dir() or place.suffix == ".npz", ".npz, or a folder with a subfolder a class"
    else:
        suffixes = TABLES if kind == "text-classification" else (*TABLES, LINES)
        fits, forms = place.is_file() and place.suffix in suffixes, f"a file ending in {', '.join(suffixes)}"
    if not fits:
        findings.refuse(f"{where}: {place} cannot be read for {kind}; expected {forms}")


def _drawn(where: str, words: Mapping[str, Any], findings: Findings) -> tuple[int | None, float | None]:
    count = _most(f"{where}.count", words.get("count"), findings)
    if words.get("share") is None:
        return count, None
    share = findings.number(f"{where}.share", words["share"], 0.5)
    if not 0 < share < 1:
        findings.refuse(f"{where}.share is {share:g}, expected a number between 0 and 1")
    if count is not None:
        findings.refuse(f"{where} has both a count and a share; expected one of them: remove the other")
    return count, share


def _rows(
    where: str, split: Split, words: Mapping[str, Any], draws: bool, findings: Findings
) -> tuple[tuple[str, ...] | None, bool]:
    """Which rows: those that are named; else all of a file of its own, and of the task's data the split's own rows,
    or, for calibration and validation that are drawn, the train rows."""
    value = words.get("rows")
    if value is None:
        borrowed = draws and split in ("calibration", "validation")
        return (None if "data" in words else ("train" if borrowed else split,)), False
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not listed or not all(isinstance(word, str) for word in listed):
        findings.refuse(
            f"{where}.rows is {shown(value)}, expected a value of the split column, or a list of them"
        )
        return None, False
    return tuple(sorted(set(listed))), True


_HEADS: Mapping[str, tuple[str, ...]] = {
    "zero-shot": ("kind", "templates", "scale"),
    "linear": ("kind", "weight", "bias"),
    "model": ("kind",),
}


def _head(at: str, kind: Kind, value: Any, findings: Findings) -> HeadSpec:
    words = {"kind": value} if isinstance(value, str) else findings.mapping(f"{at}head", value)
    at = f"{at}head"
    head: Any = words.get("kind")
    allowed = ("model",) if kind == "causal-lm" else tuple(_HEADS)
    if head not in allowed:
        findings.refuse(f"{at} is {shown(head)}, expected {', '.join(allowed)} for {kind}")
        return HeadSpec()
    findings.keys(f"{at}.", words, _HEADS[head])
    templates = words.get("templates", ["{}"])
    if not isinstance(templates, list) or not templates or not all(_template(t) for t in templates):
        findings.refuse(
            f"{at}.templates is {shown(templates)}, expected a list of texts with one {{}} for the name of a class"
        )
        templates = ["{}"]
    scale = findings.number(f"{at}.scale", words.get("scale", 20.0), 20.0)
    if not (isfinite(scale) and scale > 0):
        findings.refuse(f"{at}.scale is {scale:g}, expected a number above 0")
    named = {key: findings.text(f"{at}.{key}", words[key]) for key in ("weight", "bias") if key in words}
    if "bias" in named and "weight" not in named:
        findings.refuse(f"{at}.bias is given without {at}.weight; expected both names of tensors, or neither")
    return HeadSpec(head, tuple(templates), scale, named.get("weight", ""), named.get("bias", ""))


def _template(value: Any) -> bool:
    return isinstance(value, str) and value.count("{}") == 1
