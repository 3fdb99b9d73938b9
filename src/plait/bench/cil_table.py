"""Results of the class-incremental setting as tables: for the terminal and for documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from plait.bench.table import markdown_table, ranges
from plait.words import plural

HEAD = (
    "method", "orders", "final", "average", "forgetting", "train CPU s", "merge CPU s", "models", "samples",
)  # fmt: skip
LEGEND = (
    "accuracy over all classes seen, in percent: at the end, and the mean over groups; processor seconds a group; "
    "models of the base's size and examples that are kept from group to group"
)


def pairs(found: Mapping[str, Any]) -> list[tuple[str, int]]:
    """(data set, number of groups) of which there are results, in the order of the suite."""
    there = {(cell["dataset"], cell["groups"]) for cell in found["cells"]}
    places = list(found["tasks"])
    return sorted(there, key=lambda pair: (places.index(pair[0]), pair[1]))


def summary(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row for each data set, number of groups and method, the best of a data set first.

    figures: by name {mean, deviation} over orders, shares from 0 to 1, None where they are not defined; the deviation
    (n - 1) is None for one order. training, merging: mean processor seconds a group. models, samples: at the end.
    """
    rows = []
    for dataset, groups in pairs(found):
        own = [c for c in found["cells"] if (c["dataset"], c["groups"]) == (dataset, groups)]
        labels = [label for label in found["methods"] if any(c["method"] == label for c in own)]
        made = [_row(found, label, [c for c in own if c["method"] == label]) for label in labels]
        rows += sorted(made, key=lambda row: (-row["figures"]["final"]["mean"], row["method"]))
    return rows


def _row(found: Mapping[str, Any], label: str, cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = cells[0]
    tuning = found["methods"][label]["sets"][first["dataset"]]["tuning"]
    return {
        "dataset": first["dataset"],
        "groups": first["groups"],
        "method": label,
        "seeds": sorted(cell["seed"] for cell in cells),
        "option": tuning["option"],
        "chosen": tuning["chosen"],
        "edge": tuning["edge"],
        "figures": {
            key: _spread([cell["figures"][key] for cell in cells])
            for key in ("final", "average", "forgetting")
        },
        "training": mean(seconds for cell in cells for seconds in cell["training"]),
        "merging": mean(seconds for cell in cells for seconds in cell["merging"]),
        "models": first["models"],
        "samples": max(cell["samples"] for cell in cells),
    }


def _spread(values: Sequence[float | None]) -> dict[str, float | None]:
    known = [value for value in values if value is not None]
    if len(known) < len(values) or not known:
        return {"mean": None, "deviation": None}
    return {"mean": mean(known), "deviation": stdev(known) if len(known) > 1 else None}


def cells(row: Mapping[str, Any]) -> list[str]:
    """A row of `summary` in words, under HEAD."""
    option = f" {row['option']} {row['chosen']:g}{'*' if row['edge'] else ''}" if row["option"] else ""
    return [
        f"{row['method']}{option}",
        str(len(row["seeds"])),
        *(_percent(row["figures"][key]) for key in ("final", "average", "forgetting")),
        f"{row['training']:.1f}",
        f"{row['merging']:.1f}",
        f"{row['models']:.1f}",
        str(row["samples"]),
    ]


def _percent(found: Mapping[str, Any]) -> str:
    if found["mean"] is None:
        return "-"
    text = f"{100 * found['mean']:.1f}"
    return text if found["deviation"] is None else f"{text} ± {100 * found['deviation']:.1f}"


def title(found: Mapping[str, Any], dataset: str, groups: int) -> str:
    """Data set, groups and orders, in one line."""
    seeds = sorted({c["seed"] for c in found["cells"] if (c["dataset"], c["groups"]) == (dataset, groups)})
    classes = found["tasks"][dataset]["classes"]
    return f"{dataset}: {classes} classes in {groups} groups, {plural(len(seeds), 'order')} ({ranges(seeds)})"


def blocks(found: Mapping[str, Any]) -> list[tuple[str, list[list[str]]]]:
    """For each data set and number of groups a title, and rows of words under HEAD."""
    rows = summary(found)
    return [
        (title(found, *pair), [cells(row) for row in rows if (row["dataset"], row["groups"]) == pair])
        for pair in pairs(found)
    ]


def markdown(found: Mapping[str, Any]) -> list[str]:
    """The tables as Markdown, under a heading."""
    setting, last = found["setting"], found["runs"][-1]["machine"]
    recipe = setting["recipe"]
    about = (
        f"Base: {setting['about']}. Each group is trained from the model before: AdamW, rate {recipe['rate']:g}, "
        f"{plural(recipe['epochs'], 'epoch')}, at most {setting['each']} examples a class. The main option of each "
        f"method (of at most {setting['budget']} values) was chosen on validation examples, in an order of classes "
        f"that is not reported; `*` marks an end of the grid. Columns: {LEGEND}. One thread a run, on "
        f"{last['cores']} cores ({last['processor']})."
    )
    lines = [f"## Suite {found['suite']}", "", about]
    if setting["note"]:
        lines += ["", setting["note"]]
    for head, rows in blocks(found):
        lines += ["", f"### {head}", "", *markdown_table([list(HEAD), *rows])]
    return lines
