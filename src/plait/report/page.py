"""The page: facts in, one self-contained HTML text out. It reads nothing else: the same facts give the same bytes.

Nothing is loaded from anywhere: no script, no font, no picture, no link to the outside; the policy in its head tells
the browser so. Every name in it is escaped (see `markup`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plait import words
from plait.report import directions, paths, removals, results, sections
from plait.report.markup import Child, Html, escape, tag
from plait.report.parts import code
from plait.report.style import style

Facts = Mapping[str, Any]

MARK = "plait report"
"""Content of the page's `generator`: by it plait knows the pages that it wrote itself."""

POLICY = "default-src 'none'; style-src 'unsafe-inline'"

NAV = (
    ("deployed", "Deployed"),
    ("ledger", "Ledger"),
    ("accuracy", "Accuracy"),
    ("stream", "Stream"),
    ("vectors", "Task vectors"),
    ("removals", "Removals"),
    ("cost", "Cost"),
    ("gaps", "What is missing"),
)


def page(found: Facts) -> str:
    """The report as the text of an HTML file.

    found: what `facts.gather` gives, or the same read back from JSON.
    """
    title = f"plait report: {found['line']['name']}"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        _meta("Content-Security-Policy", POLICY),
        tag("meta", name="generator", content=MARK),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        Html(f"<style>{style()}</style>"),
    )
    parts = (
        sections.deployed(found),
        sections.ledger(found),
        results.accuracy(found),
        results.stream(found),
        paths.paths(found),
        directions.vectors(found),
        removals.removals(found),
        sections.cost(found),
        sections.gaps(found),
    )
    body = tag("body", _header(found), tag("main", _tiles(found), *parts), _footer(found))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def wrote(text: str) -> bool:
    """Whether a file that starts with this text is a report of plait."""
    return text.startswith("<!doctype html>") and f'<meta name="generator" content="{MARK}">' in text


def _meta(name: str, content: str) -> Html:
    return Html(f'<meta http-equiv="{escape(name)}" content="{escape(content)}">')


def _header(found: Facts) -> Html:
    line = found["line"]
    nav = [*NAV[:4], *([("paths", "Paths")] if found["paths"] else []), *NAV[4:]]
    links = [tag("li", tag("a", name, href=f"#{anchor}")) for anchor, name in nav]
    lead = f"State after ledger entry {line['entries'] - 1}, {words.time(line['changed'])}."
    return tag(
        "header",
        tag("h1", line["name"]),
        tag("p", "A line at ", code(line["path"]), ". ", lead, class_="lead"),
        tag("nav", tag("ul", *links), aria_label="Parts of this report"),
    )


def _tiles(found: Facts) -> Html:
    steps = found["evaluation"]["steps"]
    told = steps[-1]["figures"] if steps else {}
    members = len(found["members"])
    bytes_ = found["deployed"]["bytes"]
    gap = told.get("plasticity_gap")
    transfer = (
        (
            "BWT / plasticity gap",
            f"{words.points(told['backward'] if len(told['tasks']) > 1 else None)} / {words.points(gap)}",
            "points",
        )
        if gap is not None
        else ("BWT / plasticity gap", words.NOTHING, "experts or versions of arrival were not evaluated")
    )
    acc = told.get("acc")
    measured = len(told.get("tasks", ()))
    tiles: tuple[tuple[str, Child, Child], ...] = (
        (
            "deployed version",
            tag("span", words.short(found["deployed"]["version"]), class_="mono big"),
            found["deployed"]["method"],
        ),
        (
            "members",
            str(members),
            f"{words.plural(found['line']['entries'], 'ledger entry', 'ledger entries')}",
        ),
        (
            "accuracy (ACC)",
            f"{words.percent(acc)} %" if acc is not None else words.NOTHING,
            f"over {measured} of {words.plural(members, 'member')}" if acc is not None else "not evaluated",
        ),
        transfer,
        ("kept on disk", words.size(bytes_["members"] + bytes_["state"]), "members and state"),
        (
            "missing",
            tag("a", str(len(found["gaps"])), href="#gaps") if found["gaps"] else "nothing",
            "see the list" if found["gaps"] else "all was recorded",
        ),
    )
    return tag(
        "dl",
        *(
            tag(
                "div",
                tag("dt", name),
                tag("dd", value, class_="big"),
                tag("dd", sub, class_="sub"),
                class_="tile",
            )
            for name, value, sub in tiles
        ),
        class_="tiles",
    )


def _footer(found: Facts) -> Html:
    return tag(
        "footer",
        f"Made by plait {found['plait']} from the ledger and the measurements of the line; form {found['schema']}. ",
        "There is no clock in it: the same line gives the same page.",
    )
