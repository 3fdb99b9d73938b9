"""Adam on the coordinates of a mix, kept between bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from plait.methods.base import Known
from plait.methods.trm_parts.mix import Mix
from plait.methods.trm_parts.terms import Terms
from plait.methods.watch import Blind, Watch
from plait.tensors import Tensor, torch

FIRST, SECOND, TINY = 0.9, 0.999, 1e-8


@dataclass
class Descent:
    """`steps` steps of Adam (Kingma & Ba 2015) of size `rate` on alpha and beta, (2, G) fp64; after each, both are
    put back between their bounds.

    One gradient by weights gives every derivative: by alpha_g it is <gradient, expert - old>, by beta_g
    <gradient, P>, over the tensors of group g.

    batch: number of the step, from 1 on -> the objective that it sees. bounds: least and most of alpha and of beta.
    normalise: whether ||gradient||^2 is divided by its value in the first step.
    """

    mix: Mix
    terms: Terms
    batch: Callable[[int], Any]
    steps: int
    rate: float
    bounds: tuple[tuple[float, float], tuple[float, float]]
    normalise: bool

    def follow(self, x: Tensor, watch: Watch | None = None) -> tuple[Tensor, Known]:
        """The last coordinates, and the trace: the `terms` of every step, before it, on the step's examples; of
        `alpha` and `beta` the least, mean and most over groups before every step and at the end."""
        watch = watch or Blind()
        low, high = torch.tensor(self.bounds, dtype=torch.float64).T[:, :, None]
        kept = watch.kept()
        note: Known = (
            {"trace": _begun(), "scale": None if self.normalise else 1.0} if kept is None else kept[0]
        )
        x = x.clamp(low, high) if kept is None else _tensor(note["x"])
        first, second = (
            torch.zeros_like(x) if kept is None else _tensor(note[key]) for key in ("first", "second")
        )
        trace = note["trace"]
        for number in range(len(trace["terms"]["align"]) + 1, self.steps + 1):
            _look(trace, x)
            weights = self.mix.at(x)
            found, slopes = self.terms.at(self.batch(number), weights, note["scale"], f"in step {number}")
            del weights
            note["scale"] = found.scale
            for word in trace["terms"]:
                trace["terms"][word].append(getattr(found, word))
            slope = self.mix.slope(slopes)
            del slopes
            first = FIRST * first + (1 - FIRST) * slope
            second = SECOND * second + (1 - SECOND) * slope * slope
            length = (second / (1 - SECOND**number)).sqrt() + TINY
            x = (x - self.rate * (first / (1 - FIRST**number)) / length).clamp(low, high)
            watch.tell(number, self.steps, found.total)
            if watch.due():
                made = {"x": x.tolist(), "first": first.tolist(), "second": second.tolist()}
                watch.keep({**note, **made}, {})
        _look(trace, x)
        return x, {**trace, "scale": note["scale"]}


def _begun() -> Known:
    spread: dict[str, list[float]]
    known: Known = {"terms": {"align": [], "pre": [], "res": []}}
    for word in ("alpha", "beta"):
        spread = {"least": [], "mean": [], "most": []}
        known[word] = spread
    return known


def _look(trace: Known, x: Tensor) -> None:
    for word, row in zip(("alpha", "beta"), x, strict=True):
        for key, value in (("least", row.min()), ("mean", row.mean()), ("most", row.max())):
            trace[word][key].append(float(value))


def _tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
