"""Random numbers of places, sums in a fixed order, singular directions: each against a plain restatement."""

from __future__ import annotations

from fractions import Fraction
from hashlib import sha256
from math import fsum

import numpy
import pytest
import torch

from plait.errors import NonFinite
from plait.tensors import BLOCK
from plait.tensors.norms import block_sums
from plait.tensors.random import uniform
from plait.tensors.spectral import spectrum


def test_uniform_is_philox_from_the_start_of_the_tensor() -> None:
    key = int.from_bytes(sha256((2).to_bytes(8, "little") + b"ab" + b"layer.w").digest()[:16], "little")
    words = numpy.random.Philox(key=key).random_raw(600)
    want = []
    for word in words.tolist():
        want += [(word & 0xFFFFFFFF) / 2**32, (word >> 32) / 2**32]
    for first, count in ((0, 1200), (1, 7), (8, 16), (13, 1), (999, 201), (5, 0)):
        assert uniform(b"ab", "layer.w", first, count).tolist() == want[first : first + count]


def test_uniform_is_the_same_for_ever() -> None:
    """Lines on disk depend on these numbers: a change of them is a change of format."""
    assert [int(x * 2**32) for x in uniform(b"seed", "w", 0, 4).tolist()] == GOLDEN


GOLDEN = [1884386675, 2465940756, 1289117685, 400220778]


def test_uniform_is_uniform_and_seed_and_name_do_not_run_together() -> None:
    x = uniform(b"seed", "w", 0, 100_000)
    # Standard deviations 0.0009 of the mean and 0.003 of each tenth's share; five of them.
    assert abs(float(x.mean()) - 0.5) < 0.005
    assert (torch.histc(x, 10, 0, 1) / 100_000 - 0.1).abs().max() < 0.005
    assert not torch.equal(uniform(b"a", "bw", 0, 8), uniform(b"ab", "w", 0, 8))


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 100, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
def test_block_sums_add_up_and_do_not_depend_on_the_chunk(count: int) -> None:
    x = torch.randn(count, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    sums = block_sums(x)
    assert len(sums) == -(-count // BLOCK)
    exact = float(sum(map(Fraction, x.tolist()), Fraction(0)))
    # Halving 16 times rounds at most 16 times: 16 * eps * sum |x|.
    assert abs(fsum(sums) - exact) <= 16 * 2**-53 * float(x.abs().sum())
    pieces = [s for first in range(0, count, BLOCK) for s in block_sums(x[first : first + BLOCK])]
    assert pieces == sums


@pytest.mark.parametrize("row", [1, 3, 8, 33])
def test_row_sums_do_not_depend_on_how_many_rows_are_at_hand(row: int) -> None:
    x = torch.randn(50 * row, generator=torch.Generator().manual_seed(row), dtype=torch.float64)
    sums = block_sums(x, row)
    assert sums == block_sums(x[: 7 * row], row) + block_sums(x[7 * row :], row)
    assert sums == pytest.approx(x.view(50, row).sum(1).tolist(), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("shape", [(20, 20), (50, 12), (12, 50), (7, 1), (1, 1)])
def test_spectrum_is_the_svd(shape: tuple[int, int]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = spectrum(x)
    want = torch.linalg.svdvals(x)
    k = len(want)
    # The smallest singular value of a random square matrix is about 1/400 of the largest: eps * 400^2 = 4e-11.
    assert torch.allclose(found.values, want, rtol=1e-9)
    u, v = found.left(k), found.right(k)
    eye = torch.eye(k, dtype=torch.float64)
    assert (u.T @ u - eye).abs().max() < 1e-8
    assert (v.T @ v - eye).abs().max() < 1e-8
    assert (u * found.values @ v.T - x).abs().max() < 1e-8


def test_empty_directions_are_left_out() -> None:
    draw = torch.Generator().manual_seed(2)
    x = torch.randn(30, 4, generator=draw) @ torch.randn(4, 20, generator=draw)
    assert len(spectrum(x.double()).values) == 4
    nothing = spectrum(torch.zeros(5, 3))
    assert (len(nothing.values), nothing.leading(0.5), nothing.leading(1)) == (0, 0, 0)
    assert len(spectrum(torch.zeros(5, 0)).values) == 0


def test_leading_counts_a_share_of_the_sum() -> None:
    found = spectrum(torch.diag(torch.tensor([4.0, 3.0, 2.0, 1.0])))
    assert [found.leading(s) for s in (0, 0.39, 0.4, 0.69, 0.7, 0.95, 1)] == [0, 0, 1, 1, 2, 3, 4]


def test_a_matrix_that_is_not_finite_is_refused() -> None:
    with pytest.raises(NonFinite, match="a matrix holds NaN or infinity"):
        spectrum(torch.tensor([[1.0, float("nan")]]))
