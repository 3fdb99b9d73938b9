"""A stream and a choice of options, with merges that are real and accuracies that are not."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pytest

from plait.bench import cells, stream, tuning
from plait.bench.pool import Pool
from plait.bench.results import Score
from plait.bench.specs import parse
from plait.bench.stream import Merged, brief
from plait.bench.tuning import Stock
from plait.bench.worker import Model
from plait.line import Line
from plait.methods.registry import find
from tests.bench import made
from tests.line.models import base_tensors, differing, expert_tensors, read, write_folder

TASKS = ("a", "b", "c")


@pytest.fixture
def stock(tmp_path: Path) -> Stock:
    base = base_tensors()
    write_folder(tmp_path / "base", base)
    experts = {}
    for number, task in enumerate(TASKS):
        experts[task] = write_folder(tmp_path / task, expert_tensors(base, number))
    return Stock(tmp_path / "base", experts, TASKS)


class Scores:
    """Stands for a pool: answers from a function, and keeps what it was asked."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[tuple[str, str, str]] = []

    def score(self, model: Model, digest: str, task: str, split: str) -> Future[Score]:
        assert (model.folder / "model.safetensors").exists()
        self.asked.append((digest, task, split))
        done: Future[Score] = Future()
        done.set_result(self.answer(model, task, len({d for d, _, _ in self.asked})))
        return done


def test_a_stream_is_a_line_and_its_versions_are_kept(stock: Stock, tmp_path: Path) -> None:
    order = ["c", "a", "b"]
    words = ("task_arithmetic", {"scale": 0.4}, stock.experts, order)
    steps = list(stream.stream(tmp_path / "line", stock.base, *words))
    assert [step.task for step in steps] == order
    line = Line.create(tmp_path / "other", stock.base, "task_arithmetic", scale=0.4, keep=4)
    for step in steps:
        line.merge(stock.experts[step.task], step.task)
        assert step.version == line.digest
        assert differing(read(step.folder), read(line.model)) == []
        assert step.cpu > 0
        assert step.seconds > 0
    assert steps[-1].members == line.status()["bytes"]["members"]
    assert steps[-1].state == line.status()["bytes"]["state"]
    if Path("/proc/self/clear_refs").exists():
        assert all(step.memory is not None and step.memory > 0 for step in steps)


def test_a_cell_measures_each_model_on_the_tasks_that_are_in_it(
    stock: Stock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def merges(folder: Path, *words: Any) -> Any:
        folder.mkdir()
        for number, task in enumerate(("b", "c", "a"), 1):
            yield Merged(task, str(number) * 64, stock.base, 0.5, 0.25, None, 10 * number, number)

    monkeypatch.setattr(cells, "stream", merges)
    rows = {who: {task: made.score(8) for task in TASKS} for who in ("base", "experts")}
    pool = Scores(lambda model, task, step: Score(8 - step, 10, step))
    found = cells.measure_stream("average", {}, stock, ["b", "c", "a"], rows, cast(Pool, pool), tmp_path)
    assert [(digest[0], task) for digest, task, _ in pool.asked] == [
        ("1", "b"), ("2", "b"), ("2", "c"), ("3", "b"), ("3", "c"), ("3", "a"),
    ]  # fmt: skip
    assert {split for _, _, split in pool.asked} == {"test"}
    assert found["right"] == [[7, None, None], [6, 6, None], [5, 5, 5]]
    assert found["values"] == [[0.7, None, None], [0.6, 0.6, None], [0.5, 0.5, 0.5]]
    assert found["undefined"] == [[1, None, None], [2, 2, None], [3, 3, 3]]
    assert found["low"][2][0] < 0.5 < found["high"][2][0]
    assert found["low"][0][1] is found["high"][0][1] is None
    assert found["bytes"] == {"members": [10, 20, 30], "state": [1, 2, 3]}
    assert found["memory"] == [None] * 3
    # 0.7 -> 0.5 and 0.6 -> 0.5; experts have 0.8, and the tasks were at 0.7, 0.6, 0.5 when they came
    assert found["figures"]["backward"] == pytest.approx(-0.15)
    assert found["figures"]["plasticity_gap"] == pytest.approx(0.2)
    assert not (tmp_path / "line").exists()


def test_the_option_with_the_best_mean_is_taken_the_smallest_of_equals(stock: Stock, tmp_path: Path) -> None:
    right = [3, 6, 6, 5]  # for scale 0.3, 0.5, 0.7, 1
    pool = Scores(lambda model, task, step: Score(right[step - 1] + (task == "a"), 10))
    found = tuning.tune(parse("task_arithmetic"), stock, 4, cast(Pool, pool), tmp_path)
    assert [row["value"] for row in found["tuning"]["tried"]] == [0.3, 0.5, 0.7, 1.0]
    assert [row["accuracy"] for row in found["tuning"]["tried"]] == pytest.approx(
        [(3 * r + 1) / 30 for r in right]
    )
    assert found["tuning"]["chosen"] == 0.5
    assert found["tuning"]["edge"] is False
    assert found["options"]["scale"] == 0.5
    assert {split for _, _, split in pool.asked} == {"validation"}
    assert [task for _, task, _ in pool.asked] == list(TASKS) * 4
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", "base", "c"], "merged models are left"
    line = Line.create(tmp_path / "line", stock.base, "task_arithmetic", scale=0.3)
    for task in TASKS:
        line.merge(stock.experts[task], task)
    assert pool.asked[0][0] == line.digest, "what is tried is not what a line makes"


def test_an_end_of_the_grid_is_told(stock: Stock, tmp_path: Path) -> None:
    pool = Scores(lambda model, task, step: Score(step, 10))
    found = tuning.tune(parse("task_arithmetic"), stock, 3, cast(Pool, pool), tmp_path)
    assert (found["tuning"]["chosen"], found["tuning"]["edge"]) == (0.7, True)


@pytest.mark.parametrize(("name", "budget"), [("average", 5), ("task_arithmetic", 1)])
def test_where_nothing_is_chosen_nothing_is_tried(
    stock: Stock, tmp_path: Path, name: str, budget: int
) -> None:
    pool = Scores(None)
    found = tuning.tune(parse(name), stock, budget, cast(Pool, pool), tmp_path)
    assert pool.asked == []
    assert found["tuning"] == {"option": None, "tried": [], "chosen": None, "edge": False}
    assert found["options"] == find(name)().options()


def test_what_a_step_found_is_kept_as_far_as_it_is_short() -> None:
    known = {
        "t_end": 0.5,
        "gamma": [1.0] * 32,
        "norm": [3.0, *[1.0] * 32, 2.0],
        "losses": {"a": [1.0]},
        "work": {"gradients": 9},
        "refined": {"taken": 80, "losses": {"a": [1.0] * 9}, "work": {"losses": 2}},
        "bounds": [["a"], []],
    }
    assert brief(known) == {
        "t_end": 0.5,
        "gamma": [1.0] * 32,
        "norm": {"least": 1.0, "most": 3.0},
        "work": {"gradients": 9},
        "refined": {"taken": 80, "work": {"losses": 2}},
    }
