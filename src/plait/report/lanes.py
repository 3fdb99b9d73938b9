"""The ledger as a picture: a lane for every task, a bar while it is a member, a mark for every event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plait.report.markup import Html
from plait.report.svg import label, legend, line, margin, mark, picture, rect, text, thinned, width_of

SHAPES: dict[str, tuple[str, str]] = {
    "init": ("square", "base"),
    "merge": ("circle", "deployed"),
    "unmerge": ("cross", "bad"),
    "reweight": ("diamond", "expert"),
    "replace": ("triangle", "expert"),
    "export": ("square", "good"),
    "purge": ("ring", "bad"),
}
OTHER = ("square", "base")
OWN = "the line"


def lanes(caption: str, ledger: Sequence[Mapping[str, Any]]) -> Html:
    """ledger: entries with sequence, time, verb, task and members (tasks after it), oldest first."""
    names = _lanes(ledger)
    left = margin((*names, OWN))
    pitch = min(34.0, max(9.0, 800.0 / len(ledger)))
    high, top = (20.0, 58.0) if len(names) <= 30 else (16.0, 58.0)
    width = left + pitch * len(ledger) + 24
    height = top + high * (len(names) + 1) + 8

    def x(entry: int) -> float:
        return left + (entry + 0.5) * pitch

    def y(lane: int) -> float:
        return top + (lane + 0.5) * high

    used = [verb for verb in SHAPES if any(e["verb"] == verb for e in ledger)]
    drawn, end = legend([(*SHAPES[verb], verb) for verb in used], 0, 14)
    drawn.append(text(0, 40, "entry", cls="m t"))
    for place in thinned(len(ledger), pitch, width_of(str(ledger[-1]["sequence"]), 11)):
        drawn.append(text(x(place), 40, ledger[place]["sequence"], anchor="middle", cls="m t n"))
    for lane, name in enumerate((OWN, *names)):
        drawn.append(label(left - 8, y(lane) + 4, name, left - 10, anchor="end", cls="" if lane else "m"))
        drawn.append(line(left, y(lane), width - 16, y(lane), "grid"))
    for lane, name in enumerate(names, start=1):
        for first, last in _spans(ledger, name):
            until = len(ledger) - 1 + 0.5 if last is None else last
            words = f"{name}: member from entry {ledger[first]['sequence']}"
            words += "" if last is None else f" to entry {ledger[last]['sequence']}"
            drawn.append(rect(x(first), y(lane) - 3, (until - first) * pitch, 6, "member", words, round_=3))
    where = {name: lane for lane, name in enumerate(names, start=1)}
    for place, entry in enumerate(ledger):
        shape, cls = SHAPES.get(entry["verb"], OTHER)
        tip = " ".join(str(w) for w in (f"entry {entry['sequence']}:", entry["verb"], entry["task"] or ""))
        drawn.append(mark(shape, x(place), y(where.get(entry["task"], 0)), cls, f"{tip}, {entry['time']}"))
    return picture(max(width, end), height, caption, *drawn)


def _lanes(ledger: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every task that ever was a member, in the order in which they came."""
    return list(dict.fromkeys(task for entry in ledger for task in entry["members"]))


def _spans(ledger: Sequence[Mapping[str, Any]], task: str) -> list[tuple[int, int | None]]:
    """(place where a task came in, place where it left, None where it is still in)."""
    found: list[tuple[int, int | None]] = []
    inside = False
    for place, entry in enumerate(ledger):
        now = task in entry["members"]
        if now and not inside:
            found.append((place, None))
        elif inside and not now:
            found[-1] = (found[-1][0], place)
        inside = now
    return found
