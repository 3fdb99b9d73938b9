"""Curves over a number: several plots under each other on one axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from plait.report.charts import Words
from plait.report.markup import Html, tag
from plait.report.svg import line, mark, picture, spread, text, ticks

LEFT, SPAN, RIGHT = 64.0, 560.0, 230.0
PITCH = 15.0
"""Between two labels."""


@dataclass(frozen=True)
class Curve:
    """Points (x, y) from first to last. cls: its colour. shape: of its marks; none where it is empty. named:
    whether its name stands at its end. tags: what stands above each point."""

    name: str
    cls: str
    points: Sequence[tuple[float, float]]
    shape: str = "circle"
    dashed: bool = False
    named: bool = True
    tags: Sequence[str] = ()


@dataclass(frozen=True)
class Plot:
    """Curves on one pair of axes. words: how a value is written; ticks: how on the axis. covers: values that the axis
    must show. marks: (x, words) of upright lines."""

    title: str
    curves: Sequence[Curve]
    words: Words
    ticks: Words
    covers: Sequence[float] = ()
    marks: Sequence[tuple[float, str]] = ()

    @property
    def height(self) -> float:
        return max(150.0, PITCH * sum(curve.named for curve in self.curves) + 20)


def curves(caption: str, axis: str, x_words: Words, plots: Sequence[Plot]) -> Html:
    """Plots under each other. axis: what x is. x_words: how it is written."""
    every = [x for plot in plots for curve in plot.curves for x, _ in curve.points]
    low, high = min(every), max(every)
    places = [place for place in ticks(low, high, 6) if low <= place <= high]
    wide = (high - low) or 1.0

    def x(value: float) -> float:
        return LEFT + (value - low) / wide * SPAN

    drawn: list[Html] = []
    top = 0.0
    for plot in plots:
        drawn += _plot(plot, x, x_words, places, top)
        top += plot.height + 58
    drawn.append(text(LEFT, top - 2, axis, cls="m t"))
    return picture(LEFT + SPAN + RIGHT, top + 8, caption, *drawn)


def _plot(
    plot: Plot, x: Callable[[float], float], x_words: Words, places: Sequence[float], top: float
) -> list[Html]:
    levels = _levels(plot)
    low, high = levels[0], levels[-1]
    ceiling, floor_ = top + 32, top + 32 + plot.height - 14

    def y(value: float) -> float:
        return floor_ - (value - low) / (high - low) * (floor_ - ceiling)

    drawn = [text(0, top + 14, plot.title, cls="b")]
    for value in levels:
        drawn.append(line(LEFT, y(value), LEFT + SPAN, y(value), "zero" if value == 0 else "grid"))
        drawn.append(text(LEFT - 6, y(value) + 4, plot.ticks(value), anchor="end", cls="m t n"))
    for place in places:
        drawn.append(text(x(place), floor_ + 16, x_words(place), anchor="middle", cls="m t n"))
    for at, words in plot.marks:
        drawn.append(line(x(at), ceiling - 6, x(at), floor_, "zero"))
        anchor = "end" if x(at) > LEFT + SPAN / 2 else "start"
        drawn.append(
            text(x(at) + (-4 if anchor == "end" else 4), ceiling - 8, words, anchor=anchor, cls="m t")
        )
    for curve in plot.curves:
        drawn += _curve(curve, plot, x, y, x_words)
    return [*drawn, *_names(plot, x, y, ceiling, floor_)]


def _names(
    plot: Plot, x: Callable[[float], float], y: Callable[[float], float], ceiling: float, floor_: float
) -> list[Html]:
    named = [curve for curve in plot.curves if curve.named]
    heights = spread([y(curve.points[-1][1]) for curve in named], PITCH, ceiling, floor_)
    drawn: list[Html] = []
    for curve, height in zip(named, heights, strict=True):
        at, value = curve.points[-1]
        edge = LEFT + SPAN + 12
        if x(at) > LEFT + SPAN - 1:
            drawn.append(
                tag("path", d=f"M{x(at) + 5:.1f} {y(value):.1f}L{edge:.1f} {height:.1f}", class_="leader")
            )
        drawn.append(text(edge + 4, height + 4, f"{curve.name} {plot.words(value)}", cls="t"))
    return drawn


def _curve(
    curve: Curve, plot: Plot, x: Callable[[float], float], y: Callable[[float], float], x_words: Words
) -> list[Html]:
    drawn: list[Html] = []
    if len(curve.points) > 1:
        path = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in curve.points)
        dash = " dash" if curve.dashed else ""
        drawn.append(tag("polyline", points=path, class_=f"stroke {curve.cls}{dash}"))
    if curve.shape:
        size = 3.5 if len(curve.points) < 16 else 2.2
        for at, value in curve.points:
            tip = f"{curve.name} at {x_words(at)}: {plot.words(value)}"
            drawn.append(mark(curve.shape, x(at), y(value), curve.cls, tip, size))
    for (at, value), words in zip(curve.points, curve.tags, strict=False):
        drawn.append(text(x(at), y(value) - 8, words, anchor="middle", cls="m t"))
    return drawn


def _levels(plot: Plot) -> list[float]:
    """Ticks that cover all values; apart by a thousandth at least, as a level line says nothing of a scale."""
    known = [value for curve in plot.curves for _, value in curve.points] + [*plot.covers]
    low, high = min(known), max(known)
    least = max(abs(low), abs(high), 1e-6) * 1e-3
    wider = max(0.0, (least - (high - low)) / 2)
    return ticks(low - wider, high + wider, 4)
