"""Which option of a method is chosen on validation examples, and from which values: the same budget for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from plait.methods.base import Method

BUDGET = 5

GRIDS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "task_arithmetic": ("scale", (0.3, 0.5, 0.7, 1.0, 0.2, 0.4, 0.1)),
    "mdm_oc": ("alpha", (0.3, 0.5, 0.7, 1.0, 0.2, 0.4, 0.1)),
    "covariance": ("scale", (1.0, 1.3, 0.7, 1.15, 1.6, 0.5, 2.0)),
    "ties": ("scale", (1.0, 2.0, 1.5, 3.0, 0.7, 0.4, 4.0)),
    "magmax": ("scale", (0.5, 1.0, 1.5, 2.0, 0.7, 0.3, 3.0)),
    "tsv_m": ("scale", (1.0, 0.7, 1.3, 0.5, 1.6, 0.3, 2.0)),
    "iso_c": ("scale", (1.0, 1.3, 0.7, 1.6, 0.5, 2.0, 0.3)),
    "iso_cts": ("scale", (1.0, 1.3, 0.7, 1.6, 0.5, 2.0, 0.3)),
    "wudi": ("scale", (1.0, 0.7, 1.3, 0.5, 1.6, 0.3, 2.0)),
    "dop": ("alpha", (0.8, 0.5, 0.65, 0.9, 0.95, 0.3, 0.99)),
    "slerp": ("t", (0.5, 0.3, 0.7, 0.4, 0.6, 0.2, 0.8)),
    "nufilt": ("rank", (128, 64, 32, 16, 8, 4, 96)),
    "opcm": ("share", (0.5, 0.3, 0.7, 0.1, 0.9, 0.2, 0.8)),
}
"""Method -> its main option and values for it, the most important first: a budget of N tries the first N."""

OPTIONS: Mapping[str, tuple[float, ...]] = {
    "scale": (1.0, 0.5, 1.5, 0.7, 0.3, 2.0, 0.2),
    "ridge": (0.3, 0.1, 1.0, 0.03, 3.0, 0.01, 10.0),
    "share": (0.5, 0.3, 0.7, 0.1, 0.9, 0.2, 0.8),
    "density": (0.2, 0.5, 0.1, 0.8, 0.05, 0.3, 1.0),
}
"""Values for methods that are not named above, by option: the first of these that a method has is its main one."""


def grid(name: str, method: type[Method], budget: int) -> tuple[str | None, list[Any]]:
    """The main option of a method and at most `budget` values of it, rising; (None, []) where it has none.

    With a budget of 1 nothing is chosen: the default is taken.
    """
    known = {f.name: f.default for f in fields(method)}
    option, values = GRIDS.get(name) or next(
        ((option, values) for option, values in OPTIONS.items() if option in known), (None, ())
    )
    if option is None or budget < 2:
        return None, []
    default = known[option]
    others = [value for value in values if value != default]
    return option, sorted([default, *others][:budget])
