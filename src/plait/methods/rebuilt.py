"""Methods that make the update of a matrix from the task vectors of all members at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256

from plait.methods.base import Outlook, Part, Slot, State, Where
from plait.methods.matrices import OfMatrices
from plait.methods.ranges import finite
from plait.tensors import Tensor, torch
from plait.tensors.exact import Exact, ExactSum

Taus = Callable[[], Iterator[Tensor]]
"""Goes through w_i tau_i of a matrix, (m, n) fp64, one at a time, in an order that is a function of the set of
members. Task vectors of 0 are left out."""


@dataclass(frozen=True)
class Rebuilt(OfMatrices):
    """base + scale * M for the matrix of a linear layer, with M a function of all w_i tau_i, which a subclass says in
    `combine`. All other tensors are averaged: base + scale * sum_i w_i tau_i / sum_i w_i.

    No state is kept: the model is made from all members at every change. A worker holds the members' copies of one
    matrix, in their own dtypes. They are brought into the order of their digests first, so that the order of arrival
    shows in no bit.
    """

    scale: float = 1.0

    def check(self) -> None:
        super().check()
        finite("scale", self.scale)

    def combine(self, taus: Taus, outlook: Outlook, where: Where) -> Tensor:
        """The update M, (m, n), of at least one task vector that is not 0. outlook: of all members, those with a
        task vector of 0 among them. where: its shape is that of the matrix, not transposed."""
        raise NotImplementedError

    def flipped(self, name: str) -> bool:
        """Whether a matrix is transposed before `combine` sees it."""
        return False

    def slots(self, shape: tuple[int, ...], dtype: str) -> dict[str, Slot]:
        return self.layout(shape, dtype, "")

    def layout(self, shape: tuple[int, ...], dtype: str, name: str) -> dict[str, Slot]:
        return {} if self.matrix(shape, name) else {"delta": Slot("exact")}

    def step(self, state: State, part: Part) -> State:
        if not self.matrix(part.where.shape, part.where.name):
            total: ExactSum = state["delta"]
            total.add(part.delta.times(part.weight))
            return state
        weight = torch.tensor([part.weight], dtype=torch.float64)
        return {**state, f"{len(state)}": part.expert, f"{len(state)}.weight": weight}

    def merge(self, base: Tensor, state: State, where: Where, outlook: Outlook) -> Exact | Tensor:
        shape, flip = self.matrix(where.shape, where.name), self.flipped(where.name)
        if shape is None:
            total: ExactSum = state["delta"]
            return total.value().over(outlook.weight).times(self.scale)
        members = sorted(_members(state), key=_key)

        def taus() -> Iterator[Tensor]:
            for expert, weight in members:
                tau = expert.to(torch.float64, copy=True).sub_(base).mul_(weight)
                if bool(tau.any()):
                    matrix = tau.view(shape)
                    yield matrix.T.contiguous() if flip else matrix

        if next(taus(), None) is None:
            return Exact.of(torch.zeros(where.count, dtype=torch.float64))
        made = self.combine(taus, outlook, replace(where, shape=shape)).double()
        return Exact.of((made.T if flip else made).reshape(-1) * self.scale)


def _members(state: State) -> list[tuple[Tensor, float]]:
    experts = [key for key in state if not key.endswith(".weight")]
    return [(state[key], float(state[f"{key}.weight"])) for key in experts]


def _key(member: tuple[Tensor, float]) -> bytes:
    """What tells a member's matrix from another."""
    expert, weight = member
    head = f"{expert.dtype} {weight.hex()} ".encode()
    return sha256(head + expert.contiguous().view(torch.uint8).numpy().tobytes()).digest()
