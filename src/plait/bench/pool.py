"""Processes of one thread each, side by side; and no score that is measured twice."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any, TypeVar

from plait.bench import worker
from plait.bench.results import Score
from plait.bench.worker import Model, Setup
from plait.errors import PlaitError
from plait.problem.base import Split

R = TypeVar("R")
Key = tuple[str, str, Split]
"""Digest of a model, task, split."""


class Pool:
    """Jobs for a number of processes. known: scores on test examples by digest and task that need not be measured."""

    def __init__(self, executor: ProcessPoolExecutor, setup: Setup) -> None:
        self._executor, self.setup = executor, setup
        self._scores: dict[Key, Future[Score]] = {}
        self.measured = 0

    def know(self, known: Mapping[tuple[str, str], Score]) -> None:
        """Scores on test examples that need not be measured."""
        for (digest, task), score in known.items():
            done: Future[Score] = Future()
            done.set_result(score)
            self._scores[digest, task, "test"] = done

    def submit(self, job: Callable[..., R], *words: Any) -> Future[R]:
        """A job of `plait.bench.worker`, on this pool's setup."""
        with _alive():
            return self._executor.submit(job, self.setup, *words)

    def score(self, model: Model, digest: str, task: str, split: Split) -> Future[Score]:
        """A model on a task. digest: what names the model; one that was asked for before is not run again."""
        key = digest, task, split
        if key not in self._scores:
            self.measured += 1
            self._scores[key] = self.submit(worker.measure, model, task, split)
        return self._scores[key]


@contextmanager
def processes(count: int, setup: Setup) -> Iterator[Pool]:
    """A pool of `count` processes for the length of the block."""
    with executor(count, worker.begin) as made:
        yield Pool(made, setup)


@contextmanager
def executor(count: int, begin: Callable[[], None]) -> Iterator[ProcessPoolExecutor]:
    """Processes for the length of the block. begin: called first in each. On an error, jobs are stopped, not awaited;
    if this process is killed, they end too.

    Errors: PlaitError where a process was killed.
    """
    before = {process.pid for process in multiprocessing.active_children()}
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    made = ProcessPoolExecutor(count, context, initializer=_begin, initargs=(begin,))
    try:
        with _alive():
            yield made
    except BaseException:
        made.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            if process.pid not in before:
                process.terminate()
        raise
    made.shutdown()


def _begin(begin: Callable[[], None]) -> None:
    """What each process does first. An interrupt from the terminal reaches all; the one that started them acts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    begin()


def _leave_with_parent() -> None:
    """End this process when the one that started it is gone: nobody would take its results."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


@contextmanager
def _alive() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool:
        raise PlaitError(
            "a process of the benchmark was killed, perhaps because memory ran out; run the command again to go on, "
            "with --workers 1 where memory is short"
        ) from None
