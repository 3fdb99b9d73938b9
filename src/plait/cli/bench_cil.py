"""`plait bench cil`: the class-incremental setting."""

from __future__ import annotations

import os
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from plait.cli.output import Answer, table
from plait.cli.parser import Parser, positive
from plait.errors import UsageError
from plait.words import safe

FLAGS = ("splits", "each", "epochs", "rate")
"""What only this action takes."""


def rate(text: str) -> float:
    """A learning rate: a number above 0."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise ArgumentTypeError(f"{text!r} is no learning rate; expected a number above 0, such as 1e-4")
    return found


def arguments(parser: Parser, listed: Callable[[str], tuple[str, ...]]) -> None:
    parser.add_argument(
        "--splits",
        type=listed,
        metavar="LIST",
        help="for cil: numbers of groups of classes, such as 5,10, clinc150 or clinc150/5; all by default",
    )
    parser.add_argument(
        "--each", type=positive, metavar="N", help="for cil: train examples of a class at most, 50 by default"
    )
    parser.add_argument("--epochs", type=positive, metavar="N", help="for cil: epochs of each group")
    parser.add_argument("--rate", type=rate, metavar="R", help="for cil: highest learning rate")


def run(args: Namespace, cache: Path, tell: Callable[[str], None]) -> Answer:
    """Do it, and show the tables."""
    from plait.bench import cil

    if args.what is None:
        raise UsageError("a suite is needed: plait bench cil SUITE")
    suite = cil.find(args.what)
    from plait.bench.suites import Sources

    data = args.data or os.environ.get("PLAIT_DATA")
    sources = Sources(Path(data) if data else None)
    suite.suite.check(sources)
    from plait.bench import cil_bench

    given = {"seeds": args.orders, "methods": args.methods}
    given |= {name: getattr(args, name) for name in ("splits", "budget", "each", "workers", "device")}
    given["test"] = args.examples
    asked = cil_bench.Asked(
        suite=suite.name,
        out=Path(args.out or f"{suite.name}.json"),
        cache=cache,
        sources=sources,
        recipe={name: getattr(args, name) for name in ("epochs", "rate") if getattr(args, name) is not None},
        **{name: value for name, value in given.items() if value is not None},
    )
    return answer("cil", asked.out, cil_bench.run(asked, tell))


def answer(action: str, path: Path, found: dict[str, Any]) -> Answer:
    """The tables of a file of results."""
    from plait.bench import cil_table

    lines = [safe(f"{found['suite']}: {found['setting']['note']}")] if found["setting"]["note"] else []
    for head, cells in cil_table.blocks(found):
        lines += [*([""] if lines else []), safe(head), "", *table(cil_table.HEAD, cells, "  ")]
    lines += ["", f"  {cil_table.LEGEND}"]
    rows = cil_table.summary(found)
    if any(row["edge"] for row in rows):
        lines.append("  * the best of the values tried is the smallest or the largest of them")
    return Answer({"action": action, "file": str(path), "rows": rows, "results": found}, lines)
