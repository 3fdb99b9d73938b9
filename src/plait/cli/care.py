"""`plait verify`, `gc`, `purge`: look after the bytes of a line."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from plait.cli.opening import add_line, open_line
from plait.cli.output import Answer, one_line, pairs, short
from plait.cli.parser import Parser, Verb, hours
from plait.errors import UsageError, VerificationError
from plait.words import plural, safe, size


def _verify_arguments(parser: Parser) -> None:
    add_line(parser)
    parser.add_argument(
        "--replay",
        action="store_true",
        help="also make the model anew from its members and compare the bytes",
    )


def _verify(args: Namespace) -> Answer:
    found = open_line(args).verify(replay=args.replay)
    problems = [one_line(problem) for problem in found["problems"]]
    result = {**found, "line": str(args.line), "problems": problems}
    rows: list[tuple[str, object]] = [
        ("checked", _checked(found["checked"])),
        ("replay", found["replay"]),
        ("deployed", short(found["version"])),
    ]
    if found["ok"]:
        return Answer(result, [f"{safe(args.line)}: no problem found", *pairs(rows)], notice=True)
    count = plural(len(problems), "problem")
    lines = [f"{safe(args.line)}: {count}", *(f"  {problem}" for problem in problems), *pairs(rows)]
    words = f"verification found {count}; restore the files from a copy, or go back to an export"
    if not problems:  # every hash is right, and what was asked for could still not be proven
        words = f"the hashes are right, but the replay is {safe(found['replay'])}"
    return Answer(result, lines, code=VerificationError.exit_code, error=words)


def _checked(counted: Mapping[str, int]) -> str:
    """`5 entries, 8 objects, 3 versions, 42.5 kB`."""
    return ", ".join(size(n) if kind == "bytes" else _number(n, kind) for kind, n in counted.items())


def _number(count: int, kind: str) -> str:
    """So many things of a kind, whose name is given in the plural."""
    return plural(count, "entry" if kind == "entries" else kind.removesuffix("s"), kind)


def _gc_arguments(parser: Parser) -> None:
    add_line(parser)
    parser.add_argument("--dry-run", action="store_true", help="only tell what would be deleted")
    parser.add_argument(
        "--grace",
        type=hours,
        default=24.0,
        metavar="HOURS",
        help="keep what is younger than this, 24 by default",
    )


def _gc(args: Namespace) -> Answer:
    done = open_line(args).gc(dry_run=args.dry_run, grace=args.grace)
    result = {**done, "line": str(args.line), "dry_run": args.dry_run}
    return Answer(
        result, _removed("would delete" if args.dry_run else "deleted", done), notice=not args.dry_run
    )


def _removed(title: str, done: Mapping[str, Any]) -> list[str]:
    """How much went, then one line for each thing."""
    removed: Mapping[str, Sequence[object]] = done["removed"]
    counts = ", ".join(_number(len(items), kind) for kind, items in removed.items() if items) or "nothing"
    freed = f", {size(done['bytes'])}" if done.get("bytes") else ""
    return [
        f"{title} {counts}{freed}",
        *(f"  {kind} {safe(i)}" for kind, items in removed.items() for i in items),
    ]


def _purge_arguments(parser: Parser) -> None:
    add_line(parser)
    parser.add_argument("task", metavar="TASK", help="a task that was unmerged")


def _purge(args: Namespace) -> Answer:
    line = open_line(args)
    if not args.yes:
        _ask(args.task)
    done = line.purge(args.task)
    receipt = done["receipt"]
    removed = {kind: receipt[kind] for kind in ("objects", "versions")}
    result = {**done, **receipt, "line": str(args.line), "removed": removed}
    exports = [
        f"  still holds it: the export of entry {row['sequence']} to {safe(row['out'])}"
        for row in receipt["exports"]
    ]
    lines = _removed(f"purged {safe(args.task)}: deleted", result)
    return Answer(result, [*lines, *exports], notice=True)


def _ask(task: str) -> None:
    """Ask on a terminal; elsewhere --yes is needed. UsageError where the answer is not yes."""
    words = f"purge deletes what is kept of {safe(task)} for good"
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(f"{words}; there is no terminal to ask on, add --yes to do it")
    sys.stderr.write(f"{words}. Go on? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("not confirmed; nothing was deleted")


_REST = "some of it may be deleted; run the command again to delete the rest"
VERBS = (
    Verb("verify", "hash everything again and compare with the record", _verify_arguments, _verify),
    Verb(
        "gc",
        "delete what nothing needs any more",
        _gc_arguments,
        _gc,
        _REST,
    ),
    Verb(
        "purge",
        "delete for good what is kept of a task that was unmerged",
        _purge_arguments,
        _purge,
        _REST,
    ),
)
