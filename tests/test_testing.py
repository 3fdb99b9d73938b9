"""Each shipped law, broken on purpose once: a law that cannot fail would say nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch

from plait import testing
from plait.methods.average import Average
from plait.methods.base import Facts, MemberFacts, Method, Outlook, Part, State, Where
from plait.methods.magmax import MagMax
from plait.methods.task_arithmetic import TaskArithmetic
from plait.tensors.exact import Exact
from plait.testing import LawBroken


@dataclass(frozen=True)
class Writes(Average):
    """Writes into the expert."""

    def statistic(self, part: Part) -> dict[str, Exact]:
        found = super().statistic(part)
        part.expert.mul_(2)
        return found


@dataclass(frozen=True)
class SeesChunks(Average):
    """Adds something that depends on where a chunk ends."""

    def merge(self, base: Any, state: State, where: Where, outlook: Outlook) -> Any:
        shift = super().merge(base, state, where, outlook)
        assert isinstance(shift, Exact)
        return base.double() + shift.double() * (1 + where.first)


@dataclass(frozen=True)
class TooShort(Average):
    """Has a shorter way that forgets the weights."""

    def quick(self, base: Any, where: Where, outlook: Outlook) -> Any:
        short = super().quick(base, where, outlook)
        return None if short is None else _Unweighted(short)


@dataclass
class _Unweighted:
    way: Any

    def take(self, expert: Any, member: MemberFacts) -> bool:
        return bool(self.way.take(expert, replace(member, weight=1.0)))

    def merged(self, dtype: Any) -> Any:
        return self.way.merged(dtype)


@dataclass(frozen=True)
class RoundsTwice(Average):
    """Adds in fp64 and so loses what lies far below the base."""

    def merge(self, base: Any, state: State, where: Where, outlook: Outlook) -> Any:
        shift = super().merge(base, state, where, outlook)
        assert isinstance(shift, Exact)
        return base.double() + shift.double()


@dataclass(frozen=True)
class LastWins(MagMax):
    """A fold that says its order does not matter."""

    facts: ClassVar[Facts] = replace(MagMax.facts, order=False)


@dataclass(frozen=True)
class ForgetsWeight(TaskArithmetic):
    """Takes out more than it took in."""

    def undo(self, state: State, part: Part) -> State:
        return super().undo(state, replace(part, weight=1.0, _delta=None))


@dataclass(frozen=True)
class Residue(TaskArithmetic):
    """Leaves in the state what is far below the last place of the model."""

    def undo(self, state: State, part: Part) -> State:
        super().undo(state, part)
        if part.where.name == "one":
            state["delta"].add(Exact.of(torch.full((part.where.count,), 2.0**-400, dtype=torch.float64)))
        return state


@dataclass(frozen=True)
class Undeclared(MagMax):
    """Says that it is additive."""

    facts: ClassVar[Facts] = replace(MagMax.facts, family="additive")


@dataclass(frozen=True)
class Silent(Average):
    """Does not say what it costs."""

    facts: ClassVar[Facts] = replace(Average.facts, cost="")


@dataclass(frozen=True)
class NoManual(Average):
    __doc__ = None


@dataclass(frozen=True)
class BadOption(Average):
    """Has an option that JSON gives back as something else."""

    layers: tuple[int, ...] = (1, 2)


class Changeable(Average):
    """Can be changed."""

    __setattr__ = object.__setattr__


@pytest.mark.parametrize(
    ("law", "method", "message"),
    [
        (testing.inputs_stay, Writes(), "an input was written to"),
        (testing.cuts_do_not_matter, SeesChunks(), "gave other bytes than one chunk"),
        (testing.shortcuts_change_nothing, TooShort(), "the shorter way differs"),
        (testing.order_is_as_declared, LastWins(), "another order of arrival gave other bytes"),
        (testing.leaving_undoes_entering, ForgetsWeight(), "not as if the others never were"),
        (testing.leaving_undoes_entering, Residue(), "undo must be the exact inverse of step"),
        (testing.facts_are_complete, Undeclared(), "an AdditiveMethod, and no other"),
        (testing.facts_are_complete, Silent(), "facts.cost is empty"),
        (testing.facts_are_complete, NoManual(), "has no docstring"),
        (testing.facts_are_complete, Method(), "declares no facts"),
        (testing.options_round_trip, BadOption(), "do not survive JSON"),
        (testing.options_round_trip, Changeable(), "can be changed"),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, Method) else "",
)
def test_law_can_fail(law: Any, method: Method, message: str) -> None:
    with pytest.raises(LawBroken, match=message):
        law(method)


def test_a_member_that_does_not_come_back_is_found() -> None:
    with pytest.raises(LawBroken, match="the only member of weight 1 did not come back"):
        testing.one_member_comes_back(RoundsTwice(), True)
    with pytest.raises(LawBroken, match="did not come back"):
        testing.one_member_comes_back(TaskArithmetic(0.999), True)
    with pytest.raises(LawBroken, match="`reduces` is true"):
        testing.one_member_comes_back(MagMax(1.0), False)


def test_a_method_of_no_scope_is_refused() -> None:
    @dataclass(frozen=True)
    class Neither(Method):
        """Of no scope."""

        facts: ClassVar[Facts] = MagMax.facts

    with pytest.raises(LawBroken, match="neither a TensorMethod nor a ModelMethod"):
        testing.check(Neither())


def test_examples_hold_what_merges_stumble_over() -> None:
    for dtype in testing.DTYPES:
        base, experts = testing.examples(dtype, large=True)
        flat = torch.cat(
            [t.flatten() for t in (base["long.weight"], experts[0]["long.weight"]) if t.is_floating_point()]
        )
        tiny = torch.finfo(flat.dtype).tiny
        assert ((flat == 0) & flat.signbit()).any()
        assert ((flat == 0) & ~flat.signbit()).any()
        assert ((flat != 0) & (flat.abs() < tiny)).any()
        both = (base["long.weight"] == 0) & (experts[0]["long.weight"] == 0)
        assert (both & (base["long.weight"].signbit() != experts[0]["long.weight"].signbit())).any()
        assert torch.equal(experts[1]["head.weight"], base["head.weight"])
