"""Checks of options: each raises a UsageError that says what was found and what is expected."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from plait.errors import UsageError


def number(name: str, value: Any) -> None:
    """Raise UsageError unless `value` is an int or a float; a truth value is neither."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UsageError(f"{name} is {value!r}, expected a number")


def truth(name: str, value: Any) -> None:
    """Raise UsageError unless `value` is True or False."""
    if not isinstance(value, bool):
        raise UsageError(f"{name} is {value!r}, expected true or false")


def text(name: str, value: Any) -> None:
    """Raise UsageError unless `value` is a str."""
    if not isinstance(value, str):
        raise UsageError(f"{name} is {value!r}, expected text")


def share(name: str, value: float) -> None:
    """Raise UsageError unless `value` lies between 0 and 1."""
    number(name, value)
    if not 0 <= value <= 1:
        raise UsageError(f"{name} is {value}, expected a number from 0 to 1")


def finite(name: str, value: float) -> None:
    """Raise UsageError where `value` is NaN or infinite."""
    number(name, value)
    if not isfinite(value):
        raise UsageError(f"{name} is {value}, expected a finite number")


def at_least(name: str, value: float, least: float) -> None:
    """Raise UsageError unless `value` is a number not below `least`."""
    number(name, value)
    if not value >= least:
        raise UsageError(f"{name} is {value}, expected {least} or more")


def choice(name: str, value: Any, words: Sequence[str]) -> None:
    """Raise UsageError unless `value` is one of `words`."""
    if value not in words:
        raise UsageError(f"{name} is {value!r}, expected one of: {', '.join(words)}")
