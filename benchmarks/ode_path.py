"""What old and new tasks get along the path of `ode_m` to the last expert, beside the straight line.

    python benchmarks/ode_path.py SUITE [--method "ode_m h=0.05"] [--orders 42] [--members K] [--t 0,0.1,...,1]
        [--data DIR] [--cache DIR] [--examples N] [--workers N] [--out FILE.json]

The first K - 1 tasks of an order are merged; then one path is followed to the expert of task K, with t_end 1. At each
t losses and accuracies are measured on the test examples of the old tasks (mean), of the new one, and of all; so they
are at the same t of the straight line, which is the running average at t = 1/K. Writes FILE.json, prints a table, and
draws FILE.svg: the accuracy on the old tasks over that on the new one. A run that was stopped goes on with the orders
that are missing.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from plait.bench.path import AskedPath, run
from plait.bench.suites import Sources
from plait.bench.table import markdown_table
from plait.cli.bench import seeds
from plait.cli.parser import shares
from plait.report.curves import Curve, Plot, curves
from plait.report.markup import Html, tag
from plait.report.style import style

HEAD = (
    "t",
    "old, path",
    "old, line",
    "new, path",
    "new, line",
    "all, path",
    "all, line",
    "loss, path",
    "loss, line",
)


def averaged(cells: Sequence[Mapping[str, Any]], way: str) -> list[dict[str, Any]]:
    """Means over orders, by t."""
    rows = []
    for number, row in enumerate(cells[0][way]):
        every = [cell[way][number] for cell in cells]
        told = {
            kind: {who: mean(r[kind][who] for r in every) for who in row[kind]}
            for kind in ("accuracy", "loss")
        }
        rows.append({"t": row["t"], **told})
    return rows


def table(cells: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Rows under HEAD: accuracies in per cent, and the mean loss of all tasks."""
    rows = []
    for path, line in zip(averaged(cells, "path"), averaged(cells, "line"), strict=True):
        shown = [f"{100 * one['accuracy'][who]:.2f}" for who in ("old", "new", "all") for one in (path, line)]
        rows.append((f"{path['t']:.4g}", *shown, *(f"{one['loss']['all']:.4f}" for one in (path, line))))
    return rows


def figure(cells: Sequence[Mapping[str, Any]], title: str) -> Html:
    """The accuracy on the old tasks over that on the new one, with t beside the path's points."""
    found = []
    ways = (("line", "straight line", "expert", "square"), ("path", "path", "deployed", "circle"))
    for way, name, cls, shape in ways:
        rows = averaged(cells, way)
        points = [(100 * row["accuracy"]["new"], 100 * row["accuracy"]["old"]) for row in rows]
        tags = [f"{row['t']:.3g}" for row in rows] if way == "path" else []
        found.append(Curve(name, cls, points, shape, dashed=way == "line", tags=tags))
    plot = Plot("Accuracy on the old tasks, %", found, lambda v: f"{v:.1f}", lambda v: f"{v:g}")
    drawn = curves(title, "accuracy on the new task, %; numbers at the path: t", lambda v: f"{v:g}", [plot])
    inside = Html(drawn[drawn.index("<svg") : drawn.rindex("</svg>") + len("</svg>")])
    head = '<svg xmlns="http://www.w3.org/2000/svg"'
    sheet = tag("style", Html(style() + "svg{background:var(--page)}"))
    first = inside.index(">") + 1
    return Html(head + inside[len("<svg") : first] + sheet + inside[first:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite")
    parser.add_argument("--method", action="append", help="ode_m by default; may be given several times")
    parser.add_argument("--orders", type=seeds, default=(42,))
    parser.add_argument("--members", type=int, default=0)
    parser.add_argument("--t", type=shares, default=())
    parser.add_argument("--data", default=os.environ.get("PLAIT_DATA"))
    parser.add_argument("--models")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "plait" / "bench")
    parser.add_argument("--examples", type=int)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    out = args.out or Path(f"{args.suite}-path.json")
    sources = Sources(Path(args.data) if args.data else None, Path(args.models) if args.models else None)
    asked = AskedPath(
        args.suite,
        tuple(args.method or ["ode_m"]),
        args.orders,
        out,
        args.cache,
        sources,
        test=args.examples,
        workers=args.workers,
        device=args.device,
        places=args.t,
        members=args.members,
    )
    found = run(asked, say=print)
    labels = list(dict.fromkeys(cell["method"] for cell in found["cells"]))
    for label in labels:
        cells = [c for c in found["cells"] if c["method"] == label]
        cells = [
            c for c in cells if (c["members"], c["places"]) == (cells[-1]["members"], cells[-1]["places"])
        ]
        title = f"{args.suite}, {label}: {cells[0]['members']} tasks, {len(cells)} orders"
        lines = "\n".join(markdown_table([HEAD, *table(cells)]))
        print(f"\n{title}; accuracies in per cent\n\n{lines}")
        end = "" if len(labels) == 1 else f"-{labels.index(label)}"
        out.with_name(f"{out.stem}{end}.svg").write_text(figure(cells, title) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
