"""Opening a line for a command, and the lines that several commands print of it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Any

from plait.cli.output import number, short
from plait.errors import RefusedInput
from plait.words import plural, safe

if TYPE_CHECKING:
    from plait.line import Line


def open_line(args: Namespace) -> Line:
    """The line that the command names, with progress on stderr unless it is to be quiet."""
    from pathlib import Path

    folder = Path(args.line)
    if not folder.exists():
        raise RefusedInput(
            f"{folder}: there is no line here; make one with `plait init {quote(str(folder))} --base DIR`"
        )
    from plait.line import Line

    line = Line.open(folder)
    line.quiet = args.quiet
    return line


def add_line(parser: Any) -> None:
    parser.add_argument("line", metavar="LINE", help="folder of the line")


def member_words(members: Sequence[Mapping[str, Any]], limit: int = 6) -> str:
    """`3 members: a, b (weight 2), c`; the last ones where there are many."""
    if not members:
        return "no members: the base itself"
    names = [_named(member) for member in members]
    shown = names if len(names) <= limit else ["…", *names[-limit:]]
    return f"{plural(len(names), 'member')}: {', '.join(shown)}"


def _named(member: Mapping[str, Any]) -> str:
    weight = member.get("weight", 1.0)
    return safe(member["task"]) if weight == 1 else f"{safe(member['task'])} (weight {number(weight)})"


def deployed(result: Mapping[str, Any]) -> list[tuple[str, object]]:
    """What is deployed now and where, for `pairs`."""
    return [
        ("deployed", f"{short(result['version'])}, {member_words(result.get('members') or [])}"),
        ("folder", result.get("model")),
    ]


def accounting_words(counted: Mapping[str, Any] | None) -> str:
    """`40 merged, 2 private, 3 frozen, 1 buffer`: the class of every tensor of the checkpoint."""
    if not counted:
        return ""
    words = [f"{counted[key]} {key}" for key in ("merged", "private", "frozen", "buffer") if key in counted]
    if counted.get("nonfinite"):
        words.append(f"{plural(counted['nonfinite'], 'element')} with NaN or infinity")
    return ", ".join(words)
