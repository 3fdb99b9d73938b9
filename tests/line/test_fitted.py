"""Lines whose numbers are fitted to the losses of their members."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plait import Line, merge_files, merge_state_dicts
from plait.errors import RefusedInput, UsageError
from plait.line import fitting
from plait.line.build import mergeable
from plait.line.fitting import Chosen
from plait.line.opening import open_setting
from plait.line.problem import problem_of
from plait.methods import registry
from tests.line.calibrated import make, register, write_world
from tests.line.models import read

WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "mdm_oc": ("mdm_oc", {"fit": "gradient", "granularity": "tensor"}),
    "mdm_oc with an anchor": ("mdm_oc", {"fit": {"name": "gradient", "ewc": 5.0}}),
    "task_arithmetic": ("task_arithmetic", {"fit": {"name": "cmaes"}}),
    "ties": ("ties", {"fit": {"name": "gradient"}, "density": 0.5}),
    "covariance": ("covariance", {"fit": {"name": "cmaes"}}),
    "made-up examples": ("task_arithmetic", {"fit": {"name": "gradient", "replay": "earlier"}}),
}


def options_of(way: str) -> tuple[str, dict[str, Any]]:
    method, options = WAYS[way]
    fit = options["fit"] if isinstance(options["fit"], dict) else {"name": options["fit"]}
    return method, {**options, "fit": {"evaluations": 12, "samples": 6, **fit}}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    register(tmp_path, monkeypatch)
    write_world(tmp_path)
    yield tmp_path
    registry._points.cache_clear()


def line_of(world: Path, name: str, order: str, way: str) -> Line:
    method, options = options_of(way)
    return make(world, name, order, method, **options)


@pytest.mark.parametrize("way", [way for way in WAYS if way != "made-up examples"])
@pytest.mark.parametrize("gone", ["a", "c"])
def test_unmerge_gives_the_bytes_of_never_having_merged(world: Path, way: str, gone: str) -> None:
    line = line_of(world, "line", "abc", way)
    never = line_of(world, "never", "abc".replace(gone, ""), way)
    (world / "tasks.yaml").unlink()
    assert line.verify(replay=True)["replay"] == "equal"
    receipt = line.unmerge(gone)["receipt"]
    assert receipt["exact"]
    assert line.digest == never.digest == receipt["never_merged"]
    assert line._head()["state"] == never._head()["state"]
    assert line.verify(replay=True)["replay"] == "equal"


@pytest.mark.parametrize("way", [way for way in WAYS if way != "made-up examples"])
def test_what_was_chosen_is_recorded_and_is_what_was_merged(world: Path, way: str) -> None:
    line = line_of(world, "line", "abc", way)
    found = line._head()["fitted"]
    assert found["loss"] <= found["start"]
    assert found["evaluations"] == 12
    assert any(f"fitted by {found['fit']} on 18 examples" in note for note in line._head()["notes"])
    assert found["examples"] == {"a": 6, "b": 6, "c": 6}
    assert line._head()["software"]["device"] == "cpu"
    setting = open_setting(line.store)
    problem = problem_of(setting, line.members, "validation")
    base = {n: t for n, t in read(world / "base").items() if n in mergeable(setting.base, setting.private)}
    experts = [{n: read(world / task)[n] for n in base} for task in "abc"]
    method, options = options_of(way)
    merged = merge_state_dicts(base, experts, method, problem=problem, **options)
    model = read(line.model)
    for name, tensor in merged.items():
        assert tensor.numpy().tobytes() == model[name].numpy().tobytes(), name
    assert problem.loss(merged) == pytest.approx(found["loss"], rel=1e-4) or options["fit"].get("ewc")


def test_the_fit_moves_the_model(world: Path) -> None:
    fixed = Line.create(world / "fixed", world / "base", "task_arithmetic", private="classifier.*")
    for task in "abc":
        fixed.merge(world / task)
    fitted = line_of(world, "fitted", "abc", "task_arithmetic")
    setting = open_setting(fitted.store)
    problem = problem_of(setting, fitted.members, "validation")
    names = mergeable(setting.base, setting.private)
    losses = [problem.loss({n: t for n, t in read(x.model).items() if n in names}) for x in (fixed, fitted)]
    assert losses[1] < losses[0]


def test_a_killed_merge_does_not_fit_again(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = line_of(world, "line", "ab", "mdm_oc")
    other = line_of(world, "other", "abc", "mdm_oc")
    inner = fitting.alphas

    def killed(*words: Any) -> Chosen:
        inner(*words)
        raise KeyboardInterrupt

    monkeypatch.setattr(fitting, "alphas", killed)
    with pytest.raises(KeyboardInterrupt):
        line.merge(world / "c", tasks=world / "tasks.yaml")
    assert [m.task for m in line.members] == ["a", "b"]
    monkeypatch.setattr(fitting, "alphas", inner)
    monkeypatch.setattr(fitting, "choose", lambda *words, **more: pytest.fail("fitted again"))
    line.merge(world / "c", tasks=world / "tasks.yaml")
    assert line.digest == other.digest


def test_a_removal_by_algebra_takes_the_numbers_as_they_are(world: Path) -> None:
    line = line_of(world, "line", "abc", "mdm_oc")
    receipt = line.unmerge("a", how="algebraic")["receipt"]
    assert not receipt["exact"]
    assert line.verify(replay=True)["replay"] == "equal"


def test_without_tasks_or_with_too_little_retention(world: Path) -> None:
    method, options = options_of("task_arithmetic")
    line = make(world, "line", "", method, **options)
    with pytest.raises(UsageError, match="computes losses on each task from validation examples"):
        line.merge(world / "a")
    with pytest.raises(UsageError, match="retention statistics keeps no examples; use vectors"):
        make(world, "other", "", "ties", retention="statistics", fit="gradient")
    with pytest.raises(RefusedInput, match="no embedding of tokens"):
        line_of(world, "third", "ab", "made-up examples")
    with pytest.raises(UsageError, match="ties with a fit asks for losses"):
        merge_files(world / "base", [world / "a"], world / "out", "ties", fit="gradient")
