"""Threads: order, exceptions, and what is left as it was."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import torch

from plait.engine.desk import Desk
from plait.engine.local import Traffic, run
from plait.engine.plan import Job
from plait.methods.base import Where

JOBS = [Job(n, (Where(str(n), (1,), "F32", 0, 1),)) for n in range(40)]


@pytest.mark.parametrize("workers", [1, 2, 4, 100])
def test_results_come_in_the_order_of_the_plan(workers: int) -> None:
    def act(job: Job, desk: Desk) -> int:
        time.sleep(0.002 * (job.index % 3))
        return job.index

    seen: list[int] = []
    found = run(JOBS, act, workers, lambda job, result, traffic: seen.append(result))
    assert found == [job.index for job in JOBS]
    assert sorted(seen) == found
    assert run([], act, workers) == []


def test_the_callers_threads_are_kept_and_jobs_have_one() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        inside = run(JOBS, lambda job, desk: torch.get_num_threads(), 2)
        assert set(inside) == {1}
        assert torch.get_num_threads() == 3
        later: list[int] = []
        thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert later == [3]  # also for threads that the caller starts afterwards
        with pytest.raises(KeyError):
            run(JOBS, lambda job, desk: {"a": 1}[str(job.index)], 2)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_denormals_are_kept_whatever_the_caller_chose() -> None:
    tiny = torch.tensor([1e-310, 1e-310], dtype=torch.float64)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    try:
        assert float((tiny * 1.0).sum()) == 0.0
        assert run(JOBS[:1], lambda job, desk: float((tiny * 1.0).sum()), 1) == [2e-310]
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("failing", [(5,), (5, 6, 7)])
@pytest.mark.parametrize("workers", [1, 3])
def test_an_exception_stops_the_plan_and_is_raised_once(workers: int, failing: tuple[int, ...]) -> None:
    done: list[int] = []
    lock = threading.Lock()

    def act(job: Job, desk: Desk) -> None:
        if job.index in failing:
            raise ValueError(f"job {job.index}")
        time.sleep(0.001)
        with lock:
            done.append(job.index)

    with pytest.raises(ValueError, match="job 5"):
        run(JOBS, act, workers)
    assert len(done) <= 5 + 2 * workers
    assert not [t for t in threading.enumerate() if t.name.startswith("plait-")]


def test_a_keyboard_interrupt_stops_the_plan() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    try:
        interrupted()
    finally:
        signal.signal(signal.SIGINT, before)


def interrupted() -> None:
    started = threading.Event()

    def act(job: Job, desk: Desk) -> None:
        started.set()
        time.sleep(0.02)

    def interrupt() -> None:
        started.wait()
        os.kill(os.getpid(), signal.SIGINT)

    many = [Job(n, ()) for n in range(10_000)]
    thread = threading.Thread(target=interrupt)
    thread.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(many, act, 2)
    assert time.monotonic() - start < 10  # all jobs would take 100 s
    thread.join()
    assert not [t for t in threading.enumerate() if t.name.startswith("plait-")]


def test_a_failing_caller_stops_the_plan() -> None:
    def done(job: Job, result: None, traffic: Traffic) -> None:
        raise RuntimeError("journal is full")

    with pytest.raises(RuntimeError, match="journal is full"):
        run(JOBS, lambda job, desk: None, 2, done)
    assert not [t for t in threading.enumerate() if t.name.startswith("plait-")]
