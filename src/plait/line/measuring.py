"""Running the networks: one model in memory at a time, every result on the disk before the next is begun."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from plait.errors import RefusedInput
from plait.evaluation.bootstrap import interval
from plait.evaluation.rows import Row, Rows, pack
from plait.line import subjects
from plait.line.build import Setting, software
from plait.line.networks import Networks
from plait.line.planning import Cell, How, Plan, skipped, stored
from plait.line.subjects import Gone, Subject
from plait.problem.base import Head, Weights
from plait.store import Store

if TYPE_CHECKING:
    from torch import Tensor

    from plait.engine import Progress
    from plait.evaluation.measure import Measured


class Run:
    """Measures the missing cells of a plan: one model in memory at a time."""

    def __init__(self, store: Store, setting: Setting, how: How, plan: Plan) -> None:
        self.store, self.setting, self.how, self.plan = store, setting, how, plan
        self.rows = Rows(store)
        self.networks = Networks(setting, how.network, how.device, how.dtype)
        self.heads: dict[tuple[str, str], Head] = {}
        self.software = software()
        self.done: list[Row] = []

    def all(self) -> list[Row]:
        """The new rows, each of which is on the disk already."""
        progress = None if self.how.quiet else _progress()
        if progress is not None:
            progress.begin("evaluating", len(self.plan.missing))
        try:
            for cell in self.plan.missing:
                self.networks.of(cell.task, cell.head_of)
            base = self._base()
            self._make_heads(base)
            first, *others = self.plan.subjects
            self._subject(first, progress, base)
            del base
            for subject in others:
                self._subject(subject, progress)
        finally:
            if progress is not None:
                progress.end()
        return self.done

    def _subject(self, subject: Subject, progress: Progress | None, weights: Weights | None = None) -> None:
        cells = [cell for cell in self.plan.missing if cell.subject is subject]
        if not cells:
            return
        try:
            if weights is None:
                with subjects.tensors(self.setting, subject) as refs:
                    weights = self.networks.load(refs)
        except Gone as error:
            self.plan.skipped += [skipped(subject, cell.task.name, error) for cell in cells]
            return
        for cell in cells:
            if cell.place in self.heads:
                self._measure(cell, weights)
            if progress is not None:
                progress.advance(1)

    def _measure(self, cell: Cell, weights: Weights) -> None:
        from plait.evaluation.measure import measure

        examples = cell.task.examples(self.how.split)
        network = self.networks.of(cell.task, cell.head_of)
        try:
            ready = self.networks.with_private(cell.task, cell.head_of, weights)
            found = measure(self.heads[cell.place], network, ready, examples, self.how.batch)
        except RefusedInput as error:
            words = str(error)
            named = words if cell.task.name in words else f"{cell.task.name}: {words}"
            raise RefusedInput(f"{cell.subject.title}, {named}") from error
        self.done.append(self._row(cell, found))
        self.rows.put(self.done[-1:])

    def _row(self, cell: Cell, found: Measured) -> Row:
        how, condition = self.how, self.plan.conditions[cell.task.name]
        value, low, high = interval(found.answers, groups=found.groups, level=how.level, seed=how.seed)
        return Row(
            digest=cell.subject.digest,
            role=cell.subject.role,
            member=cell.subject.member["task"] if cell.subject.member else None,
            own=cell.own or None,
            **asdict(condition),
            value=value,
            right=sum(found.answers),
            count=len(found.answers),
            low=low,
            high=high,
            level=how.level,
            seed=how.seed,
            device=how.device,
            time=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            software=self.software,
            bits=pack(found.answers),
            groups=None if found.groups is None else tuple(found.groups),
            undefined=found.undefined,
        )

    def _base(self) -> dict[str, Tensor]:
        with subjects.tensors(self.setting, self.plan.subjects[0]) as refs:
            return self.networks.load(refs)

    def _make_heads(self, base: Weights) -> None:
        from plait.problem.heads import make_head

        for cell in self.plan.missing:
            if cell.place in self.heads:
                continue
            held = cell.head_of if stored(cell.task) else None
            weights = self.networks.with_private(cell.task, held, base)
            why = _headless(cell, weights)
            if why is not None:
                self.plan.skipped.append(skipped(cell.subject, cell.task.name, why))
                continue
            self.heads[cell.place] = make_head(cell.task, self.networks.of(cell.task, cell.head_of), weights)


def _headless(cell: Cell, weights: Weights) -> str | None:
    """Why a task's head cannot be made of the tensors that there are, if it cannot."""
    head = cell.task.head
    lacking = next(
        (name for name in (head.weight, head.bias) if head.weight and name not in {"", *weights}), ""
    )
    if not lacking:
        return None
    if cell.member is None:
        return f"its head is {lacking} of a checkpoint, and no checkpoint of this task was merged"
    return f"its head tensor {lacking} is not in the checkpoint of {cell.member}"


def _progress() -> Progress:
    from plait.engine import Progress
    from plait.engine.progress import clock

    class Count(Progress):
        """Counts models on tasks, not bytes."""

        def text(self, seconds: float) -> str:
            left = (self._total - self._count) * seconds / max(self._count, 1)
            return f"{self._label} {self._count} of {self._total}  {clock(left)} left"

    return Count()
