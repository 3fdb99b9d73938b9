"""The parts of a report that are about what was measured: accuracies and the stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plait import words
from plait.report import palette
from plait.report.charts import Bar, Panel, Series, bars, lines
from plait.report.figures import Heat, Spot, heat
from plait.report.gaps import evaluate, fill_means, fill_transfer
from plait.report.markup import Child, Html, tag
from plait.report.parts import figure, note, section, table

Facts = Mapping[str, Any]

MOST = 120
"""Rows of a heat map; of more steps the newest are drawn."""


def accuracy(found: Facts) -> Html:
    measured = found["evaluation"]
    if not measured["rows"]:
        return section(
            "accuracy",
            "Accuracy",
            note(
                "No version of this line was evaluated, so nothing is known of its accuracy.",
                fill=evaluate(found),
            ),
        )
    return section(
        "accuracy", "Accuracy", _undefined(measured), _other(measured), _matrix(measured), _by_task(measured)
    )


def _undefined(measured: Facts) -> Html | None:
    """Tasks on which a model that is shown answered NaN."""
    bad = [
        name["task"]
        for place, name in enumerate(measured["tasks"])
        for cells in [[name["base"], name["expert"], *(s["cells"][place] for s in measured["steps"])]]
        if any(cell and cell["undefined"] for cell in cells)
    ]
    if not bad:
        return None
    return note(f"Some models put out NaN on {', '.join(bad)}; these answers count as wrong.")


def _other(measured: Facts) -> Html | None:
    """Measurements that cannot stand beside those that are shown."""
    count = measured["other"]
    if not count:
        return None
    return note(
        f"{words.plural(count, 'measurement')} made otherwise (on other data or another split, with another head or "
        "network) not shown."
    )


def _matrix(measured: Facts) -> Html:
    tasks = [t["task"] for t in measured["tasks"]]
    steps = [s for s in measured["steps"] if s["measured"]]
    hidden = len(measured["steps"]) - len(steps)
    drawn = steps[-MOST:]
    base, experts = ([t[side] for t in measured["tasks"]] for side in ("base", "expert"))
    names = ["base", *map(_step, drawn), "experts"]
    cells = [base, *(s["cells"] for s in drawn), experts]
    known = [c["value"] for row in cells for c in row if c]
    low, high = (int(min(known) * 10) / 10, -int(-max(known) * 10 // 1) / 10) if known else (0.0, 1.0)
    chart = Heat(
        "Accuracy matrix: rows are versions of the line, columns are tasks",
        names,
        tasks,
        [
            [_spot(c, low, high, f"{n}, {t}") for c, t in zip(row, tasks, strict=True)]
            for n, row in zip(names, cells, strict=True)
        ],
        "s",
        (f"{words.percent(low, 0)} %", f"{words.percent(high, 0)} %"),
        gap="not evaluated" if any(c is None for row in cells for c in row) else "",
        inside=[[False] * len(tasks), *(s["members"] for s in drawn), [False] * len(tasks)],
        outlined="the task is a member",
        rules=(1, len(names) - 1),
    )
    caption: list[Child] = [
        "Accuracy matrix, in per cent. A row is the model after a ledger entry (+ merged, − unmerged), a column a "
        "task. The first row is the base, the last the tasks' own experts."
    ]
    if hidden:
        caption.append(f" {words.plural(hidden, 'version')} of which nothing was evaluated: no row.")
    if len(steps) > len(drawn):
        caption.append(f" The newest {len(drawn)} of {len(steps)} rows are drawn, the table has all.")
    every = [
        ("base", base),
        *((_step(s), s["cells"]) for s in steps),
        ("experts", experts),
    ]
    rows = [(name, *(words.interval(c) if c else words.NOTHING for c in row)) for name, row in every]
    numbers = table(
        ("version", *tasks), rows, "Accuracy in per cent, with 95 % intervals.", "-" + "n" * len(tasks)
    )
    return figure(caption, heat(chart), numbers)


def _step(step: Facts) -> str:
    """`4 + cola`, `9 − cola`, `10 reweight cola`."""
    verb = {"merge": "+", "unmerge": "−"}.get(step["verb"], step["verb"])
    return f"{step['sequence']} {verb} {step['task']}"


def _spot(cell: Facts | None, low: float, high: float, where: str) -> Spot | None:
    if cell is None:
        return None
    value = cell["value"]
    return Spot(
        palette.bin_of(value, low, high),
        words.percent(value),
        words.percent(value, 0),
        f"{where}: {words.interval(cell)} %, {cell['right']} of {cell['count']}",
    )


def _by_task(measured: Facts) -> Html:
    tasks = [t for t in measured["tasks"] if any(t[key] for key in ("now", "base", "expert"))]
    kinds = (("bar-base", "base"), ("deployed", "deployed version"), ("bar-expert", "the task's expert"))
    groups = [
        (
            t["task"],
            "" if t["member"] else "no member",
            [_bar(cls, t[key]) for (cls, _), key in zip(kinds, ("base", "now", "expert"), strict=True)],
        )
        for t in tasks
    ]
    caption = "Each task: the base, the deployed version and the task's own expert, in per cent, with 95 % intervals."
    head = ("task", "member", "base, %", "deployed, %", "expert, %", "examples")
    rows = [
        (
            t["task"],
            "yes" if t["member"] else "no",
            *(words.interval(t[key]) for key in ("base", "now", "expert")),
            str(next(c["count"] for c in (t["now"], t["base"], t["expert"]) if c)),
        )
        for t in tasks
    ]
    return Html(
        tag("h3", "By task")
        + figure(
            caption,
            bars("Accuracy by task: base, deployed version, expert", groups, kinds),
            table(head, rows, caption, "--nnnn"),
        )
    )


def _bar(cls: str, cell: Facts | None) -> Bar:
    if cell is None:
        return Bar(cls, None, None, None, "not evaluated")
    return Bar(cls, cell["value"], cell["low"], cell["high"], words.interval(cell))


def stream(found: Facts) -> Html:
    steps = found["evaluation"]["steps"]
    told = [s["figures"] for s in steps]
    title = "Over the stream"
    if not any(f["acc"] is not None for f in told):
        return section(
            "stream",
            title,
            _lacking("There is no step after which all measured members were evaluated.", fill_means(found)),
        )
    names = [str(s["sequence"]) for s in steps]
    tips = [f"entry {s['sequence']} {s['verb']} {s['task']}" for s in steps]

    def series(name: str, cls: str, shape: str, key: str, dashed: bool = False) -> Series:
        return Series(
            name, cls, shape, [_transfer(f, key) if key == "backward" else f[key] for f in told], dashed
        )

    panels = [
        Panel(
            "Mean accuracy over the members (ACC), %",
            [
                series("experts", "expert", "triangle", "experts", True),
                series("ACC", "deployed", "circle", "acc"),
                series("base", "base", "square", "base", True),
            ],
            words.percent,
            lambda v: words.percent(v).removesuffix(".0"),
        )
    ]
    if any(f["plasticity_gap"] is not None for f in told):
        panels.append(
            Panel(
                "Backward transfer (BWT) and plasticity gap, points",
                [
                    series("BWT", "deployed", "circle", "backward"),
                    series("plasticity gap", "expert", "diamond", "plasticity_gap"),
                ],
                words.points,
                lambda v: words.points(v).removesuffix(".0"),
                zero=True,
            )
        )
        missing = None
    else:
        missing = _lacking(
            "Backward transfer is shown only beside the plasticity gap, which needs the experts and the versions of "
            "each task's arrival; some of these were not evaluated.",
            fill_transfer(found),
        )
    return section(
        "stream",
        title,
        figure(
            "Means over the members of each version that were measured. BWT: what older tasks gained or lost since "
            "they came. Plasticity gap: what merging took from an expert at once; a rule that never learns has BWT 0 "
            "and a large gap.",
            lines("Accuracy, backward transfer and plasticity gap by ledger entry", names, tips, panels),
            _stream_table(steps),
        ),
        missing,
    )


def _lacking(text: str, fill: str | None) -> Html:
    return note(text, fill=fill) if fill else note(f"{text} They cannot be had any more.")


def _transfer(figures: Facts, key: str) -> float | None:
    """Backward transfer, which one task alone does not have."""
    value: float | None = figures[key] if len(figures["tasks"]) > 1 else None
    return value


def _stream_table(steps: Sequence[Facts]) -> Html:
    head = (
        *("after", "members measured", "ACC, %", "by weight, %", "of experts, %", "base, %", "experts, %"),
        *("BWT (T−1)", "BWT (T)", "plasticity gap", "forgetting"),
    )
    rows = []
    for s in steps:
        f = s["figures"]
        rows.append(
            (
                _step(s),
                str(len(f["tasks"])),
                *(words.percent(f[key]) for key in ("acc", "weighted", "normalised", "base", "experts")),
                *(words.points(_transfer(f, key)) for key in ("backward", "backward_over_t")),
                words.points(f["plasticity_gap"]),
                words.percent(f["forgetting"]),
            )
        )
    return table(head, rows, "Figures after every step; the last four in points.", "-" + "n" * 10)
