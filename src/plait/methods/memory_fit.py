"""Merging in memory with numbers that are fitted to losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from plait.errors import UsageError
from plait.methods.base import MemberFacts, TensorMethod
from plait.methods.choosing import Choice, Renew, choose, choose_scale, fit_of_method, unfitted
from plait.methods.coefficients import CoefficientMethod
from plait.methods.memory import Table
from plait.methods.pieces import wide
from plait.tensors import Tensor

Fill = Callable[[TensorMethod, bool], Table]
"""(method, wide) -> a table with all members; wide: everything in fp32, or fp64 where it is so already."""


def fitted(
    method: TensorMethod, fill: Fill, problem: Any, renew: Renew | None = None
) -> tuple[dict[str, Tensor], Choice]:
    """The merged model of a method with a `fit`, and what was chosen.

    fill: makes the table. problem: the losses of the members' tasks, in their order, as functions of the mergeable
    tensors (a `plait.problem.Problem`); its examples are taken as they are. renew: makes up others, as the fit's
    option `replay` asks for. UsageError where one of the two is missing.
    """
    if problem is None:
        raise UsageError(
            f"method {method.name} with a fit needs the losses of its members; hand them in as `problem`"
        )
    fit = fit_of_method(method)
    if fit is not None and fit.replay != "none" and renew is None:
        raise UsageError(
            f"fit.replay is {fit.replay}, and nothing was handed in that makes examples up; give `renew`, or use "
            "a line"
        )
    if isinstance(method, CoefficientMethod):
        table = fill(method, False)
        table.choice = _members(method, table, problem, renew)
        return table.merged(), table.choice
    plain = fill(_of_scale(method, 1.0), True)
    base = {name: plain.base[name] for name in plain.places}
    merged = plain.merged()
    shift = {name: merged[name] - base[name] for name in base}
    choice = choose_scale(method, base, shift, problem, renew)
    return fill(_of_scale(method, choice.alpha["model"][0]), False).merged(), choice


def _of_scale(method: TensorMethod, scale: float) -> TensorMethod:
    made = unfitted(method, scale=scale)
    assert isinstance(made, TensorMethod)
    return made


def _members(method: CoefficientMethod, table: Table, problem: Any, renew: Renew | None) -> Choice:
    base = {name: wide(table.base[name]) for name in table.places}
    vectors: Sequence[Mapping[str, Tensor]] = [
        {name: wide(m.expert[name]) - base[name] for name in sorted(m.changed)} for m in table.members
    ]
    facts = [MemberFacts(m.weight, {}) for m in table.members]
    return choose(method, table.products(method), facts, base, vectors, problem, renew=renew)
