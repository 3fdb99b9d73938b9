"""Parts of a page that are not figures: tables, notes, lists of facts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from plait.report.markup import Child, Html, tag


def section(anchor: str, title: str, *children: Child) -> Html:
    return tag(
        "section",
        tag("h2", title, id=f"{anchor}-title"),
        *children,
        id=anchor,
        aria_labelledby=f"{anchor}-title",
    )


def table(head: Sequence[str], rows: Iterable[Sequence[Child]], caption: str, kinds: str = "") -> Html:
    """A table whose first column names the rows. kinds: a letter for every column, "n" for numbers, "w" for text
    that is not wrapped, "x" for long text, "-" for other text."""
    classes = [k if k in "nwx" else None for k in kinds.ljust(len(head), "-")]
    top = [
        tag("th", h, scope="col", class_="n" if c == "n" else None)
        for h, c in zip(head, classes, strict=True)
    ]
    body = []
    for row in rows:
        first, *rest = row
        cells = [tag("th", first, scope="row", class_=classes[0])]
        cells += [tag("td", cell, class_=c) for cell, c in zip(rest, classes[1:], strict=True)]
        body.append(tag("tr", *cells))
    made = tag("table", tag("thead", tag("tr", *top)), tag("tbody", *body), aria_label=caption)
    scroll = tag("div", made, class_="scroll", tabindex="0", role="group", aria_label=caption)
    return Html(tag("p", caption, class_="caption") + scroll)


def figure(caption: Child, drawn: Html, numbers: Html | None = None) -> Html:
    """A figure under its caption, with the table of its numbers behind a fold."""
    fold = tag("details", tag("summary", "The numbers as a table"), numbers) if numbers is not None else None
    return tag("figure", tag("figcaption", caption), drawn, fold)


def facts(rows: Iterable[tuple[str, Child]]) -> Html:
    """Labels and values; rows without a value are left out."""
    kept = [(label, value) for label, value in rows if value not in (None, "", False)]
    return tag("dl", *((tag("dt", label), tag("dd", value)) for label, value in kept), class_="facts")


def note(*words: Child, fill: str | None = None) -> Html:
    """What is not there, why, and the command that would fill it in."""
    command = tag("p", "To fill it in: ", tag("code", fill)) if fill else None
    return tag("div", tag("p", *words), command, class_="note", role="note")


def code(words: object) -> Html:
    return tag("code", words)


def digest(value: object) -> Html:
    """A digest by its first characters, whole as a tooltip."""
    from plait.words import short

    return tag("code", short(value), title=str(value) if value else None)
