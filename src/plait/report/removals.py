"""The part of a report that is about removals: before, after, and never merged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plait import words
from plait.report.charts import Change, changes
from plait.report.gaps import evaluate
from plait.report.markup import Child, Html, tag
from plait.report.parts import digest, facts, figure, note, section, table

Facts = Mapping[str, Any]

MOST = 12
"""Tasks in the figure of one removal; of more, those that changed most."""


def removals(found: Facts) -> Html:
    rows = found["removals"]
    if not rows:
        return section("removals", "Removals", tag("p", "Nothing was ever unmerged from this line."))
    return section(
        "removals",
        "Removals",
        tag(
            "p",
            "What each unmerge did: the model before, the model after, and the model that never had the task. The "
            "receipt names the digest that never having merged it gives; equal digests are equal bytes.",
        ),
        *(_removal(row, found) for row in rows),
    )


def _removal(row: Facts, found: Facts) -> Html:
    equal = row["same_bytes"]
    verdict: Child = (
        tag("span", "✓ the same bytes as after", class_="good")
        if equal
        else tag("span", "✗ not exact: see the note of the receipt", class_="bad")
    )
    again = ", ".join(map(str, row["again"]))
    boxes = (
        ("before", digest(row["before"]), "with the task"),
        (
            "after",
            digest(row["after"]),
            f"also the version after entry {again}" if again else "without the task",
        ),
        ("never merged, by the receipt", digest(row["never_merged"]), verdict),
    )
    road = tag(
        "dl",
        *(tag("div", tag("dt", a), tag("dd", b), tag("dd", c, class_="soft")) for a, b, c in boxes),
        class_="road",
    )
    told = [
        f"Entry {row['sequence']}, {words.time(row['time'])}; weight was {words.weight(row['weight'] or 1.0)}; "
    ]
    told.append(f"taken out by {row['how']}, {'exact' if row['exact'] else 'not exact'}.")
    return tag(
        "article",
        tag("h3", f"unmerge {row['task']}"),
        tag("p", *told, f" {row['note']}." if row["note"] else None),
        road,
        _effect(row, found),
    )


def _effect(row: Facts, found: Facts) -> Html:
    if not row["tasks"]:
        return note(
            "Neither the version before nor the one after was evaluated.", fill=evaluate(found, " --all")
        )
    figures = facts(
        (
            ("the others, on average", _mean(row["retain"] and -row["retain"])),
            ("left of the task", _mean(row["forget"], " above the base")),
            ("to never merged", _mean(row["fidelity"], " apart, as the bytes are equal")),
        )
    )

    def triple(cell: Facts | None) -> tuple[float, float, float] | None:
        return (cell["value"], cell["low"], cell["high"]) if cell else None

    shown = _most(row["tasks"])
    drawn = changes(
        f"Accuracies before and after unmerging {row['task']}",
        [
            Change(
                t["task"],
                "left" if t["gone"] else "",
                triple(t["before"]),
                triple(t["after"]),
                t["base"]["value"] if t["gone"] and t["base"] else None,
                _change(t["change"]),
            )
            for t in shown
        ],
    )
    head = ("task", "before, %", "after, %", "never merged, %", "base, %", "change, points")
    cells = [
        (
            t["task"] + (" (left)" if t["gone"] else ""),
            *(words.interval(t[key]) for key in ("before", "after")),
            words.interval(t["never"]) if t["never"] else "not made",
            words.interval(t["base"]),
            _change(t["change"]),
        )
        for t in row["tasks"]
    ]
    caption = "Accuracy before and after, with 95 % intervals; the change is paired, on the same examples."
    some = f" Of {len(row['tasks'])} tasks the {len(shown)} that changed most; the table has all."
    numbers = table(head, cells, caption, "-nnnnn")
    return Html(figures + figure(caption + (some if shown != row["tasks"] else ""), drawn, numbers))


def _most(tasks: Sequence[Facts]) -> list[Facts]:
    """The task that left and those that changed most, in the order given."""

    def rank(place: int) -> tuple[bool, float]:
        change = tasks[place]["change"]
        return tasks[place]["gone"], abs(change["value"]) if change else 0.0

    chosen = sorted(range(len(tasks)), key=rank, reverse=True)[:MOST]
    return [tasks[place] for place in sorted(chosen)]


def _mean(value: float | None, more: str = "") -> str:
    if value is None:
        return "not known: an accuracy that it needs was not measured"
    return f"{words.points(value)} points{more}"


def _change(row: Facts | None) -> str:
    if row is None:
        return "not measured twice"
    return f"{words.points(row['value'])} ({words.points(row['low'])} to {words.points(row['high'])})"
