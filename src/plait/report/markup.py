"""HTML and SVG that is escaped by construction: text is data unless it is `Html`, and only this module makes `Html`.

Names come from checkpoints, paths and ledgers, so any of them may be hostile. A tag's name and the names of its
attributes are words of the code; everything else goes through `escape`.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape as _escape

from plait.words import safe

VOID = frozenset(("meta", "br", "hr", "col", "rect", "line", "circle", "path", "polyline", "polygon"))
"""Elements without content that are used here; those of SVG are closed with a slash."""

SVG = frozenset(("rect", "line", "circle", "path", "polyline", "polygon"))


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


Child = object
"""Html goes in as it is; None and False are left out; an iterable is its items; all else is text."""


def escape(value: object) -> Html:
    """Text as markup that shows it."""
    return Html(_escape(safe(value), quote=True))


def tag(name: str, /, *children: Child, **attributes: object) -> Html:
    """An element. Attributes: `class_` and `for_` lose the underscore, others become dashes; None and False are left
    out, True stands without a value, a float is written with at most two decimals."""
    words = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in VOID:
        return Html(f"<{name}{words}{'/' if name in SVG else ''}>")
    return Html(f"<{name}{words}>{join(children)}</{name}>")


def join(children: Iterable[Child]) -> Html:
    """One piece of markup after the other."""
    return Html("".join(_child(child) for child in children))


def number(value: float) -> str:
    """A coordinate: at most two decimals, no exponent, no minus zero."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _child(child: Child) -> str:
    if isinstance(child, Html):
        return child
    if child is None or child is False:
        return ""
    if isinstance(child, Iterable) and not isinstance(child, str):
        return join(child)
    return escape(child)


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    name = "viewBox" if name == "viewbox" else name
    if value is True:
        return f" {name}"
    return f' {name}="{number(value) if isinstance(value, float) else escape(value)}"'
