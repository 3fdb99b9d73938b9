"""Methods that only tests use, which show what the engine hands to a method."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any, ClassVar

import torch
from torch import Tensor

from plait.methods.base import (
    AdditiveMethod,
    Answers,
    Facts,
    Grain,
    Known,
    MemberFacts,
    ModelMethod,
    Outlook,
    Part,
    Slot,
    State,
    Survey,
    TensorMethod,
    Where,
)
from plait.tensors.exact import Exact

ADDITIVE = Facts("toy", "additive", "subtract", "none", False, "", "", "")
FOLD = Facts("toy", "fold", "refold", "none", True, "", "", "")

CALLS: list[tuple[Any, ...]] = []
"""What toys were asked, noted under a lock; tests clear it."""
_LOCK = threading.Lock()


def note(*words: Any) -> None:
    with _LOCK:
        CALLS.append(words)


@dataclass(frozen=True)
class Normed(AdditiveMethod):
    """Adds task vectors divided by their mean magnitude, found in `rounds` surveys; divides by the mean magnitude of
    the sum. Every part of the protocol is used."""

    facts: ClassVar[Facts] = ADDITIVE
    rounds: int = 2
    stride: int = 1
    shape: str = "element"

    def grain(self, shape: tuple[int, ...], name: str = "") -> Grain:
        return self.shape if len(shape) == 2 else "element"  # type: ignore[return-value]

    def slots(self, shape: tuple[int, ...], dtype: str) -> dict[str, Slot]:
        return {"delta": Slot("exact"), "count": Slot("narrow")}

    def prepare(self, places: Mapping[str, Where], size: int) -> Generator[Survey, Answers, Known]:
        found: dict[str, list[float]] = {}
        for number in range(self.rounds):
            answers = yield Survey({"round": number}, self.stride)
            assert list(answers) == list(places) == sorted(places)
            for name, entries in answers.items():
                assert [first for first, _ in entries] == sorted(first for first, _ in entries)
                found.setdefault(name, []).append(fsum(s for _, a in entries for s in a["sums"]))
        return {"sizes": found}

    def measure(self, part: Part, ask: Any) -> Any:
        note("measure", part.where.name, part.where.first, part.where.count, ask["round"], part.seed[:1])
        return {"sums": [float(v) for v in part.delta.double().abs()[:3]]}

    def statistic(self, part: Part) -> dict[str, Exact]:
        note("statistic", part.where.name, part.where.first, torch.get_num_threads())
        assert part.where.name in part.known["sizes"]
        return {
            "delta": part.delta.times(part.weight),
            "count": Exact.of(torch.full((part.where.count,), part.weight, dtype=torch.float64)),
        }

    def conclude(
        self, places: Mapping[str, Where], members: Sequence[MemberFacts]
    ) -> Generator[Survey, Answers, Known]:
        answers = yield Survey("sum", self.stride)
        totals = {n: fsum(s for _, sums in entries for s in sums) for n, entries in answers.items()}
        return {"totals": totals, "weights": [m.weight for m in members]}

    def examine(self, where: Where, state: State, ask: Any) -> list[float]:
        note("examine", where.name, where.first, where.count)
        return [float(v) for v in state["delta"].value().double().abs()[:3]]

    def merge(self, base: Tensor, state: State, where: Where, outlook: Outlook) -> Exact | Tensor:
        note("merge", where.name, where.first)
        shift: Exact = state["delta"].value()
        count: Tensor = state["count"].value().double()
        return shift.over(count)


@dataclass(frozen=True)
class First(TensorMethod):
    """Keeps the first member's values, and how often a tensor was stepped on. Hands its input out as the state,
    which the engine must survive."""

    facts: ClassVar[Facts] = FOLD

    def slots(self, shape: tuple[int, ...], dtype: str) -> dict[str, Slot]:
        return {"value": Slot("base"), "steps": Slot("float32")}

    def step(self, state: State, part: Part) -> State:
        first = part.expert if float(state["steps"][0]) == 0 else state["value"]
        return {"value": first, "steps": state["steps"] + 1}

    def merge(self, base: Tensor, state: State, where: Where, outlook: Outlook) -> Exact | Tensor:
        values: Tensor = state["value"].double() + state["steps"]
        return values


@dataclass(frozen=True)
class Only(First):
    """Gives the only member back."""

    def reduces(self, members: Sequence[MemberFacts]) -> bool:
        return len(members) == 1


@dataclass(frozen=True)
class Walk(ModelMethod):
    """Half-way to each expert; the problem is a function that is called with the weights."""

    facts: ClassVar[Facts] = FOLD

    def step(
        self,
        state: Mapping[str, Tensor],
        base: Mapping[str, Tensor],
        expert: Mapping[str, Tensor],
        members: Sequence[MemberFacts],
        problem: Any,
    ) -> tuple[dict[str, Tensor], Known]:
        new = {name: value + (expert[name] - value) / 2 for name, value in state.items()}
        return new, {"loss": problem(new), "members": len(members)}
