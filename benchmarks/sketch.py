"""What option `sketch` of `nufilt` and `tsv_m` costs and what it is off by, against the full decomposition.

    python benchmarks/sketch.py [--width 768] [--repeats 3]

Matrices of a layer, width x width and 4 width x width, one thread, processor seconds, least of the repeats. Task
vectors are random matrices with singular values 1 / j^fall; 0 is the worst that there is: no direction leads. "16
lead": 16 values are 1 and all others 0.001, as of adapters of rank 16 that were merged into their model. Writes
benchmarks/results/sketch.json.

full, found    time to find the leading directions, of a rank as the method takes it for 8 members
mass           the share of the squares of the exact leading values that the found directions miss
merge          time of a whole merge of one matrix, without and with the option
model          ||with - without|| / ||without|| of its update
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plait.bench import machine
from plait.bench.writing import write_json
from plait.methods.memory import apply
from plait.methods.registry import make
from plait.tensors.sketch import OVER, WORTH, leading
from plait.tensors.spectral import spectrum

MEMBERS = 8
RESULTS = Path(__file__).parent / "results"


def drawn(shape: tuple[int, int], fall: float | None, draw: torch.Generator) -> Tensor:
    """A matrix with singular values 1 / j^fall, fp32; without a fall 16 of them lead."""
    u, v = (
        torch.linalg.qr(torch.randn(s, min(shape), generator=draw, dtype=torch.float64))[0] for s in shape
    )
    places = torch.arange(1, min(shape) + 1, dtype=torch.float64)
    values = torch.where(places > 16, 1e-3, 1.0).double() if fall is None else places**-fall
    made: Tensor = ((u * values) @ v.T).float()
    return made


def timed(call: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    best, made = float("inf"), None
    for _ in range(repeats):
        began = time.process_time()
        made = call()
        best = min(best, time.process_time() - began)
    return best, made


def missed(matrix: Tensor, right: Tensor, exact: Tensor) -> float:
    """The share of the mass of the exact directions that others do not hold."""
    held, all_ = ((matrix.double() @ v.double()).square().sum() for v in (right, exact))
    return float(1 - held / all_)


def row(method: str, shape: tuple[int, int], fall: float | None, repeats: int) -> list[str]:
    draw = torch.Generator().manual_seed(7)
    taus = [drawn(shape, fall, draw) for _ in range(MEMBERS)]
    rank = min(128, shape[1] // 3) if method == "nufilt" else min(shape) // MEMBERS
    exact_s, exact = timed(lambda: spectrum(taus[0]).right(rank), repeats)
    found_s, found = timed(lambda: leading(taus[0], rank), repeats)
    used = WORTH * (rank + OVER) <= min(shape)
    base = {"w": torch.zeros(shape)}
    experts = [{"w": tau} for tau in taus]
    full, sketched = (make(method, {"sketch": sketch}) for sketch in (False, True))
    without = timed(lambda: apply(full, base, experts)["w"], 1)
    with_ = timed(lambda: apply(sketched, base, experts)["w"], 1)
    off = float((with_[1] - without[1]).double().norm() / without[1].double().norm())
    return [
        method, f"{shape[0]} x {shape[1]}", "16 lead" if fall is None else f"{fall:g}", str(rank), f"{exact_s:.3f}",
        f"{found_s:.3f}" if used else "full", f"{missed(taus[0], found.right(rank), exact):.1e}",
        f"{without[0]:.2f}", f"{with_[0]:.2f}", f"{off:.1e}",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for method in ("nufilt", "tsv_m"):
        for shape in ((asked.width, asked.width), (4 * asked.width, asked.width)):
            for fall in (0.0, 0.5, 1.0, None):
                rows.append(row(method, shape, fall, asked.repeats))
                print(*rows[-1], sep="  ", flush=True)
    packages = machine.software(())
    found = {
        "benchmark": "sketch",
        "machine": machine.machine(),
        "software": packages,
        "width": asked.width,
        "rows": rows,
    }
    write_json(RESULTS / "sketch.json", found)


if __name__ == "__main__":
    main()
