"""Leading singular triplets from a few random vectors, against LAPACK's decomposition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from plait.errors import NonFinite
from plait.methods.memory import Table, apply
from plait.methods.registry import make
from plait.tensors.sketch import OVER, WORTH, leading

SHAPES = [(200, 160), (160, 200)]


def matrix(shape: tuple[int, int], values: Tensor, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    u, v = (
        torch.linalg.qr(torch.randn(s, len(values), generator=draw, dtype=torch.float64))[0] for s in shape
    )
    made: Tensor = (u * values) @ v.T
    return made


@pytest.mark.parametrize("shape", SHAPES)
def test_where_values_fall_off_the_triplets_are_those_of_the_full_decomposition(
    shape: tuple[int, int],
) -> None:
    given = matrix(shape, 0.5 ** torch.arange(160, dtype=torch.float64))
    found = leading(given, 12)
    assert len(found.values) == 12
    u, values, vt = torch.linalg.svd(given)
    assert torch.allclose(found.values, values[:12], rtol=1e-9)
    for mine, wanted in ((found.left(12), u[:, :12]), (found.right(12), vt[:12].T)):
        assert torch.dist(mine.T @ mine, torch.eye(12, dtype=torch.float64)) < 1e-6
        # (1/2)^(2 * 3 * 11) of the next value, and eps * q^2 of the Gram matrix with q = 2^11: 1e-9
        assert torch.dist(mine @ mine.T, wanted @ wanted.T) < 1e-7


@pytest.mark.parametrize("shape", SHAPES)
def test_of_equal_values_as_much_is_held_as_by_any_directions(shape: tuple[int, int]) -> None:
    given = matrix(shape, torch.ones(160, dtype=torch.float64))
    found = leading(given, 12)
    assert (given @ found.right(12)).square().sum() == pytest.approx(12, rel=1e-12)


def test_empty_directions_are_left_out_and_dtypes_kept() -> None:
    given = matrix((200, 160), torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64)).float()
    found = leading(given, 12)
    assert len(found.values) == 3
    assert found.left(3).dtype == found.right(3).dtype == torch.float32
    assert found.right(3).shape == (160, 3)
    assert len(leading(torch.zeros(200, 160), 12).values) == 0


def test_where_little_would_be_saved_the_decomposition_is_full() -> None:
    least = WORTH * (12 + OVER)
    assert len(leading(torch.eye(least + 5)[:, :least], 12).values) == 12
    assert len(leading(torch.eye(least + 5)[:, : least - 1], 12).values) == least - 1


def test_infinity_is_refused() -> None:
    with pytest.raises(NonFinite):
        leading(torch.full((200, 160), torch.inf), 12)


@pytest.mark.parametrize(("method", "options"), [("nufilt", {"rank": 12}), ("tsv_m", {})])
def test_methods_give_the_same_bytes_in_any_threads_and_take_members_out_exactly(
    method: str, options: dict[str, Any]
) -> None:
    draw = torch.Generator().manual_seed(1)
    base = {"w.weight": torch.randn(200, 160, generator=draw)}
    falling = 1 / torch.arange(1, 161, dtype=torch.float64)
    experts = [
        {"w.weight": base["w.weight"] + matrix((200, 160), falling, seed).float()} for seed in range(8)
    ]
    one = make(method, {**options, "sketch": True})
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        wanted = apply(one, base, experts)["w.weight"]
        torch.set_num_threads(2)
        assert torch.equal(apply(one, base, experts)["w.weight"], wanted)
    finally:
        torch.set_num_threads(before)
    full = apply(make(method, options), base, experts)["w.weight"]
    assert not torch.equal(full, wanted)
    assert torch.dist(full, wanted) < 0.5 * torch.dist(full, base["w.weight"])
    table = Table(one, base)  # type: ignore[arg-type]
    for expert in (experts[7], *experts):
        table.enter(expert)
    table.leave(0)
    assert torch.equal(table.merged()["w.weight"], wanted)
