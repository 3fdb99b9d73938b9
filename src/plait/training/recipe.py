"""How an expert is trained: the numbers that, with base, task and versions of software, decide its bytes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from plait.errors import UsageError


@dataclass(frozen=True)
class Recipe:
    """AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101) with betas 0.9 and 0.999, epsilon 1e-8.

    epochs: how often every example is seen. rate: the highest learning rate; it goes up linearly over the first
    `warmup` of all steps (0: no warm-up; 1: up to the end), then down a cosine to 0. batch: examples a step.
    examples: the first so many of the task's train examples, whose order is random; 0 takes all. seed: of the order
    in which they are seen; nothing else is drawn. weight_decay: times the rate, the share of itself that a trained
    tensor loses at every step. train, freeze: shell patterns of tensor names: only those that match one of `train`
    (all, where there is none) and none of `freeze` are trained.

    Errors: UsageError for a value out of its range.
    """

    epochs: int = 3
    rate: float = 1e-4
    batch: int = 32
    warmup: float = 0.1
    examples: int = 1500
    seed: int = 0
    weight_decay: float = 0.0
    train: tuple[str, ...] = ()
    freeze: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, least, most in (
            ("epochs", 1, None),
            ("batch", 1, None),
            ("examples", 0, None),
            ("seed", 0, 2**63),
        ):
            value = getattr(self, name)
            if type(value) is not int or value < least or (most is not None and value >= most):
                limit = f"of at least {least}" if most is None else f"from {least} to below {most}"
                raise UsageError(f"{name} is {value!r}, expected a whole number {limit}")
        if not _number(self.rate) or self.rate <= 0:
            raise UsageError(f"rate is {self.rate!r}, expected a number above 0, such as 1e-4")
        if not _number(self.warmup) or not 0 <= self.warmup <= 1:
            raise UsageError(f"warmup is {self.warmup!r}, expected a share of the steps from 0 to 1")
        if not _number(self.weight_decay) or self.weight_decay < 0:
            raise UsageError(f"weight_decay is {self.weight_decay!r}, expected a number of at least 0")
        for name in ("train", "freeze"):
            patterns = getattr(self, name)
            if isinstance(patterns, str):  # one pattern, not its letters
                object.__setattr__(self, name, (patterns,))
            else:
                object.__setattr__(self, name, tuple(patterns))

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "train": list(self.train), "freeze": list(self.freeze)}


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
