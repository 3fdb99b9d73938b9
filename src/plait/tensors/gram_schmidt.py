"""Gram-Schmidt without the vectors: all that it says about N vectors follows from their N x N inner products.

G: Gram matrix (N, N) of vectors tau_1 … tau_N, fp64. G = L D L^T with L unit lower triangular is the same as
tau = L q with q orthogonal and D their squared norms. Steps are element-wise, so the bits are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, sqrt

from plait.tensors import Tensor, torch

TOLERANCE = 1e-8
"""Of a vector's square: where what is new of it is less than this (its angle to the span of the earlier ones is below
1e-4), it counts as dependent. Rounding leaves an error of about N * 2^-53 of the square; divided by 1e-8 of it, the
coefficients keep more than half of their digits."""


@dataclass(frozen=True)
class Orthogonal:
    """q = T tau. lower: L, (N, N) fp64. squares: ||q_i||^2. dependent: numbers of the vectors, not zero themselves,
    that lie in the span of the earlier ones; no other is projected onto what is left of them."""

    lower: Tensor
    squares: tuple[float, ...]
    dependent: tuple[int, ...]

    def transform(self) -> Tensor:
        """T, (N, N), unit lower triangular. The row of a dependent vector says of which others it is made."""
        made = torch.eye(len(self.squares), dtype=torch.float64)
        for i in range(len(self.squares)):
            for j in range(i):
                made[i] -= self.lower[i, j] * made[j]
        return made

    def coefficients(self, alpha: Sequence[float]) -> list[float]:
        """c with sum_i alpha_i q_i = sum_i c_i tau_i, that is T^T alpha; a dependent vector's alpha counts as 0."""
        left = torch.tensor(alpha, dtype=torch.float64)
        left[list(self.dependent)] = 0.0
        for i in range(len(self.squares) - 1, 0, -1):
            left[:i] -= self.lower[i, :i] * left[i]
        return [float(value) for value in left.tolist()]


def orthogonalise(gram: Tensor) -> Orthogonal:
    """Gram-Schmidt in the order of the rows. A vector of zeros is its own q and takes part in nothing."""
    count = len(gram)
    rest = gram.clone()
    lower = torch.eye(count, dtype=torch.float64)
    squares, dependent = [], []
    for i in range(count):
        square, whole = float(rest[i, i]), float(gram[i, i])
        squares.append(max(square, 0.0))
        if square <= TOLERANCE * whole:
            if whole:
                dependent.append(i)
            continue
        below = rest[i + 1 :, i].clone()
        lower[i + 1 :, i] = below / square
        rest[i + 1 :, i + 1 :] -= lower[i + 1 :, i, None] * below
    return Orthogonal(lower, tuple(squares), tuple(dependent))


def squared(gram: Tensor, coefficients: Sequence[float]) -> float:
    """||sum_i c_i tau_i||^2."""
    row = torch.tensor(coefficients, dtype=torch.float64)
    return max(fsum((gram * row * row[:, None]).flatten().tolist()), 0.0)


@dataclass(frozen=True)
class Principal:
    """Projection onto the leading principal directions of the vectors: tau_i becomes sum_j matrix[i, j] tau_j.
    lost, whole: sums of squares of what the projection takes away, and of all."""

    matrix: Tensor
    lost: float
    whole: float

    def project(self, coefficients: Sequence[float]) -> list[float]:
        """c with sum_i c_i tau_i the projection of the sum with `coefficients`."""
        row = torch.tensor(coefficients, dtype=torch.float64)
        return [float(value) for value in (self.matrix * row[:, None]).sum(0).tolist()]


def principal(gram: Tensor, rank: int) -> Principal | None:
    """The projection onto `rank` directions that keeps most of the vectors' squares (the leading eigenvectors of the
    Gram matrix; no mean is subtracted). None where nothing is lost. Its last bits depend on the linear algebra
    library."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        values, vectors = torch.linalg.eigh(gram)
    finally:
        torch.set_num_threads(threads)
    values = values.clamp(min=0.0)
    if not float(values[: max(len(values) - rank, 0)].sum()) > 1e-14 * float(values.sum()):
        return None
    kept = vectors[:, len(values) - rank :]
    lost = float(values[: len(values) - rank].sum())
    return Principal((kept[:, None, :] * kept[None, :, :]).sum(2), lost, float(values.sum()))


def share(part: float, whole: float) -> float:
    """sqrt(part / whole), 0 where there is nothing."""
    return sqrt(max(part, 0.0) / whole) if whole > 0 else 0.0
