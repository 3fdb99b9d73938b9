"""The leading singular directions of a large matrix, from products of its Gram matrix with a few random vectors."""

from __future__ import annotations

from plait.tensors import Tensor, torch
from plait.tensors.random import normal
from plait.tensors.spectral import EMPTY, Spectrum, smaller_gram, spectrum

OVER, POWER = 10, 3
"""Random vectors beyond those that are wanted, and products with the Gram matrix."""

WORTH = 4
"""Made only where the shorter side is at least this many times the number of random vectors; elsewhere a full
decomposition costs as much."""


def leading(matrix: Tensor, count: int) -> Spectrum:
    """The `count` leading singular values and vectors of `matrix`, (m, n) in fp32 or fp64, or fewer where others are
    empty (`spectral.EMPTY`). Where that saves nothing, all of them.

    In fp64, by the randomised range finder with subspace iterations of Halko, Martinsson and Tropp 2011 (arXiv
    0909.4061, algorithm 4.4) on the smaller Gram matrix, and a Rayleigh-Ritz step. The count + OVER normal vectors
    are a function of the shape, so the result is one of matrix and count, in one thread.

    Directions near the cut are wrong by about (first value outside the count + OVER / value)^(2 POWER): not at all
    where values fall off sharply, entirely where they are equal. `benchmarks/sketch.py` measures it.
    Cost: a Gram matrix, POWER + 1 products of it with count + OVER vectors. NonFinite where there is NaN or infinity.
    """
    width, side = count + OVER, min(matrix.shape)
    if width * WORTH > side:
        return spectrum(matrix)
    gram, tall = smaller_gram(matrix)
    basis = normal(b"plait sketch", f"{side} {width}", side * width).view(side, width)
    for _ in range(POWER):
        basis = torch.linalg.qr(gram @ basis)[0]
    squares, vectors = torch.linalg.eigh(basis.T @ (gram @ basis))
    values = squares.flip(0).clamp(min=0).sqrt()
    kept = min(count, int((values > EMPTY * values[0]).sum()))
    return Spectrum(matrix, values[:kept], basis @ vectors.flip(1)[:, :kept], tall)
