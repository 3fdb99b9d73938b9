"""The part of a report that is about how members were taken in along losses: paths of ode_m, descents of trm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum
from typing import Any

from plait import words
from plait.report.curves import Curve, Plot, curves
from plait.report.markup import Html, tag
from plait.report.parts import facts, figure, section, table

Facts = Mapping[str, Any]
Point = tuple[float, float]

MOST = 12
"""Members that are drawn; of more, the newest."""


def kind_of(known: Mapping[str, Any]) -> str | None:
    """What a step over whole models left: the trace of a "path", of a "descent", or neither (None)."""
    if "norm" in known and known.get("losses") and "t" in known:
        return "path"
    return "descent" if "terms" in (known.get("path") or {}) else None


def paths(found: Facts) -> Html | None:
    """None where no member was taken in in this way."""
    rows = found["paths"]
    if not rows:
        return None
    drawn = rows[-MOST:]
    more = f" The newest {len(drawn)} of {len(rows)} are drawn." if len(rows) > len(drawn) else ""
    return section(
        "paths",
        "Paths",
        tag(
            "p",
            f"Members that were taken in step by step, with losses on examples in view.{more}",
        ),
        _summary([r for r in rows if r["kind"] == "path"]),
        *(_path(r) if r["kind"] == "path" else _descent(r) for r in drawn),
    )


def _summary(rows: Sequence[Facts]) -> Html | None:
    if not rows:
        return None
    cells = []
    for row in rows:
        trace = row["trace"]
        told = _mean(trace["losses"])
        line = trace.get("line")
        cells.append(
            (
                row["task"],
                f"{trace['t_end']:.4g}",
                str(len(trace["norm"])),
                _held(trace),
                *(words.figure(v, 4) for v in (told[0], told[-1], _mean_of(trace["target"]))),
                words.figure(trace["barrier"], 3),
                words.figure(line["barrier"], 3) if line else "not recorded",
            )
        )
    head = (
        *(
            "member",
            "stops at t",
            "steps",
            "held back",
            "mean loss before",
            "where it stops",
            "of the expert",
        ),
        *("barrier", "barrier of the straight line"),
    )
    caption = (
        "Paths, from the model before, t = 0, towards the member's expert, t = 1. Barrier: how far the mean loss "
        "rises at most above the straight line between its values at the ends. Held back: steps in which the climb "
        "of the loss was shortened, or that were shortened or skipped."
    )
    return table(head, cells, caption, "-" + "n" * 8)


def _held(trace: Facts) -> str:
    values = trace.get("gamma") or trace.get("factor") or []
    return str(sum(value < 1 for value in values))


def _path(row: Facts) -> Html:
    trace, task = row["trace"], row["task"]
    marks = [(trace["t_end"], f"stops at t = {trace['t_end']:.4g}")] if trace["t_end"] < 1 else []
    by_task = Plot("Loss by task", _by_task(trace, task), _loss, _tick, marks=marks)
    mean = Plot("Mean loss, and its barrier", _means(trace), _loss, _tick, marks=marks)
    return Html(
        tag("h3", f"The path to {task}")
        + figure(
            _caption(trace),
            curves(
                f"The path to {task}: losses and steps along t",
                "t",
                lambda t: f"{t:.4g}",
                [by_task, mean, *_of_steps(trace)],
            ),
            _numbers(trace),
        )
    )


def _by_task(trace: Facts, newest: str) -> list[Curve]:
    """The losses along the path, and dashed those of the straight line, which ends at the expert."""
    found = []
    line = trace.get("line")
    for name, losses in trace["losses"].items():
        cls = "expert" if name == newest else "deployed"
        found.append(Curve(name, cls, _points(trace["t"], losses), named=line is None))
        if line:
            on = [(0.0, losses[0]), *_points(line["t"], line["losses"][name]), (1.0, trace["target"][name])]
            found.append(Curve(f"{name}, straight line", cls, on, "", dashed=True))
    return found


def _means(trace: Facts) -> list[Curve]:
    along, end = _mean(trace["losses"]), _mean_of(trace["target"])
    line = trace.get("line")
    last = 1.0 if line else trace["t_end"]
    level = [(0.0, along[0]), (last, along[0] + last * (end - along[0]))]
    found = [
        Curve("between the ends", "base", level, "", dashed=True),
        Curve("path", "deployed", _points(trace["t"], along)),
    ]
    if line:
        on = [(0.0, along[0]), *_points(line["t"], _mean(line["losses"])), (1.0, end)]
        found.append(Curve("straight line", "expert", on, "", dashed=True))
    return found


def _of_steps(trace: Facts) -> list[Plot]:
    """What was found in each step."""
    plots = []
    starts, ends = trace["t"][:-1], trace["t"][1:]
    for key, title in (
        ("gamma", "γ: the share of the climb that is kept"),
        ("factor", "Share of the step that was made"),
    ):
        if trace.get(key):
            held = [(t, value) for a, b, value in zip(starts, ends, trace[key], strict=True) for t in (a, b)]
            plots.append(
                Plot(
                    title,
                    [Curve(key.replace("gamma", "γ"), "good", held, "")],
                    _loss,
                    _tick,
                    covers=(0.0, 1.0),
                )
            )
    if starts:
        norms = [Curve("‖u‖", "base", _points(starts, trace["norm"]))]
        plots.append(Plot("‖u‖: the length of the straight way, over 1 − t", norms, _loss, _tick))
    return plots


def _caption(trace: Facts) -> str:
    said = "Orange: the member's own task; blue: the tasks before it."
    if trace.get("line"):
        said += " Dashed: the straight line to the expert, without steps."
    else:
        said += " The losses of the straight line were not recorded (option line)."
    budget = trace.get("budget")
    return said if budget is None else f"{said} The loss may rise by {budget:.4g} over the whole way."


def _numbers(trace: Facts) -> Html:
    names = list(trace["losses"])
    steps = [key for key in ("gamma", "factor", "norm") if trace.get(key)]
    rows = []
    for place, t in enumerate(trace["t"]):
        losses = [words.figure(trace["losses"][name][place], 5) for name in names]
        told = [
            words.figure(trace[key][place], 4) if place < len(trace[key]) else words.NOTHING for key in steps
        ]
        rows.append((f"{t:.4g}", *losses, *told))
    rows.append(
        (
            "1, expert",
            *(words.figure(trace["target"][name], 5) for name in names),
            *[words.NOTHING] * len(steps),
        )
    )
    head = ("t", *names, *({"gamma": "γ", "norm": "‖u‖"}.get(key, key) for key in steps))
    return table(head, rows, "Losses by task, and what each step found.", "n" * len(head))


def _descent(row: Facts) -> Html:
    known, task = row["trace"], row["task"]
    trace = known["path"]
    terms = [("align", "expert", "circle"), ("pre", "deployed", "square"), ("res", "base", "triangle")]
    count = range(1, len(trace["terms"]["align"]) + 1)
    plots = []
    if len(count):
        found = [
            Curve(name, cls, _points(count, trace["terms"][name]), shape)
            for name, cls, shape in terms
            if any(trace["terms"][name])
        ]
        plots.append(Plot("Terms of the loss", found, _loss, _tick))
    for key, name, covers in (("alpha", "α", (0.0, 1.0)), ("beta", "β", (0.0,))):
        spreads = [("least", "base"), ("mean", "deployed"), ("most", "base")]
        found = [
            Curve(
                f"{word} {name}",
                cls,
                _points(range(len(trace[key][word])), trace[key][word]),
                "",
                word != "mean",
            )
            for word, cls in spreads
        ]
        plots.append(
            Plot(
                f"{name}, over {words.plural(len(known[key]), 'group')}",
                found,
                _loss,
                _tick,
                covers=covers,
            )
        )
    rows = [
        (group, words.figure(known["alpha"][group], 4), words.figure(known["beta"][group], 4))
        for group in known["alpha"]
    ]
    losses = [f"{name} {known['losses'][name]:.4g}" for name in ("old", "expert", "start", "merged")]
    return Html(
        tag("h3", f"How {task} was fitted")
        + facts([("loss on the task", ", ".join(losses))])
        + figure(
            "α is the expert's share and 1 − α that of the model before; β goes along a random direction.",
            curves(f"How {task} was fitted: terms and shares by step", "step", lambda v: f"{v:g}", plots),
            table(("tensors", "α", "β"), rows, "What was fitted.", "-nn"),
        )
    )


def _points(places: Sequence[float], values: Sequence[float]) -> list[Point]:
    return list(zip(places, values, strict=True))


def _mean(losses: Mapping[str, Sequence[float]]) -> list[float]:
    """Point by point, over tasks."""
    return [fsum(row) / len(row) for row in zip(*losses.values(), strict=True)]


def _mean_of(losses: Mapping[str, float]) -> float:
    return fsum(losses.values()) / len(losses)


def _loss(value: float) -> str:
    return words.figure(value, 4)


def _tick(value: float) -> str:
    return f"{value:.6g}".replace("-", "−")
