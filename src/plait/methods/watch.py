"""What may look on while a member is taken in: for progress, for points on the way, and to go on after a stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from plait.methods.base import Known
from plait.tensors import Tensor

NEAR = 1e-9
"""Two places on a path that are no further apart are one."""


class Watch(Protocol):
    """Looks on while one member is taken in, by a `ModelMethod.step` that has an argument `watch`."""

    def kept(self) -> tuple[Known, Mapping[str, Tensor]] | None:
        """What `keep` was last called with by an interrupted run of the same step, with the same options, members and
        examples; None: begin anew. The tensors may come back on any device."""

    def due(self) -> bool:
        """Whether `keep` is to be called now. Asked where a step could go on from."""

    def keep(self, note: Known, weights: Mapping[str, Tensor]) -> None:
        """All that is needed to go on from here: a note that survives JSON, and tensors, of any names. They are
        overwritten after the call."""

    def tell(self, done: int, steps: int, loss: float) -> None:
        """`done` of `steps` are made, and this was the mean loss before the last of them."""

    def wanted(self, t: float, after: float) -> Sequence[float]:
        """Places of a path that `point` is to be called with, in ascending order: those after `t`, as far as `after`
        (see `between`)."""

    def point(self, t: float, weights: Mapping[str, Tensor]) -> None:
        """The path's point at `t`: all merged tensors. They are overwritten after the call."""


class Blind:
    """Looks at nothing."""

    def kept(self) -> tuple[Known, Mapping[str, Tensor]] | None:
        return None

    def due(self) -> bool:
        return False

    def keep(self, note: Known, weights: Mapping[str, Tensor]) -> None:
        pass

    def tell(self, done: int, steps: int, loss: float) -> None:
        pass

    def wanted(self, t: float, after: float) -> Sequence[float]:
        return ()

    def point(self, t: float, weights: Mapping[str, Tensor]) -> None:
        pass


class Counted:
    """A watch whose notes tell of the work on examples too: a step that went on after a stop tells of all of it.

    now: the work of this run so far, by name.
    """

    def __init__(self, watch: Watch | None, now: Callable[[], Mapping[str, float]]) -> None:
        self._watch: Watch = watch or Blind()
        self._now = now
        self._held = self._watch.kept()
        self._before: Mapping[str, float] = self._held[0]["work"] if self._held is not None else {}
        self.due, self.tell = self._watch.due, self._watch.tell
        self.wanted, self.point = self._watch.wanted, self._watch.point

    def work(self) -> dict[str, float]:
        """The work of all runs, without seconds, and without what was not done."""
        found = {name: done + self._before.get(name, 0) for name, done in self._now().items()}
        return {name: done for name, done in found.items() if name != "seconds" and done}

    def kept(self) -> tuple[Known, Mapping[str, Tensor]] | None:
        held, self._held = self._held, None  # the tensors are let go of once they are taken up
        if held is None:
            return None
        return {key: value for key, value in held[0].items() if key != "work"}, held[1]

    def keep(self, note: Known, weights: Mapping[str, Tensor]) -> None:
        self._watch.keep({**note, "work": self.work()}, weights)


def between(places: Sequence[float], t: float, after: float) -> list[float]:
    """Those of the places that lie after t, as far as `after`, in ascending order."""
    return sorted(place for place in set(places) if t + NEAR < place <= after + NEAR)
