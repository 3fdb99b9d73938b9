"""What an algebraic removal from MDM-OC leaves in the weights, by how much the task vectors have in common.

    python benchmarks/negative_copy.py [--members 8] [--width 64] [--out benchmarks/results] [--figure docs/figures]

Made-up task vectors of length 1 whose cosines are all `rho` are merged into a line of `mdm_oc` in fp64. One member is
taken out of a copy of the line by `--algebraic` and exactly out of another, and the weights of the two models are
compared with the formula

    algebraic - exact = - sum over i > k of alpha_i <tau_i, u_i> u_i

where u_i is the unit vector of what is new of tau_k beside the other task vectors before i. It is worked out here by
explicit Gram-Schmidt, which plait does not do. Writes negative_copy.json and draws negative_copy.svg.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
from collections.abc import Callable, Sequence
from math import sqrt
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plait import Line, __version__
from plait.bench.taking import copied, weights
from plait.bench.writing import write_json, write_tensors
from plait.report.markup import Html, tag
from plait.report.style import style
from plait.report.svg import line, mark, spread, text, ticks

ROOT = Path(__file__).parent.parent
ALPHA = 0.3
CORRELATIONS = (0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def correlated(members: int, size: int, rho: float) -> Tensor:
    """Task vectors as rows, (members, size) fp64: each of length 1, every two of cosine rho."""
    noise = torch.randn(size, members + 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    own = torch.linalg.qr(noise).Q.T
    taus: Tensor = sqrt(rho) * own[0] + sqrt(1 - rho) * own[1:]
    return taus


def new_of(vector: Tensor, others: Sequence[Tensor]) -> Tensor:
    """What is new of a vector beside others, by Gram-Schmidt, twice for the sake of rounding."""
    basis: list[Tensor] = []
    for other in [*others, vector]:
        rest = other.clone()
        for _ in range(2):
            for unit in basis:
                rest = rest - (rest @ unit) * unit
        basis.append(rest / rest.norm())
    return rest


def predicted(taus: Tensor, k: int) -> Tensor:
    """What the formula says of algebraic - exact."""
    total = torch.zeros_like(taus[0])
    for i in range(k + 1, len(taus)):
        u = new_of(taus[k], [taus[j] for j in range(i) if j != k])
        u = u / u.norm()
        total = total - ALPHA * (taus[i] @ u) * u
    return total


def measure(taus: Tensor, width: int, places: Sequence[int], folder: Path) -> list[dict[str, Any]]:
    """A row for each place of the member that goes, counted from 0."""
    base = torch.randn(taus.shape[1], generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    shape = (-1, width)
    folder.mkdir(parents=True)
    write_tensors(folder / "base.safetensors", {"layer.weight": base.view(shape)})
    made = Line.create(folder / "line", folder / "base.safetensors", "mdm_oc", alpha=ALPHA)
    for i, tau in enumerate(taus):
        write_tensors(folder / f"t{i}.safetensors", {"layer.weight": (base + tau).view(shape)})
        made.merge(folder / f"t{i}.safetensors", f"t{i}")
    rows = []
    for k in places:
        models, receipts = {}, {}
        for how in ("algebraic", "exact"):
            opened = Line.open(copied(made.path, folder / f"{how}-{k}"))
            receipts[how] = opened.unmerge(f"t{k}", how=how)["receipt"]
            models[how] = weights(opened.model)["layer.weight"].flatten() - base
        apart = models["algebraic"] - models["exact"]
        in_taus = torch.linalg.lstsq(taus.T, models["algebraic"][:, None]).solution.flatten()
        rows.append(
            {
                "removed": k + 1,
                "remaining": float(in_taus[k]),
                "distance": float(apart.norm() / models["exact"].norm()),
                "receipt": {
                    "remaining": receipts["algebraic"]["remaining"]["model"],
                    "distance": receipts["algebraic"]["distance"],
                },
                "formula_error": float((apart - predicted(taus, k)).norm() / models["exact"].norm()),
            }
        )
    return rows


def figure(rows: Sequence[dict[str, Any]], members: int) -> Html:
    """Two panels: the coefficient of the removed task vector that stays, and the distance, over the cosine."""
    wide, high = 800.0, 318.0
    words = "coefficient of the removed task vector", "distance from never merged, relative"
    drawn = [tag("rect", x=0.0, y=0.0, width=wide, height=high, class_="ground")]
    for number, (key, title) in enumerate(zip(("remaining", "distance"), words, strict=True)):
        drawn += _panel(rows, key, title, 60.0 + 390.0 * number)
    label = f"What an algebraic removal leaves, {members} members, by the cosine of their task vectors"
    sheet = tag("style", Html(style() + ".ground{fill:var(--page)}"))
    size = {"viewbox": f"0 0 {wide:g} {high:g}", "width": wide, "height": high}
    return tag(
        "svg",
        tag("title", label),
        sheet,
        drawn,
        xmlns="http://www.w3.org/2000/svg",
        class_="pic",
        role="img",
        **size,
    )


SERIES = (("deployed", "circle"), ("expert", "square"), ("base", "triangle"), ("good", "diamond"))


def _panel(rows: Sequence[dict[str, Any]], key: str, title: str, left: float) -> list[Html]:
    top, span, tall = 52.0, 225.0, 215.0
    marks = ticks(min(r[key] for r in rows), max(r[key] for r in rows))

    def x(rho: float) -> float:
        return left + rho * span

    def y(value: float) -> float:
        return top + tall - (value - marks[0]) / (marks[-1] - marks[0]) * tall

    drawn = [text(left - 40, 20, title, cls="b")]
    for value in marks:
        drawn.append(line(left, y(value), left + span, y(value), "zero" if value == 0 else "grid"))
        drawn.append(text(left - 6, y(value) + 4, f"{value:g}", anchor="end", cls="m t n"))
    for rho in ticks(0.0, 1.0):
        drawn.append(text(x(rho), top + tall + 16, f"{rho:g}", anchor="middle", cls="m t n"))
    drawn.append(
        text(left + span / 2, top + tall + 36, "cosine of every two task vectors", anchor="middle", cls="m t")
    )
    places = sorted({row["removed"] for row in rows})
    own = [[row for row in rows if row["removed"] == removed] for removed in places]
    for some, (cls, shape) in zip(own, SERIES, strict=False):
        drawn += _series(some, key, cls, shape, x, y)
    ends = [y(some[-1][key]) for some in own]
    for removed, end, at in zip(places, ends, spread(ends, 14, top, top + tall + 6), strict=True):
        last = x(own[0][-1]["rho"])
        drawn.append(
            tag("path", d=f"M{last + 5:.1f} {end:.1f}L{left + span + 5:.1f} {at:.1f}", class_="leader")
        )
        drawn.append(text(left + span + 8, at + 4, f"number {removed} removed", cls="t"))
    return drawn


def _series(
    rows: Sequence[dict[str, Any]],
    key: str,
    cls: str,
    shape: str,
    x: Callable[[float], float],
    y: Callable[[float], float],
) -> list[Html]:
    points = [(x(row["rho"]), y(row[key])) for row in rows]
    drawn = [tag("polyline", points=" ".join(f"{a:.1f},{b:.1f}" for a, b in points), class_=f"stroke {cls}")]
    drawn += [
        mark(shape, a, b, cls, f"cosine {row['rho']:g}: {row[key]:.4g}", 3.0)
        for (a, b), row in zip(points, rows, strict=True)
    ]
    return drawn


def run(members: int, width: int, correlations: Sequence[float]) -> dict[str, Any]:
    """All that the file of results holds."""
    places = sorted({0, members // 2 - 1, members - 2, members - 1})
    rows = []
    with tempfile.TemporaryDirectory(prefix="plait-negative-copy-") as name:
        for rho in correlations:
            taus = correlated(members, width * width, rho)
            for row in measure(taus, width, places, Path(name) / f"{rho:g}"):
                rows.append({"rho": rho, **row})
    return {
        "benchmark": "negative_copy",
        "members": members,
        "elements": width * width,
        "alpha": ALPHA,
        "software": {"plait": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "rows": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--figure", type=Path, default=ROOT / "docs" / "figures")
    args = parser.parse_args()
    found = run(args.members, args.width, CORRELATIONS)
    for row in found["rows"]:
        print(f"{row['rho']:>5.2f} {row['removed']:>3} {row['remaining']:>+9.4f} {row['distance']:>8.4f}")
    print(f"formula: off by {max(row['formula_error'] for row in found['rows']):.1e} at most")
    write_json(args.out / "negative_copy.json", found)
    args.figure.mkdir(parents=True, exist_ok=True)
    (args.figure / "negative_copy.svg").write_text(
        figure(found["rows"], args.members) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
