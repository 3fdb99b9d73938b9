"""Linear systems with a symmetric matrix that is a sum of squares, in fp64."""

from __future__ import annotations

from plait.tensors import Tensor, torch


def right_divide(product: Tensor, gram: Tensor, ridge: float, empty: float) -> Tensor:
    """product (gram + ridge * m * I)^-1, with m the mean diagonal element of `gram`.

    product: (r, n), gram: (n, n) symmetric and without negative eigenvalues up to rounding; fp64, overwritten.
    empty: directions with an eigenvalue below this share of the largest hold nothing but rounding.
    Where no direction is empty, because of the ridge or by itself, by a Cholesky
    factorisation, n^3 / 3 operations. Else by eigenvectors, some 10 n^3: the inverse is then that on the directions
    that are not empty, 0 on the others (the pseudo-inverse, for ridge 0). A gram of 0 gives 0; NaN cannot come out.
    """
    size = len(gram)
    mean = float(gram.diagonal().mean()) if size else 0.0
    if not mean > 0:
        return torch.zeros_like(product)
    gram.div_(mean)  # so that nothing leaves fp64 on the way
    product.div_(mean)
    gram.diagonal().add_(ridge)
    factor, failed = torch.linalg.cholesky_ex(gram)
    # The largest eigenvalue was at most `size`, and is at most the Frobenius norm.
    if not int(failed) and (ridge >= empty * size or _least(factor) >= 4 * empty * float(gram.norm())):
        product = torch.cholesky_solve(product.mT, factor)
        return product.mT.contiguous()
    gram.diagonal().sub_(ridge)
    values, vectors = torch.linalg.eigh(gram)
    kept = values > empty * values[-1]
    vectors, values = vectors[:, kept], values[kept]
    found: Tensor = ((product @ vectors) / (values + ridge)) @ vectors.mT
    return found


def _least(factor: Tensor) -> float:
    """About the least eigenvalue of factor @ factor^T, from above: inverse iteration from a fixed start."""
    vector = torch.arange(1, len(factor) + 1, dtype=torch.float64).mul_(1.618).cos_()[:, None]
    norm = float(vector.norm())
    for _ in range(12):
        vector = torch.cholesky_solve(vector / norm, factor)
        norm = float(vector.norm())
    return 1 / norm
