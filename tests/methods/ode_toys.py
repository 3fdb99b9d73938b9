"""Losses that are formulas, in the place of a problem's objectives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from plait.methods.base import Known, MemberFacts
from plait.methods.ode_m import OdeM
from plait.problem.problem import Problem
from plait.problem.totals import Work

Formula = Callable[[Tensor], Tensor]


def vector(weights: Mapping[str, Tensor]) -> Tensor:
    """All weights in one vector, by name."""
    return torch.cat([weights[name].reshape(-1) for name in sorted(weights)])


@dataclass
class Toy:
    """A loss of all weights as one vector."""

    formula: Formula
    work: Work = field(default_factory=Work)
    samples: list[tuple[int, int]] = field(default_factory=list)

    def sample(self, n: int, seed: int) -> Toy:
        self.samples.append((n, seed))
        return self

    def loss(self, weights: Mapping[str, Tensor]) -> float:
        with self.work.doing("losses", 1):
            return self.formula(vector(weights)).item()

    def loss_and_gradient(
        self, weights: Mapping[str, Tensor], names: Any = None
    ) -> tuple[float, dict[str, Tensor]]:
        with self.work.doing("gradients", 1), torch.enable_grad():
            live = {name: weight.detach().clone().requires_grad_() for name, weight in weights.items()}
            value = self.formula(vector(live))
            found = torch.autograd.grad(value, list(live.values()), allow_unused=True)
            slopes = {
                n: torch.zeros_like(w) if g is None else g
                for (n, w), g in zip(live.items(), found, strict=True)
            }
            return value.item(), slopes

    def add_gradient(
        self, weights: Mapping[str, Tensor], into: Mapping[str, Tensor], share: float = 1.0
    ) -> float:
        loss, slopes = self.loss_and_gradient(weights)
        for name, slope in into.items():
            slope.add_(slopes[name], alpha=share)
        return loss


def toys(*formulas: Formula) -> Problem:
    """A problem of tasks a, b, c, ..."""
    return Problem({"abcdefgh"[i]: Toy(formula) for i, formula in enumerate(formulas)})  # type: ignore[misc]


def split(values: Tensor, *, kind: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """A vector as three tensors: `layer.0.bias` (2 elements), `layer.0.weight`, `layer.1.weight`."""
    rest = (len(values) - 2) // 2
    parts = torch.split(values.to(kind), [2, rest, len(values) - 2 - rest])
    return dict(
        zip(("layer.0.bias", "layer.0.weight", "layer.1.weight"), (p.clone() for p in parts), strict=True)
    )


def steps(
    method: OdeM,
    base: Tensor,
    experts: Sequence[Tensor],
    weights: Sequence[float],
    problem: Any,
    **split_how: Any,
) -> tuple[Tensor, list[Known]]:
    """The model after all experts, as a vector, and what every step found."""
    start = split(base, **split_how)
    state = method.start(start)
    found = []
    for i, expert in enumerate(experts):
        members = tuple(MemberFacts(w, {}) for w in weights[: i + 1])
        state, known = method.step(state, start, split(expert, **split_how), members, problem)
        found.append(known)
    made, known = method.finish(state, start, members, problem)
    found[-1] = {**found[-1], **known}
    return vector(made), found
