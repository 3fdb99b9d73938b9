"""Recipes in plait's own words."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from plait.errors import UsageError, shown
from plait.methods.rules import Rules, read
from plait.recipe.findings import Findings
from plait.recipe.merge import Recipe, named


def read_own(data: dict[str, Any], findings: Findings, folder: Path) -> Recipe | None:
    """A recipe in plait's own words."""
    known = ("base", "method", "options", "members", "private", "dtype", "seed")
    findings.keys("", data, known)
    base = findings.path("base", data.get("base"), folder)
    method = findings.text("method", data.get("method"))
    options = findings.mapping("options", data.get("options"))
    _plain_options("options", options, findings)
    members = []
    for where, row in findings.rows("members", data.get("members"), "checkpoint"):
        findings.keys(f"{where}.", row, ("checkpoint", "task", "weight"))
        place = findings.path(f"{where}.checkpoint", row.get("checkpoint"), folder)
        task = findings.text(f"{where}.task", row["task"]) if "task" in row else None
        weight = _weight(findings, f"{where}.weight", row.get("weight", 1.0))
        members.append((place, task, weight))
    private = data.get("private", [])
    if not isinstance(private, list) or not all(isinstance(item, str) for item in private):
        findings.refuse(f"private is {shown(private)}, expected a list of patterns such as 'classifier.*'")
        private = []
    seed = findings.whole("seed", data.get("seed", 0))
    dtype = findings.dtype("dtype", data.get("dtype"))
    if findings.wrong:
        return None
    return Recipe(
        base, method, options, named(members, findings), dtype, tuple(private), seed, tuple(findings.notes)
    )


def _weight(findings: Findings, where: str, value: Any) -> float | str:
    """A number, or rules that give one for each tensor."""
    rules = _rules(findings, where, value)
    return findings.weight(where, value) if rules is None else rules.text


def _rules(findings: Findings, where: str, value: Any) -> Rules | None:
    """Rules that give a number for each tensor, None for another value."""
    try:
        return read(where, value, 1.0)
    except UsageError as error:
        findings.refuse(str(error))
        return None


def _plain_options(where: str, options: Mapping[str, Any], findings: Findings, deep: bool = True) -> None:
    """Options are single values or rules for tensors; one may itself be a mapping with a name and such values."""
    for key, value in options.items():
        place = f"{where}.{key}"
        if isinstance(value, list) or (isinstance(value, dict) and "name" not in value):
            _rules(findings, place, value)
        elif isinstance(value, dict) and deep:
            _plain_options(place, findings.mapping(place, value), findings, deep=False)
        elif isinstance(value, float) and not isfinite(value):
            findings.refuse(f"{place} is {value}, expected a finite number")
        elif value is not None and not isinstance(value, (str, bool, int, float)):
            findings.refuse(f"{place} is {shown(value)}, expected one number, word or truth value")
