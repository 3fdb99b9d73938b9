"""A fold that had ended when its process did: the next run computes nothing of it again."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from plait import engine
from plait.checkpoint.format import read_header
from plait.engine import state
from plait.engine.state import DENSE, SPARSE, StateReader, StateWriter
from plait.methods.average import Average
from plait.methods.base import TensorMethod
from plait.methods.ties import Ties
from plait.tensors import BLOCK
from tests.engine.files import Bench, all_same, base_tensors, expert_of, places, state_bytes
from tests.engine.test_resume import SMALL, Counter, Crash
from tests.engine.toys import Normed

FOLD = sys.modules["plait.engine.fold"]  # the package hands out the function under this name
ENDS: dict[str, tuple[Any, str] | None] = {
    "before the sparse file": (StateWriter, "_write_sparse"),
    "before the sums of the files": (state, "_sums"),
    "before the files have their names": (FOLD, "settle"),
    "before the spill file is gone": (Path, "unlink"),
    "before the rest is copied": (FOLD, "CopyPass"),
    "after the end": None,
}


class Undone:
    """The second of two members is taken out again: it alone changed one tensor, whose state vanishes with it."""

    def __init__(self, folder: Path, method: TensorMethod) -> None:
        base = base_tensors()
        self.bench = Bench(folder, base, [expert_of(base, 0), expert_of(base, 1, leave=())])
        self.method, self.folder = method, folder
        known = self.bench.merge(method, new_state=folder / "both", settings=SMALL)[1].known
        self.first, self.second = (replace(m, known=known[m.task]) for m in self.bench.members)

    def run(self, name: str) -> engine.Folded:
        return engine.fold(
            self.method,
            self.bench.base,
            [self.first],
            enter=[],
            leave=[self.second],
            state=self.folder / "both",
            new_state=self.folder / f"{name}.state",
            out=places(self.folder / f"{name}.safetensors", self.bench.base),
            settings=SMALL,
            journal=self.folder / f"{name}.journal",
        )


@pytest.fixture(autouse=True)
def small_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.engine.plan.BATCH", BLOCK)
    monkeypatch.setattr("plait.engine.plan.jobs.__defaults__", (BLOCK,))


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    "method",
    [Average(), Average(sparsify="dare"), Normed(), Ties()],  # type: ignore[arg-type]
    ids=["average", "dare", "normed", "ties"],
)
def test_a_finished_fold_is_not_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: TensorMethod, end: str
) -> None:
    undone = Undone(tmp_path, method)
    counter = Counter(monkeypatch)
    want = undone.run("whole")
    total = len(counter.jobs)
    counter.jobs = []

    def stop(*args: object, **words: object) -> None:
        raise Crash

    where = ENDS[end]
    with monkeypatch.context() as patch:
        if where is None:
            undone.run("cut")
        else:
            patch.setattr(*where, stop)
            with pytest.raises(Crash):
                undone.run("cut")
    again = undone.run("cut")
    assert total >= 7
    assert len(counter.jobs) == total
    assert again.counts == want.counts
    assert again.concluded == want.concluded
    assert again.sums == want.sums
    if end == "after the end":
        assert (again.bytes_read, again.bytes_written) == (0, 0)
    assert all_same(*(load_file(tmp_path / f"{name}.safetensors") for name in ("cut", "whole")))
    assert state_bytes(tmp_path / "cut.state") == state_bytes(tmp_path / "whole.state")
    assert "frozen" not in StateReader(tmp_path / "cut.state", method).names


def test_an_output_that_was_lost_after_the_state_was_finished_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the jobs that wrote it are run, and they leave the finished state alone."""
    undone = Undone(tmp_path, Average())
    undone.run("x")
    want, kept = load_file(tmp_path / "x.safetensors"), state_bytes(tmp_path / "x.state")
    path = tmp_path / "x.safetensors"
    ref = read_header(path).tensors["small"]
    counter = Counter(monkeypatch)
    for _ in range(2):
        with path.open("r+b") as file:
            file.seek(ref.start)
            file.write(bytes(ref.nbytes))
        counter.jobs = []
        undone.run("x")
        assert len(counter.jobs) == 1
        assert all_same(load_file(path), want)
        assert state_bytes(tmp_path / "x.state") == kept
    (tmp_path / "x.state" / DENSE).unlink()  # what was noted of that job still tells of its part of the state
    undone.run("x")
    assert all_same(load_file(path), want)
    assert state_bytes(tmp_path / "x.state") == kept


@pytest.mark.parametrize("name", [DENSE, SPARSE])
@pytest.mark.parametrize("change", ["a bit", "a byte more"])
def test_a_finished_state_that_changed_is_made_again(tmp_path: Path, name: str, change: str) -> None:
    undone = Undone(tmp_path, Average())
    undone.run("x")
    kept = state_bytes(tmp_path / "x.state")
    data = bytearray(kept[name])
    if change == "a bit":
        data[-1] ^= 1
    (tmp_path / "x.state" / name).write_bytes(data + b"\0" * (change == "a byte more"))
    undone.run("x")
    assert state_bytes(tmp_path / "x.state") == kept
