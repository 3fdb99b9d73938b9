"""The parts that every figure is made of: a frame, text that fits, ticks, and the small shapes of a legend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import floor, log10
from unicodedata import east_asian_width

from plait.report.markup import Child, Html, tag
from plait.words import safe

SIZE = 12.0
"""Font size of labels; small ones are 11."""

WIDE = 0.61
"""Width of a letter in font sizes, rather too much than too little: fonts differ from screen to screen."""


def width_of(label: str, size: float = SIZE) -> float:
    """About how wide a text is."""
    return size * sum(1.05 if east_asian_width(c) in "WF" else WIDE for c in safe(label))


def fit(label: str, width: float, size: float = SIZE) -> str:
    """The text, or its start and end around an ellipsis where it is wider than `width`."""
    text = safe(label)
    if width_of(text, size) <= width:
        return text
    room = max(3, int(width / (size * WIDE)) - 1)
    while room > 3 and width_of(text[: room - room // 3] + "…" + text[-(room // 3) :], size) > width:
        room -= 1
    return text[: room - room // 3] + "…" + text[len(text) - room // 3 :]


def picture(width: float, height: float, label: str, *children: Child) -> Html:
    """A figure in its natural size, inside a frame that scrolls where the window is narrower."""
    drawn = tag(
        "svg",
        *children,
        xmlns=None,
        class_="pic",
        role="img",
        aria_label=label,
        viewbox=f"0 0 {round(width)} {round(height)}",
        width=round(width),
        height=round(height),
    )
    return tag("div", drawn, class_="scroll", tabindex="0", role="group", aria_label=label)


def text(
    x: float, y: float, words: object, *, anchor: str = "start", cls: str = "", turn: float = 0.0
) -> Html:
    """Text whose line starts, ends or is centred (`anchor` start, end, middle) at a point, turned around it."""
    turned = f"rotate({turn:g} {x:.1f} {y:.1f})" if turn else None
    return tag(
        "text",
        words,
        x=float(x),
        y=float(y),
        text_anchor=None if anchor == "start" else anchor,
        class_=cls or None,
        transform=turned,
    )


def label(x: float, y: float, words: str, width: float, *, anchor: str = "start", cls: str = "") -> Html:
    """Text cut to a width, with the whole of it as a tooltip where it was cut."""
    shown = fit(words, width)
    drawn = text(x, y, shown, anchor=anchor, cls=cls)
    return tag("g", tag("title", words), drawn) if shown != safe(words) else drawn


def line(x1: float, y1: float, x2: float, y2: float, cls: str) -> Html:
    return tag("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), class_=cls)


def rect(
    x: float, y: float, width: float, height: float, cls: str, tip: str = "", round_: float = 0.0
) -> Html:
    """A rectangle, with a tooltip where there is one."""
    shape = {"x": float(x), "y": float(y), "width": float(max(width, 0)), "height": float(max(height, 0))}
    drawn = tag("rect", **shape, rx=float(round_) if round_ else None, class_=cls)
    return tag("g", tag("title", tip), drawn) if tip else drawn


def mark(kind: str, x: float, y: float, cls: str, tip: str = "", radius: float = 4.5) -> Html:
    """A small shape around a point: circle, square, diamond, triangle, cross, ring."""
    r = radius
    if kind in ("circle", "ring"):
        drawn = tag("circle", cx=float(x), cy=float(y), r=float(r), class_=f"{cls} {kind}")
    else:
        drawn = tag("path", d=_PATHS[kind](x, y, r), class_=f"{cls} {kind}")
    return tag("g", tag("title", tip), drawn) if tip else drawn


_PATHS: dict[str, Callable[[float, float, float], str]] = {
    "square": lambda x, y, r: f"M{x - r:.1f} {y - r:.1f}h{2 * r:.1f}v{2 * r:.1f}h{-2 * r:.1f}z",
    "diamond": lambda x, y, r: (
        f"M{x:.1f} {y - r - 1:.1f}l{r + 1:.1f} {r + 1:.1f}l{-r - 1:.1f} {r + 1:.1f}l{-r - 1:.1f} {-r - 1:.1f}z"
    ),
    "triangle": lambda x, y, r: f"M{x:.1f} {y - r:.1f}l{r:.1f} {2 * r:.1f}h{-2 * r:.1f}z",
    "cross": lambda x, y, r: (
        f"M{x - r:.1f} {y - r:.1f}l{2 * r:.1f} {2 * r:.1f}M{x + r:.1f} {y - r:.1f}l{-2 * r:.1f} {2 * r:.1f}"
    ),
}


def margin(names: Iterable[str], most: float = 200.0) -> float:
    """Room for the names of rows, left of them: no more than `most`."""
    return min(most, max((width_of(name) for name in names), default=0.0) + 12)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that cover low to high, about `count` of them: 0, 20, 40, … The ends are among them."""
    if high <= low:
        high = low + (abs(low) or 1.0)
    rough = (high - low) / max(count, 1)
    power = 10.0 ** floor(log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    first, last = floor(low / step + 1e-9), -floor(-high / step + 1e-9)
    return [round(n * step, 12) for n in range(first, last + 1)]


def thinned(count: int, spacing: float, width: float) -> list[int]:
    """Which of `count` labels, `spacing` apart and `width` wide, are drawn: every k-th."""
    every = max(1, -int(-(width + 4) // max(spacing, 1e-9)))
    return list(range(0, count, every))


def spread(places: Sequence[float], least: float, top: float, bottom: float) -> list[float]:
    """Places of labels moved apart so that no two are nearer than `least`, in their order, from top to bottom."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    found = list(places)
    edge = top - least
    for i in order:
        found[i] = edge = max(found[i], edge + least)
    edge = bottom + least
    for i in reversed(order):
        found[i] = edge = min(found[i], edge - least)
    return found


def legend(items: Sequence[tuple[str, str, str]], x: float, y: float) -> tuple[list[Html], float]:
    """Shapes with words in a row: (kind of mark or "bar", class, words). Returns also where the row ends."""
    drawn: list[Html] = []
    for kind, cls, words in items:
        if kind == "bar":
            drawn.append(rect(x, y - 9, 14, 10, cls, round_=1))
        elif kind == "dash":
            drawn.append(line(x - 2, y - 4, x + 16, y - 4, cls))
        else:
            drawn.append(mark(kind, x + 7, y - 4, cls))
        drawn.append(text(x + 20, y, words, cls="m t"))
        x += 20 + width_of(words, 11) + 18
    return drawn, x
