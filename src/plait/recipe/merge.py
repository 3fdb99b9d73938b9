"""What every recipe comes to, whoever's words it was written in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from plait.errors import shown
from plait.recipe.findings import Findings


class Member(NamedTuple):
    """One checkpoint of a recipe."""

    checkpoint: str
    task: str
    weight: float | str  # text: rules that give one for each tensor


@dataclass(frozen=True)
class Recipe:
    """One merge, ready for `plait.merge_files`.

    dtype: of the output as the safetensors format names it (F32, BF16, F16), None for the base's.
    notes: how the recipe was read where that is not plain from it; to be shown to the user.
    """

    base: str
    method: str
    options: dict[str, Any]
    members: tuple[Member, ...]
    dtype: str | None = None
    private: tuple[str, ...] = ()
    seed: int = 0
    notes: tuple[str, ...] = ()


def named(members: list[tuple[str, str | None, float | str]], findings: Findings) -> tuple[Member, ...]:
    """Members with a task each: the one given, else the name of the folder or file. Two names alike get
    numbers where they were not given, and are a finding where they were."""
    given = [task for _, task, _ in members if task]
    for twice in sorted({name for name in given if given.count(name) > 1}):
        findings.refuse(
            f"task {shown(twice)} is given {given.count(twice)} times; give every member a name of its own"
        )
    taken = set(given)
    rows = []
    for place, task, weight in members:
        rows.append(Member(place, task or _free(Path(place).resolve(), taken), weight))
        taken.add(rows[-1].task)
    return tuple(rows)


def _free(path: Path, taken: set[str]) -> str:
    """The name of a folder or file, with a number where it is taken."""
    plain = name = path.name if path.is_dir() else path.stem
    count = 1
    while name in taken:
        count += 1
        name = f"{plain}-{count}"
    return name
