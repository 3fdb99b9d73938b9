"""What is added up while networks run: tensors by name, and the work that was done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from time import monotonic

from plait.problem.base import Weights
from plait.tensors import Tensor, torch


@dataclass
class Work:
    """What was computed: how often, over how many examples in all, and in how many seconds. It is for reports and
    receipts; seconds differ from run to run and belong in nothing that must be equal."""

    losses: int = 0
    gradients: int = 0
    products: int = 0  # Hessian-vector products
    fishers: int = 0
    probes: int = 0
    samples: int = 0
    seconds: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def __sub__(self, other: Work) -> Work:
        return Work(**{f.name: getattr(self, f.name) - getattr(other, f.name) for f in fields(self)})

    @contextmanager
    def doing(self, what: str, samples: int) -> Iterator[None]:
        """Count one `what` over `samples` examples, with the time that the block takes."""
        start = monotonic()
        yield
        setattr(self, what, getattr(self, what) + 1)
        self.samples += samples
        self.seconds += monotonic() - start


class Totals:
    """Sums of tensors by name, in fp64."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}

    def add(self, chosen: Iterable[str], addends: Mapping[str, Tensor]) -> None:
        """Add what there is; a name without an addend has nothing added."""
        for name in chosen:
            if name not in addends:
                continue
            addend = addends[name]
            if name in self._sums:
                self._sums[name] += addend
            else:
                self._sums[name] = addend.to(torch.float64, copy=True)

    def over(self, count: int, like: Weights) -> dict[str, Tensor]:
        """The sums divided by `count`, in the shape, on the device and in the dtype of `like` (at least fp32).
        Empties the sums."""
        made = {}
        for name, weight in like.items():
            dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
            total = self._sums.pop(name, None)
            if total is None:
                made[name] = torch.zeros(weight.shape, dtype=dtype, device=weight.device)
            else:
                made[name] = (total / count).to(device=weight.device, dtype=dtype)
        return made


def zeros_like(weights: Weights) -> dict[str, Tensor]:
    """Zeros in the shapes and on the devices of `weights`, fp64 where these are, else fp32. A derivative can be added
    to them whatever mode of torch the caller is in."""

    def zeros(weight: Tensor) -> Tensor:
        dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
        return torch.zeros(weight.shape, dtype=dtype, device=weight.device)

    with torch.inference_mode(False):
        return {name: zeros(weight) for name, weight in weights.items()}
