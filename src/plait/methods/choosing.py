"""From a method with a `fit`, its members and their losses to the numbers that the merge then uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from plait.errors import UsageError
from plait.methods.base import MemberFacts, Method
from plait.methods.coefficients import CoefficientMethod, Coefficients, Products
from plait.methods.fit import Anchor, Fit, Fitted
from plait.methods.span import Span, Weights
from plait.tensors import Tensor, torch

TRACE = 100
"""Points of a trace that are recorded at most."""


class Tasks(Protocol):
    """What a fit asks of a `plait.problem.Problem`, whose tasks are the members' in their order."""

    def loss(self, weights: Weights) -> float: ...

    def loss_and_gradient(self, weights: Weights) -> tuple[float, dict[str, Tensor]]: ...

    def fisher(self, weights: Weights, *, names: Any = None) -> dict[str, Tensor]: ...

    def seen(self, count: int) -> Tasks: ...


Renew = Callable[[Weights, Any], Any]
"""(model, tasks) -> the same tasks with other examples."""


@dataclass(frozen=True)
class Choice:
    """alpha: by group, one number for each member. record: what a ledger or a report says of the fit, as JSON: `fit`,
    `loss` and `start` (the objective at the chosen numbers and at the first ones), `evaluations`, and `trace`, pairs
    of evaluations paid for and the best objective by then."""

    alpha: dict[str, list[float]]
    record: dict[str, Any]


def fit_of_method(method: Method) -> Fit | None:
    """The fit that a method asks for."""
    found: Fit | None = getattr(method, "fit", None)
    return found


def span_of(
    method: CoefficientMethod,
    products: Products,
    members: Sequence[MemberFacts],
    base: Weights,
    vectors: Sequence[Weights],
) -> Span:
    """All models that the method can make of these members: what it does to alpha is linear, so that it is asked for
    one unit of alpha at a time."""
    groups = {name: method.group(name) for name in base}
    there = dict.fromkeys(groups.values())
    rows: dict[str, list[Sequence[float]]] = {group: [] for group in there}
    for number in range(len(members)):
        unit = [1.0 if i == number else 0.0 for i in range(len(members))]
        made = method.combine(products, members, dict.fromkeys(products.inner, unit)).coefficients
        for group in there:
            rows[group].append(made.get(group, [0.0] * len(members)))
    turns = {group: torch.tensor(row, dtype=torch.float64) for group, row in rows.items()}
    return Span(base, vectors, groups, turns)


def choose(
    method: CoefficientMethod,
    products: Products,
    members: Sequence[MemberFacts],
    base: Weights,
    vectors: Sequence[Weights],
    tasks: Tasks,
    before: Coefficients | None = None,
    renew: Renew | None = None,
) -> Choice:
    """The members' alphas by the loss on their tasks, starting at the method's own.

    vectors: the task vectors, in the order of the members. before: the alphas of all members but the last, where they
    are known; only the elastic weight consolidation term looks at them, which holds the model near what it was before
    the last member came: without them they are fitted first, member by member. renew: makes other examples, from the
    model at the first coefficients.
    """
    fit = _asked(method)
    count = len(members)
    span = span_of(method, products, members, base, vectors)
    anchor = None
    if fit.ewc and count > 1:
        if before is None:
            fewer = _first(products, count - 1)
            seen = tasks.seen(count - 1)
            before = choose(method, fewer, members[:-1], base, vectors[:-1], seen, renew=renew).alpha
        anchor = _anchor(fit, span, before, tasks.seen(count - 1))
    start = torch.full((len(span.names), count), _start(method), dtype=torch.float64)
    tasks = tasks if renew is None else renew(span.at(start), tasks)
    found = fit.search(span, tasks, start, anchor)
    alpha = {group: [float(v) for v in row] for group, row in zip(span.names, found.x.tolist(), strict=True)}
    return Choice(alpha, record_of(fit, found))


def choose_scale(
    method: Method, base: Weights, shift: Weights, tasks: Tasks, renew: Renew | None = None
) -> Choice:
    """The scale of a method whose model is base + scale * shift, under the group "model", as one number."""
    fit = _asked(method)
    span = Span(base, [shift], dict.fromkeys(base, "model"))
    start = torch.full((1, 1), _start(method), dtype=torch.float64)
    tasks = tasks if renew is None else renew(span.at(start), tasks)
    found = fit.search(span, tasks, start)
    return Choice({"model": [float(found.x[0, 0])]}, record_of(fit, found))


def record_of(fit: Fit, found: Fitted) -> dict[str, Any]:
    trace = found.trace
    if len(trace) > TRACE:
        places = [round(i * (len(trace) - 1) / (TRACE - 1)) for i in range(TRACE)]
        trace = tuple(trace[place] for place in places)
    return {
        "fit": fit.name,
        "loss": found.loss,
        "start": found.start,
        "evaluations": found.evaluations,
        "trace": [list(point) for point in trace],
    }


def unfitted(method: Method, **numbers: float) -> Method:
    """The same method with these options in the place of a fit."""
    return replace(method, fit=None, **numbers)  # type: ignore[call-arg]


def _anchor(fit: Fit, span: Span, before: Coefficients, earlier: Tasks) -> Anchor:
    """The model before the last member as a point of `span`, and the earlier tasks' Fisher information there."""
    x = torch.zeros(len(span.names), len(span.directions), dtype=torch.float64)
    for row, group in enumerate(span.names):
        x[row, : len(span.directions) - 1] = torch.tensor(before.get(group, ()), dtype=torch.float64)
    fisher = earlier.fisher(span.at(x), names=tuple(span.base))
    return Anchor(fit.ewc, span.form(fisher), span.coefficients(x))


def _first(products: Products, count: int) -> Products:
    inner: Mapping[str, Tensor] = {g: gram[:count, :count] for g, gram in products.inner.items()}
    return Products(products.tasks[:count], inner)


def _asked(method: Method) -> Fit:
    fit = fit_of_method(method)
    if fit is None:
        raise UsageError(
            f"method {method.name} has nothing to fit; choose one with fit=cmaes or fit=gradient"
        )
    return fit


def _start(method: Method) -> float:
    options: Any = method
    return float(options.alpha if hasattr(method, "alpha") else options.scale)
