"""What is left of a task that is taken out: for many methods, every place in the order of arrival.

All tasks of a suite are merged in the order of a seed, then one is taken out and the model is compared with the one
that never had it. What is finished is in the file of results before the next is begun.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from plait.bench import results
from plait.bench.results import Score
from plait.bench.run import Asked, Run, Say, conduct
from plait.bench.specs import Spec, parse
from plait.bench.suites import find
from plait.bench.taking import ByLine, BySubtraction, Held, How, Way, drop, norms
from plait.bench.tuning import Stock
from plait.bench.worker import Model
from plait.errors import UsageError
from plait.evaluation import metrics

METHODS = (
    "mdm_oc", "mdm_oc algebraic", "subtraction fp32", "subtraction bf16", "task_arithmetic", "average", "ties",
    "model_stock", "covariance", "opcm", "magmax",
)  # fmt: skip
SUBTRACTION = "subtraction"
DTYPES = ("fp32", "bf16")
MODELS = ("merged", "unmerged", "never")


@dataclass(frozen=True)
class Removal:
    """A method and how a task is taken out of it. how: "exact" or "algebraic", as in `Line.unmerge`, or the dtype in
    which task vectors are subtracted."""

    label: str
    spec: Spec
    how: str

    def told(self) -> dict[str, Any]:
        """What the results say of it."""
        facts = self.spec.made().facts
        words = {"name": self.spec.name, "how": self.how, "options": self.spec.words()}
        return {**words, "family": facts.family, "removal": facts.removal, "order": facts.order}

    def begin(self, stock: Stock, order: Sequence[str], work: Path) -> Way:
        if self.how in DTYPES:
            return BySubtraction(self.how, self.spec.words()["scale"], stock, order, work)
        how: How = "algebraic" if self.how == "algebraic" else "exact"
        return ByLine(self.spec.name, self.spec.words(), how, stock, order, work)


def read(text: str) -> Removal:
    """`METHOD [algebraic] [KEY=VALUE …]`, or `subtraction fp32|bf16 [scale=VALUE]`. UsageError for anything else."""
    from plait.line.algebra import check

    name, *words = text.split()
    if name == SUBTRACTION:
        if not words or words[0] not in DTYPES:
            raise UsageError(f"{text!r} says no dtype; expected 'subtraction fp32' or 'subtraction bf16'")
        spec = parse(" ".join(["task_arithmetic", *words[1:]]))
        strange = [key for key in spec.given if key != "scale"]
        if strange:
            raise UsageError(f"{strange[0]!r} in {text!r} is no option of subtraction; it has only scale")
        return Removal(_label(f"{SUBTRACTION} {words[0]}", spec), spec, words[0])
    algebraic = words[:1] == ["algebraic"]
    spec = parse(" ".join([name, *(words[1:] if algebraic or words[:1] == ["exact"] else words)]))
    if spec.looks:
        raise UsageError(
            f"method {spec.label} looks at data of the tasks, which this comparison does not hand to it; leave it out"
        )
    method = spec.made()
    if algebraic:
        check(method)
    if method.facts.removal == "never":
        raise UsageError(f"method {name} keeps nothing that a task could be taken out of; leave it out")
    return Removal(
        _label(f"{name} algebraic" if algebraic else name, spec), spec, words[0] if algebraic else "exact"
    )


def _label(name: str, spec: Spec) -> str:
    return " ".join([name, *(f"{key}={value}" for key, value in spec.given.items())])


def run(asked: Asked, say: Say = lambda line: None) -> dict[str, Any]:
    """Measure what is missing in the file `asked.out`; returns all that it holds then.

    asked: its methods as `read` takes them; budget and last do not count. Errors: those of `bench.run.run`, and
    NotRemovable for an algebraic removal from a method that has none.
    """
    find(asked.suite)
    for text in asked.methods:
        read(text)
    return conduct(Removals, asked, {}, say)


class Removals(Run):
    """A run that takes tasks out."""

    schema: ClassVar[str] = results.REMOVAL

    @cached_property
    def removals(self) -> dict[str, Removal]:
        return {one.label: one for one in map(read, self.asked.methods)}

    def all(self) -> dict[str, Any]:
        self._begin()
        self._measure_rows()
        for seed in self.asked.seeds:
            for number, label in enumerate(self.removals, 1):
                self._all_places(label, seed, f"{number} of {len(self.removals)}")
        return self.found

    def _setting(self, base: str) -> dict[str, Any]:
        """Nothing is chosen here, so there is no budget."""
        return {key: value for key, value in super()._setting(base).items() if key != "budget"}

    def _known(self) -> dict[tuple[str, str], Score]:
        held = results.row_scores(self.found)
        for cell in self.found["cells"]:
            for who in MODELS:
                answers = zip(cell["order"], cell["right"][who], cell["undefined"][who], strict=True)
                for task, right, undefined in answers:
                    count = self.found["tasks"][task]["test"]["examples"]
                    held[cell["versions"][who], task] = Score(right, count, undefined)
        return held

    def _all_places(self, label: str, seed: int, place: str) -> None:
        """Take every task out that the file does not tell of."""
        order = self.suite.order(seed)
        done = {c["place"] for c in self.found["cells"] if (c["method"], c["seed"]) == (label, seed)}
        missing = [index for index in range(len(order)) if index not in done]
        if not missing:
            return
        began = time.monotonic()
        work = self.work / f"removal-{seed}-{len(self.found['cells'])}"
        work.mkdir()
        removal = self.removals[label]
        way = removal.begin(self.stock, order, work)
        self.found["methods"].setdefault(label, removal.told())
        for index in missing:
            cell = self._cell_of(way, order, index)
            here = {"method": label, "seed": seed, "run": len(self.found["runs"]) - 1}
            self.found["cells"].append({**here, **cell})
            self._save()
        shutil.rmtree(work)
        self.say(f"{label}, order {seed}: {time.monotonic() - began:.0f} s, {place}")

    def _cell_of(self, way: Way, order: list[str], index: int) -> dict[str, Any]:
        """Take one task out. The time is taken while nothing is being measured."""
        taken = way.take(index)
        jobs = {
            who: self._submit(model, order)
            for who, model in (("merged", way.merged), ("unmerged", taken.model))
        }
        never = way.never(index)
        equal = never.digest == taken.model.digest
        jobs["never"] = self._submit(taken.model if equal else never, order)
        apart = (0.0, 0.0) if equal else norms(taken.model.folder, never.folder, way.base)
        scores = {who: [job.result() for job in row] for who, row in jobs.items()}
        drop(way, index)
        values = {who: [score.value for score in row] for who, row in scores.items()}
        base = self.found["rows"]["base"][order[index]]["value"]
        return {
            "order": order,
            "place": index,
            "gone": order[index],
            "versions": {"merged": way.merged.digest, "unmerged": taken.model.digest, "never": never.digest},
            "equal": equal,
            "right": {who: [score.right for score in row] for who, row in scores.items()},
            "undefined": {who: [score.undefined for score in row] for who, row in scores.items()},
            "values": values,
            "figures": {**figures(values, base, index), "distance": metrics.weight_distance(*apart)},
            "seconds": round(taken.seconds, 3),
            "cpu": round(taken.cpu, 3),
            "bytes": {"members": taken.members, "state": taken.state},
            "receipt": taken.receipt,
        }

    def _submit(self, model: Held, order: Sequence[str]) -> list[Future[Score]]:
        return [self.pool.score(Model(model.folder), model.digest, task, "test") for task in order]


def figures(values: Mapping[str, Sequence[float]], base: float, gone: int) -> dict[str, Any]:
    """What a removal did to accuracies. values: those of each of MODELS, by task; base: that of the base on the task
    that went, which is at `gone`.

    retain, fidelity: UAD in both readings. forget: the removed task, beside the base; left: beside the model that
    never had it.
    """
    merged, unmerged, never = (values[who] for who in MODELS)
    return {
        "retain": metrics.removal_retain(merged, unmerged, gone),
        "fidelity": metrics.removal_fidelity(unmerged, never, gone),
        "forget": metrics.removal_forget(unmerged[gone], base),
        "left": metrics.removal_forget(unmerged[gone], never[gone]),
    }
