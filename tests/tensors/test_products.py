"""Products of matrices against Python's whole numbers, and the solution of symmetric systems against the SVD."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor

from plait.tensors.products import Sliced, bits_for, scaled, sliced
from plait.tensors.solve import right_divide


def fractions(matrix: Tensor) -> list[list[Fraction]]:
    return [[Fraction(x) for x in row] for row in matrix.tolist()]


def product(a: list[list[Fraction]], b: list[list[Fraction]]) -> list[list[Fraction]]:
    columns = list(zip(*b, strict=True))
    return [[sum((x * y for x, y in zip(row, c, strict=True)), Fraction(0)) for c in columns] for row in a]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_slices_hold_a_matrix_up_to_their_last_bit() -> None:
    matrix = drawn(9, 7) * torch.arange(1, 8)
    top = 32  # the largest magnitude is below it
    assert 16 <= matrix.abs().max() < top
    for bits in (10, 21):
        two, one = sliced(matrix, bits), sliced(matrix, bits, 1)
        assert (two.value() - matrix).abs().max() <= top * 2.0 ** (-2 * bits - 1)
        assert (one.value() - matrix).abs().max() <= top * 2.0 ** (-bits - 1)
        assert two.high.abs().max() <= 2**bits
        assert two.low is not None
        assert two.low.abs().max() <= 2 ** (bits - 1)
        assert torch.equal(two.low, two.low.round())
    assert sliced(torch.tensor([[3.0, -1.0]], dtype=torch.float64), 5).low is None


@pytest.mark.parametrize("seed", range(3))
def test_products_are_those_of_whole_numbers(seed: int) -> None:
    left, right = drawn(3, 40, seed=seed), drawn(40, 5, seed=seed + 10)
    bits = bits_for(40)
    a, b = sliced(left, bits), sliced(right, bits)
    want = product(fractions(a.value()), fractions(b.value()))
    found, size = a.times(b), float(left.abs().max() * right.abs().max())
    for row, exact in zip(found.tolist(), want, strict=True):
        for x, y in zip(row, exact, strict=True):
            # low @ low is left out: 40 products of at most 2^(-2 bits) of the powers of two above, 4 times the sizes
            assert abs(Fraction(x) - y) <= 160 * size * 2.0 ** (-2 * bits) + size * 2.0**-46
    gram, exponent = b.gram()
    square = product(list(map(list, zip(*fractions(b.value()), strict=True))), fractions(b.value()))
    assert torch.equal(gram, gram.T)
    for row, exact in zip(scaled(gram, exponent).tolist(), square, strict=True):
        for x, y in zip(row, exact, strict=True):
            assert abs(Fraction(x) - y) <= 160 * size**2 * 2.0 ** (-2 * bits) + size**2 * 2.0**-46


def test_the_order_of_additions_does_not_show() -> None:
    """The longest sums with the largest numbers; any other way to add them up must give the same bits."""
    long = 3000
    left = drawn(6, long).sign() * (1 - torch.rand(6, long, dtype=torch.float64) / 8)
    right = left.T.contiguous()
    bits = bits_for(long)
    order = torch.randperm(long, generator=torch.Generator().manual_seed(1))
    a, b = sliced(left, bits), sliced(right, bits)
    assert torch.equal(a.times(b), sliced(left[:, order], bits).times(sliced(right[order], bits)))
    assert torch.equal(b.gram()[0], sliced(right[order], bits).gram()[0])
    one_by_one = torch.zeros(6, 6, dtype=torch.float64)
    for k in range(long):
        one_by_one += a.high[:, k : k + 1] * b.high[k : k + 1]
    assert torch.equal(one_by_one, a.high @ b.high)
    assert 2.0**50 < one_by_one.abs().max() <= 2.0**53


def test_another_library_gives_the_same_bits() -> None:
    """numpy brings a library of its own for products of matrices; of plain numbers it makes other bits."""
    left, right = drawn(40, 700), drawn(700, 50, seed=1)
    a, b = sliced(left, bits_for(700)), sliced(right, bits_for(700))
    assert torch.equal(a.high @ b.high, torch.from_numpy(a.high.numpy() @ b.high.numpy()))
    threads = torch.get_num_threads()
    try:
        found = []
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append((a.times(b), *b.gram()))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


@pytest.mark.parametrize("factor", [2.0**-1060, 2.0**-300, 1.0, 2.0**400, 2.0**1000])
def test_magnitudes_from_end_to_end(factor: float) -> None:
    matrix = drawn(4, 6)
    bits = bits_for(6)
    plain, moved = sliced(matrix, bits), sliced(matrix * factor, bits)
    if factor > 2.0**-1000:  # below, fp64 has fewer bits
        assert torch.equal(moved.gram()[0], plain.gram()[0])
        assert torch.equal(moved.value(), plain.value() * factor)
    assert torch.isfinite(moved.gram()[0]).all()
    assert sliced(torch.zeros(2, 2, dtype=torch.float64), bits).gram()[0].tolist() == [[0, 0], [0, 0]]


def test_scaling_reaches_further_than_its_factor() -> None:
    assert scaled(torch.tensor([2.0**-1074], dtype=torch.float64), 1500).tolist() == [2.0**426]
    assert Sliced(torch.ones(1, 1, dtype=torch.float64), None, 3, -1074).value().tolist() == [[2.0**-1074]]


def system(rank: int, size: int = 12, rows: int = 5) -> tuple[Tensor, Tensor]:
    root = drawn(rank, size, seed=3)
    gram = root.T @ root
    return drawn(rows, size, seed=4) @ gram, gram


@pytest.mark.parametrize("factor", [2.0**-900, 1.0, 2.0**900])
@pytest.mark.parametrize("ridge", [0.0, 1e-9, 0.3, 1e6])
@pytest.mark.parametrize("rank", [12, 40, 5])
def test_division_agrees_with_the_singular_value_decomposition(
    rank: int, ridge: float, factor: float
) -> None:
    product, gram = system(rank)
    left, values, right = torch.linalg.svd(gram)
    mean = gram.diagonal().mean()
    kept = values > 1e-9 * values[0]
    weights = torch.where(kept, 1 / (values + ridge * mean), 0.0)
    want = product @ right.T @ torch.diag(weights) @ left.T
    found = right_divide(product * factor, gram * factor, ridge, 2.0**-26)
    # the condition of what is kept is below 1e5 here
    assert (found - want).abs().max() <= 1e-10 * want.abs().max()


def test_division_leaves_empty_directions_alone() -> None:
    product, gram = system(5)
    noisy = product + 1e-12 * drawn(5, 12, seed=9)
    found = right_divide(noisy, gram.clone(), 0.0, 2.0**-26)
    assert found.abs().max() < 20
    assert right_divide(product, torch.zeros_like(gram), 0.0, 2.0**-26).abs().max() == 0
    assert right_divide(product, torch.zeros_like(gram), 0.3, 2.0**-26).abs().max() == 0


def test_a_well_conditioned_matrix_needs_no_ridge_for_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def no(*_: object) -> None:
        raise AssertionError("eigenvectors were computed")

    monkeypatch.setattr(torch.linalg, "eigh", no)
    right_divide(*system(40), 0.0, 2.0**-26)
    right_divide(*system(5), 0.3, 2.0**-26)
    with pytest.raises(AssertionError, match="eigenvectors"):
        right_divide(*system(5), 0.0, 2.0**-26)
