"""`plait eval`: measure a line on tasks, and show the accuracies with their intervals."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from plait.cli.opening import add_line, open_line
from plait.cli.output import Answer, one_line, pairs, short, table
from plait.cli.parser import Parser, Verb, network, positive
from plait.errors import PlaitError
from plait.words import safe

ABREAST = 5
"""Tasks side by side in the matrix, so that a row fits on a screen."""


def _arguments(parser: Parser) -> None:
    add_line(parser)
    parser.add_argument(
        "--tasks", metavar="FILE", required=True, help="a tasks.yaml: the tasks and their data"
    )
    parser.add_argument(
        "--split",
        choices=("train", "calibration", "validation", "test"),
        default="test",
        help="the examples to measure on, test by default",
    )
    parser.add_argument(
        "--version",
        dest="which",
        metavar="VERSION",
        help="an entry's number or a digest; the current one by default",
    )
    parser.add_argument("--all", action="store_true", help="every version that the line ever had")
    parser.add_argument(
        "--task", metavar="NAME", action="append", default=[], help="only this task; may be repeated"
    )
    parser.add_argument(
        "--batch", type=positive, default=64, metavar="N", help="examples at a time, 64 by default"
    )
    parser.add_argument("--device", metavar="DEVICE", default="cpu", help="cpu by default, or cuda")
    parser.add_argument(
        "--dtype", metavar="DTYPE", default="float32", help="in which networks compute, float32 by default"
    )
    parser.add_argument(
        "--network",
        type=network,
        metavar="SPEC",
        help="python:module:function, where config.json does not describe the network",
    )


def _eval(args: Namespace) -> Answer:
    found = open_line(args).evaluate(
        args.tasks,
        split=args.split,
        version=args.which,
        every=args.all,
        only=args.task,
        batch=args.batch,
        device=args.device,
        dtype=args.dtype,
        network=args.network,
    )
    lines = [
        f"line {safe(args.line)}: accuracy on {args.split} examples in percent, {_level(found)}",
        *_now(found),
        *_history(found),
        "",
        *pairs(_figures(found, every=args.all)),
        *(f"  not measured: {line}" for line in _skipped(found)),
        *(f"  note: {one_line(note)}" for note in found["notes"]),
        f"  {found['computed']} measured now, {found['reused']} known before, {found['seconds']:.1f} s",
    ]
    result = {**found, "line": str(args.line)}
    if found["rows"]:
        return Answer(result, lines)
    why = _skipped(found)
    words = f"nothing could be measured: {why[0]}" if why else "nothing could be measured"
    return Answer(result, lines, code=PlaitError.exit_code, error=words)


def _level(found: Mapping[str, Any]) -> str:
    levels = {row["level"] for row in found["rows"]}
    return f"{100 * levels.pop():g} % intervals" if levels else "nothing measured"


def _now(found: Mapping[str, Any]) -> list[str]:
    """Each task on the base, on its expert and on the version: the newest of those measured."""
    rows = found["rows"]
    versions = [row["digest"] for row in rows if row["role"] == "version"]
    heads = ["task", "examples", "base", "expert"]
    picks: list[tuple[str, str | None]] = [("base", None), ("expert", None)]
    if versions:
        heads.append(f"version {short(versions[-1])}")
        picks.append(("version", versions[-1]))
    cells = []
    for task in found["tasks"]:
        mine = [row for row in rows if row["task"] == task["name"]]
        one = [_of(mine, role, digest) for role, digest in picks]
        other = "" if task["metric"] == "accuracy" else f" ({task['metric']})"
        cells.append([task["name"] + other, _count(mine), *(_cell(row) for row in one)])
    return table(heads, cells, "  ")


def _of(rows: Sequence[Mapping[str, Any]], role: str, digest: str | None) -> Mapping[str, Any] | None:
    return next((row for row in rows if row["role"] == role and digest in (None, row["digest"])), None)


def _count(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "-"
    groups = rows[0]["groups"]
    return str(rows[0]["count"] if groups is None else len(groups))


def _cell(row: Mapping[str, Any] | None) -> str:
    return "-" if row is None else _interval(row["value"], row["low"], row["high"])


def _interval(value: float | None, low: float | None, high: float | None) -> str:
    if value is None or low is None or high is None:
        return "-"
    return f"{100 * value:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def _history(found: Mapping[str, Any]) -> Iterator[str]:
    """The accuracy matrix, a few tasks at a time, where more than one step was measured."""
    whole = found["matrix"]
    measured = [k for k, row in enumerate(whole["values"]) if any(value is not None for value in row)]
    if len(measured) < 2:
        return
    yield from ("", "after each change of the members:")
    for first in range(0, len(whole["tasks"]), ABREAST):
        columns = range(first, min(first + ABREAST, len(whole["tasks"])))
        heads = ["entry", "change", "version", *(safe(whole["tasks"][i]) for i in columns)]
        cells = []
        for k in measured:
            step = whole["steps"][k]
            ends = [_interval(*(whole[name][k][i] for name in ("values", "low", "high"))) for i in columns]
            change = f"{step['verb']} {step['task']}"
            cells.append([step["sequence"], change, short(step["version"]), *ends])
        yield from table(heads, cells, "  ")


def _figures(found: Mapping[str, Any], *, every: bool = False) -> list[tuple[str, object]]:
    """The figures of the members of now, and of each unmerge."""
    from plait.evaluation.summary import percent, told

    figures = found["figures"]
    rows: list[tuple[str, object]] = [("over", ", ".join(map(safe, figures["tasks"])))]
    rows += told(figures, _missing(found["lost"], every)) if figures["tasks"] else []
    for removal in found["removals"]:
        parts = (
            ("others lost", removal["retain"], "+"),
            ("apart from never merged", removal["fidelity"], ""),
            ("left of it beyond the base", removal["forget"], "+"),
        )
        words = [f"{label} {percent(value, sign)}" for label, value, sign in parts if value is not None]
        rows.append((f"unmerge {safe(removal['task'])}", ", ".join(words)))
    return rows


def _missing(lost: Sequence[str], every: bool) -> str:
    """Why there is no plasticity gap."""
    from plait.evaluation.summary import ALL

    if lost:
        return f"and the experts or the versions of arrival of {', '.join(map(safe, lost))} cannot be had any more"
    return "and some of what it needs could not be measured" if every else ALL


def _skipped(found: Mapping[str, Any]) -> list[str]:
    """Cells that stay empty: first by model, then the models that lack the same tasks for the same reason."""
    tasks: dict[tuple[str, str], list[str]] = {}
    for row in found["skipped"]:
        model = f"expert {safe(row['member'])}" if row["member"] else f"{row['role']} {short(row['digest'])}"
        tasks.setdefault((model, one_line(row["why"])), []).append(safe(row["task"]))
    models: dict[tuple[str, str], list[str]] = {}
    for (model, why), names in tasks.items():
        models.setdefault((", ".join(names), why), []).append(model)
    return [f"{', '.join(who)} on {names}: {why}" for (names, why), who in models.items()]


_STOPPED = "what was measured is kept; run the command again to measure the rest"
VERBS = (
    Verb(
        "eval",
        "measure the line on tasks, with the base and the experts",
        _arguments,
        _eval,
        _STOPPED,
    ),
)
