"""`plait bench cil`: every entrant on every data set, split and order of classes. What is finished is in the file of
results before the next is begun."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from plait.bench import cil, experts, machine, results, worker
from plait.bench.cil_data import Setup, describe
from plait.bench.cil_methods import METHODS, Entrant, parse
from plait.bench.cil_run import run_stream
from plait.bench.pool import executor
from plait.bench.suites import Sources
from plait.bench.writing import write_json
from plait.errors import UsageError
from plait.store.lock import hold
from plait.training import Recipe

Say = Callable[[str], None]
BUDGET = 3
SEEDS = (42, 43, 44)


@dataclass(frozen=True)
class Asked:
    """What a run is asked for.

    methods: as `cil_methods.parse` takes them. seeds: of the orders of classes, and of all that is drawn. splits: see
    `CilSuite.pairs`. budget: values tried of a main option. each: train examples of a class at most. test: test
    examples of a data set at most. recipe: changes to the suite's: epochs, rate, batch.
    """

    suite: str
    out: Path
    cache: Path
    methods: tuple[str, ...] = METHODS
    seeds: tuple[int, ...] = SEEDS
    splits: tuple[str, ...] | None = None
    sources: Sources = field(default_factory=Sources)
    budget: int = BUDGET
    each: int = cil.TRAIN_EACH
    test: int | None = None
    workers: int = 2
    device: str = "cpu"
    recipe: Mapping[str, Any] = field(default_factory=dict)


def run(asked: Asked, say: Say = lambda line: None) -> dict[str, Any]:
    """Measure what is missing in the file `asked.out`; returns all that it holds then.

    Errors: UsageError for words that make no sense; RefusedInput where data is missing or the file holds other
    results; LockedError where another run of the suite uses the cache.
    """
    from plait.problem.module import parse_device

    found = cil.find(asked.suite)
    found.pairs(asked.splits)
    entrants = {one.label: one for one in map(parse, asked.methods)}
    if cil.TUNING_SEED in asked.seeds:
        raise UsageError(
            f"seed {cil.TUNING_SEED} is the order by which options are chosen, and is not reported; take another"
        )
    recipe = Recipe(**{"examples": 0, **found.suite.recipe, **asked.recipe})
    parse_device(asked.device)
    found.suite.check(asked.sources)
    results.check_suite(asked.out, found.name, results.CIL)
    asked.cache.mkdir(parents=True, exist_ok=True)
    with hold(asked.cache / f"{found.name}.lock", f"bench cil {found.name}"):
        work = asked.cache / f"{found.name}.work"
        shutil.rmtree(work, ignore_errors=True)  # what a run that was killed left
        try:
            found.suite.lay_base(asked.sources, work / "base")
            test = found.suite.test if asked.test is None else asked.test
            setup = Setup(found.name, asked.sources, work / "base", asked.each, test, recipe, asked.device)
            with executor(asked.workers, worker.begin) as pool:
                return _Run(asked, found, entrants, setup, pool, say).all()
        finally:
            shutil.rmtree(work, ignore_errors=True)


@dataclass
class _Run:
    """What the parts of a run share. found: the results so far."""

    asked: Asked
    suite: cil.CilSuite
    entrants: Mapping[str, Entrant]
    setup: Setup
    pool: Executor
    say: Say
    found: dict[str, Any] = field(init=False)

    def all(self) -> dict[str, Any]:
        pairs = self.suite.pairs(self.asked.splits)
        self._begin()
        self._tune(list(dict.fromkeys(name for name, _ in pairs)))
        self._measure(pairs)
        return self.found

    def _begin(self) -> None:
        """Look at the data sets, and take up the file of results."""
        software = machine.software(self.suite.suite.packages)
        jobs = {name: self.pool.submit(describe, self.setup, name) for name in self.suite.splits}
        tasks = {name: job.result() for name, job in jobs.items()}
        now = {"suite": self.suite.name, "setting": self._setting(), "tasks": tasks, "experts": {}}
        self.found = results.go_on(self.asked.out, now, results.CIL)
        started = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        this = {"started": started, "machine": machine.machine(), "software": software}
        self.found["runs"].append({**this, "workers": self.asked.workers})

    def _setting(self) -> dict[str, Any]:
        return {
            "base": experts.digest_of(self.setup.base),
            "beside": experts.beside(self.setup.base),
            "about": self.suite.suite.base,
            "note": self.suite.note,
            "network": self.suite.suite.network,
            "head": self.suite.head,
            "recipe": self.setup.recipe.plain(),
            "each": self.setup.each,
            "test": self.setup.test,
            "budget": self.asked.budget,
            "tuning_seed": cil.TUNING_SEED,
            "device": self.setup.device,
        }

    def _tune(self, datasets: list[str]) -> None:
        """Choose main options, for each data set on its smallest number of groups: validation examples, and an order
        of classes that is not reported."""
        told: dict[str, Any] = self.found["methods"]
        jobs: dict[tuple[str, str], dict[Any, Future[dict[str, Any]]]] = {}
        for label, entrant in self.entrants.items():
            told.setdefault(label, {"name": entrant.name, "sets": {}})
            option, values = entrant.grid(self.asked.budget)
            for dataset in datasets:
                if dataset in told[label]["sets"]:
                    continue
                jobs[label, dataset] = {
                    value: self._submit(
                        entrant, {str(option): value}, dataset, min(self.suite.splits[dataset])
                    )
                    for value in values
                }
        for (label, dataset), row in jobs.items():
            tried = {value: job.result()["figures"]["final"] for value, job in row.items()}
            entrant = self.entrants[label]
            told[label]["sets"][dataset] = _chosen(entrant, entrant.grid(self.asked.budget)[0], tried)
            self._save()
            if tried:
                best = told[label]["sets"][dataset]["tuning"]
                self.say(f"{label}, {dataset}: {best['option']} {best['chosen']:g} of {len(tried)}")

    def _submit(
        self, entrant: Entrant, more: Mapping[str, Any], dataset: str, count: int
    ) -> Future[dict[str, Any]]:
        words = entrant.words(**more)
        return self.pool.submit(
            run_stream, self.setup, dataset, count, cil.TUNING_SEED, entrant.name, words, "validation"
        )

    def _measure(self, pairs: list[tuple[str, int]]) -> None:
        jobs: dict[tuple[str, str, int, int], Future[dict[str, Any]]] = {}
        done = {(c["method"], c["dataset"], c["groups"], c["seed"]) for c in self.found["cells"]}
        for seed in self.asked.seeds:
            for dataset, count in pairs:
                for label, entrant in self.entrants.items():
                    if (label, dataset, count, seed) in done:
                        continue
                    options = self.found["methods"][label]["sets"][dataset]["options"]
                    jobs[label, dataset, count, seed] = self.pool.submit(
                        run_stream, self.setup, dataset, count, seed, entrant.name, options, "test"
                    )
        for number, ((label, dataset, count, seed), job) in enumerate(jobs.items(), 1):
            cell = {"method": label, "dataset": dataset, "groups": count, "seed": seed, **job.result()}
            self.found["cells"].append({**cell, "run": len(self.found["runs"]) - 1})
            self._save()
            final, seconds = cell["figures"]["final"], sum(cell["seconds"])
            self.say(
                f"{label}, {dataset} in {count}, order {seed}: {100 * final:.1f} %, {seconds:.0f} s, {number} of "
                f"{len(jobs)}"
            )

    def _save(self) -> None:
        write_json(self.asked.out, self.found)


def _chosen(entrant: Entrant, option: str | None, tried: Mapping[Any, float]) -> dict[str, Any]:
    """What the results say of an entrant on a data set; the smallest of equally good values is taken."""
    chosen = max(tried, key=lambda value: (tried[value], -value)) if tried else None
    return {
        "options": entrant.words(**({} if option is None or chosen is None else {option: chosen})),
        "tuning": {
            "option": option,
            "tried": [{"value": value, "accuracy": final} for value, final in tried.items()],
            "chosen": chosen,
            "edge": len(tried) > 1 and chosen in (min(tried), max(tried)),
        },
    }
