"""docs/methods.md names every registered method of ours, every option and every default that the code has."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from plait.methods.registry import find, make, names
from plait.methods.sparsify import SPARSIFIERS

PAGE = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
FACTS = PAGE.split("methods.py: facts -->")[1].split("<!-- end of facts -->")[0]
OURS = [n for n in names() if find(n).__module__.startswith("plait.")]


@pytest.mark.parametrize("name", OURS)
def test_page_describes_the_method(name: str) -> None:
    row = next((line for line in FACTS.splitlines() if line.startswith(f"| `{name}` |")), "")
    facts = find(name).facts
    cells = [c.strip() for c in row.split("|")]
    assert facts.family in cells, row
    assert facts.removal in cells, row
    assert ("yes" if facts.order else "no") in cells, row
    assert facts.memory in cells, row
    section = PAGE.split(f"\n## {name}\n")[1].split("\n## ")[0]
    for f in fields(find(name)):
        assert f"`{f.name}`" in section, f.name
    assert facts.paper.rsplit(" ", 1)[-1] in section
    assert make(name).name == name


@pytest.mark.parametrize("name", SPARSIFIERS)
def test_page_describes_the_sparsifier(name: str) -> None:
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |"))
    for f in fields(SPARSIFIERS[name]):
        assert f"`{f.name}` ({f.default})" in row, f.name
