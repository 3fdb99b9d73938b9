"""Runs the jobs of a plan on threads of this process. One job is one thread: torch stays single-threaded
inside."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from plait.engine.desk import Desk
from plait.engine.plan import Job
from plait.tensors import torch

R = TypeVar("R")


@dataclass
class Traffic:
    """Bytes that went through the files."""

    read: int = 0
    written: int = 0


def run(
    jobs: Sequence[Job],
    act: Callable[[Job, Desk], R],
    workers: int,
    done: Callable[[Job, R, Traffic], None] | None = None,
) -> list[R]:
    """What `act` returns for every job, in the order of `jobs`, whatever the number of threads.

    `done` is called in the caller's thread as jobs end. The first exception stops the plan: running jobs end,
    no other starts, and the exception of the job that is first in the plan is raised. So does a keyboard
    interrupt. The caller's torch thread count is left as it was.
    """
    results: dict[int, R] = {}
    if not jobs:
        return []
    crew = _Crew(iter(jobs), act)
    _keep_freed_memory()
    with _threads_kept():
        count = min(workers, len(jobs))
        threads = [threading.Thread(target=crew.work, name=f"plait-{n}", daemon=True) for n in range(count)]
        try:
            for thread in threads:
                thread.start()
            running = count
            while running:
                job, result, traffic = crew.finished.get()
                if job is None:
                    running -= 1
                    continue
                results[job.index] = result
                if done is not None:
                    done(job, result, traffic)
        finally:
            crew.stop.set()
            for thread in threads:
                if thread.ident is not None:  # an interrupt may come before all are started
                    thread.join()
    if crew.failures:
        raise crew.failures[min(crew.failures)]
    return [results[job.index] for job in jobs]


class _Crew:
    """What the threads of one plan share. `finished`: (job, its result, its traffic) as jobs end, and (None,
    None, no traffic) as threads end. `failures`: exceptions by the index of their job."""

    def __init__(self, todo: Iterator[Job], act: Callable[[Job, Desk], Any]) -> None:
        self._todo, self._act = todo, act
        self._lock = threading.Lock()
        self.stop = threading.Event()
        self.finished: queue.SimpleQueue[tuple[Job | None, Any, Traffic]] = queue.SimpleQueue()
        self.failures: dict[int, BaseException] = {}

    def work(self) -> None:
        """Take jobs until none is left or the plan stops. Runs in each of the threads."""
        desk = Desk()
        job: Job | None = None
        try:
            with _single_threaded():
                while not self.stop.is_set():
                    with self._lock:
                        job = next(self._todo, None)
                    if job is None:
                        break
                    before = desk.read_bytes, desk.written_bytes
                    result = self._act(job, desk)
                    traffic = Traffic(desk.read_bytes - before[0], desk.written_bytes - before[1])
                    self.finished.put((job, result, traffic))
        except BaseException as problem:
            self.stop.set()
            self.failures[job.index if job else -1] = problem
        finally:
            desk.close()
            self.finished.put((None, None, Traffic()))


@cache
def _keep_freed_memory() -> None:
    """Free one large block. The C library then keeps freed blocks of up to its size for the next piece, where
    it would hand each back to the system and fault it in again: a quarter of the time of a merge."""
    torch.empty(24 << 20, dtype=torch.uint8)


@contextmanager
def _single_threaded() -> Iterator[None]:
    """What this thread computes depends on no other: one torch thread, no autograd."""
    torch.set_num_threads(1)
    with torch.no_grad():
        yield


@contextmanager
def _threads_kept() -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)
