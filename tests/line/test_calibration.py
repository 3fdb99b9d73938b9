"""Lines whose method looks at data: what is stored, what is computed from it, and what leaves with a member."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from plait import Line
from plait.cli.entry import run
from plait.errors import NotRemovable, RefusedInput, UsageError
from plait.line.opening import open_setting
from plait.line.problem import problem_of
from plait.methods import registry
from plait.problem.task import load_tasks
from tests.crash import kill_at_every
from tests.evaluation.world import NETWORK, STORED, base_weights
from tests.line.calibrated import Refined, forget_data, make, mean_loss, register, write_world
from tests.line.models import differing, read


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    register(tmp_path, monkeypatch)
    write_world(tmp_path)
    yield tmp_path
    registry._points.cache_clear()


@pytest.mark.parametrize("snapshots", [0, 2])
@pytest.mark.parametrize("head", ["zero-shot", "linear", STORED], ids=["zero-shot", "fitted", "private"])
def test_unmerge_gives_the_bytes_of_never_having_merged_without_the_users_data(
    world: Path, head: Any, snapshots: int
) -> None:
    shutil.rmtree(world / "base")
    for name in "abc":
        shutil.rmtree(world / name)
    write_world(world, head)
    line = make(world, "line", "abc", snapshots=snapshots)
    never = make(world, "never", "ac", snapshots=snapshots)
    forget_data(world)
    assert line.verify(replay=True)["replay"] == "equal"
    receipt = line.unmerge("b")["receipt"]
    assert receipt["exact"]
    assert receipt["how"] == "refold"
    assert line.digest == never.digest == receipt["never_merged"]
    assert not differing(read(line.model), read(never.model))
    assert line._head()["state"] == never._head()["state"]
    assert line.verify(replay=True)["replay"] == "equal"


def test_reweight_and_replace_use_the_stored_examples(world: Path) -> None:
    line = make(world, "line", "ab")
    first = line.members[0]
    line.reweight("a", 2.0)
    assert line.members[0].data == first.data
    line.replace("a", world / "c")
    assert line.members[0].data == first.data
    other = make(world, "other", "ab")
    other.replace("a", world / "c", weight=2.0, tasks=world / "tasks.yaml")
    assert other.digest == line.digest


def test_other_examples_of_the_same_checkpoint_are_another_member(world: Path) -> None:
    tasks = load_tasks(world / "tasks.yaml")

    def under(name: str, task: Any) -> dict[str, Any]:
        words = {key: getattr(task, key) for key in ("kind", "classes", "head", "examples")}
        return {name: SimpleNamespace(name=name, **words)}

    line = make(world, "line", "abc", snapshots=1)
    line.replace("a", world / "a", tasks=under("a", tasks["c"]))
    never = Line.create(
        world / "never", world / "base", "refined", network=NETWORK, private="classifier.*", snapshots=1
    )
    never.merge(world / "a", tasks=under("a", tasks["c"]))
    for name in "bc":
        never.merge(world / name, tasks=tasks)
    assert line.digest == never.digest
    line.unmerge("b")
    never.unmerge("b")
    assert line.digest == never.digest


def test_what_a_step_finds_is_kept_and_what_ran_is_recorded(world: Path) -> None:
    line = make(world, "line", "ab")
    known = line.show("b")["known"]
    assert known["tasks"] == ["a", "b"]
    assert known["last"] == "b"
    assert len(known["losses"]) == 3
    entry = line._head()
    assert entry["software"]["threads"] == torch.get_num_threads()
    assert entry["software"]["device"] == "cpu"
    assert f"{torch.get_num_threads()} threads on cpu" in entry["stack"][0]
    assert entry["counts"]["gradients"] == 6  # three steps, two tasks
    assert line.log()[1]["counts"]["gradients"] == 3


def test_later_commands_run_with_the_threads_of_the_first(world: Path) -> None:
    before = torch.get_num_threads()
    line = make(world, "line", "ab")
    try:
        torch.set_num_threads(before + 1)
        line.unmerge("a")
        line.gc(grace=0)
        assert torch.get_num_threads() == before + 1
        assert line._head()["software"]["threads"] == before
        assert len(line._head()["stack"]) == 1
        line.merge(world / "c", tasks=world / "tasks.yaml")
        assert line._head()["software"]["threads"] == before
    finally:
        torch.set_num_threads(before)


def test_a_replay_on_another_stack_is_not_comparable(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = make(world, "line", "ab")
    step = Refined.step

    def other(*words: Any) -> Any:
        theta, known = step(*words)
        return {name: tensor * 2 for name, tensor in theta.items()}, known

    monkeypatch.setattr(Refined, "step", other)
    assert line.verify(replay=True)["replay"] == "different"
    monkeypatch.setattr("plait.line.surroundings.versions", lambda network: {"toys": "2"})
    found = line.verify(replay=True)["replay"]
    assert found.startswith("not comparable: made with")
    assert "toys 2" in found


def test_the_problem_of_a_line_is_that_of_its_tasks(world: Path) -> None:
    line = make(world, "line", "ab", samples=12)
    setting = open_setting(line.store)
    problem = problem_of(setting, line.members)
    assert list(problem) == ["a", "b"]
    assert problem.last == "b"
    tasks = load_tasks(world / "tasks.yaml")
    weights = base_weights()
    for name in "ab":
        wanted = tasks[name].examples("calibration")
        assert problem[name].digest == wanted.digest
        assert problem[name].loss(weights) == pytest.approx(
            float(mean_loss(weights, wanted)), rel=1e-5
        )  # fp32 sums
    with pytest.raises(
        RefusedInput, match="no validation examples are stored with the line, only calibration"
    ):
        problem_of(setting, line.members, "validation")


def test_samples_are_drawn_once_and_the_number_is_told(world: Path) -> None:
    line = make(world, "line", "a")
    told = line.status()["members"][0]["examples"]
    assert told["calibration"]["count"] == 8
    assert told["calibration"]["of"] == 12
    assert line.show("a")["examples"] == told
    again = make(world, "again", "a")
    assert again.members[0].data == line.members[0].data
    other = make(world, "other", "a", seed=1)
    assert other.members[0].data != line.members[0].data


def test_the_number_that_0_stands_for_is_the_methods() -> None:
    from plait.line.data import Need, need_of
    from plait.methods.registry import make as method

    for words, count in (({}, 1024), ({"variant": "released"}, 2048), ({"samples": 7}, 7)):
        assert need_of(method("ode_m", words)) == Need("problem", ("calibration",), count, True)
    assert need_of(method("ode_m", {"calibration": "new"})) == Need("problem", ("calibration",), 1024, False)
    assert need_of(method("mdm_oc")) is None


def test_a_line_is_measured_with_its_own_network(world: Path) -> None:
    line = make(world, "line", "a")
    rows = line.evaluate(world / "tasks.yaml", only=["a"])["rows"]
    assert {row["network"] for row in rows} == {f"{NETWORK} float32"}
    assert len(rows) == 3


def test_purge_removes_the_stored_set_and_gc_keeps_those_of_members(world: Path) -> None:
    line = make(world, "line", "abc", snapshots=1)
    sets = {m.task: m.data or "" for m in line.members}
    line.unmerge("b")
    line.purge("b")
    line.gc(grace=0)
    assert {task: line.store.objects.has(d) for task, d in sets.items()} == {"a": True, "b": False, "c": True}
    assert line.verify()["ok"]


def test_a_missing_set_is_told_by_verify(world: Path) -> None:
    line = make(world, "line", "ab")
    line.store.objects.delete(line.members[0].data or "")
    problems = line.verify()["problems"]
    assert len(problems) == 1
    assert (line.members[0].data or "?") in problems[0]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("python:no_such_module:small", "python:no_such_module:small: cannot be imported"),
        ("python:plait.errors:small", "has no attribute 'small'"),
        ("a_folder", "a_folder: expected python:module:function"),
    ],
)
def test_a_network_that_is_none_is_refused_when_the_line_is_made(
    world: Path, spec: str, message: str
) -> None:
    with pytest.raises(RefusedInput, match=message):
        Line.create(world / "line", world / "base", "refined", network=spec, private="classifier.*")
    assert not (world / "line").exists()


def test_a_base_that_says_no_network_needs_one_when_the_line_is_made(world: Path) -> None:
    bare = world / "base" / "model.safetensors"
    for method in ("refined", "regmean"):
        with pytest.raises(
            RefusedInput, match=r"model\.safetensors: has no config\.json, which says what network it is"
        ):
            Line.create(world / "line", bare, method, private="classifier.*")
    assert not (world / "line").exists()
    Line.create(world / "line", bare, "refined", network=NETWORK, private="classifier.*")


def test_needed_data_are_asked_for_in_words(world: Path) -> None:
    line = Line.create(world / "line", world / "base", "refined", network=NETWORK, private="classifier.*")
    with pytest.raises(
        UsageError, match=r"refined computes losses on each task from calibration.*--tasks FILE"
    ):
        line.merge(world / "a")
    with pytest.raises(RefusedInput, match="task 'x' is not among the tasks"):
        line.merge(world / "a", "x", tasks=world / "tasks.yaml")
    assert not line.members
    assert not line.store.workspaces()
    with pytest.raises(UsageError, match="retention statistics"):
        Line.create(world / "other", world / "base", "refined", retention="statistics", network=NETWORK)
    with pytest.raises(UsageError, match="at each merge, and retention none keeps no examples"):
        Line.create(world / "other", world / "base", "refined", retention="none", network=NETWORK)
    with pytest.raises(UsageError, match="network was given, and method average looks at no data"):
        Line.create(world / "other", world / "base", "average", network=NETWORK)
    plain = Line.create(world / "plain", world / "base", "average", private="classifier.*")
    notes = plain.merge(world / "a", tasks=world / "tasks.yaml")["notes"]
    assert notes == ["method average looks at no data; --tasks was not used"]


def test_a_storage_free_method_sees_the_new_task_and_removes_nothing(world: Path) -> None:
    line = make(world, "line", "abc", "newest", retention="none")
    assert all(m.data and not m.objects and m.object is None for m in line.members)
    held = set(line.store.objects.all())
    assert not held & {m.data for m in line.members}
    assert make(world, "kept", "abc", "newest").digest == line.digest
    with pytest.raises(NotRemovable, match="method newest keeps nothing"):
        Line.open(world / "kept").unmerge("a")


def test_an_old_ledger_opens(world: Path) -> None:
    from plait.line.member import Member

    row = make(world, "line", "a").members[0].plain()
    old = {k: v for k, v in row.items() if k not in ("data", "side", "examples", "objects")}
    member = Member.of(json.loads(json.dumps(old)))
    assert (member.data, member.side, member.examples, member.objects) == (None, None, None, ())


# commands, and interruptions


def test_the_commands(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def plait(*words: str, code: int = 0) -> Any:
        assert run([*words, "--json"]) == code
        return json.loads(capsys.readouterr().out)

    tasks, line = str(world / "tasks.yaml"), str(world / "line")
    base = ["--base", str(world / "base"), "--private", "classifier.*", "--network", NETWORK]
    made = plait("init", line, *base, "--method", "refined")
    assert made["data"] == "labelled all"
    failed = plait("merge", line, str(world / "a"), code=2)
    assert "--tasks FILE" in failed["error"]["message"]
    for name in "ab":
        done = plait("merge", line, str(world / name), "--tasks", tasks)
    assert done["members"][1]["examples"]["calibration"]["count"] == 8
    never = make(world, "never", "b")
    assert plait("unmerge", line, "a")["version"] == never.digest
    assert plait("verify", line, "--replay")["replay"] == "equal"
    state = plait("status", line)
    assert state["data"] == "labelled all"
    assert state["members"][0]["examples"]["calibration"]["of"] == 12
    assert state["bytes"]["data"] > 0
    assert run(["status", line]) == 0
    assert re.search(r"^  b +calibration +8 of 12 +[0-9a-f]{12}$", capsys.readouterr().out, re.M)
    plait("purge", line, "a", "--yes")


def test_an_interrupted_merge_goes_on_after_its_last_whole_step(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = make(world, "line", "abc")
    never = make(world, "never", "bc")
    before = line.digest
    monkeypatch.setenv("PLAIT_TEST_CRASH_AT", "2")
    with pytest.raises(SystemExit):
        line.unmerge("a")
    assert line.digest == before
    assert (world / "line" / "tmp" / "unmerge-a" / "steps-2" / "step-1").is_dir()
    monkeypatch.setenv("PLAIT_TEST_CRASH_AT", "1")  # that step is not run again
    assert line.unmerge("a")["version"] == never.digest
    assert line._head()["state"] == never._head()["state"]


def test_a_merge_killed_anywhere_leaves_the_line_as_before_or_as_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = register(tmp_path, monkeypatch)
    made = tmp_path / "made"
    made.mkdir()
    write_world(made)
    before = make(made, "line", "a").digest
    after = make(made, "other", "ab").digest
    words = ["merge", "{folder}/line", "{folder}/b", "--tasks", "{folder}/tasks.yaml", "--quiet"]

    def prepare(folder: Path) -> None:
        shutil.copytree(made, folder, dirs_exist_ok=True)

    def check(folder: Path) -> None:
        line = Line.open(folder / "line")
        assert line.digest in (before, after)
        assert line.verify()["ok"]
        if line.digest == before:
            line.merge(folder / "b", tasks=folder / "tasks.yaml")
        assert line.digest == after
        assert line.verify(replay=True)["replay"] == "equal"

    kill_at_every(
        [sys.executable, "-m", "plait.cli", *words],
        prepare,
        check,
        root=tmp_path,
        limit=3,
        env=env,
    )
    registry._points.cache_clear()
