"""Runs the passes of one operation: threads, progress and journal in one place."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from plait.engine.desk import Desk
from plait.engine.journal import Journal, Wrote
from plait.engine.local import Traffic, run
from plait.engine.plan import Job, Settings
from plait.engine.progress import Gauge, Silent

R = TypeVar("R")


class Driver:
    """Runs passes one after the other and adds up what went through the files."""

    def __init__(
        self, settings: Settings, progress: Gauge | None = None, journal: Journal | None = None
    ) -> None:
        self.settings = settings
        self.progress: Gauge = progress if progress is not None else Silent()
        self.journal = journal
        self.traffic = Traffic()

    def survey(self, label: str, jobs: Sequence[Job], act: Callable[[Job, Desk], R], total: int) -> list[R]:
        """A pass that writes nothing. `total` bytes are expected to be read. Results in the order of
        `jobs`."""
        return self._run(label, jobs, act, total, None)

    def write(
        self,
        label: str,
        jobs: Sequence[Job],
        act: Callable[[Job, Desk], Any],
        total: int,
        settled: Path | None = None,
    ) -> list[Any]:
        """A pass that writes its own byte ranges. With a journal, jobs whose bytes are there are not run
        again; results must survive JSON.

        settled: a folder whose files are finished and whole. What jobs wrote there is not looked at, and `act`
        does not write it again; what was noted of a job stays true.
        """
        if self.journal is None:
            return self._run(label, jobs, act, total, None)
        kept = self._kept(label, jobs, settled)
        journal = self.journal

        def traced(job: Job, desk: Desk) -> tuple[Any, Wrote]:
            desk.trace = []
            result = act(job, desk)
            wrote, desk.trace = desk.trace, None
            return result, wrote

        def note(job: Job, result: tuple[Any, Wrote]) -> None:
            if settled is None:
                journal.job(label, job.index, result[1], result[0])

        todo = [job for job in jobs if job.index not in kept]
        made = self._run(label, todo, traced, total, note)
        kept.update((job.index, result) for job, (result, _) in zip(todo, made, strict=True))
        return [kept[job.index] for job in jobs]

    def _kept(self, label: str, jobs: Sequence[Job], settled: Path | None) -> dict[int, Any]:
        """Results of the jobs that an earlier run finished and whose bytes are still there."""
        noted = self.journal.jobs.get(label, {}) if self.journal is not None else {}
        known = [job for job in jobs if job.index in noted]

        def check(job: Job, desk: Desk) -> bool:
            return all(
                desk.checksum(file, first, count) == crc
                for file, first, count, crc in noted[job.index][0]
                if settled is None or Path(file).parent != settled
            )

        held = run(known, check, self.settings.workers)
        return {job.index: noted[job.index][1] for job, whole in zip(known, held, strict=True) if whole}

    def _run(
        self,
        label: str,
        jobs: Sequence[Job],
        act: Callable[[Job, Desk], R],
        total: int,
        note: Callable[[Job, R], None] | None,
    ) -> list[R]:
        def done(job: Job, result: R, traffic: Traffic) -> None:
            if note is not None:
                note(job, result)
            self.traffic.read += traffic.read
            self.traffic.written += traffic.written
            self.progress.advance(traffic.read + traffic.written)

        self.progress.begin(label, total)
        try:
            return run(jobs, act, self.settings.workers, done)
        finally:
            self.progress.end()


def holds(file: Path, ranges: Sequence[Sequence[int]], workers: int) -> bool:
    """Whether a file is as long as these ranges together and has their bytes.

    ranges: [first byte, bytes, crc32] each, without a gap. False where the file is missing or cannot be read.
    """
    try:
        if os.stat(file).st_size != sum(count for _, count, _ in ranges):
            return False
    except OSError:
        return False

    def check(job: Job, desk: Desk) -> bool:
        first, count, crc = ranges[job.index]
        return desk.checksum(str(file), first, count) == crc

    return all(run([Job(number, ()) for number in range(len(ranges))], check, workers))
