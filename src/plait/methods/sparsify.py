"""Sparsifiers: what is left of a task vector before an additive method takes it in.

Named by the option `sparsify` of every method that derives from `Sparsified`:
None, a name, a mapping such as {"name": "dare", "density": 0.5}, or a `Sparsifier`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from plait.errors import UsageError
from plait.methods.base import AdditiveMethod, Answers, Grain, Known, Part, Slot, Survey, Where
from plait.methods.ranges import number, share
from plait.methods.registry import fill
from plait.tensors import Tensor, torch
from plait.tensors.exact import Exact
from plait.tensors.random import uniform
from plait.tensors.select import Cut, answer, keys, largest

LEAST_DENSITY = 2.0**-20
"""The least density above 0 of sparsifiers that divide by it."""


@dataclass(frozen=True)
class Sparsifier:
    """Drops elements of a task vector. `density` is the share that is kept: 0 drops everything, 1 nothing."""

    density: float = 0.5

    name: ClassVar[str]
    grain: ClassVar[Grain] = "element"
    random: ClassVar[bool] = False

    def check(self) -> None:
        """Raise UsageError where an option is out of its range."""
        share("sparsify.density", self.density)
        if self.random and 0 < self.density < LEAST_DENSITY:
            raise UsageError(
                f"sparsify.density is {self.density:g}, expected 0 or a number from 2^-20 to 1, because what is "
                "kept is divided by it"
            )

    def prepare(self, places: Mapping[str, Where]) -> Generator[Survey, Answers, Known]:
        """Passes over the member, as in `TensorMethod.prepare`."""
        return {}
        yield Survey()

    def measure(self, part: Part, ask: Any) -> Any:
        """Answer a survey of `prepare` for one chunk."""
        raise NotImplementedError

    def thin(self, part: Part, known: Known) -> Exact:
        """The task vector of the chunk with elements dropped. `known` is what `prepare` returned."""
        raise NotImplementedError


@dataclass(frozen=True)
class Dare(Sparsifier):
    """Keep each element with probability `density` and divide it by `density` (Yu et al. 2023, arXiv
    2311.03099).

    The expected task vector is the one that came in. density: 0 drops everything, 1 changes nothing.
    """

    name: ClassVar[str] = "dare"
    random: ClassVar[bool] = True

    def thin(self, part: Part, known: Known) -> Exact:
        kept = part.delta.where(_draw(part) < self.density)
        return kept.times(1 / self.density) if 0 < self.density < 1 else kept


@dataclass(frozen=True)
class Della(Sparsifier):
    """Keep with a probability that grows with the magnitude's rank within a row, and divide by it
    (MagPrune; Deep et al. 2024, arXiv 2406.11617, section 3.1).

    The element of rank j of n in its row (0 the smallest; ties by position) is kept with probability
    density + spread * ((j + 1/2) / n - 1/2). A row runs along the last axis. spread: 0 is `dare`; it may be
    so large that the probability runs from 0 to 2 * density, or from 2 * density - 1 to 1. density: 0 drops
    everything, 1 nothing.
    """

    spread: float = 0.2

    name: ClassVar[str] = "della"
    grain: ClassVar[Grain] = "row"
    random: ClassVar[bool] = True

    def check(self) -> None:
        super().check()
        number("sparsify.spread", self.spread)
        most = 2 * min(self.density, 1 - self.density)
        if not 0 <= self.spread <= most + 1e-12:
            raise UsageError(
                f"sparsify.spread is {self.spread}, expected 0 to {most:g} at density {self.density:g}, "
                "so that every probability lies between 0 and 1; lower it"
            )

    def thin(self, part: Part, known: Known) -> Exact:
        row = part.where.shape[-1] if part.where.shape else 1
        magnitude = part.delta.double().abs().view(-1, row)
        order = magnitude.argsort(dim=1, stable=True)
        rank = torch.empty_like(magnitude)
        rank.scatter_(1, order, torch.arange(row, dtype=torch.float64).expand_as(order))
        probability = self.density + self.spread * ((rank.flatten() + 0.5) / row - 0.5)
        kept = part.delta.where(_draw(part) < probability)
        return kept if self.density in (0, 1) else kept.over(probability).round_bits(kept.bits)


@dataclass(frozen=True)
class Breadcrumbs(Sparsifier):
    """Per tensor, drop the largest `gamma` of the magnitudes, keep the next `density`, drop the rest
    (Davari & Belilovsky 2023, arXiv 2312.06795). Nothing is rescaled.

    int(gamma * n) are dropped at the top and int(density * n), at least 1, are kept; equal magnitudes by
    position.
    density: 0 drops everything, 1 (with gamma 0) nothing. gamma: 0 drops no outlier, 1 everything. Their sum
    is at most 1.
    """

    gamma: float = 0.01

    name: ClassVar[str] = "breadcrumbs"

    def check(self) -> None:
        super().check()
        share("sparsify.gamma", self.gamma)
        if self.density + self.gamma > 1 + 1e-12:
            raise UsageError(
                f"sparsify.density {self.density:g} and sparsify.gamma {self.gamma:g} add up to more than 1, "
                "expected at most 1; lower one"
            )

    def prepare(self, places: Mapping[str, Where]) -> Generator[Survey, Answers, Known]:
        scope = {name: name for name in places}
        top = {name: int(self.gamma * place.count) for name, place in places.items()}
        kept = {n: top[n] + kept_of(self.density, place.count) for n, place in places.items()}
        upper = yield from cuts_of(places, scope, top)
        lower = yield from cuts_of(places, scope, {n: min(k, places[n].count) for n, k in kept.items()})
        return {"upper": upper, "lower": lower}

    def measure(self, part: Part, ask: Any) -> Any:
        return answer(keys(part.delta), part.where, ask)

    def thin(self, part: Part, known: Known) -> Exact:
        found, name = keys(part.delta), part.where.name
        inside = keep(known["lower"], name, found, part.where) & ~keep(
            known["upper"], name, found, part.where
        )
        return part.delta.where(inside)


SPARSIFIERS: dict[str, type[Sparsifier]] = {kind.name: kind for kind in (Dare, Della, Breadcrumbs)}


def sparsifier(given: Any) -> Sparsifier | None:
    """What None, a name, a mapping with "name", or a Sparsifier stands for. UsageError otherwise."""
    if given is None or isinstance(given, Sparsifier):
        return given
    if not isinstance(given, (str, Mapping)):
        raise UsageError(f"sparsify is {given!r}, expected one of: none, {', '.join(SPARSIFIERS)}")
    options = {"name": given} if isinstance(given, str) else dict(given)
    name = options.pop("name", None)
    if name in (None, "none", "") and not options:
        return None
    if name not in SPARSIFIERS:
        raise UsageError(f"sparsify is {name!r}, expected one of: none, {', '.join(SPARSIFIERS)}")
    return fill(SPARSIFIERS[name], f"sparsifier {name}", options)


@dataclass(frozen=True)
class Sparsified(AdditiveMethod):
    """An additive method of task vectors that may be sparsified first.

    sparsify: None takes the task vectors as they are. A subclass calls `self.tau(part)` where it would use
    `part.delta`, and yields its own surveys from `gather`, answered by `survey`.
    """

    sparsify: Sparsifier | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sparsify", sparsifier(self.sparsify))

    def check(self) -> None:
        if self.sparsify is not None:
            self.sparsify.check()

    def grain(self, shape: tuple[int, ...], name: str = "") -> Grain:
        return self.sparsify.grain if self.sparsify is not None else "element"

    def draws(self) -> bool:
        return self.sparsify is not None and self.sparsify.random

    def across(self) -> str:
        own = type(self).gather is not Sparsified.gather
        return "gathers numbers over all tensors" if own or self.concludes() else ""

    def tau(self, part: Part, known: Known | None = None) -> Exact:
        """The chunk's task vector after the sparsifier. `known`: the sparsifier's, while `prepare` still runs."""
        if self.sparsify is None:
            return part.delta
        return self.sparsify.thin(part, part.known.get("sparsify", {}) if known is None else known)

    def gather(self, places: Mapping[str, Where], size: int) -> Generator[Survey, Answers, Known]:
        """The method's own passes over a member, after those of the sparsifier."""
        return {}
        yield Survey()

    def survey(self, tau: Exact, part: Part, ask: Any) -> Any:
        """Answer a survey of `gather`; `tau` is the sparsified task vector of the chunk."""
        raise NotImplementedError

    def prepares(self) -> bool:
        own = type(self).gather is not Sparsified.gather
        return own or (self.sparsify is not None and type(self.sparsify).prepare is not Sparsifier.prepare)

    def prepare(self, places: Mapping[str, Where], size: int) -> Generator[Survey, Answers, Known]:
        known: Known = {}
        if self.sparsify is not None:
            known = yield from _addressed(self.sparsify.prepare(places), "sparsify", {})
        found = yield from _addressed(self.gather(places, size), "method", known)
        return {"sparsify": known, **found} if self.sparsify is not None else found

    def measure(self, part: Part, ask: Any) -> Any:
        if ask["to"] == "sparsify" and self.sparsify is not None:
            return self.sparsify.measure(part, ask["ask"])
        return self.survey(self.tau(part, ask["known"]), part, ask["ask"])


@dataclass(frozen=True)
class SumOfTaskVectors(Sparsified):
    """A method whose state is one sum, sum_i w_i tau_i. A subclass says what `merge` makes of it."""

    def slots(self, shape: tuple[int, ...], dtype: str) -> dict[str, Slot]:
        return {"delta": Slot("exact")}

    def statistic(self, part: Part) -> dict[str, Exact]:
        return {"delta": self.tau(part).times(part.weight)}


def _addressed(
    passes: Generator[Survey, Answers, Known], to: str, known: Known
) -> Generator[Survey, Answers, Known]:
    """The same surveys, each with a note of who asks and what the sparsifier knows by then."""
    try:
        survey = next(passes)
        while True:
            survey = passes.send((yield replace(survey, ask={"to": to, "ask": survey.ask, "known": known})))
    except StopIteration as stop:
        found: Known = stop.value
        return found


def kept_of(density: float, count: int) -> int:
    """How many of `count` elements a density keeps: int(density * count), but at least 1 unless density is
    0."""
    return max(int(density * count), 1) if density > 0 and count else 0


def _draw(part: Part) -> Tensor:
    return uniform(part.seed, part.where.name, part.where.first, part.where.count)


def cuts_of(
    places: Mapping[str, Where], scope: Mapping[str, str], kept: Mapping[str, int]
) -> Generator[Survey, Answers, dict[str, Any]]:
    """Where to cut so that the largest `kept` of each scope stay: tensor name -> a cut in plain JSON values,
    "all" or
    "none". `scope`: tensor name -> scope name. Ends that need no pass take none."""
    sizes: dict[str, int] = {}
    for name, place in places.items():
        sizes[scope[name]] = sizes.get(scope[name], 0) + place.count
    found: dict[str, Any] = {}
    open_places = {}
    for name, place in places.items():
        k = kept[scope[name]]
        if 0 < k < sizes[scope[name]]:
            open_places[name] = place
        else:
            found[name] = "all" if k else "none"
    if open_places:
        asked = {s: kept[s] for s in {scope[n] for n in open_places}}
        cuts = yield from largest(open_places, {n: scope[n] for n in open_places}, asked)
        found.update({name: cuts[scope[name]].to_json() for name in open_places})
    return found


def keep(cuts: Mapping[str, Any], name: str, found: Tensor, where: Where) -> Tensor:
    """The mask of the elements that a result of `cuts_of` keeps: all of a tensor that was not surveyed because the
    member leaves it as it is. `found`: the chunk's keys."""
    cut = cuts.get(name, "all")
    if isinstance(cut, str):
        return torch.full((where.count,), cut == "all", dtype=torch.bool)
    return Cut.from_json(cut).keep(found, where)
