"""An interrupted merge goes on where it stopped, and ends with the same bytes."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from plait import engine
from plait.checkpoint.format import FileWriter, read_header
from plait.engine import Settings
from plait.engine.desk import Desk
from plait.engine.journal import Journal
from plait.engine.passes import FoldPass
from plait.engine.plan import Job
from plait.methods.average import Average
from plait.methods.base import TensorMethod
from plait.tensors import BLOCK
from plait.types import TensorRef
from tests.engine.files import Bench, all_same, base_tensors, expert_of, places, save, state_bytes
from tests.engine.toys import Normed, Only

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


def resumed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, identity: str, *, swap: bool = False
) -> tuple[int, int, bool]:
    """Jobs of a merge that is cut, of the same once its inputs were copied elsewhere, and whether the bytes
    are right."""
    state = bench.folder / "state"
    bench.merge(Average(), bench.members[:1], new_state=state, settings=SMALL)
    want, _ = bench.merge(Average(), enter=bench.members[1:], state=state, new_state=bench.folder / "after")

    (bench.folder / "elsewhere").mkdir()

    def call(base: dict[str, TensorRef], member: engine.Incoming, state: Path) -> None:
        member = replace(member, identity=identity and "member")
        engine.fold(
            Average(),
            base,
            [replace(bench.members[0], refs={}), member],
            enter=[member],
            state=state,
            new_state=bench.folder / "x.state",
            out=places(bench.folder / "x.safetensors", bench.base),
            settings=SMALL,
            journal=bench.folder / "x.journal",
            base_identity=identity,
            state_identity=identity and "state",
        )

    counter = Counter(monkeypatch)
    counter.limit = 4
    with pytest.raises(Crash):
        call(bench.base, bench.members[1], state)
    cut = len(counter.jobs)
    elsewhere = bench.folder / "elsewhere"
    shutil.move(state, elsewhere / "state")
    paths = [bench.folder / "base.safetensors", bench.folder / "expert-1.safetensors"]
    copies = [elsewhere / f"copy-of-{path.name}" for path in paths]
    for path, copy in zip(paths, copies, strict=True):
        tensors = load_file(path)
        if swap:  # the copy has its tensors in another order
            entries = [(n, "BF16", tuple(tensors[n].shape)) for n in sorted(tensors)[::-1]]
            with FileWriter(copy, entries) as writer:
                for name, values in tensors.items():
                    writer.write(name, 0, values.flatten().view(torch.uint8).numpy().tobytes())
        else:
            save(copy, {"0-first-of-all": torch.zeros(5), **tensors})
        path.unlink()
    base, expert = (read_header(copy).tensors for copy in copies)
    base.pop("0-first-of-all", None)
    member = replace(bench.members[1], refs={n: expert[n] for n in bench.members[1].refs})
    counter.jobs, counter.limit = [], 10**9
    call(base, member, elsewhere / "state")
    right = all_same(load_file(bench.folder / "x.safetensors"), want)
    return (
        cut,
        len(counter.jobs),
        right and state_bytes(bench.folder / "x.state") == state_bytes(bench.folder / "after"),
    )


def test_inputs_that_moved_are_known_by_their_identity(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    cut, later, right = resumed(bench, monkeypatch, "base")
    assert right
    assert cut == 4
    assert later in (3, 4)  # of 7 in all; one may have had entries in the spill file


def test_inputs_without_an_identity_are_new_where_they_moved(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, later, right = resumed(bench, monkeypatch, "")
    assert right
    assert later == 7


def test_another_order_of_the_jobs_begins_anew(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    _, later, right = resumed(bench, monkeypatch, "base", swap=True)
    assert right
    assert later == 7


@pytest.mark.parametrize("gone", [("dense",), ("sparse",), ("dense", "sparse")])
@pytest.mark.parametrize("method", [Average(), Normed(), Only()], ids=lambda m: type(m).__name__)
def test_a_state_that_was_moved_away_is_made_again(
    bench: Bench, method: TensorMethod, gone: tuple[str, ...]
) -> None:
    bench.members = bench.members[:1] if isinstance(method, Only) else bench.members
    merge(bench, method, "x")
    folder = bench.folder / "x.state"
    state, want = state_bytes(folder), load_file(bench.folder / "x.safetensors")
    for name in gone:
        (folder / f"{name}.safetensors").unlink()
    merge(bench, method, "x")
    assert state_bytes(folder) == state
    assert all_same(load_file(bench.folder / "x.safetensors"), want)


def test_a_state_that_nobody_keeps_is_made_again(bench: Bench) -> None:
    found = []
    for _ in range(2):  # the second finds the journal of the first, which has removed its state
        engine.fold(
            Normed(),
            bench.base,
            bench.members,
            enter=bench.members,
            state=None,
            new_state=None,
            out=places(bench.folder / "x.safetensors", bench.base),
            settings=SMALL,
            journal=bench.folder / "x.journal",
        )
        found.append(load_file(bench.folder / "x.safetensors"))
    assert all_same(*found)


def test_what_overflowed_before_the_cut_is_still_told(tmp_path: Path) -> None:
    base = base_tensors(torch.float32)
    base["frozen"][0] = 1e6
    expert = {**base, "long": base["long"] + 1e6}
    bench = Bench(tmp_path, base, [expert])
    for method in (Average(), Normed(), Only()):
        found = []
        for _ in range(2):  # the second does no job again
            folded = engine.fold(
                method,
                bench.base,
                bench.members,
                enter=bench.members,
                state=None,
                new_state=None,
                out=places(tmp_path / f"{method}.safetensors", bench.base, "F16"),
                settings=SMALL,
                journal=tmp_path / f"{method}.journal",
            )
            found.append(folded.overflowed)
        assert found == [{"frozen": 1, "long": base["long"].numel()}] * 2


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
