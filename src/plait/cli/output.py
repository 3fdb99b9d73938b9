"""What a command answers, and how it is printed: aligned text for people, one JSON object for machines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from plait.cli.schema import SCHEMA
from plait.words import options, safe


@dataclass
class Answer:
    """The result of one command.

    result: what `--json` prints, cut to the keys of the command's schema.
    lines: the same for people. notice: the lines only tell what was done, so `--quiet` leaves them out.
    error: one line for stderr where the command worked but its finding is bad; `code` is then not 0.
    """

    result: dict[str, Any]
    lines: list[str] = field(default_factory=list)
    notice: bool = False
    code: int = 0
    error: str = ""


def one_line(text: object) -> str:
    """A message as one safe line: line breaks become blanks, other control characters are escaped."""
    return safe(" ".join(part.strip() for part in str(text).splitlines() if part.strip()))


def number(value: Any) -> str:
    """A number as short as it can be without losing anything: 1.0 is 1, 0.1 is 0.1."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return safe(value)


def short(digest: object) -> str:
    """The first 12 characters of a digest, `-` for none."""
    return safe(digest)[:12] if digest else "-"


def pairs(rows: Iterable[tuple[str, object]], indent: str = "  ") -> list[str]:
    """Labels and values in two columns; rows whose value is None or empty are left out."""
    kept = [(label, safe(value)) for label, value in rows if value is not None and value != ""]
    width = max((len(label) for label, _ in kept), default=0)
    return [f"{indent}{label:<{width}}  {value}" for label, value in kept]


def table(head: Sequence[str], rows: Iterable[Sequence[object]], indent: str = "") -> list[str]:
    """Aligned columns under a head; the last column is as wide as it likes."""
    cells = [list(head), *([safe(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    return [
        (indent + "  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True))).rstrip() for row in cells
    ]


def listed(chosen: Mapping[str, Any]) -> str:
    """Options of a method on one safe line: `scale 0.3, trim tensor`."""
    return safe(options(chosen))


def to_json(command: str, result: Mapping[str, Any]) -> str:
    """One line of JSON with exactly the keys of the command's schema; what is not known is null."""
    import json

    chosen = {"command": command, **{key: result.get(key) for key in SCHEMA[command]}}
    return json.dumps(_plain(chosen), allow_nan=False)


def error_json(kind: str, message: str, code: int, problems: Sequence[str] = ()) -> str:
    """An error as one line of JSON. problems: all that is wrong, where the message may leave some out."""
    import json

    listed_ = {"problems": list(problems)} if problems else {}
    return json.dumps({"error": {"kind": kind, "message": message, "exit_code": code, **listed_}})


def _plain(value: Any) -> Any:
    """Values that JSON has: paths become text, NaN and infinity null, sets sorted lists."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return [_plain(item) for item in sorted(value)]
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if isfinite(value) else None
    if value is None or isinstance(value, (str, int, bool)):
        return value
    return str(value)
