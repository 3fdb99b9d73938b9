"""Why something cannot be measured is told truly, with what can be done about it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from plait import Line
from plait.errors import RefusedInput
from tests.cli.conftest import Plait
from tests.evaluation import world as w
from tests.line.models import write_folder


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    w.write_models(tmp_path)
    return tmp_path


NOPE = {"kind": "linear", "weight": "nope"}


@pytest.mark.parametrize("bare", [True, False])
def test_a_base_without_a_config_is_not_to_be_changed_in_the_line(world: Path, bare: bool) -> None:
    (world / "base" / "config.json").unlink(missing_ok=True)
    (file,) = (name for name in os.listdir(world / "base") if name.endswith(".safetensors"))
    line = Line.create(world / "line", world / "base" / file if bare else world / "base")
    with pytest.raises(RefusedInput) as caught:
        line.evaluate(w.write_tasks(world, "a"))
    assert "start the line again from a folder with a config.json" in str(caught.value)
    assert "--network python:module:function" in str(caught.value)
    assert "put it there" not in str(caught.value)


@pytest.mark.parametrize("private", ["classifier.*", None])
def test_a_head_tensor_that_the_checkpoint_lacks(world: Path, private: str | None) -> None:
    line = Line.create(world / "line", world / "base", private=private or ())
    if private is None:
        write_folder(world / "a", {n: t for n, t in w.expert_weights(0).items() if "mix" in n})
    line.merge(world / "a")
    tasks = w.write_tasks(world, "ab", NOPE, b={"head": "zero-shot"})
    found = line.evaluate(tasks, network=w.NETWORK)
    assert {row["task"] for row in found["rows"]} == {"b"}
    assert {row["why"] for row in found["skipped"]} == {"its head tensor nope is not in the checkpoint of a"}
    assert len(found["skipped"]) == 3


def test_nothing_measured_is_a_failure_and_a_part_is_none(plait: Plait, world: Path) -> None:
    line = Line.create("line", "base", private="classifier.*")
    line.merge("a")
    words = ("eval", "line", "--tasks", "tasks.yaml", "--network", w.NETWORK, "--quiet")
    w.write_tasks(world, "a", NOPE)
    done = plait(*words)
    assert done.code == 1
    assert "nothing could be measured: " in done.error
    assert "its head tensor nope is not in the checkpoint of a" in done.error
    assert len(done.err.splitlines()) == 1
    w.write_tasks(world, "ab", NOPE, b={"head": "zero-shot"})
    assert plait(*words).code == 0


def _transfer(plait: Plait, *words: str) -> str:
    done = plait("eval", "line", "--tasks", "tasks.yaml", "--network", w.NETWORK, *words)
    (row,) = [text for text in done.out.splitlines() if text.strip().startswith("BWT ")]
    assert "- %" not in done.out
    return row


def test_all_is_advised_only_where_it_helps(plait: Plait, world: Path) -> None:
    w.write_tasks(world, "ab")
    line = Line.create("line", "base", private="classifier.*", keep=1)
    line.merge("a")
    line.merge("b")
    assert _transfer(plait).endswith("versions of arrival: --all)")
    assert "plasticity gap +" in _transfer(plait, "--all") or "plasticity gap -" in _transfer(plait, "--all")


@pytest.mark.parametrize("words", [(), ("--all",)])
def test_what_cannot_be_had_any_more_is_said(plait: Plait, world: Path, words: tuple[str, ...]) -> None:
    w.write_tasks(world, "ab")
    line = Line.create("line", "base", "task_arithmetic", private="classifier.*", retention="none")
    line.merge("a")
    line.merge("b")
    row = _transfer(plait, *words)
    assert "of a, b cannot be had any more" in row
    assert "--all" not in row


def test_one_task_has_no_transfer(plait: Plait, world: Path) -> None:
    w.write_tasks(world, "ab")
    line = Line.create("line", "base", private="classifier.*")
    line.merge("a")
    line.merge("b")
    line.unmerge("b")
    row = _transfer(plait, "--all")
    assert "over T" not in row
    assert " -; plasticity gap " in row
