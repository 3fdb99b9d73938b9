"""Methods that move the base by a combination of task vectors whose coefficients follow from inner products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from plait.errors import RefusedInput
from plait.methods.base import MemberFacts, Outlook, Part, Quick, Slot, State, TensorMethod, Where
from plait.tensors import Tensor
from plait.tensors.compiled import Combined, known
from plait.tensors.exact import Exact, ExactSum

Coefficients = Mapping[str, Sequence[float]]
"""Group -> one number for each member, in their order."""

STATELESS = ("coefficients", "rebuild")
"""Families that make the model from all members each time and keep no state to fold on: every member enters at
every change. A method of family "rebuild" gathers tensors in `step` and makes its own in `merge`; it has no slots and
does not conclude. One of family "coefficients" is a `CoefficientMethod`."""


@dataclass(frozen=True)
class Products:
    """tasks: what to call the members, in order. inner: group -> (N, N) fp64, symmetric: the inner products of their
    task vectors over the tensors of that group; weights do not count."""

    tasks: tuple[str, ...]
    inner: Mapping[str, Tensor]

    def without(self, index: int) -> Products:
        """The same, had member `index` never been there."""
        kept = [i for i in range(len(self.tasks)) if i != index]
        inner = {group: gram[kept][:, kept] for group, gram in self.inner.items()}
        return Products(tuple(self.tasks[i] for i in kept), inner)


@dataclass(frozen=True)
class Combination:
    """The merged model as base + sum_i c[g, i] tau_i in every group g. found: numbers for a report. notes: what a
    user must be told."""

    coefficients: Coefficients
    found: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Removal:
    """What is left when the direction of a member is taken out of the merged model. coefficients: of all members, the
    removed one among them. remaining: its coefficient, by group: what stays of it. distance: from the model that
    never had it, relative to how far that one is from the base."""

    coefficients: Coefficients
    remaining: dict[str, float]
    distance: float


@dataclass(frozen=True)
class CoefficientMethod(TensorMethod):
    """base + sum_i c[g, i] tau_i, g the group of the tensor. The sum is exact and rounded once, so that the order of
    members, chunks and threads show in the coefficients only, and these are a pure function of inner products.

    Derive from it and say `group` and `combine`. The engine finds the inner products (the line keeps them, so that a
    new member costs its own row), asks `combine`, and hands each member its coefficients as `known`.
    """

    def across(self) -> str:
        return "weighs whole task vectors by what they are to each other"

    def group(self, name: str) -> str:
        """The group of a tensor. Groups share nothing."""
        raise NotImplementedError

    def combine(
        self, products: Products, members: Sequence[MemberFacts], alpha: Coefficients | None = None
    ) -> Combination:
        """The coefficients. alpha: what a fit has chosen, for every group and member; None: what the options say.
        RefusedInput where the task vectors cannot be combined."""
        raise NotImplementedError

    def remove(
        self,
        products: Products,
        members: Sequence[MemberFacts],
        index: int,
        alpha: Coefficients | None = None,
    ) -> Removal | None:
        """What is left when member `index` is subtracted without looking at the others again, as an algebraic removal
        does; None where the method has no such thing."""
        return None

    def slots(self, shape: tuple[int, ...], dtype: str) -> dict[str, Slot]:
        return {"delta": Slot("exact")}

    def step(self, state: State, part: Part) -> State:
        factor = coefficient(part.known, self.group(part.where.name))
        if factor:
            total: ExactSum = state["delta"]
            total.add(part.delta.times(factor))
        return state

    def merge(self, base: Tensor, state: State, where: Where, outlook: Outlook) -> Exact | Tensor:
        total: ExactSum = state["delta"]
        return total.value()

    def quick(self, base: Tensor, where: Where, outlook: Outlook) -> Quick | None:
        return _Combined(base, self.group(where.name)) if known(base) else None


class _Combined:
    """The same in compiled loops."""

    def __init__(self, base: Tensor, group: str) -> None:
        self._sum, self._group = Combined(base), group

    def take(self, expert: Tensor, member: MemberFacts) -> bool:
        factor = coefficient(member.known, self._group)
        return factor == 0.0 or self._sum.take(expert, factor)

    def merged(self, dtype: Any) -> Tensor | None:
        return self._sum.merged(dtype)


def overflow(one: str, other: str) -> RefusedInput:
    """The error for two members whose inner product is no number of fp64."""
    return RefusedInput(
        f"the inner product of the task vectors of {one} and {other} is too large for fp64, expected experts near "
        "the base; check where they come from"
    )


def coefficient(told: Mapping[str, Any], group: str) -> float:
    """A member's coefficient in a group, from what the engine told about it."""
    return float(told["coefficients"].get(group, 0.0))


def told(coefficients: Coefficients, index: int) -> dict[str, Any]:
    """What the engine tells about member `index`."""
    return {"coefficients": {group: row[index] for group, row in coefficients.items()}}
