"""Numbers, digests and times in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NOTHING = "–"


def short(digest: object) -> str:
    """The first 12 characters of a digest."""
    text = str(digest) if digest else NOTHING
    return text if text.startswith("checkpoint of") else text[:12]


def safe(text: object) -> str:
    """The text with everything that a terminal or a page would obey (control and direction characters) escaped."""
    word = str(text)
    if word.isprintable():
        return word
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in word)


def size(count: float | None) -> str:
    """Bytes in words of at most four digits: 999 B, 1.0 kB, 12.3 GB."""
    if count is None:
        return NOTHING
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 999.95:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def seconds(value: float | None) -> str:
    """0.35 s, 12.3 s, 4 min 05 s, 3 h 10 min."""
    if value is None:
        return NOTHING
    if value < 99.95:
        return f"{value:.2f} s" if value < 9.995 else f"{value:.1f} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def time(text: object) -> str:
    """2026-01-31T12:00:00.000Z as 2026-01-31 12:00:00 UTC."""
    words = str(text)
    return f"{words[:10]} {words[11:19]} UTC" if words.endswith("Z") and "T" in words else words


def percent(share: float | None, digits: int = 1) -> str:
    """A share as per cent, without the sign of it."""
    return NOTHING if share is None else f"{100 * share:.{digits}f}"


def points(share: float | None) -> str:
    """A difference of shares in percentage points, with its sign: +1.2, −0.3, 0.0."""
    if share is None:
        return NOTHING
    text = f"{100 * share:+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", "−")


def interval(cell: Mapping[str, Any] | None) -> str:
    """A measurement with its interval: 87.3 (84.1–90.2)."""
    if cell is None:
        return "not evaluated"
    return f"{percent(cell['value'])} ({percent(cell['low'])}–{percent(cell['high'])})"


def plural(count: int, word: str, more: str = "") -> str:
    """1 member, 2 members; `more`: the plural, where it is not an s."""
    return f"{count} {word if count == 1 else more or word + 's'}"


def ranges(numbers: Sequence[int]) -> str:
    """Rising whole numbers as 0, 2–5, 9."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs)


def figure(value: object, digits: int = 3) -> str:
    """A number to so many significant digits."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return NOTHING if value is None else str(value)
    return f"{value:.{digits}g}".replace("-", "−")


def weight(value: float | str) -> str:
    """A weight as short as it can be without losing anything: 1.0 is 1. Rules are text already."""
    if isinstance(value, str):
        return value
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else str(value)


def options(chosen: Mapping[str, Any]) -> str:
    """Options of a method on one line: `scale 0.3, trim tensor`."""
    return ", ".join(f"{key} {_option(value)}" for key, value in chosen.items() if value is not None)


def _option(value: Any) -> str:
    if isinstance(value, Mapping):
        inner = options({k: v for k, v in value.items() if k != "name"})
        return f"{value.get('name', '')} ({inner})" if inner else str(value.get("name", ""))
    if isinstance(value, bool):
        return str(value).lower()
    return weight(value) if isinstance(value, (int, float)) else str(value)
