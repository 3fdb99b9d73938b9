"""Every method gets as many tries as any other, its default among them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import pytest

from plait.bench.grids import GRIDS, OPTIONS, grid
from plait.methods.base import Method
from plait.methods.registry import find, make, names


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("budget", [2, 3, 5, 7])
def test_values_of_every_method(name: str, budget: int) -> None:
    option, values = grid(name, find(name), budget)
    if option is None:
        assert values == []
        assert not {f.name for f in fields(find(name))} & set(OPTIONS)
        return
    assert len(values) == budget == len(set(values))
    assert values == sorted(values)
    assert make(name).options()[option] in values
    for value in values:
        make(name, {option: value})


@pytest.mark.parametrize("name", names())
def test_a_budget_of_one_takes_the_default(name: str) -> None:
    assert grid(name, find(name), 1) == (None, [])


@pytest.mark.parametrize("name", GRIDS)
def test_more_tries_only_add_values(name: str) -> None:
    few, many = (set(grid(name, find(name), budget)[1]) for budget in (3, 6))
    assert few < many


def test_a_method_that_is_not_named_goes_by_its_options() -> None:
    @dataclass(frozen=True)
    class Own(Method):
        density: float = 0.4
        ridge: float = 0.2
        variant: str = "x"

    @dataclass(frozen=True)
    class None_(Method):
        variant: str = "x"

    def found(kind: type[Method]) -> Any:
        return grid("own", kind, 3)

    assert found(Own) == ("ridge", [0.1, 0.2, 0.3])  # its default, though the list has it not
    assert found(None_) == (None, [])
