"""Recipes: one merge written down in YAML, in plait's own words or in mergekit's. No torch.

plait's own keys, paths relative to the recipe's folder:

    base: models/base            method: ties             options: {density: 0.2}
    members: [{checkpoint: models/a, task: a, weight: 1}]
    private: ['classifier.*']    dtype: bfloat16          seed: 0

mergekit's are told by `merge_method`; paths are relative to the working directory, as mergekit takes them.
Whatever a recipe says is either done or refused: no key is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from plait.errors import RefusedInput

DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
"""Output dtypes of recipes and their names in the safetensors format."""

_LARGEST = 1 << 20  # bytes of a recipe; a longer file is no recipe


class Member(NamedTuple):
    """One checkpoint of a recipe."""

    checkpoint: str
    task: str
    weight: float


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


class Findings:
    """What is wrong with a recipe. All of it is gathered, so that one run shows all."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.wrong: list[str] = []
        self.notes: list[str] = []

    def refuse(self, words: str) -> None:
        self.wrong.append(words)

    def note(self, words: str) -> None:
        self.notes.append(words)

    def settle(self) -> None:
        """RefusedInput with all findings on one line, if there are any."""
        if len(self.wrong) == 1:
            raise RefusedInput(f"{self.source}: {self.wrong[0]}")
        if self.wrong:
            listed = "; ".join(f"({i}) {words}" for i, words in enumerate(self.wrong, 1))
            raise RefusedInput(f"{self.source}: {len(self.wrong)} things cannot be honoured: {listed}")

    # values of one kind each; what does not fit is a finding and gives the default

    def number(self, where: str, value: Any, default: float) -> float:
        """A finite number. YAML 1.1 reads 1e-3 as text, which is taken as the number that it means."""
        if isinstance(value, str) and re.fullmatch(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?", value):
            try:
                value = float(value)
            except ValueError:  # such as 1.2.3
                self.refuse(f"{where} is {shown(value)}, expected a finite number")
                return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
            self.refuse(f"{where} is {shown(value)}, expected a finite number")
            return default
        return float(value)

    def weight(self, where: str, value: Any) -> float:
        weight = self.number(where, value, 1.0)
        if not 0 < weight <= 2**20:
            hint = "leave the model out" if weight == 0 else "only members of positive weight can be merged"
            self.refuse(f"{where} is {weight:g}, expected a number above 0 and at most 2^20; {hint}")
            return 1.0
        return weight

    def truth(self, where: str, value: Any, default: bool) -> bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, (int, float)) and value in (0, 1):
            return bool(value)
        self.refuse(f"{where} is {shown(value)}, expected true or false")
        return default

    def mapping(self, where: str, value: Any) -> dict[str, Any]:
        if value is None:
            return {}
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            self.refuse(f"{where} is {shown(value)}, expected names and values")
            return {}
        return value

    def rows(self, where: str, value: Any) -> list[dict[str, Any]]:
        if not isinstance(value, list) or not value:
            self.refuse(f"{where} is {shown(value)}, expected a list of at least one model")
            return []
        return [self.mapping(f"{where}[{i}]", row) for i, row in enumerate(value)]

    def text(self, where: str, value: Any) -> str:
        if not isinstance(value, str) or not value:
            self.refuse(f"{where} is {shown(value)}, expected text")
            return ""
        return value

    def keys(self, where: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
        """Unknown keys are findings."""
        for key in given:
            if key not in known:
                self.refuse(
                    f"{where}{shown(key)} is not known; expected {', '.join(known)}: remove it or correct it"
                )

    def path(self, where: str, value: Any, folder: Path) -> str:
        """A checkpoint that is here: a folder or a file. Nothing is ever fetched."""
        word = self.text(where, value)
        if not word:
            return ""
        place = folder / Path(word).expanduser()
        if place.exists():
            return str(place)
        if re.fullmatch(r"[\w.-]+/[\w.-]+", word) and not word.startswith("."):
            self.refuse(
                f"{where}: {shown(word)} is not here; plait fetches nothing; if it is a name on a model hub, "
                f"download it first (hf download {word} --local-dir DIR) and give that folder"
            )
        else:
            self.refuse(f"{where}: {shown(word)} does not exist (relative paths start at {folder.resolve()})")
        return ""

    def dtype(self, where: str, value: Any) -> str | None:
        if value is None:
            return None
        if value not in DTYPES:
            self.refuse(
                f"{where} is {shown(value)}, expected {', '.join(DTYPES)}, or leave it out to keep the base's"
            )
            return None
        return DTYPES[value]


def shown(value: Any, limit: int = 60) -> str:
    """A value of a recipe for a message, cut where it is long or deep (aliases can make it endless)."""
    from reprlib import Repr

    brief = Repr()
    brief.maxlevel, brief.maxstring, brief.maxother = 3, limit, limit
    text = brief.repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def read_recipe(path: str | Path) -> Recipe:
    """Read a recipe of either kind. RefusedInput lists all that is wrong or cannot be honoured."""
    source = Path(path)
    if not source.exists():
        raise RefusedInput(f"{source}: there is no such recipe; expected a YAML file")
    if not source.is_file():
        raise RefusedInput(f"{source}: is no file; expected a YAML file")
    data = source.read_bytes() if source.stat().st_size <= _LARGEST else None
    if data is None:
        raise RefusedInput(f"{source}: is larger than 1 MB; expected a recipe in YAML")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise RefusedInput(f"{source}: is not UTF-8 text; expected a recipe in YAML") from None
    return parse_recipe(text, str(source), source.parent)


def parse_recipe(text: str, source: str = "recipe", folder: Path | None = None) -> Recipe:
    """The recipe in a text. folder: where relative paths of plait's own recipes start."""
    data = _load(text, source)
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise RefusedInput(
            f"{source}: is {shown(data)}; expected the keys of a recipe, such as base, method, members"
        )
    findings = Findings(source)
    if "merge_method" in data:
        from plait.mergekit import translate

        made = translate(data, findings, Path())
    else:
        made = _own(data, findings, folder if folder is not None else Path())
    findings.settle()
    assert made is not None
    return made


def _load(text: str, source: str) -> Any:
    """YAML without objects and without repeated keys (the last would win in silence)."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key, _ in node.value:
                line = key.start_mark.line + 1
                if key.tag == "tag:yaml.org,2002:merge":
                    raise RefusedInput(
                        f"{source}, line {line}: << (merging keys) is not read; write the keys out"
                    )
                if str(key.value) in seen:
                    raise RefusedInput(
                        f"{source}, line {line}: {shown(key.value)} is given twice; give it once"
                    )
                seen.add(str(key.value))
            return super().construct_mapping(node, deep=deep)

    try:
        return yaml.load(text, Loader)  # a subclass of SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        what = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise RefusedInput(f"{source}{line}: is not YAML: {what}") from None
    except (RecursionError, TypeError, ValueError) as error:
        raise RefusedInput(f"{source}: is not a recipe: {str(error).splitlines()[0]}") from None


def _own(data: dict[str, Any], findings: Findings, folder: Path) -> Recipe | None:
    """A recipe in plait's own words."""
    known = ("base", "method", "options", "members", "private", "dtype", "seed")
    findings.keys("", data, known)
    base = findings.path("base", data.get("base"), folder)
    method = findings.text("method", data.get("method"))
    options = findings.mapping("options", data.get("options"))
    _plain_options("options", options, findings)
    members = []
    for i, row in enumerate(findings.rows("members", data.get("members"))):
        where = f"members[{i}]"
        findings.keys(f"{where}.", row, ("checkpoint", "task", "weight"))
        place = findings.path(f"{where}.checkpoint", row.get("checkpoint"), folder)
        task = findings.text(f"{where}.task", row["task"]) if "task" in row else None
        weight = findings.weight(f"{where}.weight", row.get("weight", 1.0))
        members.append((place, task, weight))
    private = data.get("private", [])
    if not isinstance(private, list) or not all(isinstance(item, str) for item in private):
        findings.refuse(f"private is {shown(private)}, expected a list of patterns such as 'classifier.*'")
        private = []
    seed = data.get("seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        findings.refuse(f"seed is {shown(seed)}, expected a whole number of at least 0")
    dtype = findings.dtype("dtype", data.get("dtype"))
    if findings.wrong:
        return None
    return Recipe(
        base, method, options, named(members, findings), dtype, tuple(private), seed, tuple(findings.notes)
    )


def _plain_options(where: str, options: Mapping[str, Any], findings: Findings, deep: bool = True) -> None:
    """Options are single values; one may itself be a mapping with a name and single values."""
    for key, value in options.items():
        place = f"{where}.{key}"
        if isinstance(value, dict) and deep:
            _plain_options(place, findings.mapping(place, value), findings, deep=False)
        elif isinstance(value, float) and not isfinite(value):
            findings.refuse(f"{place} is {value}, expected a finite number")
        elif value is not None and not isinstance(value, (str, bool, int, float)):
            findings.refuse(f"{place} is {shown(value)}, expected one number, word or truth value")


def named(members: list[tuple[str, str | None, float]], findings: Findings) -> tuple[Member, ...]:
    """Members with a task each: the one given, else the name of the folder or file. Two names alike get
    numbers where they were not given, and are a finding where they were."""
    given = [task for _, task, _ in members if task]
    for task in sorted({task for task in given if given.count(task) > 1}):
        findings.refuse(
            f"task {shown(task)} is given {given.count(task)} times; give every member a name of its own"
        )
    taken = set(given)
    rows = []
    for place, task, weight in members:
        if task is None:
            path = Path(place).resolve()
            task = plain = path.name if path.is_dir() else path.stem
            count = 1
            while task in taken:
                count += 1
                task = f"{plain}-{count}"
            taken.add(task)
        rows.append(Member(place, task, weight))
    return tuple(rows)
