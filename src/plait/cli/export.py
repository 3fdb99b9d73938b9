"""`plait export`: write a version out as an ordinary checkpoint."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from plait.cli.opening import add_line, open_line
from plait.cli.output import Answer, pairs, short
from plait.cli.parser import ANEW, Parser, Verb, network, positive
from plait.words import plural, safe


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
    parser.add_argument(
        "--batchnorm",
        action="store_true",
        help="compute BatchNorm's running statistics anew from unlabelled examples of the members' tasks",
    )
    parser.add_argument(
        "--tasks", metavar="FILE", help="with --batchnorm: a tasks.yaml that says where the examples are"
    )
    parser.add_argument(
        "--samples",
        type=positive,
        metavar="N",
        help="with --batchnorm: at most so many calibration examples of each task, 256 by default",
    )
    parser.add_argument(
        "--network",
        type=network,
        metavar="SPEC",
        help="with --batchnorm: python:module:function, where config.json does not describe the network",
    )
    parser.add_argument(
        "--device",
        metavar="DEVICE",
        help="with --batchnorm: where the network runs, cpu or cuda",
    )


def _export(args: Namespace) -> Answer:
    done = open_line(args).export(
        args.out,
        version=args.which,
        task=args.task,
        force=args.force,
        batchnorm=args.batchnorm,
        tasks=args.tasks,
        samples=args.samples,
        network=args.network,
        device=args.device,
    )
    rows = [
        ("version", short(done["version"])),
        ("head of", safe(args.task) if args.task else None),
        ("batchnorm", _renewed(done["batchnorm"])),
        ("files", ", ".join(map(safe, done["files"]))),
        ("recorded", f"entry {done['sequence']}"),
    ]
    return Answer(
        {**done, "line": str(args.line)}, [f"exported to {safe(done['out'])}", *pairs(rows)], notice=True
    )


def _renewed(done: Mapping[str, Any] | None) -> str | None:
    """`40 layers, from 256 examples of a, 100 of b`."""
    if done is None:
        return None
    counts = [f"{one['count']} of {safe(task)}" for task, one in done["tasks"].items()]
    layers = plural(len(done["tensors"]) // 2, "layer")
    return f"{layers} computed anew from calibration examples: {', '.join(counts)}"


VERBS = (Verb("export", "write a version out as an ordinary checkpoint", _arguments, _export, ANEW),)
