"""Results as tables: for the terminal and for documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from plait.words import plural

HEAD = (
    "method",
    "orders",
    "ACC",
    "normalised",
    "BWT",
    "plasticity gap",
    "forgetting",
    "CPU s",
    "kept MB",
    "peak MB",
)


WEIGHTED = "ACC_w"


def head(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of the columns of `cells`: HEAD, and ACC_w where the tasks of these rows weigh differently."""
    more = [WEIGHTED] if any(_is_weighted(row) for row in rows) else []
    return [*HEAD[:3], *more, *HEAD[3:]]


def _is_weighted(row: Mapping[str, Any]) -> bool:
    return row["figures"]["weighted"]["mean"] is not None


def summary(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row for each method, best first.

    Figures are {mean, deviation} over the orders, shares from 0 to 1, None where they are not defined; the deviation
    (n - 1) is None for one order. cpu: processor seconds a merge, over all merges; kept: bytes of members and state
    at the end; memory: the most that a merge needed. Both are means over orders, but for memory. What only a stream
    has (backward transfer, gap, forgetting, costs) is that of the orders that were run as streams, if any.
    """
    rows = [
        _row(name, told, _cells(found, name))
        for name, told in found["methods"].items()
        if _cells(found, name)
    ]
    return sorted(rows, key=lambda row: (-row["figures"]["acc"]["mean"], row["method"]))


def _cells(found: Mapping[str, Any], method: str) -> list[Mapping[str, Any]]:
    return [cell for cell in found["cells"] if cell["method"] == method]


def _row(name: str, told: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    whole = ("acc", "weighted", "normalised")
    path = ("backward", "backward_over_t", "plasticity_gap", "forgetting")
    streams = [cell for cell in cells if not cell.get("last")]
    costs = streams or cells
    memory = [peak for cell in costs for peak in cell["memory"] if peak is not None]
    return {
        "method": name,
        "seeds": [cell["seed"] for cell in cells],
        "option": told["tuning"]["option"],
        "chosen": told["tuning"]["chosen"],
        "edge": told["tuning"]["edge"],
        "order": told["order"],
        "figures": {
            **{key: _spread([cell["figures"].get(key) for cell in cells]) for key in whole},
            **{key: _spread([cell["figures"][key] for cell in streams]) for key in path},
        },
        "streams": len(streams),
        "cpu": mean(seconds for cell in costs for seconds in cell["cpu"]),
        "seconds": mean(seconds for cell in costs for seconds in cell["seconds"]),
        "kept": _kept(cells),
        "memory": max(memory, default=None),
    }


def _kept(cells: Sequence[Mapping[str, Any]]) -> float | None:
    """Bytes of members and state at the end; None where there was no line."""
    ends = [cell["bytes"]["members"][-1] + cell["bytes"]["state"][-1] for cell in cells if cell["bytes"]]
    return mean(ends) if ends else None


def _spread(values: Sequence[float | None]) -> dict[str, float | None]:
    known = [value for value in values if value is not None]
    if len(known) < len(values) or not known:
        return {"mean": None, "deviation": None}
    return {"mean": mean(known), "deviation": stdev(known) if len(known) > 1 else None}


def cells(row: Mapping[str, Any]) -> list[str]:
    """A row of `summary` in words, under `head`."""
    figures = row["figures"]
    option = f" {row['option']} {row['chosen']:g}{'*' if row['edge'] else ''}" if row["option"] else ""
    return [
        f"{row['method']}{option}",
        str(len(row["seeds"])),
        _percent(figures["acc"], spread=True),
        *([_percent(figures["weighted"], spread=True)] if _is_weighted(row) else []),
        _percent(figures["normalised"]),
        _percent(figures["backward"], sign="+"),
        _percent(figures["plasticity_gap"], sign="+"),
        _percent(figures["forgetting"]),
        f"{row['cpu']:.1f}",
        "-" if row["kept"] is None else f"{row['kept'] / 1e6:.0f}",
        "-" if row["memory"] is None else f"{row['memory'] / 1e6:.0f}",
    ]


def _percent(found: Mapping[str, Any], *, sign: str = "", spread: bool = False) -> str:
    if found["mean"] is None:
        return "-"
    text = f"{100 * found['mean']:{sign}.1f}"
    if spread and found["deviation"] is not None:
        text += f" ± {100 * found['deviation']:.1f}"
    return text


def by_task(found: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Head and rows: the base, the experts, and every method's last model, with a column for each task; means over
    the orders."""
    tasks = list(found["tasks"])
    rows = [
        [who, *(_share(found["rows"][who][task]["value"]) for task in tasks)] for who in ("base", "experts")
    ]
    for method in (row["method"] for row in summary(found)):
        ends = [mean(_end(cell, task) for cell in _cells(found, method)) for task in tasks]
        rows.append([method, *map(_share, ends)])
    return ["model", *tasks], rows


def _share(value: float) -> str:
    return f"{100 * value:.1f}"


def _end(cell: Mapping[str, Any], task: str) -> float:
    value: float = cell["values"][-1][cell["order"].index(task)]
    return value


def title(found: Mapping[str, Any]) -> str:
    """Suite, orders, and the means of base and experts, in one line."""
    sides = [_average(found["rows"][who]) for who in ("base", "experts")]
    seeds = sorted({cell["seed"] for cell in found["cells"]})
    orders = f"{plural(len(seeds), 'order')} ({ranges(seeds)})" if seeds else "no order yet"
    tasks = plural(len(found["tasks"]), "task")
    return f"{found['suite']}: {tasks}, {orders}, base {sides[0]} %, experts {sides[1]} %"


def _average(row: Mapping[str, Any]) -> str:
    return f"{100 * mean(cell['value'] for cell in row.values()):.1f}" if row else "-"


def ranges(numbers: Sequence[int]) -> str:
    """Rising numbers as they are given on the command line: 42-46,50."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


def markdown(found: Mapping[str, Any]) -> list[str]:
    """Both tables as Markdown, under a heading."""
    tasks, rows = by_task(found)
    setting, machine = found["setting"], found["runs"][-1]["machine"]
    ranked = summary(found)
    first = [head(ranked), *(cells(row) for row in ranked)]
    return [
        f"## Suite {found['suite']}",
        "",
        f"{title(found)}. Base: {setting['about']}. {_examples(found)} The main option of each method (of at most "
        f"{setting['budget']} values) was chosen on validation examples; `*` marks an end of the grid. ACC ± "
        "standard deviation over orders; BWT over T-1. *CPU s*: processor seconds a merge, with all checks, on "
        f"{machine['cores']} cores ({machine['processor']}). *Kept*: members and state of the line at the end. "
        "*Peak*: memory of a merge beside interpreter and libraries."
        f"{_alone(found)}{_weights(found)}{_cosines(found)}",
        "",
        *markdown_table(first),
        "",
        "Accuracy of the last model in percent, by task:",
        "",
        *markdown_table([tasks, *rows]),
    ]


def _alone(found: Mapping[str, Any]) -> str:
    """What rows without figures of a stream are."""
    if not any(cell.get("last") for cell in found["cells"]):
        return ""
    return (
        " Some were measured on the model of all tasks alone, merged at once in memory (`--last`). BWT, gap, "
        "forgetting and costs are those of the streams; of methods without a stream *CPU s* is that of the one merge "
        "of all, with statistics or a fit."
    )


def _weights(found: Mapping[str, Any]) -> str:
    weights = found["setting"].get("weights")
    if not weights:
        return ""
    told = ", ".join(f"{task} {weight:.2g}" for task, weight in weights.items())
    return f" Tasks weigh differently, for every method: {told}; ACC_w is the accuracy weighted by them."


def _cosines(found: Mapping[str, Any]) -> str:
    rows = found.get("cosines")
    if not rows or len(rows) < 2:
        return ""
    apart = [value for i, row in enumerate(rows) for value in row[:i]]
    span = f"{min(apart):.3f} to {max(apart):.3f}, {mean(apart):.3f} in the mean"
    return f" Cosines between the experts' task vectors: {span}."


def _examples(found: Mapping[str, Any]) -> str:
    counts = [task["test"]["examples"] for task in found["tasks"].values()]
    between = f"{min(counts)} to " if min(counts) < max(counts) else ""
    return f"{between}{max(counts)} test examples a task."


def markdown_table(rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return [lines[0], f"|{'---|' * len(rows[0])}", *lines[1:]]
