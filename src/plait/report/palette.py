"""Colours of a report, for light and dark screens: told apart by the colour-blind, and text on them is legible.

Blue and orange of Okabe and Ito (2008) mean deployed and expert, grey means base. Scales are binned: a value has one
of BINS classes, and both screens have a colour for the class, so a page holds no colour but those of its style.
"""

from __future__ import annotations

from collections.abc import Sequence

BINS = 21
"""An odd number, so that a diverging scale has a middle."""

TOKENS: dict[str, tuple[str, str]] = {
    "page": ("#ffffff", "#14171b"),
    "card": ("#f5f6f8", "#1d2126"),
    "ink": ("#191c20", "#e8eaed"),
    "muted": ("#545b64", "#a9b0ba"),
    "line": ("#d3d8de", "#3a414a"),
    "link": ("#005a9c", "#7cc4ff"),
    "deployed": ("#0072b2", "#56b4e9"),
    "expert": ("#c25a00", "#f0a13c"),
    "base": ("#6b737d", "#9aa3ae"),
    "soft-deployed": ("#9cc8e4", "#2d5f85"),
    "soft-expert": ("#e9b98a", "#7d5525"),
    "good": ("#00664f", "#4fd1ae"),
    "bad": ("#a8321b", "#ff9a7d"),
}
"""Name of a CSS variable -> its colour on a light and on a dark screen."""

TEXT = ("ink", "muted", "link", "good", "bad")
"""The variables that text is written in, on `page` and on `card`."""

SEQUENTIAL = (
    ("#f3f7fb", "#c6dbef", "#6baed6", "#2171b5", "#08306b"),
    ("#1f2831", "#1f4263", "#2069a8", "#5aa9e0", "#d6ecff"),
)
DIVERGING = (
    ("#8a4300", "#e08a2e", "#f7d9b5", "#f7f7f7", "#bcd9ee", "#4a94c8", "#07467a"),
    ("#ffc078", "#c2771f", "#5c3d17", "#262b31", "#1b4263", "#2f86c6", "#a3d5ff"),
)
"""Colours at equal steps, for light and dark screens."""


def scale(anchors: Sequence[str], bins: int = BINS) -> list[str]:
    """`bins` colours from the first anchor to the last."""
    found = []
    for number in range(bins):
        place = number * (len(anchors) - 1) / (bins - 1)
        left = min(int(place), len(anchors) - 2)
        one, two = _channels(anchors[left]), _channels(anchors[left + 1])
        mixed = [round(a + (b - a) * (place - left)) for a, b in zip(one, two, strict=True)]
        found.append("#" + "".join(f"{c:02x}" for c in mixed))
    return found


def contrast(one: str, two: str) -> float:
    """Contrast ratio of two colours, 1 to 21 (WCAG 2.1, section 1.4.3)."""
    light, dark = sorted((_luminance(one), _luminance(two)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def text_on(colour: str) -> str:
    """Black or white, whichever is easier to read on a colour; the contrast is at least 4.5 on any."""
    return max(("#000000", "#ffffff"), key=lambda ink: contrast(ink, colour))


def bin_of(value: float, low: float, high: float) -> int:
    """The class of a value on a scale from low to high; values outside get the nearest end."""
    if high <= low:
        return 0
    share = (value - low) / (high - low)
    return min(BINS - 1, max(0, round(share * (BINS - 1))))


def variables() -> tuple[str, str]:
    """The CSS declarations of all variables and scales, for light and for dark screens."""
    return _declarations(0), _declarations(1)


def _declarations(mode: int) -> str:
    rows = [f"--{name}:{colours[mode]}" for name, colours in TOKENS.items()]
    for letter, anchors in (("s", SEQUENTIAL), ("d", DIVERGING)):
        for number, colour in enumerate(scale(anchors[mode])):
            rows += [f"--{letter}{number}:{colour}", f"--{letter}{number}t:{text_on(colour)}"]
    return ";".join(rows)


def classes() -> str:
    """CSS rules: `.s3` fills with the colour of class 3 of the sequential scale, `.s3t` with that of text on it."""
    names = [f"{letter}{n}{end}" for letter in "sd" for n in range(BINS) for end in ("", "t")]
    return "\n".join(f".{name}{{fill:var(--{name})}}" for name in names)


def _channels(colour: str) -> list[int]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def _luminance(colour: str) -> float:
    def linear(channel: int) -> float:
        share = channel / 255
        return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4

    red, green, blue = map(linear, _channels(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
