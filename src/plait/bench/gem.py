"""Gradient episodic memory: a step that makes no task before worse, to first order (GEM, arXiv 1706.08840)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from plait.tensors import Tensor, torch

TINY = 1e-10
"""How far from its optimum a share may be, over the largest of them."""

SWEEPS = 10_000


def shares(gram: Tensor, products: Tensor, least: float) -> Tensor:
    """The dual of GEM's projection: v that minimises v'Gv / 2 + b'v over v >= least (its eq. 11, where 0 stands for
    `least`; the authors' program has a margin there).

    gram: (k, k) fp64, inner products of the old tasks' gradients. products: (k,) fp64, those with the step's own.
    Found one share at a time, again and again: the problem is convex, so that it ends at the minimum.
    """
    found = torch.full_like(products, least)
    diagonal = gram.diagonal()
    for _ in range(SWEEPS):
        moved = 0.0
        for i in range(len(found)):
            slope = float(gram[i] @ found + products[i])
            if not diagonal[i]:
                continue
            now = max(least, float(found[i]) - slope / float(diagonal[i]))
            moved = max(moved, abs(now - float(found[i])))
            found[i] = now
        if moved <= TINY * max(1.0, float(found.abs().max())):
            break
    return found


def project(
    gradient: Mapping[str, Tensor], old: Iterable[Mapping[str, Tensor]], gamma: float
) -> dict[str, Tensor] | None:
    """The gradient plus a sum of the old tasks' gradients that has no negative inner product with any of these. None
    where the gradient has none itself.

    gamma: the least share of each; 0 is the nearest such gradient, more favours the old tasks. Memory: the old
    gradients twice.
    """
    own = _flat(gradient, gradient)
    rows = torch.stack([_flat(one, gradient) for one in old])
    products = (rows @ own).double()
    if float(products.min()) >= 0:
        return None
    found = shares((rows @ rows.T).double(), products, gamma)
    parts = torch.split(own + found.to(own) @ rows, [slope.numel() for slope in gradient.values()])
    return {name: part.view_as(slope) for (name, slope), part in zip(gradient.items(), parts, strict=True)}


def _flat(tensors: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([tensors[name].flatten() for name in like])
