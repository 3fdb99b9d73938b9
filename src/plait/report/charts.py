"""Charts over the stream and by task: lines, columns, bars with intervals, and changes from before to after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from plait.report.markup import Html, tag
from plait.report.svg import (
    label,
    legend,
    line,
    margin,
    mark,
    picture,
    rect,
    spread,
    text,
    thinned,
    ticks,
    width_of,
)

Words = Callable[[float], str]


@dataclass(frozen=True)
class Series:
    """Values by step, None where there is none. shape: of its marks; none for a line without. cls: its colour."""

    name: str
    cls: str
    shape: str
    values: Sequence[float | None]
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """Series on one pair of axes. words: how a value is written; ticks: how on the axis. zero: whether the axis must
    show 0."""

    title: str
    series: Sequence[Series]
    words: Words
    ticks: Words
    zero: bool = False
    height: float = 170.0


def lines(caption: str, steps: Sequence[str], tips: Sequence[str], panels: Sequence[Panel]) -> Html:
    """Panels under each other on one axis of steps. A line is broken where a value is missing."""
    left, right = 52.0, 220.0
    pitch = min(64.0, max(9.0, 780.0 / max(len(steps), 1)))
    span = max(pitch * len(steps), 260.0)
    drawn: list[Html] = []
    top = 0.0
    for number, panel in enumerate(panels):
        drawn += _panel(panel, steps, tips, left, top, span, pitch, last=number == len(panels) - 1)
        top += panel.height + 46
    drawn.append(text(left, top + 6, "ledger entry", cls="m t"))
    return picture(left + span + right, top + 14, caption, *drawn)


def _panel(
    panel: Panel,
    steps: Sequence[str],
    tips: Sequence[str],
    left: float,
    top: float,
    span: float,
    pitch: float,
    *,
    last: bool,
) -> list[Html]:
    marks = _axis(panel)
    low, high = marks[0], marks[-1]
    floor_ = top + 30 + panel.height - 14

    def y(value: float) -> float:
        return floor_ - (value - low) / (high - low) * (panel.height - 14)

    def x(step: int) -> float:
        return left + (step + 0.5) * pitch

    drawn = [text(0, top + 14, panel.title, cls="b")]
    for value in marks:
        drawn.append(line(left, y(value), left + span, y(value), "zero" if value == 0 else "grid"))
        drawn.append(text(left - 6, y(value) + 4, panel.ticks(value), anchor="end", cls="m t n"))
    for step in thinned(len(steps), pitch, max(width_of(s, 11) for s in steps)):
        drawn.append(text(x(step), floor_ + 16, steps[step], anchor="middle", cls="m t n"))
    ends: list[tuple[float, float, str]] = []
    for series in panel.series:
        drawn += _line(series, x, y, tips, panel.words)
        shown = [(s, v) for s, v in enumerate(series.values) if v is not None]
        if shown:
            place, value = shown[-1]
            name = f"{series.name} {panel.words(value)}"
            name += "" if place == len(steps) - 1 else f" (entry {steps[place]})"
            ends.append((x(place), y(value), name))
    places = spread([e[1] for e in ends], 15, top + 32, floor_)
    for where, (at, height, name) in zip(places, ends, strict=True):
        edge = left + span + 4
        if at >= x(len(steps) - 1):
            drawn.append(tag("path", d=f"M{at + 6:.1f} {height:.1f}L{edge:.1f} {where:.1f}", class_="leader"))
        drawn.append(text(edge + 4, where + 4, name, cls="t"))
    return drawn


def _axis(panel: Panel) -> list[float]:
    """Ticks that cover all values; at least two points apart, as a line that is level says nothing of a scale."""
    known = [v for s in panel.series for v in s.values if v is not None]
    known += [0.0] if panel.zero else []
    low, high = min(known), max(known)
    wider = max(0.0, (0.02 - (high - low)) / 2)
    return ticks(low - wider, high + wider, 4)


def _line(
    series: Series, x: Callable[[int], float], y: Callable[[float], float], tips: Sequence[str], words: Words
) -> list[Html]:
    drawn: list[Html] = []
    run: list[str] = []
    for step, value in enumerate([*series.values, None]):
        if value is not None:
            run.append(f"{x(step):.1f},{y(value):.1f}")
            continue
        if len(run) > 1:
            dash = " dash" if series.dashed else ""
            drawn.append(tag("polyline", points=" ".join(run), class_=f"stroke {series.cls}{dash}"))
        run = []
    for step, value in enumerate(series.values):
        if value is not None:
            tip = f"{tips[step]}: {series.name} {words(value)}"
            small = x(1) - x(0) < 16
            drawn.append(mark(series.shape, x(step), y(value), series.cls, tip, 2.2 if small else 3.5))
    return drawn


@dataclass(frozen=True)
class Bar:
    """A value with its interval; None draws the words `text` alone."""

    cls: str
    value: float | None
    low: float | None
    high: float | None
    text: str


def bars(
    caption: str, groups: Sequence[tuple[str, str, Sequence[Bar]]], kinds: Sequence[tuple[str, str]]
) -> Html:
    """Groups (name, a remark below it, bars) of horizontal bars from 0 to 1, with whiskers. kinds: (class, words) for
    the legend."""
    left = margin(word for name, remark, _ in groups for word in (name, remark))
    span, right, thick = 520.0, 150.0, 13.0
    drawn, _ = legend([("bar", cls, words) for cls, words in kinds], left, 14)
    top = 44.0
    count = sum(len(group) for _, _, group in groups)
    height = top + thick * count + 10 * len(groups)
    drawn += _shares(left, top, span, height)
    y = top + 4
    for name, remark, group in groups:
        drawn += _name(name, remark, left, y + thick * len(group) / 2 + 4)
        for bar in group:
            drawn += _bar(bar, name, left, y, span, thick)
            y += thick
        y += 10
    return picture(left + span + right, height + 4, caption, *drawn)


def _name(name: str, remark: str, left: float, y: float) -> list[Html]:
    """The label of a row, with a remark below it where there is one."""
    named = label(left - 8, y - (6 if remark else 0), name, left - 10, anchor="end")
    return [named, text(left - 8, y + 7, remark, anchor="end", cls="m t")] if remark else [named]


def _shares(left: float, top: float, span: float, height: float) -> list[Html]:
    """Grid lines at 0, 20, … 100 %, with their labels above."""
    drawn = []
    for tick in range(0, 101, 20):
        at = left + span * tick / 100
        drawn.append(line(at, top, at, height, "zero" if tick == 0 else "grid"))
        drawn.append(text(at, top - 6, f"{tick} %" if tick == 100 else tick, anchor="middle", cls="m t n"))
    return drawn


def _bar(bar: Bar, name: str, left: float, y: float, span: float, thick: float) -> list[Html]:
    middle = y + thick / 2
    if bar.value is None:
        return [text(left + 6, middle + 4, bar.text, cls="m t")]
    drawn = [rect(left, y + 1, span * bar.value, thick - 2, bar.cls, f"{name}: {bar.text}", round_=1)]
    end = bar.value
    if bar.low is not None and bar.high is not None:
        drawn += _whisker(left + span * bar.low, left + span * bar.high, middle)
        end = max(end, bar.high)
    drawn.append(text(left + span * end + 8, middle + 4, bar.text, cls="t n"))
    return drawn


def _whisker(low: float, high: float, y: float, cls: str = "whisker") -> list[Html]:
    return [
        line(low, y, high, y, cls),
        line(low, y - 3, low, y + 3, cls),
        line(high, y - 3, high, y + 3, cls),
    ]


@dataclass(frozen=True)
class Change:
    """A task's accuracy before and after, each (value, low, high) or None, and a third to compare with."""

    name: str
    remark: str
    before: tuple[float, float, float] | None
    after: tuple[float, float, float] | None
    mark: float | None
    text: str


def changes(caption: str, rows: Sequence[Change]) -> Html:
    """Two marks with intervals for every task, from 0 to 1."""
    left = margin(word for row in rows for word in (row.name, row.remark))
    span, right, pitch = 520.0, 200.0, 30.0
    items = [
        ("ring", "base", "before"),
        ("circle", "deployed", "after"),
        ("diamond", "expert", "base, for the task that left"),
    ]
    drawn, _ = legend(items, left, 14)
    top = 44.0
    height = top + pitch * len(rows)
    drawn += _shares(left, top, span, height)
    drawn.append(text(left + span + 34, top - 6, "change, points", cls="m t"))
    for number, row in enumerate(rows):
        y = top + pitch * (number + 0.5)
        drawn += _name(row.name, row.remark, left, y + 4)
        for shape, cls, cell, shift in (
            ("ring", "base", row.before, -6),
            ("circle", "deployed", row.after, 6),
        ):
            if cell is not None:
                value, low, high = cell
                drawn += _whisker(left + span * low, left + span * high, y + shift, "thin")
                drawn.append(
                    mark(shape, left + span * value, y + shift, cls, f"{row.name}: {100 * value:.1f} %")
                )
        if row.mark is not None:
            drawn.append(
                mark("diamond", left + span * row.mark, y, "expert", f"base: {100 * row.mark:.1f} %", 3.5)
            )
        drawn.append(text(left + span + 34, y + 4, row.text, cls="t n"))
    return picture(left + span + right, height + 6, caption, *drawn)


def columns(
    caption: str,
    title: str,
    names: Sequence[str],
    values: Sequence[float | None],
    tips: Sequence[str],
    words: Words,
) -> Html:
    """Upright bars from 0, one for every step."""
    left, height, top = 64.0, 110.0, 30.0
    pitch = min(40.0, max(8.0, 860.0 / max(len(names), 1)))
    span = max(pitch * len(names), 240.0)
    known = [v for v in values if v is not None]
    marks = ticks(0.0, max(known, default=0.0) or 1.0, 3)
    floor_ = top + height
    drawn = [text(0, 14, title, cls="b")]
    for tick in marks:
        at = floor_ - height * tick / marks[-1]
        drawn.append(line(left, at, left + span, at, "zero" if tick == 0 else "grid"))
        drawn.append(text(left - 6, at + 4, words(tick), anchor="end", cls="m t n"))
    for step, value in enumerate(values):
        if value is None:
            drawn.append(tag("circle", cx=left + (step + 0.5) * pitch, cy=floor_ - 5, r=1.5, class_="none"))
        else:
            tall = height * value / marks[-1]
            at = left + step * pitch + pitch * 0.15
            drawn.append(rect(at, floor_ - tall, pitch * 0.7, tall, "deployed", tips[step], round_=1))
    for step in thinned(len(names), pitch, max(width_of(n, 11) for n in names)):
        drawn.append(
            text(left + (step + 0.5) * pitch, floor_ + 16, names[step], anchor="middle", cls="m t n")
        )
    return picture(left + span + 20, floor_ + 24, caption, *drawn)
