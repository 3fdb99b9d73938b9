"""Statistics of a member's data: what they are, and that they leave with the member."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from plait.errors import RefusedInput, UsageError
from plait.line.opening import open_setting
from plait.line.problem import problem_of
from plait.methods import registry
from plait.problem.base import Examples
from plait.problem.task import load_tasks
from tests.evaluation.world import LETTERS, expert_weights
from tests.line.calibrated import forget_data, make, mean_loss, register, write_world


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    register(tmp_path, monkeypatch)
    write_world(tmp_path)
    yield tmp_path
    registry._points.cache_clear()


def test_a_fisher_side_is_that_of_the_expert(world: Path) -> None:
    line = make(world, "line", "a", "summed")
    side = load_file(line.store.objects.path(line.members[0].side or ""))
    assert {k: v.dtype for k, v in side.items()} == {
        "fisher/mix.weight": torch.float32,
        "fisher/mix.bias": torch.float32,
    }
    setting = open_setting(line.store)
    examples = problem_of(setting, line.members)["a"].feed.examples
    weights = {n: t for n, t in expert_weights(0).items() if n.startswith("mix")}
    wanted = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    for i in range(len(examples)):
        leaves = {n: t.clone().requires_grad_() for n, t in weights.items()}
        assert examples.labels is not None
        one = Examples([examples.inputs[i]], examples.labels[i : i + 1], "")
        slopes = torch.autograd.grad(mean_loss(leaves, one), list(leaves.values()))
        for name, slope in zip(leaves, slopes, strict=True):
            wanted[name] += slope.square() / len(examples)
    for name, tensor in wanted.items():
        assert torch.allclose(side[f"fisher/{name}"], tensor, rtol=1e-4, atol=1e-7)  # fp32 on both sides


def test_a_moment_side_is_that_of_the_inputs(world: Path) -> None:
    line = make(world, "line", "a", "moments")
    side = load_file(line.store.objects.path(line.members[0].side or ""))
    examples = load_tasks(world / "tasks.yaml")["a"].examples("calibration")
    counts = torch.tensor([[float(text.count(x)) for x in LETTERS] for text in examples.inputs])
    assert list(side) == ["moment/mix.weight"]
    assert torch.equal(side["moment/mix.weight"], (counts.T.double() @ counts.double() / len(counts)).float())


@pytest.mark.parametrize("method", ["summed", "moments"])
def test_statistics_are_taken_out_by_subtraction(world: Path, method: str) -> None:
    line = make(world, "line", "abc", method)
    never = make(world, "never", "ac", method)
    forget_data(world)
    assert line.unmerge("b")["receipt"]["how"] == "subtraction"
    assert line.digest == never.digest
    assert line.verify(replay=True)["replay"] == "equal"
    line.reweight("a", 2.0)
    assert line.verify(replay=True)["replay"] == "equal"


def test_under_retention_statistics_the_data_are_handed_in_again(world: Path) -> None:
    line = make(world, "line", "abc", "summed", retention="statistics")
    never = make(world, "never", "ac", "summed", retention="statistics")
    member = line.members[1]
    assert member.data
    assert member.side
    assert not member.objects
    assert not {member.data, member.side} & set(line.store.objects.all())
    assert line.verify()["ok"]
    assert make(world, "kept", "abc", "summed").members[1].side == member.side
    with pytest.raises(UsageError, match=r"hand in the tasks\.yaml that b was merged with, with --tasks"):
        line.unmerge("b", checkpoint=world / "b")
    tasks = load_tasks(world / "tasks.yaml")

    words = {key: getattr(tasks["a"], key) for key in ("kind", "classes", "head", "examples")}
    with pytest.raises(RefusedInput, match="are not those that it was merged with"):
        line.unmerge("b", checkpoint=world / "b", tasks={"b": SimpleNamespace(name="b", **words)})
    line.unmerge("b", checkpoint=world / "b", tasks=world / "tasks.yaml")
    assert line.digest == never.digest
