"""The nearest matrix with orthonormal columns or rows."""

from __future__ import annotations

from plait.tensors import Tensor, torch
from plait.tensors.spectral import EMPTY


def polar(matrix: Tensor) -> Tensor:
    """U V^T of matrix = U diag(sigma) V^T, (m, n) fp64: the polar factor, nearest to `matrix` among all with
    orthonormal columns (rows, where there are more columns than rows).

    Directions with a singular value below EMPTY of the largest are left out, so that the factor of a matrix that
    lacks rank is a function of it: a partial isometry. Error: eps64 * (largest / smallest value that is kept)^2.
    Cost: a Gram matrix and a symmetric eigen-decomposition of size min(m, n), and two products.
    """
    tall = matrix.shape[0] >= matrix.shape[1]
    narrow = matrix if tall else matrix.T
    squares, vectors = torch.linalg.eigh(narrow.T @ narrow)
    kept = squares > EMPTY**2 * squares[-1:]
    squares, vectors = squares[kept], vectors[:, kept]
    found: Tensor = (narrow @ (vectors / squares.sqrt())) @ vectors.T
    return found if tall else found.T
