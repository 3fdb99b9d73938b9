"""`plait bench`: run a suite of tasks for many methods and orders, and show what came of it."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.cli import bench_cil
from plait.cli.output import Answer, one_line, table
from plait.cli.parser import Parser, Verb, positive
from plait.errors import UsageError
from plait.words import safe

if TYPE_CHECKING:
    from plait.bench.run import Asked
    from plait.bench.suites import Suite

_OF_RUN = (
    "methods", "orders", "data", "models", "cache", "out", "budget", "examples", "workers", "device", "last",
    "streams", "weights", *bench_cil.FLAGS,
)  # fmt: skip
_STRANGE = {
    "run": bench_cil.FLAGS,
    "removal": ("budget", "last", "streams", "weights", *bench_cil.FLAGS),
    "cil": ("models", "last", "streams", "weights"),
    "table": _OF_RUN,
    "list": _OF_RUN,
}
"""By action, the words that it does not take."""
ORDERS = "42-46"
ORDERS_OF_REMOVAL = "42"
MOST_ORDERS = 1000


def seeds(text: str) -> tuple[int, ...]:
    """Seeds of orders: `42-46,50` are 42, 43, 44, 45, 46 and 50."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ArgumentTypeError(f"{text!r} is no list of seeds; expected one such as 42-46 or 42,44")
        ends = int(first), int(last or first)
        if ends[1] < ends[0] or ends[1] - ends[0] >= MOST_ORDERS:
            raise ArgumentTypeError(f"{part!r} is no range from a smaller to a larger seed; expected 42-46")
        found += range(ends[0], ends[1] + 1)
    return tuple(dict.fromkeys(found))


def listed(text: str) -> tuple[str, ...]:
    """Names between commas, each once."""
    found = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not found:
        raise ArgumentTypeError(f"{text!r} names nothing; expected names with commas between them")
    return found


def _arguments(parser: Parser) -> None:
    parser.add_argument(
        "action",
        metavar="ACTION",
        choices=tuple(_STRANGE),
        help="run, removal, cil, table or list",
    )
    parser.add_argument(
        "what",
        metavar="WHAT",
        nargs="?",
        help="a suite for run, removal and cil, a file of results for table",
    )
    parser.add_argument(
        "--methods",
        type=listed,
        metavar="NAMES",
        help="methods, separated by commas; options follow a name, as in 'ties density=0.1'",
    )
    parser.add_argument(
        "--orders",
        type=seeds,
        metavar="SEEDS",
        help=f"seeds of the orders of arrival, {ORDERS} by default, {ORDERS_OF_REMOVAL} for removal, 42-44 for cil",
    )
    parser.add_argument("--data", metavar="DIR", help="folder of the data sets, $PLAIT_DATA by default")
    parser.add_argument("--models", metavar="DIR", help="folder of given checkpoints, for the CLIP suites")
    parser.add_argument(
        "--cache", metavar="DIR", help="folder for experts and work, ~/.cache/plait/bench by default"
    )
    parser.add_argument(
        "--out", metavar="FILE", help="file of results, SUITE.json by default, SUITE-removal.json for removal"
    )
    parser.add_argument(
        "--budget",
        type=positive,
        metavar="N",
        help="values tried of a method's main option, 5 by default, 3 for cil",
    )
    parser.add_argument(
        "--examples",
        type=positive,
        metavar="N",
        help="test examples of a task at most, 1000 by default, of a data set 2000 for cil",
    )
    parser.add_argument(
        "--workers", type=positive, metavar="N", help="processes of one thread each, 2 by default"
    )
    parser.add_argument("--device", metavar="DEVICE", help="where networks run: cpu by default, or cuda")
    parser.add_argument(
        "--last",
        action="store_true",
        default=None,
        help="measure only the model of all tasks, merged at once",
    )
    parser.add_argument(
        "--streams",
        type=positive,
        metavar="N",
        help="streams side by side, 1 by default; they share the cores",
    )
    parser.add_argument(
        "--weights",
        choices=("equal", "zipf"),
        help="what the tasks weigh: equal by default, or 1, 1/2, 1/3, ... in the suite's own order",
    )
    bench_cil.arguments(parser, listed)


def _bench(args: Namespace) -> Answer:
    strange = [name for name in _STRANGE[args.action] if getattr(args, name) is not None]
    for name in strange:
        only = "cil" if name in bench_cil.FLAGS else "run"
        raise UsageError(f"--{name} is for `plait bench {only}`; leave it out of {args.action}")
    if args.action == "list":
        return _list(args)
    if args.action == "cil":
        return bench_cil.run(args, Path(args.cache) if args.cache else _cache(), _say(args))
    if args.what is None:
        wanted, word = ("a file of results", "FILE") if args.action == "table" else ("a suite", "SUITE")
        raise UsageError(f"{wanted} is needed: plait bench {args.action} {word}")
    return {"run": _run, "removal": _removal, "table": _show}[args.action](args)


def _list(args: Namespace) -> Answer:
    from plait.bench.suites import SUITES

    if args.what is not None:
        raise UsageError(f"list takes no more words, found {args.what!r}; it lists all suites")
    from plait.bench import cil

    every = [*SUITES.values(), *(one.suite for one in cil.SUITES.values())]
    rows = [{"name": s.name, "summary": s.summary, "base": s.base, "tasks": list(s.tasks)} for s in every]
    lines = table(
        ("suite", "tasks", "what it is"), [(r["name"], len(r["tasks"]), r["summary"]) for r in rows]
    )
    return Answer({"action": "list", "suites": rows}, lines)


def _show(args: Namespace) -> Answer:
    from plait.bench.results import CIL, REMOVAL, SCHEMA, read

    return _answer(args, Path(args.what), read(Path(args.what), SCHEMA, REMOVAL, CIL))


def _run(args: Namespace) -> Answer:
    from plait.bench.suites import find

    suite = find(args.what)
    if args.methods is None:
        raise UsageError("--methods is needed, for example --methods average,task_arithmetic,ties")
    asked = _asked(args, suite, args.methods, ORDERS, f"{suite.name}.json")
    from plait.bench.run import run

    return _answer(args, asked.out, run(asked, _say(args)))


def _removal(args: Namespace) -> Answer:
    from plait.bench.suites import find

    suite = find(args.what)
    from plait.bench.removal import METHODS, run

    words = (args.methods or METHODS, ORDERS_OF_REMOVAL, f"{suite.name}-removal.json")
    asked = _asked(args, suite, *words)
    return _answer(args, asked.out, run(asked, _say(args)))


def _asked(args: Namespace, suite: Suite, methods: tuple[str, ...], orders: str, out: str) -> Asked:
    from plait.bench.suites import Sources

    data = args.data or os.environ.get("PLAIT_DATA")
    sources = Sources(Path(data) if data else None, Path(args.models) if args.models else None)
    suite.check(sources)
    from plait.bench.run import Asked

    return Asked(
        suite.name,
        methods,
        args.orders or seeds(orders),
        Path(args.out or out),
        Path(args.cache) if args.cache else _cache(),
        sources,
        test=args.examples,
        device=args.device or "cpu",
        last=bool(args.last),
        **{
            name: getattr(args, name)
            for name in ("budget", "workers", "streams", "weights")
            if getattr(args, name) is not None
        },
    )


def _say(args: Namespace) -> Callable[[str], None]:
    return (lambda line: None) if args.quiet else _tell


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "plait" / "bench"


def _tell(line: str) -> None:
    print(one_line(line), file=sys.stderr, flush=True)


def _answer(args: Namespace, path: Path, found: dict[str, Any]) -> Answer:
    from plait.bench import table as tables
    from plait.bench.results import CIL, REMOVAL

    if found["schema"] == CIL:
        return bench_cil.answer(args.action, path, found)
    if found["schema"] == REMOVAL:
        return _of_removal(args, path, found)
    rows = tables.summary(found)
    lines = [safe(tables.title(found)), ""]
    lines += table(tables.head(rows), [tables.cells(row) for row in rows], "  ")
    lines += ["", *table(*tables.by_task(found), "  ")]
    if any(row["edge"] for row in rows):
        lines += ["", "  * the best of the values tried is the smallest or the largest of them"]
    return Answer({"action": args.action, "file": str(path), "rows": rows, "results": found}, lines)


def _of_removal(args: Namespace, path: Path, found: dict[str, Any]) -> Answer:
    from plait.bench import removal_table
    from plait.bench import table as tables

    rows = removal_table.summary(found)
    lines = [safe(tables.title(found)), ""]
    lines += table(removal_table.HEAD, [removal_table.cells(row) for row in rows], "  ")
    lines += ["", f"  {removal_table.LEGEND}"]
    return Answer({"action": args.action, "file": str(path), "rows": rows, "results": found}, lines)


_STOPPED = "experts and streams that were done are kept; run the command again to go on with the rest"
VERBS = (
    Verb(
        "bench",
        "run a suite of tasks for many methods and orders",
        _arguments,
        _bench,
        _STOPPED,
    ),
)
