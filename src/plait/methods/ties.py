"""TIES: trim each task vector, elect a sign per element, merge what agrees with it. In a streaming form."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from plait.methods.base import Answers, Facts, Known, MemberFacts, Outlook, Part, Slot, State, Survey, Where
from plait.methods.ranges import choice, finite, share
from plait.methods.sparsify import Sparsified, cuts_of, keep, kept_of
from plait.tensors import Tensor, torch
from plait.tensors.exact import Exact
from plait.tensors.select import answer, keys


@dataclass(frozen=True)
class Ties(Sparsified):
    """base + scale * (what agrees with the elected sign), per element (Yadav et al. 2023, arXiv 2306.01708,
    section 3).

    t_i: task vector i, all but its largest magnitudes set to zero, times w_i. P: sum of the positive t_i, M:
    of the negative ones, c+ and c-: sum of the |w_i| behind them. The sign of P + M is elected: positive:
    P / c+, negative: M / c-, zero: 0. Four sums are the whole state, so any member can be taken out.

    density: share of a task vector that is kept: exactly int(density * n) elements, at least 1, equal
        magnitudes by position. 0 gives the base, 1 trims nothing.
    trim: "tensor" ranks within each tensor, "model" over all mergeable tensors at once.
    disjoint: "mean" divides by c+ or c-, "sum" does not.
    scale: 0 gives the base; 1, with density 1 and one member of weight 1, gives that expert bit for bit.
    kept: "floor" as above; "inclusive" keeps int(density * n) + 1, as programs do that keep all magnitudes
        from the (n - k)-th smallest on.
    zero: the sign where P + M is zero: "none", or "majority", that of the sum of all elected signs.
    """

    density: float = 0.2
    trim: str = "tensor"
    disjoint: str = "mean"
    scale: float = 1.0
    kept: str = "floor"
    zero: str = "none"

    facts: ClassVar[Facts] = Facts(
        summary="trimmed task vectors, merged where they agree with the elected sign",
        family="additive",
        removal="subtract",
        data="none",
        order=False,
        memory="4 sums",
        cost="about 3 passes",
        paper="Yadav et al. 2023, arXiv 2306.01708",
    )

    def check(self) -> None:
        super().check()
        share("density", self.density)
        choice("trim", self.trim, ("tensor", "model"))
        choice("disjoint", self.disjoint, ("mean", "sum"))
        finite("scale", self.scale)
        choice("kept", self.kept, ("floor", "inclusive"))
        choice("zero", self.zero, ("none", "majority"))

    def slots(self, shape: tuple[int, ...], dtype: str) -> dict[str, Slot]:
        sums = {"positive": Slot("exact"), "negative": Slot("exact")}
        if self.disjoint == "sum":
            return sums
        return {**sums, "above": Slot("narrow"), "below": Slot("narrow")}

    def gather(self, places: Mapping[str, Where], size: int) -> Generator[Survey, Answers, Known]:
        if self.trim == "tensor":
            scope = {name: name for name in places}
            sizes = {name: place.count for name, place in places.items()}
        else:
            scope = dict.fromkeys(places, "model")
            sizes = {"model": size}
        cuts = yield from cuts_of(places, scope, {s: self._count(n) for s, n in sizes.items()})
        return {"cuts": cuts}

    def survey(self, tau: Exact, part: Part, ask: Any) -> Any:
        return answer(keys(tau), part.where, ask)

    def _count(self, size: int) -> int:
        k = kept_of(self.density, size)
        return min(k + 1, size) if k and self.kept == "inclusive" else k

    def statistic(self, part: Part) -> dict[str, Exact]:
        tau = self.tau(part)
        cut = part.known["cuts"][part.where.name]
        if cut != "all":
            tau = tau.where(keep(part.known["cuts"], part.where.name, keys(tau), part.where))
        tau = tau.times(part.weight)
        sums = {"positive": tau.positive(), "negative": tau.negative()}
        if self.disjoint == "sum":
            return sums
        sign, weight = tau.sign(), _on_grid(part.weight)
        return {
            **sums,
            "above": Exact.of(sign > 0).times(weight),
            "below": Exact.of(sign < 0).times(weight),
        }

    def conclude(
        self, places: Mapping[str, Where], members: Sequence[MemberFacts]
    ) -> Generator[Survey, Answers, Known]:
        if self.zero != "majority":
            return {}
        answers = yield Survey()
        total = sum(count for found in answers.values() for _, count in found)
        return {"majority": (total > 0) - (total < 0)}

    def concludes(self) -> bool:
        return self.zero == "majority"

    def examine(self, where: Where, state: State, ask: Any) -> int:
        return int((state["positive"].value() + state["negative"].value()).sign().sum())

    def merge(self, base: Tensor, state: State, where: Where, outlook: Outlook) -> Exact | Tensor:
        positive: Exact = state["positive"].value()
        negative: Exact = state["negative"].value()
        sign = (positive + negative).sign()
        if self.zero == "majority":
            sign = torch.where(sign == 0, outlook.known["majority"], sign)
        # An element without a positive part may still carry the sign of zero of its only member.
        above = (sign > 0) | (positive.sign() == 0)
        up, down = positive.where(above), negative.where(sign < 0)
        if self.disjoint == "mean":
            up = up.over(state["above"].value().double())
            down = down.over(state["below"].value().double())
        return (up + down).times(self.scale)


def _on_grid(weight: float) -> float:
    """|weight| as a multiple of 2^-40, the quantum of a narrow sum."""
    return round(abs(weight) * 2.0**40) / 2.0**40
