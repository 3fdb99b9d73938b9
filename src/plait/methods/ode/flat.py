"""All weights of a model in one flat buffer, with a view for each tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import fsum

from plait.methods.groups import group_of
from plait.tensors import Tensor, torch

BLOCK = 1 << 18
"""Elements that are worked on at a time: what several passes over a block need stays near the processor."""


@dataclass(frozen=True)
class Products:
    """Inner products in one group of tensors, in fp64, of d = target - theta and a gradient g."""

    across: float  # <d, g>
    gradient: float  # <g, g>
    away: float  # <d, d>


class Layout:
    """Where each tensor lies in a flat buffer: by group, then by name, so that nothing depends on a mapping's order.

    like: weights, fp32 or fp64. Buffers are fp64 where one of them is, else fp32, on their device.
    """

    def __init__(self, like: Mapping[str, Tensor], granularity: str = "model") -> None:
        order = sorted(like, key=lambda name: (group_of(name, granularity), name))
        self.groups = tuple(dict.fromkeys(group_of(name, granularity) for name in order))
        self.dtypes = {name: like[name].dtype for name in order}
        self.shapes = {name: like[name].shape for name in order}
        self.dtype = torch.float64 if torch.float64 in self.dtypes.values() else torch.float32
        self.device = next((tensor.device for tensor in like.values()), torch.device("cpu"))
        self.spans: dict[str, slice] = {}
        ends: dict[str, list[int]] = {group: [] for group in self.groups}
        first = 0
        for name in order:
            self.spans[name] = slice(first, first + like[name].numel())
            first += like[name].numel()
            ends[group_of(name, granularity)] += [self.spans[name].start, first]
        self.size = first
        bounds = [(min(found), max(found)) for found in ends.values()]
        self._blocks = tuple(
            (number, slice(at, min(at + BLOCK, stop)))
            for number, (start, stop) in enumerate(bounds)
            for at in range(start, stop, BLOCK)
        )
        self._scratch = torch.empty(min(BLOCK, self.size), dtype=self.dtype, device=self.device)

    # buffers
    def empty(self) -> Tensor:
        """A new buffer, with any values."""
        return torch.empty(self.size, dtype=self.dtype, device=self.device)

    def flat(self, weights: Mapping[str, Tensor]) -> Tensor:
        """A new buffer that holds `weights`."""
        return self.fill(self.empty(), weights)

    def fill(self, flat: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        for name, view in self.views(flat).items():
            view.copy_(weights[name])
        return flat

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The tensors in a buffer, by name. Writing into the buffer writes into them."""
        return {name: flat[span].view(self.shapes[name]) for name, span in self.spans.items()}

    def weights(self, flat: Tensor) -> dict[str, Tensor]:
        """The tensors in a buffer in the dtypes that they came in; views where these are the buffer's."""
        return {name: view.to(self.dtypes[name]) for name, view in self.views(flat).items()}

    # passes
    def differences(self, target: Tensor, at: Tensor) -> Iterator[tuple[int, slice, Tensor]]:
        """Block by block: the number of its group, its place, and target - at, which the next block overwrites."""
        for group, block in self._blocks:
            there = target[block]
            yield group, block, torch.sub(there, at[block], out=self._scratch[: len(there)])

    def products(self, target: Tensor, at: Tensor, gradient: Tensor) -> list[Products]:
        """Inner products of target - at and the gradient, by group, summed over blocks in fp64."""
        rows, owners = [], []
        for group, block, away in self.differences(target, at):
            slope = gradient[block]
            rows += [torch.dot(away, slope), torch.dot(slope, slope), torch.dot(away, away)]
            owners.append(group)
        values = torch.stack(rows).double().tolist() if rows else []
        found: list[tuple[list[float], ...]] = [([], [], []) for _ in self.groups]
        for i, group in enumerate(owners):
            for kind in range(3):
                found[group][kind].append(values[3 * i + kind])
        return [Products(*(fsum(_plain(terms)) for terms in kinds)) for kinds in found]

    def dot(self, one: Tensor, other: Tensor) -> float:
        """<one, other> of two buffers, summed over blocks in fp64."""
        terms = [torch.dot(one[block], other[block]) for _, block in self._blocks]
        return fsum(_plain(torch.stack(terms).double().tolist())) if terms else 0.0


def _plain(terms: list[float]) -> list[float]:
    """fsum raises where infinities of both signs meet; NaN says the same."""
    return terms if all(term - term == 0 for term in terms) else [float("nan")]
