"""What a recipe says, checked value by value. All faults are gathered, so that one run shows all."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import Any

from plait.errors import RefusedInput, shown

DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
"""Output dtypes of recipes and their names in the safetensors format."""


class Findings:
    """What is wrong with a recipe. All of it is gathered, so that one run shows all."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.wrong: list[str] = []
        self.notes: list[str] = []

    def refuse(self, words: str) -> None:
        if words not in self.wrong:  # a parameter for all models is read once for each of them
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

    def whole(self, where: str, value: Any, least: int = 0) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self.refuse(f"{where} is {shown(value)}, expected a whole number of at least {least}")
            return least
        return value

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

    def rows(self, where: str, value: Any, key: str) -> list[tuple[str, dict[str, Any]]]:
        """Where each row of a list of models stands, and the row: names and values, `key` among them. What is no such
        row is one finding and is left out."""
        if not isinstance(value, list) or not value:
            self.refuse(f"{where} {stands(value)}, expected a list of at least one model")
            return []
        rows = []
        for i, row in enumerate(value):
            if isinstance(row, dict):
                rows.append((f"{where}[{i}]", self.mapping(f"{where}[{i}]", row)))
            else:
                hint = f", such as {{{key}: {row}}}" if isinstance(row, str) else f", {key} among them"
                self.refuse(f"{where}[{i}] is {shown(row)}, expected names and values{hint}")
        return rows

    def text(self, where: str, value: Any) -> str:
        if not isinstance(value, str) or not value:
            self.refuse(f"{where} {stands(value)}, expected text")
            return ""
        return value

    def keys(self, where: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
        """Unknown keys are findings; the known key that is nearest is named."""
        for key in given:
            if key not in known:
                near = get_close_matches(key, known, 1)
                meant = f" to {near[0]}" if near else ""
                self.refuse(
                    f"{where}{shown(key)} is not known; expected {', '.join(known) or 'none'}: "
                    f"remove it or correct it{meant}"
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


def stands(value: Any) -> str:
    """What is said of a value that is not what was expected: that it is missing, or what it is."""
    return "is missing" if value is None else f"is {shown(value)}"
