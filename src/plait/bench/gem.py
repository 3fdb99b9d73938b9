"""Gradient episodic memory: a step that makes no task before worse, to first order (GEM, arXiv 1706.08840)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
    gradient: Mapping[str, Tensor], old: Sequence[Mapping[str, Tensor]], gamma: float
) -> dict[str, Tensor] | None:
    """The gradient plus a sum of the old tasks' gradients that has no negative inner product with any of these. None
    where the gradient has none itself.

    gamma: the least share of each; 0 is the nearest such gradient, more favours the old tasks.
    """
    products = torch.tensor([_inner(one, gradient) for one in old], dtype=torch.float64)
    if not len(old) or float(products.min()) >= 0:
        return None
    gram = torch.tensor([[_inner(one, other) for other in old] for one in old], dtype=torch.float64)
    found = shares(gram, products, gamma).tolist()
    return {
        name: slope + sum((share * one[name] for share, one in zip(found, old, strict=True)), slope * 0)
        for name, slope in gradient.items()
    }


def _inner(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    return sum(float(torch.dot(one[n].flatten().double(), other[n].flatten().double())) for n in other)
