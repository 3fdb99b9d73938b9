"""Tells a human how far a plan is: one line that is rewritten on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Protocol, TextIO

EVERY = 0.2
"""Seconds between two drawings on a terminal."""

LINE_EVERY = 10.0
"""Seconds between two plain lines."""


class Gauge(Protocol):
    """What the engine calls. All calls come from the thread that called the engine."""

    def begin(self, label: str, total: int) -> None:
        """A pass over `total` bytes starts."""

    def advance(self, count: int) -> None:
        """`count` more bytes are through."""

    def step(self, label: str, done: int, total: int, words: str) -> None:
        """`done` of `total` steps are made; words: how it goes. In the place of `begin` and `advance`."""

    def end(self) -> None:
        """The pass or the steps are over, or were given up."""


class Silent:
    """No progress: for `--quiet`, `--json` and libraries."""

    def begin(self, label: str, total: int) -> None:
        pass

    def advance(self, count: int) -> None:
        pass

    def step(self, label: str, done: int, total: int, words: str) -> None:
        pass

    def end(self) -> None:
        pass


class Progress:
    """Bytes or steps, speed and time left, on `stream`. On a terminal one line is drawn again and again and wiped at
    the end; elsewhere a plain line comes every ten seconds, so that short merges say nothing in a log."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()
        self._label, self._total, self._count = "", 0, 0
        self._start = self._last = 0.0
        self._first: int | None = None
        self._drawn = False

    def begin(self, label: str, total: int) -> None:
        self._label, self._total, self._count = label, total, 0
        self._start = self._last = time.monotonic()

    def advance(self, count: int) -> None:
        self._count += count
        now = time.monotonic()
        if self._is_time(now):
            self._show(self.text(now - self._start))

    def step(self, label: str, done: int, total: int, words: str) -> None:
        now = time.monotonic()
        if self._first is None:  # a step can take long: a terminal is told of the first at once
            self._last = now - (EVERY if self._terminal else 0.0)
        if self._first is None or done < self._count:
            self._first, self._start = done, now  # how long it took is not known
        self._count = done
        if self._is_time(now):
            made = done - self._first
            left = f"  {clock((now - self._start) / made * (total - done))} left" if made else ""
            self._show(f"{label}  {done} of {total} steps  {words}{left}")

    def _is_time(self, now: float) -> bool:
        if now - self._last < (EVERY if self._terminal else LINE_EVERY):
            return False
        self._last = now
        return True

    def _show(self, text: str) -> None:
        self._stream.write(f"\r\x1b[K{text}" if self._terminal else f"{text}\n")
        self._stream.flush()
        self._drawn = True

    def end(self) -> None:
        if self._terminal and self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
        self._first, self._drawn = None, False

    def text(self, seconds: float) -> str:
        """The line after `seconds` of work."""
        speed = self._count / seconds if seconds > 0 else 0.0
        share = self._count / self._total if self._total else 1.0
        left = (self._total - self._count) / speed if speed > 0 else 0.0
        return (
            f"{self._label} {min(share, 1.0):4.0%}  {size(self._count)} of {size(self._total)}  "
            f"{size(int(speed))}/s  {clock(max(left, 0.0))} left"
        )


def size(count: int) -> str:
    """A number of bytes for people: 3 significant digits, decimal units."""
    value, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            break
        value /= 1000
    return f"{count} B" if unit == "B" else f"{value:.3g} {unit}"


def clock(seconds: float) -> str:
    """A time for people: 7s, 3m05s, 2h10m."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
