"""Several tasks at once: sums of their losses, gradients and products, and what they cost."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from plait.errors import UsageError
from plait.problem.base import Examples
from plait.problem.objective import Objective
from plait.problem.probes import representations
from plait.problem.problem import Problem
from tests.problem.nets import Toy, draw, perceptron, points

EPS = torch.finfo(torch.float64).eps
SIZES = {"a": 7, "b": 12, "c": 5}


def three() -> tuple[Problem, dict[str, Tensor]]:
    network = Toy(lambda: perceptron(4, 5, 3))
    objectives = {
        task: Objective(network, None, points(n, 4, 3, seed=n), micro=3) for task, n in SIZES.items()
    }
    return Problem(objectives), draw(network, 1)


def close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Up to 100 eps of the largest entry: a few sums in another order."""
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert (found[name] - tensor).abs().max() <= 100 * EPS * tensor.abs().max(), name


def test_tasks_keep_their_order() -> None:
    problem, _ = three()
    assert list(problem) == ["a", "b", "c"]
    assert len(problem) == 3
    assert "b" in problem
    assert "d" not in problem
    assert list(problem.seen(2)) == ["a", "b"]
    assert problem.seen(2).last == "b"
    assert problem.seen(2)["b"] is problem["b"]
    assert list(problem.only("c", "a")) == ["c", "a"]


def test_losses_are_averaged_or_summed_with_factors() -> None:
    problem, weights = three()
    own = problem.losses(weights)
    assert own == {task: problem[task].loss(weights) for task in SIZES}
    assert problem.losses(weights, ["c"]) == {"c": own["c"]}
    assert problem.loss(weights) == pytest.approx(sum(own.values()) / 3, rel=1e-15)  # not by their sizes
    assert problem.loss(weights, ["a", "c"]) == pytest.approx((own["a"] + own["c"]) / 2, rel=1e-15)
    mixed = {"a": 2.0, "b": -0.5}
    assert problem.loss(weights, mixed) == pytest.approx(2 * own["a"] - own["b"] / 2, rel=1e-15)


@pytest.mark.parametrize("tasks", [None, ["a", "c"], {"a": 2.0, "b": -0.5}])
def test_gradients_products_and_fishers_are_summed_alike(tasks: Any) -> None:
    problem, weights = three()
    chosen = list(SIZES) if tasks is None else tasks
    shares = tasks if isinstance(tasks, dict) else dict.fromkeys(chosen, 1 / len(chosen))
    vector = draw(problem["a"].network, 8)  # type: ignore[arg-type]
    names = ["net.2.weight", "net.0.bias"]

    def total(single: Any) -> dict[str, Tensor]:
        found = {task: single(problem[task]) for task in shares}
        keys = next(iter(found.values()))
        return {name: sum(share * found[task][name] for task, share in shares.items()) for name in keys}

    loss, gradient = problem.loss_and_gradient(weights, tasks)
    assert loss == pytest.approx(problem.loss(weights, tasks), rel=1e-14)
    close(gradient, total(lambda o: o.loss_and_gradient(weights)[1]))
    close(problem.loss_and_gradient(weights, tasks, iter(names))[1], {n: gradient[n] for n in names})
    close(problem.hvp(weights, vector, tasks), total(lambda o: o.hvp(weights, vector)))
    close(problem.fisher(weights, tasks), total(lambda o: o.fisher(weights)))
    close(
        problem.fisher(weights, tasks, iter(names), labels="model"),
        total(lambda o: o.fisher(weights, names, labels="model")),
    )


def test_gradients_of_tasks_are_added_with_their_shares() -> None:
    """In fp64 where the weights are: 1 + 2^-40 - 1."""
    network = Toy(lambda: torch.nn.Linear(1, 2, bias=False), torch.float64)
    weights = {"net.weight": torch.zeros(2, 1, dtype=torch.float64)}
    one = Objective(
        network, None, Examples(torch.tensor([[2.0]], dtype=torch.float64), torch.tensor([0]), "")
    )
    _, gradient = Problem({"a": one, "b": one}).loss_and_gradient(weights, {"a": 1 + 2.0**-40, "b": -1.0})
    assert gradient["net.weight"].flatten().tolist() == [-(2.0**-40), 2.0**-40]


def test_representations_by_task() -> None:
    problem, weights = three()
    found = problem.representations(weights, ["a", "b"], iter(["0", "2"]))
    assert {task: list(layers) for task, layers in found.items()} == {"a": ["0", "2"], "b": ["0", "2"]}
    assert torch.equal(found["b"]["2"], representations(problem["b"], weights, ["2"])["2"])
    assert list(problem.representations(weights)) == ["a", "b", "c"]


def test_samples_do_not_depend_on_other_tasks() -> None:
    problem, weights = three()
    sample = problem.sample(6, 3)
    assert [len(objective) for objective in sample.values()] == [6, 6, 5]
    assert sample["b"].rows == problem.only("b").sample(6, 3)["b"].rows == problem["b"].sample(6, 3).rows
    assert sample.loss(weights) != problem.loss(weights)


def test_work_is_summed_over_tasks_and_samples() -> None:
    problem, weights = three()
    problem.sample(2, 1).loss_and_gradient(weights, ["a", "b"])
    before = problem.work
    assert (before.gradients, before.samples) == (2, 4)
    problem.seen(1).loss(weights)
    problem.representations(weights)
    work = problem.work - before
    assert (work.losses, work.gradients, work.probes, work.samples) == (1, 0, 3, 7 + 24)
    twice = Problem({"a": problem["a"], "again": problem["a"]})
    assert twice.work == problem["a"].work


def test_records_survive_json() -> None:
    problem, weights = three()
    problem.loss(weights)
    record = problem.record()
    assert json.loads(json.dumps(record)) == record
    assert record["tasks"]["b"] == {"examples": 12, "digest": "points 12 12"}
    assert record["work"]["losses"] == 3


def test_nothing_grows_with_the_number_of_steps() -> None:
    """As pickled by hand: every attribute that can be reached from the problem, but the counts, stays as it is."""
    problem, weights = three()

    def size(thing: Any, met: set[int]) -> int:
        if id(thing) in met or isinstance(thing, (Tensor, torch.nn.Module, torch.dtype, str, int, float)):
            return 1
        met.add(id(thing))
        if isinstance(thing, dict):
            return 1 + sum(size(value, met) for value in thing.values())
        if isinstance(thing, (list, tuple, set)):
            return 1 + sum(size(value, met) for value in thing)
        return 1 + size(vars(thing), met) if hasattr(thing, "__dict__") else 1

    def walk() -> int:
        for seed in range(4):
            sample = problem.sample(4, seed)
            _, gradient = sample.loss_and_gradient(weights)
            sample.hvp(weights, gradient)
            sample.fisher(weights)
            sample.representations(weights)
        return size(problem, set())

    assert walk() == walk()


def test_words_that_make_no_sense() -> None:
    problem, weights = three()
    with pytest.raises(UsageError, match="0 tasks"):
        Problem({})
    with pytest.raises(UsageError, match="0 tasks were chosen"):
        problem.loss(weights, [])
    with pytest.raises(UsageError, match="no task 'd'; there are a, b, c"):
        problem.loss(weights, ["d"])
    for count in (0, 4):
        with pytest.raises(UsageError, match=f"{count} tasks were asked for; there are 3"):
            problem.seen(count)


def test_python_of_the_page_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).parent.parent.parent / "docs" / "problems.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 3
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)  # where a dataclass looks for its names
    space = vars(module)
    for block in blocks:
        exec(block, space)
    assert space["Refined"]().options() == {"steps": 20, "rate": 0.5, "samples": 256}
