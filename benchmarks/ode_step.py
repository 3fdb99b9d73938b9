"""What a step of ODE-M costs beside its gradient, and what memory it takes in units of the weights.

    python benchmarks/ode_step.py --data DIR [--samples 128] [--repeats 5] [--out benchmarks/results]

MiniLM on texts of suite text8, two members, one thread, Euler steps. The arithmetic of a step is timed by taking the
same steps with a gradient that is there already; the two are interleaved, and medians taken. Memory is the most that
a whole path holds beyond what was held before it, less the most that the same gradient takes alone, beyond its
result: activations do not count. Writes ode_step.json.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from plait.bench import machine
from plait.bench.suites import Sources, find
from plait.bench.worker import Model, Setup, World
from plait.bench.writing import write_json
from plait.checkpoint import open_checkpoint
from plait.line.build import mergeable
from plait.methods.ode.calibration import Calibration
from plait.methods.ode.flat import Layout
from plait.methods.ode.path import Path as Way
from plait.problem.objective import Objective
from plait.problem.problem import Problem
from plait.problem.stored import draw

ROOT = Path(__file__).parent.parent
TASKS = ("ag_news", "trec6")
STEPS = 10


class Still(Calibration):
    """Losses and gradients that are there already."""

    def losses(self, at: Tensor, where: str) -> dict[str, float]:
        return dict.fromkeys(self.tasks, 1.0)

    def gradient(self, at: Tensor, into: Tensor, where: str) -> dict[str, float]:
        return self.losses(at, where)


def seconds(call: Callable[[], Any]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def grown(call: Callable[[], Any]) -> int:
    """Bytes that a call holds at most beyond what is held before it."""
    gc.collect()
    before = machine.held()
    machine.forget_peak()
    call()
    most = machine.peak()
    if before is None or most is None:
        raise SystemExit("the system does not tell how much memory is held")
    return most - before


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument(
        "--samples", type=int, default=128, help="calibration examples, of both tasks together"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    suite = find("text8")
    with tempfile.TemporaryDirectory(prefix="plait-ode-step-") as name:
        base = Path(name) / "base"
        suite.lay_base(Sources(args.data), base)
        world = World(Setup("text8", Sources(args.data), base, None))
        every = world.tensors(Model(base))
        names = mergeable(open_checkpoint(base), suite.private)
        weights = {n: every[n] for n in names}
        problem = Problem(
            {
                task: Objective(
                    world.network,
                    world.head(task),
                    draw(world.tasks[task], "train", args.samples // 2, 0).examples,
                    fixed=every,
                )
                for task in TASKS
            }
        )
    layout = Layout(weights)
    target = layout.flat(weights)
    target += 0.01 * torch.randn(layout.size, generator=torch.Generator().manual_seed(0)) * target.abs()
    calibration, still = Calibration(problem, layout), Still(problem, layout)
    buffer = layout.empty().normal_(generator=torch.Generator().manual_seed(1))
    theta = layout.flat(weights)

    def path(on: Calibration) -> None:
        # a budget below the slope, so that every step is held back: the most arithmetic that a step can have
        Way(layout, on, target, 0.5, 0.5 / STEPS, budget=0.0).follow(theta.copy_(layout.flat(weights)))

    calibration.gradient(theta, buffer, "before")
    whole, alone = [], []
    for _ in range(args.repeats):
        whole.append(seconds(lambda: calibration.gradient(theta, buffer, "here")))
        alone.append(seconds(lambda: path(still)) / STEPS)
    # a path in memory: theta and the target are the caller's, and counted
    held = 2 * 4 * layout.size
    activations = grown(lambda: calibration.gradient(theta, buffer, "here"))
    inside = grown(lambda: path(calibration))
    size = 4 * layout.size
    row = {
        "parameters": layout.size,
        "samples": args.samples,
        "gradient": median(whole),
        "arithmetic": median(alone),
        "share": median(alone) / (median(alone) + median(whole)),
        "memory": (held + inside - activations) / size,
        "memory_with_activations": (held + inside) / size,
        "activations": activations / size,
    }
    print(row)
    found = {
        "benchmark": "ode_step",
        "machine": machine.machine(),
        "software": machine.software(suite.packages),
        **row,
    }
    write_json(args.out / "ode_step.json", found)


if __name__ == "__main__":
    main()
