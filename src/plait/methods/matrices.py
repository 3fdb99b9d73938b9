"""Which tensors are matrices, told from their names and axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from plait.methods.base import Grain, TensorMethod
from plait.methods.ranges import truth
from plait.methods.tables import TABLES, finds, pattern


@dataclass(frozen=True, kw_only=True)
class OfMatrices(TensorMethod):
    """A method with a formula for matrices, which sees each of them whole."""

    tables: str = TABLES
    convolutions: bool = False

    def check(self) -> None:
        super().check()
        pattern("tables", self.tables)
        truth("convolutions", self.convolutions)

    def matrix(self, shape: tuple[int, ...], name: str) -> tuple[int, int] | None:
        """The shape of the matrix that a tensor is; None for a look-up table and for what is no matrix.

        With `convolutions` a kernel (out, in, height, width) is the matrix (out, in * height * width), by which a 2-D
        convolution multiplies each patch of its input. One with a single input channel is none: in a depthwise
        convolution, which has such kernels, every row sees another input.
        """
        if finds(self.tables, name):
            return None
        if len(shape) == 2:
            return shape[0], shape[1]
        if self.convolutions and _is_kernel(shape):
            return shape[0], prod(shape[1:])
        return None

    def idle(self, shapes: Mapping[str, Sequence[int]]) -> list[str]:
        kernels = [
            name for name, shape in shapes.items() if _is_kernel(shape) and not finds(self.tables, name)
        ]
        if kernels and not self.convolutions:
            return [
                f"{len(kernels)} kernels of convolutions are not merged as matrices; convolutions=true does so"
            ]
        if self.convolutions and not kernels:
            return ["convolutions: no tensor is a kernel of a convolution"]
        return []

    def grain(self, shape: tuple[int, ...], name: str = "") -> Grain:
        return "matrix" if self.matrix(shape, name) else super().grain(shape, name)


def _is_kernel(shape: Sequence[int]) -> bool:
    return len(shape) == 4 and shape[1] > 1
