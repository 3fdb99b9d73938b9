"""Processes: nothing is measured twice, and nobody is left at work."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, cast

import pytest

from plait.bench.pool import Pool, executor
from plait.bench.results import Score
from plait.bench.suites import Sources
from plait.bench.worker import Model, Setup
from plait.errors import PlaitError


class Recording:
    """Stands for an executor: keeps what is submitted."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Any, ...]] = []

    def submit(self, job: Any, setup: Setup, *words: Any) -> Future[Any]:
        self.jobs.append(words)
        done: Future[Any] = Future()
        done.set_result(Score(len(self.jobs), 10))
        return done


def made() -> tuple[Pool, Recording]:
    inner = Recording()
    return Pool(cast(Any, inner), Setup("tiny", Sources(), Path("base"), None)), inner


def test_a_model_is_measured_once_on_a_task_and_split() -> None:
    pool, inner = made()
    one, two = Model(Path("one")), Model(Path("two"))
    first = pool.score(one, "d1", "kind", "test")
    assert pool.score(two, "d1", "kind", "test") is first, "the digest names the model, not its folder"
    pool.score(one, "d1", "kind", "validation")
    pool.score(one, "d1", "mood", "test")
    pool.score(two, "d2", "kind", "test")
    assert [(model.folder.name, task, split) for model, task, split in inner.jobs] == [
        ("one", "kind", "test"),
        ("one", "kind", "validation"),
        ("one", "mood", "test"),
        ("two", "kind", "test"),
    ]
    assert pool.measured == 4


def test_known_scores_are_not_measured() -> None:
    pool, inner = made()
    pool.know({("d1", "kind"): Score(7, 9)})
    assert pool.score(Model(Path("one")), "d1", "kind", "test").result() == Score(7, 9)
    assert inner.jobs == []
    assert pool.score(Model(Path("one")), "d1", "kind", "validation").result() == Score(1, 10)


class Mistake(Exception):
    pass


def nothing() -> None:
    pass


def fail_beside(pool: Executor) -> None:
    """Raise while a job sleeps."""
    job = pool.submit(time.sleep, 300)
    while not job.running():
        time.sleep(0.01)
    raise Mistake


def test_on_an_error_processes_are_stopped_not_awaited() -> None:
    began = time.monotonic()
    with pytest.raises(Mistake), executor(1, nothing) as pool:
        fail_beside(pool)
    # asked again and again: the executor's own thread takes the process's end as well, and a join that meets it there
    # returns before either has noted the end
    while multiprocessing.active_children() and time.monotonic() - began < 200:
        time.sleep(0.05)
    assert not multiprocessing.active_children(), "a process was awaited or left, not stopped"


ORPHANS = """
import os, time
from plait.bench.pool import executor
from tests.bench.test_pool import nothing

if __name__ == "__main__":
    with executor(1, nothing) as pool:
        print(pool.submit(os.getpid).result(), flush=True)
        pool.submit(time.sleep, 300)
        os.kill(os.getpid(), 9)
"""


def test_processes_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(ORPHANS)
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    out = tmp_path / "out"
    with out.open("w") as file:  # a pipe would be held open by whoever is left
        words = [sys.executable, str(script)]
        done = subprocess.run(words, stdout=file, env={**os.environ, "PYTHONPATH": path}, check=False)
    assert done.returncode == -9
    worker = int(out.read_text())
    for _ in range(300):
        if not alive(worker):
            return
        time.sleep(0.1)
    os.kill(worker, 9)
    pytest.fail("a process outlived the one that started it")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_killed_process_is_told_in_one_line() -> None:
    with pytest.raises(PlaitError) as caught, executor(1, nothing) as pool:
        pool.submit(os.abort).result()
    assert str(caught.value).startswith(
        "a process of the benchmark was killed, perhaps because memory ran out"
    )
    assert "\n" not in str(caught.value)
