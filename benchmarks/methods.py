"""Write the generated parts of docs/methods.md: facts and options as `plait methods` has them, and what to choose
when, with the figures in benchmarks/results.

    python benchmarks/methods.py

A generated part stands between `<!-- made by benchmarks/methods.py: NAME -->` and `<!-- end of NAME -->`; all other
text is written by hand and stays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from plait.bench.removal_table import summary as removals
from plait.bench.table import markdown_table, summary
from plait.methods.registry import find, names

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "methods.md"
RESULTS = ROOT / "benchmarks" / "results"

WHEN = (
    ("checkpoints alone; accuracy counts most", "covariance"),
    ("checkpoints alone; a merge must be cheap", "task_arithmetic"),
    ("checkpoints alone, all of them kept; the model may be made anew at each change", "tsv_m"),
    ("checkpoints alone; single weights are pulled in opposite directions", "ties"),
    ("checkpoints alone; nothing may be tuned", "average"),
    ("checkpoints alone; one value an element may be kept beside the members", "magmax"),
    ("a stream of checkpoints; earlier tasks are to be protected direction by direction", "opcm"),
    ("checkpoints alone; what tasks share is to be counted once, layer by layer", "mdm_oc granularity=layer"),
    ("examples without labels", "regmean"),
    ("labelled examples of the new task", "fisher"),
    ("labelled examples of all tasks, and time for gradients", "ode_m samples=128 target=merged"),
)
"""What is at hand, and the row of the suite text8 that stands for the method to take then; text8-field has methods
that text8 lacks."""


def found(name: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return read


def ours() -> list[str]:
    """The methods of plait itself: other packages may have brought more."""
    return [name for name in names() if find(name).__module__.startswith("plait.")]


def facts() -> list[str]:
    rows = [["method", "family", "removal", "order matters", "data", "state an element", "cost", "paper"]]
    for name in ours():
        told = find(name).facts
        order = "yes" if told.order else "no"
        cells = (f"`{name}`", told.family, told.removal, order, told.data, told.memory, told.cost)
        rows.append([*cells, linked(told.paper)])
    return markdown_table(rows)


def linked(paper: str) -> str:
    """With the address of an arXiv number."""
    return re.sub(r"arXiv (\d{4}\.\d{5})", r"[arXiv \1](https://arxiv.org/abs/\1)", paper)


def options() -> list[str]:
    rows = [["method", "options and their defaults"]]
    for name in ours():
        kind = find(name)
        made = kind().options()
        listed = ", ".join(f"`{f.name}` {shown(f.name, made[f.name])}" for f in fields(kind))
        rows.append([f"`{name}`", listed or "none"])
    return markdown_table(rows)


def shown(name: str, value: Any) -> str:
    if name == "tables" and value:
        return "embedding names"
    if value is None or value == "":
        return "none" if value is None else "empty"
    return (
        str(value).lower()
        if isinstance(value, bool)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def choosing() -> list[str]:
    suite = found("text8")
    ranked = {row["method"]: row for name in ("text8-field", "text8") for row in summary(found(name))}
    rows = [["at hand", "method", "ACC", "of the experts'", "CPU s a merge", "kept MB"]]
    rows += [[when, *figures(ranked[name])] for when, name in sorted(WHEN, key=lambda w: -acc(ranked[w[1]]))]
    ends = [100 * mean_of(suite["rows"][who]) for who in ("base", "experts")]
    return [
        f"Figures are those of the suite {suite['suite']} ([benchmarks](benchmarks.md)): {len(suite['tasks'])} "
        f"tasks, {suite['setting']['about']}; the base has {ends[0]:.1f} %, the experts {ends[1]:.1f} % in the mean. "
        "Each method's main option was chosen on validation examples. Where no MB are told, the seconds are those of "
        "one merge of all members at once.",
        "",
        *markdown_table(rows),
        "",
        lessons(ranked),
        "",
        *leaving(),
        "",
        *speed(),
    ]


def lessons(ranked: Mapping[str, Mapping[str, Any]]) -> str:
    has = {name: f"{percent(row)} %" for name, row in ranked.items()}
    return (
        f"Data is no promise of accuracy: Fisher information brings {has['fisher']}, inputs of the layers "
        f"{has['regmean']}, `covariance` without any {has['covariance']}. Most of the difference between simple "
        f"methods is their scale: `task_arithmetic` has {has['task_arithmetic']} at "
        f"{ranked['task_arithmetic']['chosen']:g}, `average` of the same task vectors {has['average']}, "
        f"`model_stock`, which goes back to the base where experts disagree, {has['model_stock']}. Where validation "
        "examples are at hand, choose a scale on them."
    )


def mean_of(row: Mapping[str, Any]) -> float:
    values = [cell["value"] for cell in row.values()]
    return float(sum(values) / len(values))


def acc(row: Mapping[str, Any]) -> float:
    return float(row["figures"]["acc"]["mean"])


def percent(row: Mapping[str, Any]) -> str:
    return f"{100 * acc(row):.1f}"


def figures(row: Mapping[str, Any]) -> list[str]:
    name, *given = row["method"].split(" ")
    if row["option"]:
        given.append(f"{row['option']}={row['chosen']:g}")
    normal = row["figures"]["normalised"]["mean"]
    kept = "-" if row["kept"] is None else f"{row['kept'] / 1e6:.0f}"
    words = " ".join([f"`{name}`", *(f"`{one}`" for one in given)])
    return [words, percent(row), f"{100 * normal:.1f} %", f"{row['cpu']:.1f}", kept]


def leaving() -> list[str]:
    rows = {row["method"].removesuffix(" exact"): row for row in removals(found("text8-removal"))}
    exact = {name: row for name, row in rows.items() if row["how"] == "exact"}
    places = sum(row["places"] for row in exact.values())
    same = sum(row["equal"] for row in exact.values())
    times = ", ".join(f"`{n}` {row['cpu']['mean']:.2g}" for n, row in sorted(exact.items(), key=cpu))
    rough = rows["subtraction bf16"]
    return [
        f"**Where members must leave.** {same} of {places} removals from this suite gave the bytes of never having "
        f"merged the task. A removal took, in processor seconds: {times}. What is subtracted from a model in bf16 "
        f"instead is off by {100 * rough['figures']['distance']['mean']:.1f} % of the task's own change.",
    ]


def cpu(item: tuple[str, Mapping[str, Any]]) -> float:
    return float(item[1]["cpu"]["mean"])


def speed() -> list[str]:
    rows = {name: row for name, row in found("speed")["rows"].items() if row.get("peak_mb")}
    told = ", ".join(
        f"`{name}` {row['ratio']:.2g} ({row['peak_mb']:.0f} MB)"
        for name, row in sorted(rows.items(), key=lambda item: float(item[1]["ratio"]))
    )
    return [
        "**Where models are large.** Time to merge files over the time to read and write them once, and memory "
        f"beside interpreter and libraries: {told}. Methods with decompositions, squares of a layer's inputs "
        "or gradients cost what the table of needs says, and `rebuild` holds all members' copies of a matrix."
    ]


PARTS: dict[str, Callable[[], list[str]]] = {"facts": facts, "options": options, "choosing": choosing}


def page(text: str) -> str:
    """The page with its generated parts made anew. ValueError where one has no place in it."""
    for name, make in PARTS.items():
        begin, end = f"<!-- made by benchmarks/methods.py: {name} -->", f"<!-- end of {name} -->"
        head, there, rest = text.partition(begin + "\n")
        _, closed, tail = rest.partition(end)
        if not there or not closed:
            raise ValueError(f"{PAGE.name}: {begin} … {end} is missing; put both lines back")
        text = "".join([head, there, "\n".join(make()), "\n", end, tail])
    return text


def main() -> None:
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
