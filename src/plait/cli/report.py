"""`plait report`: one page that tells what is deployed, why, and what was measured."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from plait.cli.opening import add_line, deployed, open_line
from plait.cli.output import Answer, pairs
from plait.cli.parser import ANEW, Parser, Verb
from plait.errors import UsageError
from plait.words import safe, size


def _arguments(parser: Parser) -> None:
    add_line(parser)
    parser.add_argument("-o", "--out", metavar="FILE", help="where to write the page; it must not exist")
    parser.add_argument("--force", action="store_true", help="replace FILE where it is a report of plait")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="read no tensors: cosines and norms are left out, unless an earlier report kept them",
    )


def _report(args: Namespace) -> Answer:
    if args.out is None and not args.json:
        raise UsageError("--out FILE is needed to write a page, or --json for the facts alone")
    line = open_line(args)
    from plait.report.facts import gather
    from plait.report.page import page
    from plait.report.writing import refuse, write

    if args.out is not None:
        refuse(Path(args.out), line.path, force=args.force)
    found = gather(line, read=not args.quick)
    written = None if args.out is None else write(page(found), Path(args.out))
    result = {"line": str(args.line), "out": args.out, "bytes": written, "facts": found}
    return Answer(result, _lines(args, found, written), notice=True)


def _lines(args: Namespace, found: dict[str, Any], written: int | None) -> list[str]:
    if written is None:
        return []
    told = {**found["deployed"], "members": found["members"]}
    rows = [
        *deployed(told)[:1],
        (
            "measured",
            f"{found['evaluation']['rows']} accuracies" if found["evaluation"]["rows"] else "nothing",
        ),
        ("missing", "; ".join(dict.fromkeys(safe(gap["about"]) for gap in found["gaps"]))),
    ]
    return [f"wrote {safe(args.out)}, {size(written)}", *pairs(rows)]


VERBS = (
    Verb(
        "report", "write one page of what is deployed, why, and what was measured", _arguments, _report, ANEW
    ),
)
