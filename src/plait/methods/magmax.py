"""MagMax: per element, the task vector of the largest magnitude wins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from plait.methods.base import Facts, MemberFacts, Outlook, Part, Quick, Slot, State, TensorMethod, Where
from plait.methods.ranges import finite
from plait.tensors import Tensor, torch
from plait.tensors.compiled import Winner, known


@dataclass(frozen=True)
class MagMax(TensorMethod):
    """base + scale * (the w_i tau_i of largest magnitude), per element; equal magnitudes: the later one
    (Marczak et al. 2024, arXiv 2407.06322, section 4).

    The state is what the winner makes of the base, base + w_i tau_i: for weight 1 the expert's own value. It
    is held in fp32 (fp64 where the base is fp64), as bits, exclusive-or with those of the base: 0 is the base
    itself.

    scale: 0 gives the base, 1 the winners; one member of weight 1 then comes back bit for bit.
    """

    scale: float = 0.5

    facts: ClassVar[Facts] = Facts(
        summary="per element, the task vector of the largest magnitude",
        family="fold",
        removal="refold",
        data="none",
        order=True,
        memory="1 value in fp32",
        cost="1 pass",
        paper="Marczak et al. 2024, arXiv 2407.06322",
    )

    def check(self) -> None:
        finite("scale", self.scale)

    def slots(self, shape: tuple[int, ...], dtype: str) -> dict[str, Slot]:
        return {"winner": Slot("int64" if dtype == "F64" else "int32")}

    def step(self, state: State, part: Part) -> State:
        base = _bits(part.base)
        winner = _values(state["winner"] ^ base)
        start = part.base.double()
        candidate = part.expert
        if part.weight != 1:
            candidate = start + (part.expert.double() - start) * part.weight
        candidate = candidate.to(winner.dtype)
        later = (candidate.double() - start).abs() >= (winner.double() - start).abs()
        return {"winner": _bits(torch.where(later, candidate, winner)) ^ base}

    def merge(self, base: Tensor, state: State, where: Where, outlook: Outlook) -> Tensor:
        winner = _values(state["winner"] ^ _bits(base)).double()
        if self.scale == 1:
            return winner
        start = base.double()
        moved = start + (winner - start) * self.scale
        # Nothing added to -0.0 would be 0.0.
        return torch.where((winner == start) | (self.scale == 0), start, moved)

    def quick(self, base: Tensor, where: Where, outlook: Outlook) -> Quick | None:
        return Winner(base, self.scale) if known(base) else None

    def reduces(self, members: Sequence[MemberFacts]) -> bool:
        return self.scale == 1 and len(members) == 1 and members[0].weight == 1


def _bits(values: Tensor) -> Tensor:
    wide = values.dtype == torch.float64
    return values.to(torch.float64 if wide else torch.float32).view(torch.int64 if wide else torch.int32)


def _values(bits: Tensor) -> Tensor:
    return bits.view(torch.float64 if bits.dtype == torch.int64 else torch.float32)
