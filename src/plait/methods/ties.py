"""TIES: trim each task vector, elect a sign per element, merge what agrees with it. In a streaming form."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, nextafter, ulp
from struct import pack, unpack
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
    Where,
)
from plait.methods.fit import adopt
from plait.methods.ranges import choice, finite, share
from plait.methods.sparsify import Sparsified, cuts_of, keep, kept_of
from plait.tensors import Tensor, torch
from plait.tensors.compiled import Agreement, known, place_of_equal
from plait.tensors.exact import Exact
from plait.tensors.glance import glance
from plait.tensors.select import NARROW_TOP, WIDE_TOP, answer, keys


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
    fit: "cmaes" or "gradient" chooses the scale by the members' losses (see `fit.Fit`), starting at `scale`. None:
        it is fixed.
    """

    density: float = 0.2
    trim: str = "tensor"
    disjoint: str = "mean"
    scale: float = 1.0
    kept: str = "floor"
    zero: str = "none"
    fit: Any = None

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

    def __post_init__(self) -> None:
        super().__post_init__()
        adopt(self)

    def check(self) -> None:
        super().check()
        share("density", self.density)
        choice("trim", self.trim, ("tensor", "model"))
        choice("disjoint", self.disjoint, ("mean", "sum"))
        finite("scale", self.scale)
        choice("kept", self.kept, ("floor", "inclusive"))
        choice("zero", self.zero, ("none", "majority"))

    def across(self) -> str:
        if self.trim == "model":
            return "with trim=model ranks magnitudes over the whole model"
        return "with zero=majority counts signs over the whole model" if self.zero == "majority" else ""

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

    def glance(self, base: Tensor, expert: Tensor, where: Where, ask: Any) -> Any:
        return LONG if self.sparsify is not None else glance(base, expert, where, ask["ask"])

    def quick(self, base: Tensor, where: Where, outlook: Outlook) -> Quick | None:
        if self.sparsify is not None or not known(base):
            return None
        return Agreeing(self, base, where, even=all(m.weight == 1 for m in outlook.members))

    def _count(self, size: int) -> int:
        k = kept_of(self.density, size)
        return min(k + 1, size) if k and self.kept == "inclusive" else k

    def statistic(self, part: Part) -> dict[str, Exact]:
        tau = self.tau(part)
        quick = self._quick_statistic(tau, part)
        if quick is not None:
            return quick
        cut = part.known["cuts"][part.where.name]
        if cut != "all":
            found = keys(tau)
            mask = keep(part.known["cuts"], part.where.name, found, part.where)
            if cut != "none":  # a zero is never trimmed: it adds nothing, but it may carry the sign of zero
                mask |= found == 0
            tau = tau.where(mask)
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

    def _quick_statistic(self, tau: Exact, part: Part) -> dict[str, Exact] | None:
        """The same by two comparisons with the least fp64 number that is kept; None where that does not do."""
        if tau.tail is not None or tau.z is not None or not (part.weight == 1 or _light(tau, part.weight)):
            return None
        least = least_kept(part.known["cuts"][part.where.name], part.where, tau.bits == 53)
        if least is None:
            return None
        values = tau.double().numpy()
        above, below = values >= least, values <= -least
        tau = tau.times(part.weight)
        values, claims = tau.double().numpy(), tau.claims()
        sums = {
            name: Exact(torch.from_numpy(values * mask), None, None, tau.bits, claims)
            for name, mask in (("positive", above), ("negative", below))
        }
        if self.disjoint == "sum":
            return sums
        weight = _on_grid(part.weight)
        return {
            **sums,
            "above": Exact.of(torch.from_numpy(above)).times(weight),
            "below": Exact.of(torch.from_numpy(below)).times(weight),
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
        if positive.tail is None is negative.tail and positive.z is None is negative.z:
            return self._quick_merge(positive.double(), negative.double(), state, outlook)
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

    def _quick_merge(self, positive: Tensor, negative: Tensor, state: State, outlook: Outlook) -> Exact:
        """The same where both sums are fp64 numbers and no zero has a sign."""
        import numpy as np

        plus, minus = positive.numpy(), negative.numpy()
        majority = outlook.known["majority"] if self.zero == "majority" else 0
        up = np.greater_equal(plus, -minus) if majority > 0 else np.greater(plus, -minus)
        down = np.less_equal(plus, -minus) if majority < 0 else np.less(plus, -minus)
        shift = plus * up
        shift += minus * down
        if self.disjoint == "mean":
            weight = state["above"].value().double().numpy() * up
            weight += state["below"].value().double().numpy() * down
            weight += weight == 0  # nobody is behind a 0
            shift /= weight
        return Exact(torch.from_numpy(shift)).times(self.scale)


class Agreeing:
    """The merge of a chunk in compiled loops. even: whether all weights are 1."""

    def __init__(self, method: Ties, base: Tensor, where: Where, *, even: bool) -> None:
        self._base, self._where = base, where
        self._sums = Agreement(base, method.scale, mean=method.disjoint == "mean", even=even)

    def take(self, expert: Tensor, member: MemberFacts) -> bool:
        """Add a member. False: give up."""
        cut = member.known["cuts"][self._where.name]
        if cut == "none":
            return True
        cuts = self._cuts(cut, expert) if expert.dtype == self._base.dtype else None
        return cuts is not None and self._sums.take(expert, member.weight, _on_grid(member.weight), cuts)

    def merged(self, dtype: torch.dtype) -> Tensor | None:
        """The merged chunk. None: give up."""
        return self._sums.merged(dtype)

    def _cuts(self, cut: Any, expert: Tensor) -> list[tuple[int, float]] | None:
        """(end, least fp64 number that is kept before it), one or two. None where there are none."""
        where, count = self._where, self._where.count
        least = least_kept(cut, where, False)
        if least is not None:
            return [(count, least)]
        if cut["wide"] or not 0 < cut["threshold"] < NARROW_TOP - 1:
            return None
        _, start, kept = cut["last"]
        skip = start - where.first
        at = place_of_equal(self._base[skip:], expert[skip:], cut["threshold"], kept)
        end = skip + at + 1 if at >= 0 else count
        return [(end, _least(cut["threshold"], False)), (count, _least(cut["threshold"] + 1, False))]


def _light(tau: Exact, weight: float) -> bool:
    """Whether no product with the weight becomes 0 or changes its sign."""
    return weight > 0 and tau.claims()[0] > -1000


def least_kept(cut: Any, where: Where, wide: bool) -> float | None:
    """The least positive fp64 number that a cut (of `cuts_of`) keeps in a chunk, whose keys are fp64 patterns if
    `wide`, else fp32 ones. None where there is none, or none for the whole chunk."""
    if cut == "all":
        return ulp(0.0)
    if cut == "none" or cut["wide"] != wide:
        return None
    key, last = cut["threshold"], cut["last"]
    if last is not None and where.name >= last[0]:
        name, start, _ = last
        if where.name > name or where.first > start:
            key += 1  # no equal one is kept
        elif where.first + where.count > start:
            return None
    return _least(key, wide) if 0 < key < (WIDE_TOP if wide else NARROW_TOP) else None


def _least(key: int, wide: bool) -> float:
    """The least fp64 number of that key."""
    if wide:
        return float(unpack("<d", pack("<q", key))[0])
    below, above = unpack("<2f", pack("<2i", key - 1, key))
    middle = (below + above) / 2  # what fp32 rounds up to `key`; the middle itself if that is even
    return float(middle if key % 2 == 0 else nextafter(middle, inf))


def _on_grid(weight: float) -> float:
    """|weight| as a multiple of 2^-40, the quantum of a narrow sum."""
    return round(abs(weight) * 2.0**40) / 2.0**40
