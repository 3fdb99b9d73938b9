"""What removals left, as a table: for the terminal and for documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from plait.bench.table import markdown_table, title

HEAD = (
    "method", "equal bytes", "distance", "UAD retain", "UAD fidelity", "removed - base", "removed - never", "CPU s",
    "seconds", "kept MB",
)  # fmt: skip
LEGEND = (
    "mean (worst) over the places of the removed task; UAD and accuracies in points, distance relative to the change "
    "that never having merged it makes"
)
FIGURES = ("distance", "retain", "fidelity", "forget", "left")


def summary(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row for each method, in the order in which they were asked for.

    places: how many removals; equal: how many of them gave the bytes of never having merged. figures: by name {mean,
    worst} over the removals; worst is the largest loss of `retain` and the largest magnitude of the others, with its
    sign; None where one of them is not defined. cpu, seconds: {mean, worst}. kept: most bytes of members and state.
    """
    rows = []
    for name, told in found["methods"].items():
        cells = [cell for cell in found["cells"] if cell["method"] == name]
        if cells:
            rows.append(_row(name, told, cells))
    return rows


def _row(name: str, told: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    figures = {key: _spread([cell["figures"][key] for cell in cells], key != "retain") for key in FIGURES}
    return {
        "method": name,
        "how": told["how"],
        "seeds": sorted({cell["seed"] for cell in cells}),
        "places": len(cells),
        "equal": sum(cell["equal"] for cell in cells),
        "figures": figures,
        "cpu": _spread([cell["cpu"] for cell in cells]),
        "seconds": _spread([cell["seconds"] for cell in cells]),
        "kept": max(cell["bytes"]["members"] + cell["bytes"]["state"] for cell in cells),
    }


def _spread(values: Sequence[float | None], magnitude: bool = True) -> dict[str, float | None]:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return {"mean": None, "worst": None}
    return {"mean": mean(known), "worst": max(known, key=abs) if magnitude else max(known)}


def cells(row: Mapping[str, Any]) -> list[str]:
    """A row of `summary` in words, under HEAD."""
    figures = row["figures"]
    return [
        row["method"],
        f"{row['equal']} of {row['places']}",
        _words(figures["distance"], _tiny),
        _words(figures["retain"], _points),
        _words(figures["fidelity"], _share),
        _words(figures["forget"], _points),
        _words(figures["left"], _points),
        _words(row["cpu"], _seconds),
        _words(row["seconds"], _seconds),
        f"{row['kept'] / 1e6:.0f}",
    ]


def _words(found: Mapping[str, Any], form: Any) -> str:
    if found["mean"] is None:
        return "-"
    return f"{form(found['mean'])} ({form(found['worst'])})"


def _points(value: float) -> str:
    return f"{100 * value:+.2f}" if round(100 * value, 2) else "0"


def _share(value: float) -> str:
    return f"{100 * value:.2f}" if value else "0"


def _tiny(value: float) -> str:
    return f"{value:.1e}" if value else "0"


def _seconds(value: float) -> str:
    return f"{value:.2f}"


def markdown(found: Mapping[str, Any]) -> list[str]:
    """The table as Markdown, under a heading."""
    setting, machine = found["setting"], found["runs"][-1]["machine"]
    rows = [list(HEAD), *(cells(row) for row in summary(found))]
    return [
        f"## Removal on suite {found['suite']}",
        "",
        f"{title(found)}. Base: {setting['about']}. All tasks are merged in the order of a seed, then one is taken "
        "out and the model is compared with the one that never had it: [removal](removal.md) says what the columns "
        "are. Cells are means over the places of the removed task, with the worst of them in brackets; UAD and "
        "accuracies in percentage points. *Distance*: ‖unmerged − never merged‖ / ‖never merged − base‖. *CPU s*, "
        f"*seconds*: of one removal, on {machine['cores']} cores ({machine['processor']}). *Kept*: members and state "
        "of the line, or the experts for subtraction.",
        "",
        *markdown_table(rows),
    ]
