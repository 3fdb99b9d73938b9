"""What may look on while a path is followed: for progress, for points of the path, and to go on after a stop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from plait.methods.base import Known
from plait.tensors import Tensor


class Watch(Protocol):
    """Looks on while one member is taken in.

    every: steps between two calls of `keep`; 0: it is not called.
    """

    every: int

    def kept(self) -> tuple[Known, Mapping[str, Tensor]] | None:
        """What `keep` was last called with by an interrupted run of the same step, with the same options, members and
        examples; None: begin anew. The tensors may come back on any device."""

    def keep(self, note: Known, weights: Mapping[str, Tensor]) -> None:
        """Here the path has come to: a note that survives JSON, and the weights. They are overwritten after the
        call."""

    def tell(self, done: int, steps: int, loss: float) -> None:
        """`done` of `steps` are made, and this was the mean loss before the last of them."""


class Blind:
    """Looks at nothing."""

    every = 0

    def kept(self) -> tuple[Known, Mapping[str, Tensor]] | None:
        return None

    def keep(self, note: Known, weights: Mapping[str, Tensor]) -> None:
        pass

    def tell(self, done: int, steps: int, loss: float) -> None:
        pass
