"""Which tensors are matrices, told from their names and axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

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

    def matrix(self, shape: Sequence[int], name: str) -> tuple[int, int] | None:
        """The shape of the matrix that a tensor is; None for a look-up table and for what is no matrix.

        With `convolutions` a kernel (out, in, height, width) is the matrix (out, in * height * width), by which a 2-D
        convolution multiplies each patch of its input. One with a single input channel is none: in a depthwise
        convolution, which has such kernels, every row sees another input. A kernel is no look-up table unless
        `tables` was chosen: the default also finds the convolution that embeds the patches of an image.
        """
        if len(shape) == 2:
            return None if finds(self.tables, name) else (shape[0], shape[1])
        if not self.convolutions or len(shape) != 4 or shape[1] < 2:
            return None
        named = self.tables != TABLES and finds(self.tables, name)
        return None if named else (shape[0], shape[1] * shape[2] * shape[3])

    def idle(self, shapes: Mapping[str, Sequence[int]]) -> list[str]:
        able = replace(self, convolutions=True)
        kernels = [name for name, s in shapes.items() if len(s) == 4 and 0 not in s and able.matrix(s, name)]
        if self.convolutions:
            return [] if kernels else ["convolutions: there is no kernel that is merged as a matrix"]
        if not kernels:
            return []
        return [
            f"kernels of convolutions that are not merged as matrices: {len(kernels)}; convolutions=true does so"
        ]

    def grain(self, shape: tuple[int, ...], name: str = "") -> Grain:
        return "matrix" if self.matrix(shape, name) else super().grain(shape, name)
