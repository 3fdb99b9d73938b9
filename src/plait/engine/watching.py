"""What the engine does while a method takes a member in: progress, points of a path, and notes to go on from."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any, Protocol

from plait.engine import weights as files
from plait.engine.desk import Desk
from plait.engine.progress import Gauge, Silent
from plait.engine.steps import Inside
from plait.methods.base import Known
from plait.tensors import Tensor
from plait.types import TensorRef

SECONDS = 20.0
"""Between two notes, at least: what a stop may cost."""

TIMES = 20.0
"""How much longer than writing one takes, at least: a twentieth of the time is spent on notes at most."""


class Points(Protocol):
    """Models that are written on the way, in the base's dtypes."""

    def wanted(self, t: float, after: float) -> Sequence[float]:
        """See `methods.watch.Watch`."""

    def begin(self, t: float) -> Mapping[str, TensorRef]:
        """Files for the point at t; where each merged tensor goes."""

    def finish(self, t: float) -> None:
        """The tensors are written."""


class Watching:
    """Looks on while `task` is taken in (see `methods.watch.Watch`). Calls come from the thread of the step."""

    def __init__(
        self,
        task: str,
        desk: Desk,
        inside: Inside | None = None,
        points: Points | None = None,
        gauge: Gauge | None = None,
    ) -> None:
        self._task, self._desk, self._inside, self._points = task, desk, inside, points
        self._gauge: Gauge = gauge if gauge is not None else Silent()
        self._last = time.monotonic()
        self._pause = SECONDS

    def kept(self) -> tuple[Known, Mapping[str, Tensor]] | None:
        if self._inside is None or self._inside.found is None:
            return None
        folder, note = self._inside.found
        return note, files.load(folder, self._desk)

    def due(self) -> bool:
        return self._inside is not None and time.monotonic() - self._last >= self._pause

    def keep(self, note: Known, weights: Mapping[str, Tensor]) -> None:
        if self._inside is None:
            return
        began = time.monotonic()
        folder = self._inside.place()
        files.save(folder, self._desk, weights)
        self._inside.keep(folder, note)
        self._last = time.monotonic()
        self._pause = max(SECONDS, TIMES * (self._last - began))

    def tell(self, done: int, steps: int, loss: float) -> None:
        self._gauge.step(self._task, done, steps, f"loss {loss:.4g}")

    def wanted(self, t: float, after: float) -> Sequence[float]:
        return () if self._points is None else self._points.wanted(t, after)

    def point(self, t: float, weights: Mapping[str, Tensor]) -> None:
        if self._points is None:
            return
        for name, place in self._points.begin(t).items():
            files.write(self._desk, place, weights[name])
        self._desk.close()  # the files get other names, and the next point's will have these
        self._points.finish(t)


def takes_watch(call: Callable[..., Any]) -> bool:
    """Whether a `step` or a `finish` lets somebody look on."""
    return "watch" in signature(call).parameters
