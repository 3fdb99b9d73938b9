"""How coefficients are chosen by a loss: CMA-ES or gradients, at a budget that can be compared.

Named by the option `fit` of methods whose model is a combination of directions: None, a name, a mapping such as
{"name": "gradient", "samples": 64}, or a `Fit`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

from plait.errors import PlaitError, UsageError
from plait.methods.base import Method
from plait.methods.ranges import choice, finite
from plait.methods.registry import fill
from plait.methods.span import Span, Weights
from plait.tensors import Tensor, torch

GRADIENT_COST = 3
"""What a gradient costs in losses: a backward pass is about two forward ones."""

REPLAYS = ("none", "earlier", "all")


class Losses(Protocol):
    """What a fit asks of a `plait.problem.Problem`."""

    def loss(self, weights: Weights) -> float: ...

    def loss_and_gradient(self, weights: Weights) -> tuple[float, dict[str, Tensor]]: ...


@dataclass(frozen=True)
class Anchor:
    """The elastic weight consolidation term: (strength / 2) sum_p F_p (theta_p - anchor_p)^2 (Kirkpatrick et al.
    2017, arXiv 1612.00796). form: (G, N, N), `Span.form` of F. coefficients: (G, N), those of the anchor."""

    strength: float
    form: Tensor
    coefficients: Tensor


@dataclass(frozen=True)
class Fitted:
    """x: (G, P) fp64, the best coordinates seen. loss: the objective there, start: at the start. trace: the best
    objective after every evaluation, with how many losses had been paid for. evaluations: losses paid for, a gradient
    counting as 3."""

    x: Tensor
    loss: float
    start: float
    evaluations: int
    trace: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Fit:
    """Chooses coefficients by the mean loss of the members on their validation examples.

    evaluations: the budget in losses; a gradient counts as 3. 0: 100 for each member.
    samples: examples of each member, drawn by the line's seed.
    ewc: weight of the elastic weight consolidation term; 0: none.
    replay: whose examples are made up from the merged model at the first coefficients instead of read: of "none", of
        all members but the last ("earlier"), or of "all".
    seed: of random search and of made-up examples.
    """

    evaluations: int = 0
    samples: int = 128
    ewc: float = 0.0
    replay: str = "none"
    seed: int = 0

    name: ClassVar[str]

    def check(self) -> None:
        """Raise UsageError where an option is out of its range."""
        for word, least in (("evaluations", 0), ("samples", 1), ("seed", 0)):
            value = getattr(self, word)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UsageError(f"fit.{word} is {value!r}, expected a whole number of at least {least}")
        finite("fit.ewc", self.ewc)
        if self.ewc < 0:
            raise UsageError(f"fit.ewc is {self.ewc}, expected a number of at least 0")
        choice("fit.replay", self.replay, REPLAYS)

    def budget(self, members: int) -> int:
        """How many losses may be paid for."""
        return self.evaluations or 100 * members

    def search(self, span: Span, losses: Losses, start: Tensor, anchor: Anchor | None = None) -> Fitted:
        """The best coordinates that were found within the budget, beginning at `start`, (G, P) fp64. Writes into
        no argument. PlaitError where the loss is not finite at the start."""
        raise NotImplementedError


@dataclass(frozen=True)
class Gradient(Fit):
    """Adam on the coefficients (Kingma & Ba 2015): dL/dx_p = <gradient of L, direction p>, so that one backward pass
    serves them all. The best of all steps is taken, the start among them.

    rate: the step size.
    """

    rate: float = 0.05

    name: ClassVar[str] = "gradient"

    def check(self) -> None:
        super().check()
        finite("fit.rate", self.rate)
        if self.rate <= 0:
            raise UsageError(f"fit.rate is {self.rate}, expected a number above 0")

    def search(self, span: Span, losses: Losses, start: Tensor, anchor: Anchor | None = None) -> Fitted:
        watch = _Watch()
        x = start.double().clone()
        first, second = torch.zeros_like(x), torch.zeros_like(x)
        for step in range(1, max(self.budget(x.shape[1]) // GRADIENT_COST, 1) + 1):
            loss, gradient = losses.loss_and_gradient(span.at(x))
            slope = span.slope(gradient)
            extra, pull = _anchored(span, anchor, x)
            watch.note(x, loss + extra, GRADIENT_COST)
            slope = torch.nan_to_num(slope + pull, nan=0.0, posinf=0.0, neginf=0.0)
            first = 0.9 * first + 0.1 * slope
            second = 0.999 * second + 0.001 * slope * slope
            ahead = first / (1 - 0.9**step)
            x = x - self.rate * ahead / ((second / (1 - 0.999**step)).sqrt() + 1e-12)
        return watch.found()


@dataclass(frozen=True)
class Cmaes(Fit):
    """Covariance matrix adaptation (Hansen 2016, arXiv 1604.00772), by the package `cma` (extra `fit`). The best of
    all that was evaluated is taken, the start among them.

    sigma: the first step size.
    """

    sigma: float = 0.1

    name: ClassVar[str] = "cmaes"

    def check(self) -> None:
        super().check()
        finite("fit.sigma", self.sigma)
        if self.sigma <= 0:
            raise UsageError(f"fit.sigma is {self.sigma}, expected a number above 0")

    def search(self, span: Span, losses: Losses, start: Tensor, anchor: Anchor | None = None) -> Fitted:
        from plait.methods.evolution import minimise

        watch = _Watch()
        shape = start.shape

        def objective(values: list[float]) -> float:
            x = torch.tensor(values, dtype=torch.float64).view(shape)
            return watch.note(x, losses.loss(span.at(x)) + _anchored(span, anchor, x)[0], 1)

        values = [float(value) for value in start.double().flatten().tolist()]
        objective(values)
        minimise(objective, values, self.sigma, self.budget(shape[1]) - 1, self.seed)
        return watch.found()


def _anchored(span: Span, anchor: Anchor | None, x: Tensor) -> tuple[float, Tensor]:
    if anchor is None:
        return 0.0, torch.zeros_like(x)
    value, slope = span.quadratic(anchor.form, span.coefficients(x) - anchor.coefficients)
    return anchor.strength * value, anchor.strength * slope


@dataclass
class _Watch:
    """Keeps the best that was evaluated."""

    best: tuple[float, Tensor] | None = None
    start: float = 0.0
    paid: int = 0
    trace: list[tuple[int, float]] = field(default_factory=list)

    def note(self, x: Tensor, loss: float, cost: int) -> float:
        if self.best is None:
            if loss - loss != 0:
                raise PlaitError(
                    "the loss of the merged model is not finite at the first coefficients; there is nothing to fit: "
                    "look at the members and their examples"
                )
            self.best, self.start = (loss, x.clone()), loss
        elif loss < self.best[0]:
            self.best = loss, x.clone()
        self.paid += cost
        self.trace.append((self.paid, self.best[0]))
        return loss if loss - loss == 0 else 1e300

    def found(self) -> Fitted:
        assert self.best is not None
        return Fitted(self.best[1], self.best[0], self.start, self.paid, tuple(self.trace))


FITS: Mapping[str, type[Fit]] = {kind.name: kind for kind in (Cmaes, Gradient)}


def adopt(method: Method) -> None:
    """Make a method's option `fit` a `Fit`, and let it say what it then needs: the losses of all members. Called when
    the method is made."""
    fit = fit_of(method.fit)  # type: ignore[attr-defined]
    object.__setattr__(method, "fit", fit)
    if fit is None:
        return
    facts = replace(type(method).facts, data="labelled all")
    told = {"facts": facts, "wants": "problem", "splits": ("validation",), "samples": fit.samples}
    for word, value in told.items():
        object.__setattr__(method, word, value)


def fit_of(given: Any) -> Fit | None:
    """A fit from None, "fixed" (no fit), a name, a mapping with "name", or a `Fit`."""
    if given is None or given in ("", "none", "fixed"):
        return None
    if isinstance(given, Fit):
        made = given
    else:
        told = dict(given) if isinstance(given, Mapping) else {"name": given}
        name = told.pop("name", None)
        if not isinstance(name, str) or name not in FITS:
            raise UsageError(f"fit is {name!r}, expected one of: none, {', '.join(FITS)}")
        made = fill(FITS[name], f"fit {name}", told)
    made.check()
    return made
