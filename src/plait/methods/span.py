"""Models that are a base plus a combination of directions, and what a loss says about the combination."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from plait.tensors import Tensor, torch

Weights = Mapping[str, Tensor]


@dataclass
class Span:
    """The models base + sum_j c[g, j] D_j with c[g] = x[g] turn[g] in each group g of tensors.

    base: the mergeable tensors, fp32 or fp64. directions: D_j by tensor, of the base's shapes and dtypes; a tensor
    that is missing is 0. groups: tensor -> group. turns: group -> (P, N) fp64 for N directions, so that coordinate p
    moves along sum_j turn[p, j] D_j; a group that is missing has the identity.

    Coordinates are (G, P) fp64, a row for each of `names`.
    """

    base: Weights
    directions: Sequence[Weights]
    groups: Mapping[str, str]
    turns: Mapping[str, Tensor] = field(default_factory=dict)
    names: tuple[str, ...] = field(init=False)
    width: int = field(init=False)

    def __post_init__(self) -> None:
        self.names = tuple(dict.fromkeys(self.groups[name] for name in self.base))
        self._row = {group: number for number, group in enumerate(self.names)}
        count = len(self.directions)
        self.turns = {g: self.turns.get(g, torch.eye(count, dtype=torch.float64)) for g in self.names}
        self.width = max((len(turn) for turn in self.turns.values()), default=count)

    def coefficients(self, x: Tensor) -> Tensor:
        """(G, N) fp64: c of every group."""
        return torch.stack([x[self._row[g]] @ self.turns[g] for g in self.names])

    def at(self, x: Tensor) -> dict[str, Tensor]:
        """The model at coordinates `x`, in the base's dtypes."""
        c = self.coefficients(x)
        made = {}
        for name, start in self.base.items():
            row = c[self._row[self.groups[name]]].tolist()
            out = start
            for factor, direction in zip(row, self.directions, strict=True):
                if name not in direction or not factor:
                    continue
                if out is start:
                    out = torch.add(start, direction[name], alpha=factor)
                else:
                    out.add_(direction[name], alpha=factor)
            made[name] = out
        return made

    def slope(self, gradient: Weights) -> Tensor:
        """(G, P) fp64: the derivative of a loss by every coordinate, from its gradient by tensor."""
        flat = torch.zeros(len(self.names), len(self.directions), dtype=torch.float64)
        for name, values in gradient.items():
            if name not in self.base:
                continue
            row = flat[self._row[self.groups[name]]]
            for j, direction in enumerate(self.directions):
                if name in direction:
                    row[j] += (values * direction[name]).sum(dtype=torch.float64)
        return self._back(flat)

    def form(self, diagonal: Weights) -> Tensor:
        """(G, N, N) fp64: sum_p F_p D_ip D_jp over the tensors of each group, for F by tensor: the matrix of the
        quadratic form sum_p F_p (shift_p)^2 in coefficients."""
        count = len(self.directions)
        found = torch.zeros(len(self.names), count, count, dtype=torch.float64)
        for name, weight in diagonal.items():
            if name not in self.base:
                continue
            here = [j for j, direction in enumerate(self.directions) if name in direction]
            if not here:
                continue
            rows = torch.stack([self.directions[j][name].flatten().double() for j in here])
            index = torch.tensor(here)
            found[self._row[self.groups[name]], index[:, None], index] += (
                rows * weight.flatten().double()
            ) @ rows.T
        return found

    def _back(self, flat: Tensor) -> Tensor:
        """Derivatives by coefficients as derivatives by coordinates."""
        rows = [self.turns[g] @ flat[self._row[g]] for g in self.names]
        return torch.stack(rows) if rows else flat

    def quadratic(self, form: Tensor, apart: Tensor) -> tuple[float, Tensor]:
        """(1/2) sum_g d[g]^T form[g] d[g] for coefficients `apart` d, (G, N), and its derivative by coordinates."""
        pulled = torch.einsum("gij,gj->gi", form, apart)
        return float((apart * pulled).sum() / 2), self._back(pulled)
