"""mergekit's parameters that differ by filter or by depth, as rules in plait's words.

A parameter of mergekit 0.1.5 is a value, a list of values (anchors over the layers), or a list of {value, filter}, of
which the first counts whose filter is part of the tensor's name; without a filter, or with "*", it is for all. Where
none counts, what is asked next does: the parameter for all models after a model's own, then the default.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from glob import escape
from typing import Any

from plait.errors import shown
from plait.methods.rules import EVERY, Depth, Rules
from plait.recipe.findings import Findings


@dataclass(frozen=True)
class Setting:
    """A parameter: rules for tensors. rules.otherwise: None where mergekit would ask for a value in vain."""

    rules: Rules

    @classmethod
    def of(cls, value: float) -> Setting:
        return cls(Rules((), Depth((value,))))

    @property
    def constant(self) -> float | None:
        """The one number for all tensors, None where there is no such number."""
        rest = self.rules.otherwise
        return rest.anchors[0] if not self.rules.pairs and rest and len(rest.anchors) == 1 else None

    @property
    def option(self) -> float | str:
        """It as an option or a weight of plait."""
        found = self.constant
        return self.rules.text if found is None else found

    @property
    def numbers(self) -> list[float]:
        """All numbers that are written in it."""
        return (
            self.rules.values if self.rules.otherwise else [n for _, v in self.rules.pairs for n in v.anchors]
        )

    def then(self, more: Setting) -> Setting:
        """What counts where this says nothing."""
        if self.rules.otherwise is not None:
            return self
        return Setting(Rules((*self.rules.pairs, *more.rules.pairs), more.rules.otherwise))

    def each(self, change: Callable[[float], float]) -> Setting:
        """The same with other numbers."""

        def changed(value: Depth) -> Depth:
            return replace(value, anchors=tuple(map(change, value.anchors)))

        pairs = tuple((pattern, changed(value)) for pattern, value in self.rules.pairs)
        rest = self.rules.otherwise
        return Setting(Rules(pairs, None if rest is None else changed(rest)))


NOTHING = Setting(Rules((), None))
ONE = Setting.of(1.0)


def setting(findings: Findings, where: str, value: Any) -> Setting:
    """What a parameter of a recipe says; what is wrong with it is a finding."""
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        return Setting(Rules((), _depth(findings, where, value)))
    if value and not any(isinstance(one, (dict, list)) for one in value):
        return Setting(Rules((), _depth(findings, where, value)))
    pairs: list[tuple[str, Depth]] = []
    for number, row in enumerate(value):
        place = f"{where}[{number}]"
        if not isinstance(row, dict) or "value" not in row or set(row) - {"value", "filter"}:
            findings.refuse(f"{place} is {shown(row)}, expected a value, and a filter or none")
            return NOTHING
        chosen = row.get("filter")
        if chosen is not None and (not isinstance(chosen, str) or set(chosen) & set(";:")):
            findings.refuse(f"{place}.filter is {shown(chosen)}, expected a part of names of tensors")
            return NOTHING
        found = _depth(findings, f"{place}.value", row["value"])
        if chosen in (None, "*"):
            return Setting(Rules(tuple(pairs), found))
        pairs.append((f"{EVERY}{escape(chosen)}{EVERY}", found))
    if not pairs:
        findings.refuse(
            f"{where} is {shown(value)}, expected a number, numbers over the layers, or values with filters"
        )
    return Setting(Rules(tuple(pairs), None))


def first(settings: Sequence[Setting]) -> Setting:
    """The settings, highest first, as one."""
    found = NOTHING
    for one in settings:
        found = found.then(one)
    return found


def _depth(findings: Findings, where: str, value: Any) -> Depth:
    anchors = value if isinstance(value, list) and value else [value]
    return Depth(tuple(findings.number(where, one, 1.0) for one in anchors))
