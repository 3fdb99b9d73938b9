"""One run of a suite: experts, the accuracies of the base and of the experts, a stream for every method and order.

What is finished is in the file of results before the next is begun.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from plait.bench import experts, machine, results, worker
from plait.bench.at_once import cosines
from plait.bench.cells import last_cell, measure_stream
from plait.bench.grids import BUDGET
from plait.bench.pool import Pool, processes
from plait.bench.specs import Spec, parse
from plait.bench.suites import Sources, Suite, find
from plait.bench.tuning import Stock, submit_at_once, tune
from plait.bench.worker import BATCH, Model, Setup
from plait.bench.writing import write_json
from plait.methods.base import TensorMethod
from plait.methods.choosing import fit_of_method
from plait.store.lock import hold

Say = Callable[[str], None]

DECISIVE = ("plait", "torch", "cpu")
"""Software that decides the bytes of an expert, beside the suite's packages."""


@dataclass(frozen=True)
class Asked:
    """What a run is asked for.

    methods: as `specs.parse` takes them. out: the file of results. cache: a folder for experts and for work. test:
    test examples of a task at most; None for as many as the suite says. workers: processes. last: measure only the
    model of all tasks, merged at once, not those on the way. streams: how many are run side by side. weights: what
    the tasks weigh, a key of WEIGHTS.
    """

    suite: str
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    out: Path
    cache: Path
    sources: Sources = field(default_factory=Sources)
    budget: int = BUDGET
    test: int | None = None
    workers: int = 2
    device: str = "cpu"
    last: bool = False
    streams: int = 1
    weights: str = "equal"


def zipf(tasks: Sequence[str]) -> dict[str, float]:
    """1, 1/2, 1/3, ... in the suite's own order: few tasks matter much, many a little (Zipf's law)."""
    return {task: 1 / number for number, task in enumerate(tasks, 1)}


WEIGHTS: Mapping[str, Callable[[Sequence[str]], dict[str, float] | None]] = {
    "equal": lambda tasks: None,
    "zipf": zipf,
}
"""What the tasks of a suite weigh; None: 1 each."""


def run(asked: Asked, say: Say = lambda line: None) -> dict[str, Any]:
    """Measure what is missing in the file `asked.out`; returns all that it holds then. say: takes lines of progress.

    Errors: UsageError for words that make no sense; RefusedInput where data is missing or the file holds other
    results; LockedError where another run of the suite uses the cache.
    """
    find(asked.suite)
    return conduct(Run, asked, _specs(asked), say)


def conduct(kind: type[Run], asked: Asked, specs: Mapping[str, Spec], say: Say) -> dict[str, Any]:
    """Do what `kind.all` does, with processes, a base and a folder for work at hand. Errors: those of `run`."""
    from plait.problem.module import parse_device

    suite = find(asked.suite)
    parse_device(asked.device)
    suite.check(asked.sources)
    for spec in specs.values():
        found = spec.made()
        if isinstance(found, TensorMethod):
            found.check_count(len(suite.tasks))
    results.check_suite(asked.out, suite.name, kind.schema)
    asked.cache.mkdir(parents=True, exist_ok=True)
    with hold(asked.cache / f"{suite.name}.lock", f"bench run {suite.name}"):
        work = asked.cache / f"{suite.name}.work"
        shutil.rmtree(work, ignore_errors=True)  # what a run that was killed left
        try:
            suite.lay_base(asked.sources, work / "base")
            test = suite.test if asked.test is None else asked.test
            setup = Setup(suite.name, asked.sources, work / "base", test, asked.device)
            with processes(asked.workers, setup) as pool:
                return kind(asked, suite, specs, pool, work, say).all()
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _specs(asked: Asked) -> dict[str, Spec]:
    """By label."""
    return {spec.label: spec for spec in map(parse, asked.methods)}


@dataclass
class Run:
    """What the parts of a run share. stock: what is merged; found: the results so far."""

    schema: ClassVar[str] = results.SCHEMA
    asked: Asked
    suite: Suite
    specs: Mapping[str, Spec]
    pool: Pool
    work: Path
    say: Say
    stock: Stock = field(init=False)
    found: dict[str, Any] = field(init=False)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def weights(self) -> dict[str, float] | None:
        """What the tasks weigh; None: 1 each."""
        return WEIGHTS[self.asked.weights](self.suite.tasks)

    def all(self) -> dict[str, Any]:
        self._begin()
        self._measure_rows()
        if self.asked.last:
            return self._all_at_once()
        pairs = [(method, seed) for seed in self.asked.seeds for method in self.specs]
        missing = [pair for pair in pairs if results.cell_of(self.found, *pair) is None]
        with ThreadPoolExecutor(self.asked.streams) as side_by_side:
            jobs = [side_by_side.submit(self._stream, *pair) for pair in missing]
            try:
                for job in as_completed(jobs):
                    job.result()
            except BaseException:
                side_by_side.shutdown(wait=False, cancel_futures=True)
                raise
        return self.found

    def _stream(self, label: str, seed: int) -> None:
        began = time.monotonic()
        acc = self._cell(label, seed)["figures"]["acc"]
        done = len([c for c in self.found["cells"] if c["method"] in self.specs and not c.get("last")])
        many = len(self.specs) * len(self.asked.seeds)
        self.say(
            f"{label}, order {seed}: ACC {100 * acc:.1f} %, {time.monotonic() - began:.0f} s, {done} of {many}"
        )

    def _begin(self) -> None:
        """Look at data, base and experts, train those that are missing, and take up the file of results."""
        suite, sources = self.suite, self.asked.sources
        software = machine.software(suite.packages)
        self.say(f"reading {len(suite.tasks)} tasks")
        jobs = {task: self.pool.submit(worker.describe, task) for task in suite.tasks}
        tasks = {task: job.result() for task, job in jobs.items()}
        base = experts.digest_of(self.pool.setup.base)
        if suite.expert and sources.models:
            folders, rows = experts.given(suite, sources.models)
        else:
            decisive = {name: software[name] for name in (*DECISIVE, *suite.packages)}
            folders, rows = experts.trained(
                suite, self.pool, tasks, base, decisive, self.asked.cache, self.say
            )
        self.stock = Stock(self.pool.setup.base, folders, suite.tasks, suite.private)
        now = {"suite": suite.name, "setting": self._setting(base), "tasks": tasks, "experts": rows}
        self.found = results.go_on(self.asked.out, now, self.schema)
        self.pool.know(self._known())
        started = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        this = {"started": started, "machine": machine.machine(), "software": software}
        self.found["runs"].append({**this, "workers": self.asked.workers})

    def _known(self) -> dict[tuple[str, str], results.Score]:
        return results.scores(self.found)

    def _setting(self, base: str) -> dict[str, Any]:
        from plait.training import Recipe

        models = self.asked.sources.models
        whole = self.suite.whole(models) if self.suite.whole and models else None
        return {
            "base": base,
            "beside": experts.beside(self.stock.base),
            "whole": None if whole is None else experts.digest_of(whole),
            "about": self.suite.base,
            "network": self.suite.network,
            "recipe": None if self.suite.expert else Recipe(**self.suite.recipe).plain(),
            "test": self.pool.setup.test,
            "budget": self.asked.budget,
            "batch": BATCH,
            "device": self.asked.device,
            "weights": self.weights,
            "level": results.LEVEL,
        }

    def _measure_rows(self) -> None:
        """The base, and each expert, on the test examples."""
        base = Model(self.stock.base)
        own = {task: Model(folder, expert=True) for task, folder in self.stock.experts.items()}
        digests = {task: row["digest"] for task, row in self.found["experts"].items()}
        score, name = self.pool.score, self.found["setting"]["base"]
        jobs = {
            "base": {task: score(base, name, task, "test") for task in self.suite.tasks},
            "experts": {task: score(own[task], digests[task], task, "test") for task in self.suite.tasks},
        }
        for who, row in jobs.items():
            cells = {task: job.result().plain() for task, job in row.items()}
            self.found["rows"][who] = cells
            self.say(f"{who}: {100 * sum(cell['value'] for cell in cells.values()) / len(cells):.1f} %")
        if "cosines" not in self.found:
            self.found["cosines"] = self.pool.submit(cosines, self.stock.experts).result()
        self._save()

    def _told(self, label: str) -> dict[str, Any]:
        """What the results say of a method; its options are chosen, unless that was done."""
        told: dict[str, Any] = self.found["methods"]
        with self._lock:
            if label not in told:
                told[label] = tune(
                    self.specs[label], self.stock, self.asked.budget, self.pool, self.work, self.weights
                )
                self._save()
            found: dict[str, Any] = told[label]
            return found

    def _cell(self, label: str, seed: int) -> dict[str, Any]:
        """Run one stream. It is in the file afterwards."""
        options = self._told(label)["options"]
        order, rows, spec = self.suite.order(seed), self.found["rows"], self.specs[label]
        work = self.work / f"{list(self.specs).index(label)}-{seed}"
        cell = measure_stream(
            spec.name, options, self.stock, order, rows, self.pool, work, spec.looks, self.weights
        )
        return self._keep(seed, {**cell, "method": label})

    def _keep(self, seed: int, cell: dict[str, Any]) -> dict[str, Any]:
        """Put a cell into the file, in the place of one that says less."""
        with self._lock:
            held = [c for c in self.found["cells"] if (c["method"], c["seed"]) != (cell["method"], seed)]
            self.found["cells"] = [*held, {"seed": seed, "run": len(self.found["runs"]) - 1, **cell}]
            self._save()
        return cell

    def _all_at_once(self) -> dict[str, Any]:
        """The model of all tasks for every method and order: side by side, each merged in memory."""
        pairs = [
            (label, seed)
            for label in self.specs
            for seed in self.asked.seeds
            if results.cell_of(self.found, label, seed, last=True) is None
        ]
        free = {label for label in self.specs if not self._told(label)["order"] and not self._fits(label)}
        jobs: dict[tuple[str, int], Any] = {}
        first: dict[str, int] = {}
        for label, seed in pairs:
            if label in free and first.setdefault(label, seed) != seed:
                continue  # the same model in another order
            jobs[label, seed] = submit_at_once(
                self.pool,
                self.stock,
                self.suite.order(seed),
                self.specs[label].name,
                self._told(label)["options"],
                "test",
                self.weights,
            )
        for number, (label, seed) in enumerate(pairs, 1):
            found = jobs[label, first[label] if label in free else seed].result()
            cell = last_cell(label, self.suite.order(seed), self.found["rows"], found, self.weights)
            acc = self._keep(seed, cell)["figures"]["acc"]
            self.say(
                f"{label}, order {seed}: ACC {100 * acc:.1f} %, {found['seconds']:.0f} s, {number} of {len(pairs)}"
            )
        return self.found

    def _fits(self, label: str) -> bool:
        return fit_of_method(self.specs[label].made()) is not None

    def _save(self) -> None:
        write_json(self.asked.out, self.found)
