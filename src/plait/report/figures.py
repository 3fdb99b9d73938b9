"""Heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, radians, sin

from plait.report import palette
from plait.report.markup import Html, number, tag
from plait.report.svg import fit, label, margin, picture, rect, text, width_of

TURN = 40.0
"""Degrees by which column labels rise where they do not fit side by side."""


@dataclass(frozen=True)
class Spot:
    """One cell: its class on the scale, what is written in it where there is room, and the same in two letters."""

    bin: int | None
    text: str
    brief: str
    tip: str


@dataclass(frozen=True)
class Heat:
    """A heat map. cells[row][column]; None draws an empty cell with a dot. scale: "s" from low to high, "d" with a
    middle. inside: by row and column, which cells are inside an outline, whose meaning is `outlined`. ends: words for
    low and high in the legend. gap: meaning of an empty cell. rules: rows above which a line is drawn."""

    label: str
    rows: Sequence[str]
    columns: Sequence[str]
    cells: Sequence[Sequence[Spot | None]]
    scale: str
    ends: tuple[str, str]
    gap: str = ""
    inside: Sequence[Sequence[bool]] = ()
    outlined: str = ""
    rules: Sequence[int] = ()


def heat(chart: Heat) -> Html:
    """The map, with its legend above."""
    wide, high = _cell(len(chart.columns))
    left = margin(chart.rows, 200.0 if wide > 20 else 165.0)
    top, beyond = _head(chart.columns, wide)
    top += 34
    width = left + wide * len(chart.columns) + max(beyond, 12.0)
    height = top + high * len(chart.rows) + 8
    drawn, end = _legend(chart)
    drawn += _columns(chart.columns, left, top, wide)
    for r, name in enumerate(chart.rows):
        y = top + r * high
        drawn.append(label(left - 8, y + high / 2 + 4, name, left - 10, anchor="end"))
        for c, spot in enumerate(chart.cells[r]):
            drawn += _spot(spot, chart.scale, left + c * wide, y, wide, high)
    if chart.inside:
        drawn.append(tag("path", d=_outline(chart.inside, left, top, wide, high), class_="run"))
    drawn += [
        rect(left - 4, top + r * high - 0.75, wide * len(chart.columns) + 8, 1.5, "rule") for r in chart.rules
    ]
    return picture(max(width, end), height, chart.label, *drawn)


def _outline(inside: Sequence[Sequence[bool]], left: float, top: float, wide: float, high: float) -> str:
    """The path along every edge between a cell that is inside and one that is not."""
    columns = len(inside[0])
    padded = [[False, *row, False] for row in ([False] * columns, *inside, [False] * columns)]
    path = []
    for r, row in enumerate(padded[1:]):
        for c in range(len(row) - 1):
            x, y = left + c * wide, top + r * high
            if row[c] != row[c + 1]:
                path.append(f"M{number(x)} {number(y)}v{number(high)}")
            if c and row[c] != padded[r][c]:
                path.append(f"M{number(x - wide)} {number(y)}h{number(wide)}")
    return "".join(path)


def _cell(columns: int) -> tuple[float, float]:
    """Width and height of a cell: many columns get small ones."""
    for most, wide, high in ((8, 62, 26), (12, 50, 25), (20, 40, 23), (34, 25, 21)):
        if columns <= most:
            return float(wide), float(high)
    return 15.0, 15.0


def _head(names: Sequence[str], wide: float) -> tuple[float, float]:
    """Height of the column labels, and how far they reach beyond the last column."""
    longest = min(150.0, max((width_of(n) for n in names), default=0.0))
    if _flat(names, wide):
        return 20.0, 12.0
    if wide < 20:
        return longest + 10, 12.0
    return longest * sin(radians(TURN)) + 18, longest * cos(radians(TURN)) + 4


def _flat(names: Sequence[str], wide: float) -> bool:
    return all(width_of(n) <= wide - 4 for n in names)


def _columns(names: Sequence[str], left: float, top: float, wide: float) -> list[Html]:
    drawn = []
    for c, name in enumerate(names):
        x, shown = left + (c + 0.5) * wide, fit(name, 150)
        if _flat(names, wide):
            piece = text(x, top - 7, shown, anchor="middle")
        elif wide < 20:
            piece = text(x + 4, top - 5, shown, turn=-90)
        else:
            piece = text(x, top - 6, shown, turn=-TURN)
        drawn.append(tag("g", tag("title", name), piece) if shown != name else piece)
    return drawn


def _spot(spot: Spot | None, scale: str, x: float, y: float, wide: float, high: float) -> list[Html]:
    if spot is None:
        return [tag("circle", cx=x + wide / 2, cy=y + high / 2, r=1.5, class_="none")]
    cls = "blank" if spot.bin is None else f"{scale}{spot.bin}"
    drawn = [rect(x + 0.5, y + 0.5, wide - 1, high - 1, cls, spot.tip)]
    words = spot.text if wide >= 40 else spot.brief if wide >= 25 else ""
    if words:
        ink = "m" if spot.bin is None else f"{cls}t"
        drawn.append(text(x + wide / 2, y + high / 2 + 4, words, anchor="middle", cls=f"{ink} t n"))
    return drawn


def _legend(chart: Heat) -> tuple[list[Html], float]:
    """The scale as a strip between its ends, and what else there is to see. Returns also where it ends."""
    low, high = chart.ends
    x = width_of(low, 11) + 6
    drawn = [text(0, 14, low, cls="m t")]
    strip = 7.0
    drawn += [rect(x + n * strip, 5, strip + 0.3, 11, f"{chart.scale}{n}") for n in range(palette.BINS)]
    x += palette.BINS * strip + 6
    drawn.append(text(x, 14, high, cls="m t"))
    x += width_of(high, 11) + 22
    if chart.gap:
        drawn += [tag("circle", cx=x, cy=10.5, r=1.5, class_="none"), text(x + 8, 14, chart.gap, cls="m t")]
        x += 8 + width_of(chart.gap, 11) + 22
    if chart.outlined:
        drawn += [rect(x, 5, 14, 11, "run", round_=2), text(x + 20, 14, chart.outlined, cls="m t")]
        x += 20 + width_of(chart.outlined, 11) + 22
    return drawn, x
