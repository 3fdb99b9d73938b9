"""GEM's projection against its definition: every active set tried, in dense vectors."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from plait.bench.gem import project, shares


def drawn(seed: int, old: int, size: int = 12) -> tuple[Tensor, Tensor]:
    """A gradient and those of old tasks, which oppose it in part."""
    g = torch.Generator().manual_seed(seed)
    own = torch.randn(size, generator=g, dtype=torch.float64)
    rows = torch.randn(old, size, generator=g, dtype=torch.float64) - 0.7 * own
    return own, rows


def best(gram: Tensor, products: Tensor, least: float) -> Tensor:
    """The minimum of v'Gv / 2 + b'v over v >= least: of all choices of which shares lie at the bound, the one that
    solves the rest and is best among those inside."""
    found, value = torch.full_like(products, least), float("inf")
    for at_bound in product([True, False], repeat=len(products)):
        free = [i for i, bound in enumerate(at_bound) if not bound]
        v = torch.full_like(products, least)
        if free:
            rest = [i for i, bound in enumerate(at_bound) if bound]
            right = -products[free] - gram[free][:, rest] @ v[rest]
            v[free] = torch.linalg.solve(gram[free][:, free], right)
        worth = float(v @ gram @ v / 2 + products @ v)
        if bool((v >= least - 1e-12).all()) and worth < value:
            found, value = v, worth
    return found


@pytest.mark.parametrize("least", [0.0, 0.5])
@pytest.mark.parametrize("seed", range(8))
def test_shares_are_those_of_the_best_active_set(seed: int, least: float) -> None:
    own, rows = drawn(seed, 1 + seed % 4)
    gram, products = rows @ rows.T, 5 * rows @ own
    wanted = best(gram, products, least)
    got = shares(gram, products, least)
    # the shares stop moving at 1e-10 of the largest; a condition of some tens stands between that and the minimum
    assert torch.allclose(got, wanted, rtol=0, atol=1e-7 * float(wanted.abs().max().clamp_min(1)))
    assert (wanted > least).any()


def split(vector: Tensor) -> dict[str, Tensor]:
    return {"a": vector[:4].view(2, 2), "b": vector[4:]}


@pytest.mark.parametrize("seed", range(5))
def test_the_projection_makes_no_old_task_worse_and_is_the_nearest_that_does(seed: int) -> None:
    own, rows = drawn(seed, 3)
    found = project(split(own), [split(row) for row in rows], 0.0)
    assert found is not None
    assert {name: tensor.shape for name, tensor in found.items()} == {"a": (2, 2), "b": (8,)}
    flat = torch.cat([found["a"].flatten(), found["b"]])
    assert float((rows @ flat).min()) > -1e-6
    g = torch.Generator().manual_seed(seed)
    for _ in range(200):
        other = flat + 0.05 * torch.randn(len(flat), generator=g, dtype=torch.float64)
        if bool((rows @ other >= 0).all()):
            assert float((other - own).norm()) >= float((flat - own).norm()) - 1e-9


def test_a_margin_favours_the_old_tasks() -> None:
    own, rows = drawn(1, 2)
    near, far = (project(split(own), [split(row) for row in rows], gamma) for gamma in (0.0, 0.5))
    assert near is not None
    assert far is not None

    def worst(found: dict[str, Tensor]) -> float:
        return float((rows @ torch.cat([found["a"].flatten(), found["b"]])).min())

    assert worst(far) > worst(near) + 0.1


def test_a_gradient_that_hurts_no_old_task_is_left_as_it_is() -> None:
    own, _ = drawn(0, 1)
    assert project(split(own), [split(own * 2)], 0.5) is None
    assert project(split(own), [split(own * 0)], 0.5) is None
