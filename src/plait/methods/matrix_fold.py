"""Folds of matrices: a state that the next task vector changes as a whole, beside an average of all other tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plait.methods.base import MemberFacts, Outlook, Part, Slot, State, Where
from plait.methods.matrices import OfMatrices
from plait.methods.tables import finds, pattern
from plait.tensors import Tensor, torch
from plait.tensors.exact import Exact, ExactSum


@dataclass(frozen=True)
class MatrixFold(OfMatrices):
    """base + O for the matrix W (out, in) of a linear layer, y = W x. The first w_i tau_i that is not 0 is O; of the
    others a subclass says in `enter` what becomes of O. All other tensors are averaged: base + sum_i w_i tau_i /
    sum_i w_i.

    The state is O in fp32 (fp64 where the base is fp64), and an exact sum of other tensors. One member of weight 1
    comes back bit for bit.
    """

    inputs_first: str = ""

    def check(self) -> None:
        super().check()
        pattern("inputs_first", self.inputs_first)

    def enter(self, total: Tensor, tau: Tensor, part: Part) -> Tensor:
        """The new O, (out, in), in any float dtype. total: O so far, in the state's dtype, not to be written to. tau:
        the weighted task vector, fp64. Neither is 0."""
        raise NotImplementedError

    def slots(self, shape: tuple[int, ...], dtype: str) -> dict[str, Slot]:
        return self.layout(shape, dtype, "")

    def layout(self, shape: tuple[int, ...], dtype: str, name: str) -> dict[str, Slot]:
        if not self.matrix(shape, name):
            return {"delta": Slot("exact")}
        return {"total": Slot("float64" if dtype == "F64" else "float32")}

    def step(self, state: State, part: Part) -> State:
        if "delta" in state:
            summed: ExactSum = state["delta"]
            summed.add(part.delta.times(part.weight))
            return state
        total: Tensor = state["total"]
        tau = part.expert.to(torch.float64, copy=True).sub_(part.base).mul_(part.weight)
        if not bool(tau.any()):
            return state
        if not bool(total.any()):
            return {"total": tau.to(total.dtype)}
        shape = self.matrix(part.where.shape, part.where.name)
        assert shape is not None
        before, new = total.view(shape), tau.view(shape)
        if finds(self.inputs_first, part.where.name):
            made = self.enter(before.T.contiguous(), new.T.contiguous(), part).T
        else:
            made = self.enter(before, new, part)
        return {"total": made.to(total.dtype).reshape(-1)}

    def merge(self, base: Tensor, state: State, where: Where, outlook: Outlook) -> Exact | Tensor:
        if "delta" in state:
            summed: ExactSum = state["delta"]
            return summed.value().over(outlook.weight)
        total: Tensor = state["total"]
        return base.double() + total.double()

    def reduces(self, members: Sequence[MemberFacts]) -> bool:
        return len(members) == 1 and members[0].weight == 1
