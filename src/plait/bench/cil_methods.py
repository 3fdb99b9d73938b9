"""What is compared in the class-incremental setting: baselines that train differently, and methods that merge."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from plait.bench.grids import grid as method_grid
from plait.bench.specs import parse as parse_method
from plait.errors import UsageError
from plait.methods.base import Method, TensorMethod
from plait.methods.choosing import fit_of_method
from plait.methods.ranges import at_least, finite, share
from plait.methods.registry import fill, make


@dataclass(frozen=True)
class Sequential:
    """Fine-tuned on one task after the other, nothing else."""

    def check(self) -> None:
        return None


@dataclass(frozen=True)
class Ewc:
    """Fine-tuned with strength / 2 * sum F (theta - anchor)^2 added to the loss (Kirkpatrick et al. 2017, arXiv
    1612.00796): F is the sum over tasks before of the diagonal Fisher information, of `samples` examples each, one
    example at a time; the anchor is the last model, as in the online form (Schwarz et al. 2018, arXiv 1805.06370)."""

    strength: float = 1e4
    samples: int = 256

    def check(self) -> None:
        finite("strength", self.strength)
        at_least("strength", self.strength, 0)
        at_least("samples", self.samples, 1)


@dataclass(frozen=True)
class Gem:
    """Fine-tuned with gradients that make no task before worse (Lopez-Paz and Ranzato 2017, arXiv 1706.08840).

    gamma: see `gem.project`. memory: examples of each task that are kept. batch: so many of them, drawn anew, give
    the task's gradient at a step; 0: all, as in the paper.
    """

    gamma: float = 0.5
    memory: int = 256
    batch: int = 32

    def check(self) -> None:
        finite("gamma", self.gamma)
        at_least("gamma", self.gamma, 0)
        at_least("memory", self.memory, 1)
        at_least("batch", self.batch, 0)


@dataclass(frozen=True)
class Ema:
    """The model before, alpha of the way to the expert: a constant alpha, 0 keeps the model, 1 takes the expert."""

    alpha: float = 0.7

    def check(self) -> None:
        share("alpha", self.alpha)


@dataclass(frozen=True)
class Joint:
    """Trained from the base on the examples of all tasks at once: an upper bound that keeps all data."""

    def check(self) -> None:
        return None


Own = Sequential | Ewc | Gem | Ema | Joint
OWN: dict[str, type[Own]] = {
    "sequential": Sequential,
    "ewc": Ewc,
    "gem": Gem,
    "ema": Ema,
    "joint": Joint,
}

METHODS = (
    "sequential", "ewc", "gem", "ema", "average", "task_arithmetic", "ties", "magmax", "model_stock", "opcm", "ode_m",
    "trm", "trm res=0", "trm pre=0", "trm beta_most=0", "joint",
)  # fmt: skip

GRIDS: dict[str, tuple[str, tuple[float, ...]]] = {
    "ewc": ("strength", (1e4, 1e2, 1e6, 1e3, 1e5)),
    "gem": ("gamma", (0.5, 0.0, 1.0, 0.25, 2.0)),
    "ema": ("alpha", (0.7, 0.5, 0.9, 0.6, 0.8)),
    "trm": ("pre", (1.0, 0.1, 10.0, 0.3, 3.0)),
}
"""Main options and values of them, the most important first, where `grids` has others or none."""


@dataclass(frozen=True)
class Entrant:
    """One of them with some of its options, as the command line names it. given: as text."""

    label: str
    name: str
    given: dict[str, Any]

    def made(self, **more: Any) -> Own | Method:
        """With its options and `more`, checked."""
        return made(self.name, {**self.given, **more})

    def words(self, **more: Any) -> dict[str, Any]:
        """All its options, as plain values."""
        found = self.made(**more)
        return found.options() if isinstance(found, Method) else asdict(found)

    def grid(self, budget: int) -> tuple[str | None, list[Any]]:
        """The main option and at most `budget` values of it, rising; (None, []) where there is none, or where it was
        named."""
        if self.name not in GRIDS:
            option, values = (
                (None, []) if self.name in OWN else method_grid(self.name, type(self._method()), budget)
            )
        else:
            option, every = GRIDS[self.name]
            values = sorted(every[:budget]) if budget > 1 else []
        return (None, []) if option in self.given or not values else (option, values)

    def _method(self) -> Method:
        found = self.made()
        assert isinstance(found, Method)
        return found


def made(name: str, options: dict[str, Any]) -> Own | Method:
    """An entrant's rule. UsageError for unknown options or values out of range."""
    if name not in OWN:
        return make(name, options)
    found: Own = fill(OWN[name], name, options)
    found.check()
    return found


_WANTED = {"moments": "second moments of the inputs", "fisher": "Fisher information"}


def parse(text: str) -> Entrant:
    """`NAME KEY=VALUE …`: one of OWN, or a method. UsageError for one that needs what is not handed to it here."""
    name, *words = text.split() or [""]
    if name in OWN:
        known = {field.name for field in fields(OWN[name])}
        given = dict(sorted(word.partition("=")[::2] for word in words))
        wrong = [word for word in words if "=" not in word or word.partition("=")[0] not in known]
        if wrong:
            raise UsageError(
                f"{wrong[0]!r} in {text!r} is no option; {name} has {', '.join(sorted(known)) or 'none'}, "
                "as KEY=VALUE"
            )
        entrant = Entrant(" ".join([name, *(f"{k}={v}" for k, v in given.items())]), name, given)
        entrant.made()
        return entrant
    spec = parse_method(text)
    method = spec.made()
    if fit_of_method(method) is not None:
        raise UsageError(
            f"method {spec.label} is fitted on examples of all tasks, which this setting does not keep; leave it out"
        )
    if isinstance(method, TensorMethod) and method.wants:
        raise UsageError(
            f"method {spec.label} wants {_WANTED[method.wants]} of each task, which this setting does not compute; "
            "leave it out"
        )
    return Entrant(spec.label, spec.name, spec.given)
