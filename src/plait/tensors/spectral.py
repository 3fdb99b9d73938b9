"""Singular directions of a matrix, from the eigenvectors of its smaller Gram matrix."""

from __future__ import annotations

from dataclasses import dataclass

from plait.errors import NonFinite
from plait.tensors import Tensor, torch

EMPTY = 1e-6
"""Directions with a singular value below this share of the largest are empty: the square root of the rounding
error of a Gram matrix in fp64 is about 4e-7 for 768 columns, so smaller values cannot be told from zero."""

NEAR = 32
"""Directions with a singular value of at least 1 / NEAR of the largest may be computed in fp32."""


@dataclass(frozen=True)
class Spectrum:
    """Singular values of `matrix`, largest first, and its singular vectors, made when asked for.

    matrix: (m, n), fp32 or fp64. values: (k,) fp64, the non-empty ones only, k <= min(m, n). Singular vectors
    have the matrix's dtype; those of the larger side are products of it: orthogonal up to eps64 * q^2 + NEAR * eps
    with q = values[0] / values[j].
    """

    matrix: Tensor
    values: Tensor
    vectors: Tensor  # (min(m, n), k): of the smaller side
    tall: bool

    def left(self, count: int) -> Tensor:
        """The first `count` left singular vectors, (m, count)."""
        if not self.tall:
            return self.vectors[:, :count].to(self.matrix.dtype)
        return self._other(self.matrix, count)

    def right(self, count: int) -> Tensor:
        """The first `count` right singular vectors, (n, count)."""
        if self.tall:
            return self.vectors[:, :count].to(self.matrix.dtype)
        return self._other(self.matrix.T, count)

    def _other(self, matrix: Tensor, count: int) -> Tensor:
        """Vectors of the larger side: matrix @ vectors / values. The error of the product is divided by a small
        value too, so those directions are computed in fp64."""
        kind = matrix.dtype
        near = (
            count if kind == torch.float64 else min(count, int((self.values >= self.values[:1] / NEAR).sum()))
        )
        vectors, values = self.vectors[:, :count], self.values[:count]
        out = (matrix @ vectors[:, :near].to(kind)).div_(values[:near].to(kind))
        if near == count:
            return out
        rest = (matrix.double() @ vectors[:, near:]).div_(values[near:])
        return torch.cat([out, rest.to(kind)], dim=1)

    def leading(self, share: float) -> int:
        """How many leading values together hold at most `share` of the sum of all. 0: none, 1: all of
        them."""
        mass = self.values.cumsum(0)
        return int((mass <= share * mass[-1]).sum()) if len(mass) else 0


def smaller_gram(matrix: Tensor) -> tuple[Tensor, bool]:
    """X^T X, or X X^T where the matrix has fewer rows than columns, in fp64, and whether it is the first. NonFinite
    where there is NaN or infinity."""
    tall = matrix.shape[0] >= matrix.shape[1]
    wide = matrix.double()
    gram = wide.T @ wide if tall else wide @ wide.T
    del wide
    if not bool(torch.isfinite(gram).all()):
        raise NonFinite(
            "a matrix holds NaN or infinity, expected finite numbers; repair the checkpoint it is from"
        )
    return gram, tall


def spectrum(matrix: Tensor) -> Spectrum:
    """Decompose `matrix`, (m, n) in fp32 or fp64, in fp64.

    Cost: one Gram matrix and one symmetric eigen-decomposition of size min(m, n), about a quarter of an
    economy SVD where the matrix is far from square. NonFinite where there is NaN or infinity.
    """
    gram, tall = smaller_gram(matrix)
    squares, vectors = torch.linalg.eigh(gram)
    values = squares.flip(0).clamp(min=0).sqrt()
    kept = int((values > EMPTY * values[0]).sum()) if len(values) else 0
    return Spectrum(matrix, values[:kept], vectors.flip(1)[:, :kept].contiguous(), tall)
