"""TIES as continual-merging benchmarks run it, so that their published rows can be matched. Nothing to deploy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from plait.methods.base import Facts, Known, MemberFacts, ModelMethod
from plait.methods.ranges import finite, share
from plait.tensors import Tensor, torch


@dataclass(frozen=True)
class TiesRecursive(ModelMethod):
    """model + scale * TIES(model - base, w * tau) for every expert that comes in, model + scale * w * tau for the
    first: the update so far is added to itself again at each merge, so it grows. FusionBench's continual TIES.

    scale: 0 leaves the base. density: share of all elements of each of the two that is kept, those of the magnitude
    at the threshold included; 0 keeps one. Where two signs cancel, the sign of the majority of elements is taken.
    """

    scale: float = 0.5
    density: float = 0.2

    facts: ClassVar[Facts] = Facts(
        summary="TIES of the update so far and the new task vector, added to the model again",
        family="calibrated",
        removal="refold",
        data="none",
        order=True,
        memory="1 value in fp32",
        cost="a selection and a few passes over the model",
        paper="Yadav et al. 2023, arXiv 2306.01708",
    )

    def check(self) -> None:
        finite("scale", self.scale)
        share("density", self.density)

    def step(
        self,
        state: Mapping[str, Tensor],
        base: Mapping[str, Tensor],
        expert: Mapping[str, Tensor],
        members: Sequence[MemberFacts],
        problem: Any,
    ) -> tuple[dict[str, Tensor], Known]:
        names = sorted(base)
        start, new = _flat(base, names), _flat(expert, names)
        before = _flat(state, names)
        move = (new - start) * members[-1].weight
        if len(members) > 1:
            move = self.elected(torch.stack([before - start, move]))
        pieces = torch.split(before + self.scale * move, [base[n].numel() for n in names])
        made = {n: piece.view(base[n].shape) for n, piece in zip(names, pieces, strict=True)}
        return {n: made[n] for n in base}, {}

    def elected(self, rows: Tensor) -> Tensor:
        """TIES of the rows of an (N, d) tensor, with the mean of those that agree."""
        sizes = rows.abs()
        kept = rows.shape[1] - int(self.density * rows.shape[1])
        least = sizes.kthvalue(max(kept, 1), dim=1, keepdim=True).values
        rows = torch.where(sizes >= least, rows, torch.zeros_like(rows))
        sign = rows.sum(0).sign()
        sign = torch.where(sign == 0, sign.sum().sign(), sign)
        agrees = torch.where(sign > 0, rows > 0, rows < 0)
        count = agrees.sum(0).clamp(min=1)
        found: Tensor = torch.where(agrees, rows, torch.zeros_like(rows)).sum(0) / count
        return found


def _flat(tensors: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    return torch.cat([tensors[name].reshape(-1) for name in names])
