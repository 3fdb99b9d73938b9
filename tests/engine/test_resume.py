"""An interrupted merge goes on where it stopped, and ends with the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from plait import engine
from plait.engine import Settings
from plait.engine.desk import Desk
from plait.engine.journal import Journal
from plait.engine.passes import FoldPass
from plait.engine.plan import Job
from plait.methods.average import Average
from plait.methods.base import TensorMethod
from plait.tensors import BLOCK
from tests.engine.files import Bench, all_same, base_tensors, expert_of, places, state_bytes
from tests.engine.toys import Normed

SMALL = Settings(1, BLOCK)


class Crash(BaseException):
    """Stands for the end of the process."""


class Counter:
    """Counts the jobs of fold passes, and fails before job number `limit` of all."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.jobs: list[int] = []
        self.limit = 10**9
        real = FoldPass.__call__
        counter = self

        def call(self: FoldPass, job: Job, desk: Desk) -> Any:
            if len(counter.jobs) >= counter.limit:
                raise Crash
            counter.jobs.append(job.index)
            return real(self, job, desk)

        patch.setattr(FoldPass, "__call__", call)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr("plait.engine.plan.BATCH", BLOCK)
    monkeypatch.setattr("plait.engine.plan.jobs.__defaults__", (BLOCK,))
    base = base_tensors()
    return Bench(tmp_path, base, [expert_of(base, n) for n in range(2)])


def merge(bench: Bench, method: TensorMethod, name: str) -> None:
    out = places(bench.folder / f"{name}.safetensors", bench.base)
    engine.fold(
        method,
        bench.base,
        bench.members,
        enter=bench.members,
        state=None,
        new_state=bench.folder / f"{name}.state",
        out=out,
        settings=SMALL,
        journal=bench.folder / f"{name}.journal",
    )


@pytest.mark.parametrize("method", [Average(), Normed()], ids=lambda m: type(m).__name__)
def test_finished_jobs_are_not_done_again(
    bench: Bench, method: TensorMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    want, _ = bench.merge(method, new_state=bench.folder / "state", settings=SMALL)
    counter = Counter(monkeypatch)
    merge(bench, method, "whole")
    total = len(counter.jobs)
    assert total >= 7
    for limit in range(1, total):
        name = f"cut-{limit}"
        counter.jobs, counter.limit = [], limit
        with pytest.raises(Crash):
            merge(bench, method, name)
        assert len(counter.jobs) == limit
        counter.limit = 10**9
        merge(bench, method, name)
        # a job whose bytes were there is not done again; one may have had sparse entries whose spill file is gone
        assert total <= len(counter.jobs) <= total + 1, (limit, counter.jobs)
        assert all_same(load_file(bench.folder / f"{name}.safetensors"), want)
        assert state_bytes(bench.folder / f"{name}.state") == state_bytes(bench.folder / "state")


def test_a_torn_range_is_done_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    want, _ = bench.merge(Average())
    counter = Counter(monkeypatch)
    counter.limit = 5
    with pytest.raises(Crash):
        merge(bench, Average(), "torn")
    path = bench.folder / "torn.safetensors"
    text = (bench.folder / "torn.journal").read_text()
    lines = [line for line in map(json.loads, text.splitlines()) if "job" in line]
    wrote = next(w for w in lines[2]["wrote"] if w[0] == str(path))
    with path.open("r+b") as file:
        file.seek(wrote[1] + wrote[2] // 2)
        file.write(bytes(8))
    counter.jobs, counter.limit = [], 10**9
    merge(bench, Average(), "torn")
    assert lines[2]["job"] in counter.jobs
    assert lines[1]["job"] not in counter.jobs
    assert all_same(load_file(path), want)


def test_another_plan_begins_anew(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = Counter(monkeypatch)
    counter.limit = 5
    with pytest.raises(Crash):
        merge(bench, Average(), "x")
    done = counter.jobs
    bench.members = bench.members[::-1]
    counter.jobs, counter.limit = [], 10**9
    merge(bench, Average(), "x")
    assert set(done) <= set(counter.jobs)


def test_a_changed_input_begins_anew(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = Counter(monkeypatch)
    counter.limit = 5
    with pytest.raises(Crash):
        merge(bench, Average(), "x")
    done = counter.jobs
    path = bench.folder / "expert-0.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-2] + b"\0\0")
    counter.jobs, counter.limit = [], 10**9
    merge(bench, Average(), "x")
    assert set(done) <= set(counter.jobs)


def test_a_journal_survives_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    first = Journal(path, ["plan"])
    first.job("fold", 0, [["f", 0, 4, 1]], [True])
    first.value("known", {"a": 0.1})
    first.close()
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"pass": "fold", "job"')
    second = Journal(path, ["plan"])
    assert second.jobs == {"fold": {0: ([["f", 0, 4, 1]], [True])}}
    assert second.values == {"known": {"a": 0.1}}
    second.close()
    assert path.read_bytes() == whole
    other = Journal(path, ["another plan"])
    assert other.jobs == {}
    other.close()
    assert path.read_bytes().count(b"\n") == 1
