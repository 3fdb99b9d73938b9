"""`plait export`: write a version out as an ordinary checkpoint."""

from __future__ import annotations

from argparse import Namespace

from plait.cli.opening import add_line, open_line
from plait.cli.output import Answer, pairs, short
from plait.cli.parser import ANEW, Parser, Verb
from plait.words import safe


def _arguments(parser: Parser) -> None:
    add_line(parser)
    parser.add_argument("out", metavar="OUT", help="where to write; it must not exist")
    parser.add_argument(
        "--version",
        dest="which",
        metavar="VERSION",
        help="an entry's number or a digest; the current one by default",
    )
    parser.add_argument("--task", metavar="TASK", help="add this member's private tensors (its head)")
    parser.add_argument("--force", action="store_true", help="replace OUT where it exists")


def _export(args: Namespace) -> Answer:
    done = open_line(args).export(args.out, version=args.which, task=args.task, force=args.force)
    rows = [
        ("version", short(done["version"])),
        ("head of", safe(args.task) if args.task else None),
        ("files", ", ".join(map(safe, done["files"]))),
        ("recorded", f"entry {done['sequence']}"),
    ]
    return Answer(
        {**done, "line": str(args.line)}, [f"exported to {safe(done['out'])}", *pairs(rows)], notice=True
    )


VERBS = (Verb("export", "write a version out as an ordinary checkpoint", _arguments, _export, ANEW),)
