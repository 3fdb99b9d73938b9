"""Every error that plait raises on purpose. The exit code of the command line belongs to the class.

A message is one line: what was found, what was expected, what to do.
"""

from __future__ import annotations

from typing import Any


class PlaitError(Exception):
    """Something failed that is neither the caller's words nor the caller's files (exit code 1)."""

    exit_code = 1


class UsageError(PlaitError):
    """The command, option or argument makes no sense (exit code 2)."""

    exit_code = 2


class VerificationError(PlaitError):
    """Bytes on disk are not the bytes that were recorded (exit code 3)."""

    exit_code = 3


class LockedError(PlaitError):
    """Another process holds the line (exit code 4)."""

    exit_code = 4


class RefusedInput(PlaitError):
    """An input was checked and cannot be used (exit code 5). Nothing was changed."""

    exit_code = 5


class FormatError(RefusedInput):
    """A checkpoint file or folder is broken, hostile or of a kind that is not read."""


class KeyMismatch(RefusedInput):
    """The tensors of an expert do not fit those of the base. `problems`: one line for every offending tensor."""

    def __init__(self, message: str, problems: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems


class NonFinite(RefusedInput):
    """A tensor holds NaN or infinity."""


class NotRemovable(RefusedInput):
    """The line cannot take this member out; the message says why and what is possible."""


def shown(value: Any, limit: int = 60) -> str:
    """A value for a message, cut where it is long or deep (aliases can make it endless)."""
    from reprlib import Repr

    brief = Repr()
    brief.maxlevel, brief.maxstring, brief.maxother = 3, limit, limit
    text = brief.repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
