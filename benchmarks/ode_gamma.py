"""When ODE-M holds a path back at all: gamma, and what the path gains over the straight line.

    python benchmarks/ode_gamma.py --data DIR --cache DIR [--samples 128] [--out benchmarks/results]

Pairs of experts of MiniLM on tasks of suite text8. The path leads from the first expert all the way to the second, so
that what happens behind t = 1/2, where the second of two members stops, is seen too. Three conditions: experts as the
suite trains them; the same tasks trained with ten times the rate; and one task with its labels swapped, so that the
second expert has learnt the opposite of the first. Writes ode_gamma.json. Experts are kept in --cache.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from plait.bench import machine
from plait.bench.suites import Sources, Suite, find
from plait.bench.worker import Model, Setup, World
from plait.bench.writing import write_json
from plait.checkpoint import open_checkpoint
from plait.line.build import mergeable
from plait.methods.memory import apply
from plait.methods.registry import make
from plait.problem.base import Examples, Split, Task
from plait.problem.objective import Objective
from plait.problem.problem import Problem
from plait.problem.stored import draw
from plait.training import Recipe, finetune

ROOT = Path(__file__).parent.parent
POINTS = 9


@dataclass(frozen=True, eq=False)
class Swapped:
    """A task whose labels are those of the class that stands opposite in the list of classes."""

    task: Task

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    @property
    def name(self) -> str:
        return f"{self.task.name} swapped"

    def examples(self, split: Split) -> Examples:
        found = self.task.examples(split)
        assert found.labels is not None
        turned = len(self.task.classes) - 1 - found.labels
        return replace(found, labels=turned, digest=f"{found.digest} swapped")


@dataclass(frozen=True)
class Condition:
    """Two tasks and how their experts are trained."""

    name: str
    first: str
    second: str
    rate: float | None = None
    swapped: bool = False


CONDITIONS = (
    Condition("as the suite trains them", "ag_news", "trec6"),
    Condition("as the suite trains them, alike", "banking77", "clinc_domain10"),
    Condition("ten times the rate", "ag_news", "trec6", rate=1e-3),
    Condition("the opposite task", "sst2", "sst2", swapped=True),
)
WAYS: tuple[Mapping[str, Any], ...] = (
    {"granularity": "model"},
    {"granularity": "layer"},
    {"granularity": "tensor"},
    {"granularity": "model", "calibration": "new"},
    {"granularity": "model", "budget": 0.0},
)


class Bench:
    """The suite, its network, and what is cached."""

    def __init__(self, data: Path, cache: Path, samples: int) -> None:
        self.suite: Suite = find("text8")
        self.cache, self.samples = cache, samples
        base = cache / "base"
        if not base.exists():
            self.suite.lay_base(Sources(data), base)
        self.world = World(Setup("text8", Sources(data), base, None))
        self.base = self.free(base)

    def free(self, folder: Path) -> dict[str, Tensor]:
        """The tensors of a checkpoint that are merged."""
        names = mergeable(open_checkpoint(self.world.setup.base), self.suite.private)
        found = self.world.tensors(Model(folder, expert=True))
        return {name: found[name] for name in names}

    def expert(self, task: Any, rate: float | None) -> dict[str, Tensor]:
        recipe = Recipe(**{**self.suite.recipe, **({} if rate is None else {"rate": rate})})
        folder = self.cache / f"{task.name.replace(' ', '-')}-{recipe.rate:g}"
        if not folder.exists():
            finetune(self.world.setup.base, task, folder, recipe, network=self.suite.network, threads=1)
        return self.free(folder)

    def run(self, condition: Condition) -> list[dict[str, Any]]:
        """A row for each way to follow the path."""
        tasks: list[Any] = [self.world.tasks[condition.first], self.world.tasks[condition.second]]
        if condition.swapped:
            tasks[1] = Swapped(tasks[1])
        experts = [self.expert(task, condition.rate) for task in tasks]
        problem = Problem({task.name: self.objective(task, i) for i, task in enumerate(tasks)})
        deltas = [sum_of(e, self.base) for e in experts]
        rows = []
        for way in WAYS:
            line = POINTS if way == WAYS[0] else 0
            method = make("ode_m", {**way, "samples": self.samples, "t_end": 1.0, "line": line})
            told: dict[str, Any] = {}
            apply(method, self.base, experts, problem=problem, told=told)
            own = {"condition": condition.name, **way, "given_budget": way.get("budget")}
            rows.append({**own, **facts(told["known"][-1])})
        rows[0]["cosine"] = inner(experts, self.base) / (deltas[0] * deltas[1]) ** 0.5
        return rows

    def objective(self, task: Any, number: int) -> Objective:
        name = task.task.name if isinstance(task, Swapped) else task.name
        drawn = draw(task, "train", self.samples, number)
        return Objective(
            self.world.network,
            self.world.head(name),
            drawn.examples,
            fixed=self.world.tensors(Model(self.world.setup.base)),
        )


def sum_of(expert: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> float:
    """The squared length of a task vector."""
    return sum(float((expert[name] - base[name]).double().square().sum()) for name in base)


def inner(experts: list[dict[str, Tensor]], base: Mapping[str, Tensor]) -> float:
    """The inner product of two task vectors."""
    one, two = experts
    return sum(float(((one[n] - base[n]).double() * (two[n] - base[n]).double()).sum()) for n in base)


def facts(known: Mapping[str, Any]) -> dict[str, Any]:
    """What a row tells of a path: gamma of its steps, before t = 1/2 and behind, losses and barriers."""
    marks, gamma = known["t"], known["gamma"]
    early = [g for t, g in zip(marks, gamma, strict=False) if t < 0.5 - 1e-9]
    late = gamma[len(early) :]
    return {
        "steps": len(gamma),
        "budget": known["budget"],
        "early": {"held_back": sum(g < 1 for g in early), "of": len(early), "least": min(early)},
        "late": {"held_back": sum(g < 1 for g in late), "of": len(late), "least": min(late)},
        "gamma": gamma,
        "t": marks,
        "losses": known["losses"],
        "barrier": known.get("barrier"),
        "line": known.get("line"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--cache", type=Path, required=True, help="folder for experts")
    parser.add_argument(
        "--samples", type=int, default=128, help="calibration examples, of both tasks together"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    args = parser.parse_args()
    args.cache.mkdir(parents=True, exist_ok=True)
    bench = Bench(args.data, args.cache, args.samples)
    rows = []
    for condition in CONDITIONS:
        for row in bench.run(condition):
            rows.append(row)
            print(
                row["condition"],
                row["granularity"],
                row.get("calibration", "seen"),
                row["early"],
                row["late"],
            )
    found = {
        "benchmark": "ode_gamma",
        "samples": args.samples,
        "machine": machine.machine(),
        "software": machine.software(bench.suite.packages),
        "rows": rows,
    }
    write_json(args.out / "ode_gamma.json", found)


if __name__ == "__main__":
    main()
