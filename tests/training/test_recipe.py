"""Recipes and schedules: their ends, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from plait.errors import UsageError
from plait.training.recipe import Recipe
from plait.training.schedule import one_epoch, share_of_rate


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"epochs": 0}, "epochs is 0, expected a whole number of at least 1"),
        ({"epochs": 1.5}, "epochs is 1.5, expected a whole number of at least 1"),
        ({"epochs": True}, "epochs is True, expected a whole number of at least 1"),
        ({"batch": 0}, "batch is 0, expected a whole number of at least 1"),
        ({"examples": -1}, "examples is -1, expected a whole number of at least 0"),
        ({"seed": 2**63}, f"seed is {2**63}, expected a whole number from 0 to below {2**63}"),
        ({"seed": -1}, f"seed is -1, expected a whole number from 0 to below {2**63}"),
        ({"rate": 0}, "rate is 0, expected a number above 0, such as 1e-4"),
        ({"rate": float("nan")}, "rate is nan, expected a number above 0, such as 1e-4"),
        ({"rate": "1e-4"}, "rate is '1e-4', expected a number above 0, such as 1e-4"),
        ({"warmup": 1.1}, "warmup is 1.1, expected a share of the steps from 0 to 1"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1, expected a number of at least 0"),
    ],
    ids=str,
)
def test_what_a_recipe_refuses(words: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as found:
        Recipe(**words)
    assert str(found.value) == message


def test_a_recipe_as_json_gives_the_recipe() -> None:
    recipe = Recipe(epochs=2, rate=3e-5, seed=2**63 - 1, train=("a.*", "b"), freeze="layer.*")  # type: ignore[arg-type]
    assert recipe.freeze == ("layer.*",)
    assert Recipe(**recipe.plain()) == recipe


@pytest.mark.parametrize("warmup", [0.0, 1e-4, 0.1, 0.5, 1.0])
def test_the_rate_goes_up_and_then_down(warmup: float) -> None:
    shares = [share_of_rate(step / 1000, warmup) for step in range(1000)]
    assert all(0 < share <= 1 for share in shares)
    top = round(warmup * 1000)
    assert shares[:top] == sorted(shares[:top])
    assert shares[top:] == sorted(shares[top:], reverse=True)
    if 0 < warmup < 1:
        assert shares[top] == 1.0
    if warmup < 1:
        assert shares[top + (1000 - top) // 2] == pytest.approx(0.5, abs=1e-2)
        assert shares[-1] < 1e-4
    else:
        assert shares[-1] == 1.0


def test_an_epoch_holds_every_example_once_in_batches_of_like_length() -> None:
    lengths = [5, 1, 9, 5, 2, 2, 7, 5, 1, 3]
    chance = torch.Generator().manual_seed(0)
    first, second = (one_epoch(lengths, 3, chance) for _ in range(2))
    for batches in (first, second):
        assert sorted(row for rows in batches for row in rows) == list(range(10))
        assert sorted(map(len, batches)) == [1, 3, 3, 3]
        held = sorted(sorted(lengths[row] for row in rows) for rows in batches)
        assert held == [[1, 1, 2], [2, 3, 5], [5, 5, 7], [9]]
    assert first != second
    openings = {lengths[one_epoch(lengths, 3, chance)[0][0]] for _ in range(40)}
    assert openings == {1, 2, 5, 9}  # any batch may be the first; inside a batch the shortest is
    assert one_epoch(lengths, 3, torch.Generator().manual_seed(0)) == first
    assert one_epoch(lengths, 3, torch.Generator().manual_seed(1)) != first
