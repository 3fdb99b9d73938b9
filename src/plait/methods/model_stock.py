"""Model Stock: the average of the experts, pulled towards the base where their task vectors disagree."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, isfinite, sqrt
from typing import Any, ClassVar

from plait.methods.base import (
    LONG,
    Answers,
    Facts,
    Known,
    MemberFacts,
    Outlook,
    Part,
    Quick,
    Slot,
    State,
    Survey,
    Tally,
    Where,
)
from plait.methods.ranges import truth
from plait.methods.sparsify import Sparsified
from plait.tensors import BLOCK, Tensor, torch
from plait.tensors.compiled import ScaledSum, known
from plait.tensors.exact import Exact
from plait.tensors.norms import block_sums, differences, square_distances


@dataclass(frozen=True)
class ModelStock(Sparsified):
    """base + t * sum_i w_i tau_i / sum_i w_i, with one t for each tensor
    (Jang et al. 2024, arXiv 2403.19522, equation 5).

    c: mean cosine between the task vectors, N: their number, t = N c / (1 + (N - 1) c), between 0 and 1. The
    cosines come from one more sum, U = sum_i w_i tau_i / ||tau_i||: c = (||U||^2 - S2) / (S1^2 - S2) with
    S1 = sum w_i, S2 = sum w_i^2, which for weights 1 is the plain mean over all pairs. Members that leave a
    tensor as it is, or have weight 0, say nothing about its t. One task vector: t = 1, so that a single
    expert comes back bit for bit. Opposed ones (c <= 0): t = 0, the base.

    There is no option to average angles instead of cosines. Angles need the cosine of every pair: N^2 numbers
    that no sum over members holds, so members could no longer be taken out by subtraction.

    clamp: true keeps t between 0 and 1; false lets disagreeing task vectors push away from the base (t < 0), as
        published programs do. A bound on both sides matters: c <= -1 / (N - 1) gives no finite t.
    """

    clamp: bool = True

    facts: ClassVar[Facts] = Facts(
        summary="average of the experts, pulled towards the base by their disagreement",
        family="additive",
        removal="subtract",
        data="none",
        order=False,
        memory="2 sums",
        cost="2 passes and 1 over the state",
        paper="Jang et al. 2024, arXiv 2403.19522",
    )

    def check(self) -> None:
        super().check()
        truth("clamp", self.clamp)

    def across(self) -> str:
        return ""

    def slots(self, shape: tuple[int, ...], dtype: str) -> dict[str, Slot]:
        return {"delta": Slot("exact"), "direction": Slot("exact")}

    def gather(self, places: Mapping[str, Where], size: int) -> Generator[Survey, Answers, Known]:
        answers = yield Survey()
        return {"norms": {name: sqrt(_total(found)) for name, found in answers.items()}}

    def survey(self, tau: Exact, part: Part, ask: Any) -> list[float]:
        values = tau.double()
        return block_sums(values * values, self._run(part.where))

    def glance(self, base: Tensor, expert: Tensor, where: Where, ask: Any) -> Any:
        if self.sparsify is not None or not known(base) or base.dtype != expert.dtype:
            return LONG
        sums = square_distances(expert, base)
        return sums if all(map(isfinite, sums)) else LONG

    def tally(self, base: Tensor, where: Where) -> Tally | None:
        return _Directions(base, where.name) if self.sparsify is None and known(base) else None

    def _run(self, where: Where) -> int:
        row = where.shape[-1] if where.shape else 1
        return row if self.grain(where.shape, where.name) == "row" else BLOCK

    def statistic(self, part: Part) -> dict[str, Exact]:
        tau = self.tau(part)
        norm = part.known["norms"][part.where.name]
        unit = tau.double() / norm if norm else torch.zeros(part.where.count, dtype=torch.float64)
        direction = Exact.of(unit * part.weight).round_to(_quantum(part.weight))
        return {"delta": tau.times(part.weight), "direction": direction}

    def conclude(
        self, places: Mapping[str, Where], members: Sequence[MemberFacts]
    ) -> Generator[Survey, Answers, Known]:
        answers = yield Survey()
        return {
            "t": {name: _ratio(name, _total(found), members, self.clamp) for name, found in answers.items()}
        }

    def examine(self, where: Where, state: State, ask: Any) -> list[float]:
        values = state["direction"].value().double()
        return block_sums(values * values, self._run(where))

    def merge(self, base: Tensor, state: State, where: Where, outlook: Outlook) -> Exact | Tensor:
        total: Exact = state["delta"].value()
        ratio = outlook.known["t"][where.name]
        if ratio == 0:
            return total.times(0.0)
        shift = total.over(outlook.weight / abs(ratio))
        return shift if ratio > 0 else shift.times(-1.0)

    def quick(self, base: Tensor, where: Where, outlook: Outlook) -> Quick | None:
        ratio = outlook.known["t"][where.name]
        if self.sparsify is not None or not known(base):
            return None
        return ScaledSum(base, divisor=outlook.weight / ratio) if ratio else ScaledSum(base, 0.0)


class _Directions:
    """U of a chunk, in fp64 where that is exact. Blocks are gone through one by one, so that they stay near the
    processor."""

    def __init__(self, base: Tensor, name: str) -> None:
        self._base, self._name = base, name
        self._total = torch.zeros(len(base), dtype=torch.float64).numpy()
        self._weight, self._finest = 0.0, -40

    def take(self, expert: Tensor, member: MemberFacts) -> bool:
        weight, norm = member.weight, member.known["norms"].get(self._name)
        if expert.dtype != self._base.dtype or weight <= 0:
            return False
        if not norm:
            return True
        quantum = _quantum(weight)
        self._weight += weight
        self._finest = min(self._finest, quantum)
        # Elements of a direction reach no more than the weight, and sums of them no more than all weights together.
        if not weight < 2.0 ** (quantum + 49) or not self._weight < 2.0 ** (self._finest + 52):
            return False
        magic = 1.5 * 2.0 ** (52 + quantum)
        for first, tau in differences(expert, self._base):
            tau /= norm
            if weight != 1:
                tau *= weight
            tau += magic
            tau -= magic
            self._total[first : first + len(tau)] += tau
        return True

    def answer(self, ask: Any) -> Any:
        sums = block_sums(torch.from_numpy(self._total * self._total))
        return sums if all(map(isfinite, sums)) else LONG


def _quantum(weight: float) -> int:
    """The exponent of the grid of a member's direction: finer for a light one, lest it vanish. From LEAST_WEIGHT
    on, the step is at most 2^-30 of the weight."""
    return -40 if abs(weight) >= 2.0**-10 else -50


def _total(found: Sequence[tuple[int, list[float]]]) -> float:
    return fsum(value for _, sums in found for value in sums)


def _ratio(name: str, square: float, members: Sequence[MemberFacts], clamp: bool) -> float:
    """The interpolation ratio t of a tensor. square: ||U||^2."""
    weights = [m.weight for m in members if m.weight and m.known.get("norms", {}).get(name)]
    count = len(weights)
    if count < 2:
        return 1.0
    first, second = fsum(weights), fsum(w * w for w in weights)
    pairs = first * first - second
    cosine = (square - second) / pairs if pairs else 0.0
    below = 1 + (count - 1) * cosine
    if below <= 0 or (clamp and cosine <= 0):
        return 0.0
    ratio = count * cosine / below
    return min(ratio, 1.0) if clamp else ratio
