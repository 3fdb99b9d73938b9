"""Names of classes, and from the labels of data to their numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from plait.errors import RefusedInput, shown
from plait.problem.data import Label, Source
from plait.problem.images import Folder
from plait.problem.npz import Npz
from plait.problem.spec import TaskSpec

Names = tuple[str, ...]


def class_names(spec: TaskSpec) -> tuple[Names, Names]:
    """The names of the classes, and how the data spells them, both in the order of the labels.

    The data's own names are those of `labels`, else of the array `classes` or NAME.classes.json beside the file, or
    of the subfolders. RefusedInput where there are none and tasks.yaml gives none, or where the two differ in number.
    """
    if spec.kind == "causal-lm":
        return (), ()
    given = read_names(spec.classes) if isinstance(spec.classes, Path) else spec.classes
    paths = tuple(dict.fromkeys(part.data for part in spec.parts.values()))
    own = spec.labels or _own(spec, paths)
    if given is None and own is None:
        raise RefusedInput(
            f"{spec.name}: the classes have no names; expected {spec.name}.classes in tasks.yaml, or "
            f"{paths[0].with_suffix('.classes.json').name} beside {paths[0]}"
        )
    classes, spelled = given or own or (), own or given or ()
    if len(classes) != len(spelled):
        raise RefusedInput(
            f"{spec.name}: classes has {len(classes)} names, but the data has {len(spelled)} classes "
            f"({listed(spelled)}); expected one name for each, in the same order"
        )
    return classes, spelled


def _own(spec: TaskSpec, paths: Sequence[Path]) -> Names | None:
    """The names that the data brings. Class folders of several paths are put together; other names must agree."""
    if all(path.is_dir() for path in paths):
        folders = {name for path in paths for name in Folder(path).names}
        if not folders:
            raise RefusedInput(
                f"{paths[0]}: holds no folders; expected one for each class, with its images in it"
            )
        return tuple(sorted(folders))
    found: dict[Path, Names] = {}
    for path in paths:
        sidecar = path.with_suffix(".classes.json")
        names = Npz(path, spec.columns).names if path.suffix == ".npz" else None
        if path.is_dir():
            names = Folder(path).names
        elif names is None and sidecar.exists():
            names = read_names(sidecar)
        if names is not None:
            found[path] = names
    for path, names in found.items():
        first = next(iter(found))
        if names != found[first]:
            raise RefusedInput(
                f"{spec.name}: the classes of {first} are {listed(found[first])}, of {path} {listed(names)}; "
                f"expected the same: give {spec.name}.labels in tasks.yaml"
            )
    return next(iter(found.values()), None)


def read_names(path: Path) -> Names:
    """A JSON list of different names."""
    try:
        names = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        raise RefusedInput(
            f'{path}: is not JSON; expected a list of class names such as ["ham", "spam"]'
        ) from None
    if not isinstance(names, list) or len(names) < 2 or not all(isinstance(n, str) and n for n in names):
        raise RefusedInput(f"{path}: is {shown(names)}; expected a list of at least two class names")
    if len(set(names)) < len(names):
        raise RefusedInput(f"{path}: lists a class twice; expected different names")
    return tuple(names)


def numbers(task: str, source: Source, rows: Sequence[int], spelled: Names) -> list[int]:
    """The labels of these rows as numbers from 0. RefusedInput where one is no number of a class and no name of one.

    Text that is made of digits (CSV knows nothing else) counts as a number, unless all labels are names of classes.
    """
    labels: Sequence[Label] = source.labels or ()
    place = {name: number for number, name in enumerate(spelled)}
    digits = any(labels[row] not in place for row in rows if isinstance(labels[row], str))
    found = []
    for row in rows:
        label = labels[row]
        if digits and isinstance(label, str) and re.fullmatch(r"-?[0-9]{1,18}", label):
            label = int(label)
        if isinstance(label, str) and label not in place:
            raise RefusedInput(
                f"{task}: {source.where(row)}: the label {shown(label)} is no class; expected {listed(spelled)}, or "
                "a number counted from 0"
            )
        number = place[label] if isinstance(label, str) else label
        if not 0 <= number < len(spelled):
            raise RefusedInput(
                f"{task}: {source.where(row)}: the label {number} is outside 0 .. {len(spelled) - 1}; there are "
                f"{len(spelled)} classes ({listed(spelled)}): correct it, or list all classes"
            )
        found.append(number)
    return found


def listed(names: Sequence[str], most: int = 8) -> str:
    more = f", … ({len(names)} in all)" if len(names) > most else ""
    return ", ".join(names[:most]) + more
