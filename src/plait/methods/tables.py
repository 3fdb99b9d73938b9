"""Names of look-up tables, and options that are regular expressions."""

from __future__ import annotations

import re

from plait.errors import UsageError
from plait.methods.ranges import text

TABLES = r"embed|(^|[._])(wte|wpe|shared)\.weight$|relative_attention_bias"
"""Finds the names of look-up tables in the models of transformers."""


def pattern(name: str, value: str) -> None:
    """Raise UsageError unless option `name` is a regular expression."""
    text(name, value)
    try:
        re.compile(value)
    except re.error as problem:
        raise UsageError(f"{name} is {value!r}, expected a regular expression: {problem}") from None


def finds(value: str, name: str) -> bool:
    """Whether the regular expression finds something in a tensor's name; the empty one finds nothing."""
    return bool(value) and re.search(value, name) is not None
