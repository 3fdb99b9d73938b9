"""Bad input, one line each, and nothing left behind."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from plait.errors import NonFinite, PlaitError, RefusedInput, UsageError
from plait.problem.task import load_tasks
from plait.training import Recipe, finetune, writing
from tests.training.test_finetune import TIED
from tests.training.world import write_base, write_tasks

CHOICES: list[tuple[dict[str, Any], type[PlaitError], str]] = [
    ({"out": "base"}, RefusedInput, "base exists; give another place, or remove it"),
    ({"out": "base/inner"}, RefusedInput, "which is needed; give another place"),
    ({"out": "tasks.yaml/out"}, RefusedInput, "tasks.yaml is no folder; give another place"),
    ({"base": "nowhere"}, PlaitError, "nowhere"),
    ({"base": "bare"}, RefusedInput, "bare: has no config.json, which says what network it is"),
    ({"base": "deep"}, RefusedInput, "the weights lack"),
    (
        {"base": None},
        UsageError,
        "no start is given; name a base with --base DIR, or a line with --from LINE",
    ),
    (
        {"line": "base"},
        UsageError,
        "--base and --from are both given; a line brings its own base",
    ),
    ({"version": "1"}, UsageError, "version 1 needs the line that it is of"),
    (
        {"base": None, "line": "nowhere"},
        RefusedInput,
        "nowhere: there is no line here; make one with `plait init",
    ),
    ({"base": None, "line": "base"}, RefusedInput, "base"),
    ({"task": "tested"}, RefusedInput, "tested: has no train examples; expected splits.train in tasks.yaml"),
    ({"task": "hollow"}, RefusedInput, "hollow: train is empty"),
    (
        {"task": "own"},
        RefusedInput,
        "own: the bert encoder of base has no head of its own; use the head `zero-shot` or `linear`",
    ),
    ({"task": "stored"}, RefusedInput, "stored: head tensor head.weight is not in the checkpoint"),
    ({"task": "own", "network": TIED}, RefusedInput, "own: the weights lack 3 of the 3 tensors of Tied, "),
    ({"recipe": Recipe(freeze=("*",))}, RefusedInput, "things: none of the 37 tensors is left to train"),
    (
        {"recipe": Recipe(train=("*.bias",), freeze=("*.bias",))},
        RefusedInput,
        "none of the 37 tensors is left",
    ),
    (
        {"recipe": Recipe(freeze=("*", "typo.*"))},
        RefusedInput,
        "--freeze 'typo.*' matches none of the 37 tensors",
    ),
    (
        {"recipe": Recipe(train=("pooler.*",))},
        RefusedInput,
        "--train 'pooler.*' matches none of the 37 tensors",
    ),
    ({"recipe": Recipe(rate=1e30)}, NonFinite, "things: the loss is nan at step 2 of 3; lower the rate"),
    (
        {"recipe": Recipe(rate=1e39, epochs=1, batch=99, warmup=0)},
        NonFinite,
        "is NaN or infinite after the last step",
    ),
    (
        {"base": "narrow", "recipe": Recipe(rate=1e5, epochs=1, batch=99, warmup=0)},
        NonFinite,
        "is too large for",
    ),
    (
        {"base": "broken"},
        NonFinite,
        "1 of 3; embeddings.LayerNorm.bias holds NaN or infinity before anything was",
    ),
    ({"device": "tpu"}, UsageError, "device is tpu, expected cpu or cuda"),
    ({"threads": 0}, UsageError, "threads is 0, expected a whole number of at least 1"),
    ({"network": "python:nothing:there"}, RefusedInput, "python:nothing:there: cannot be imported"),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("refusals")
    write_base(folder / "base")
    write_base(folder / "narrow", torch.float16)
    write_base(folder / "broken", more={"embeddings.LayerNorm.bias": torch.full((16,), float("nan"))})
    (write_base(folder / "bare") / "config.json").unlink()
    config = write_base(folder / "deep") / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "num_hidden_layers": 3}))
    (folder / "hollow.jsonl").write_text('{"text": "a", "label": 0, "split": "test"}\n')
    write_tasks(
        folder,
        tested={"splits": {"test": {"data": "test.jsonl"}}},
        hollow={"data": "hollow.jsonl", "splits": {"train": {}, "test": {}}},
        own={"head": "model"},
        stored={"head": {"kind": "linear", "weight": "head.weight"}},
    )
    return folder


def tried(world: Path, words: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> str:
    """The message of a call that must fail, after a look at what it left."""
    monkeypatch.chdir(world)
    before = sorted(p.relative_to(world) for p in world.rglob("*"))
    given = {"base": "base", "out": "out", "recipe": Recipe(), **words}
    task = load_tasks("tasks.yaml")[given.pop("task", "things")]
    with pytest.raises(PlaitError) as found:
        finetune(given.pop("base"), task, given.pop("out"), given.pop("recipe"), **given)
    assert sorted(p.relative_to(world) for p in world.rglob("*")) == before
    assert "\n" not in str(found.value)
    return f"{type(found.value).__name__}: {found.value}"


@pytest.mark.parametrize(("words", "kind", "message"), CHOICES, ids=lambda v: str(v)[:40])
def test_bad_input(
    world: Path,
    words: dict[str, Any],
    kind: type[PlaitError],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = tried(world, words, monkeypatch)
    assert message in told
    assert kind is PlaitError or told.startswith(kind.__name__)


def test_a_folder_that_cannot_be_written_is_told_before_training(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() == 0:
        monkeypatch.setattr(os, "access", lambda path, mode: False)
    else:
        tmp_path.chmod(0o555)
    told = tried(world, {"out": str(tmp_path / "deep" / "out")}, monkeypatch)
    assert f"nothing can be written in {tmp_path}; check its permissions" in told
    assert list(tmp_path.iterdir()) == []


class Stop:
    """Progress that interrupts in the middle."""

    def begin(self, label: str, total: int) -> None:
        self.left = total // 2

    def advance(self, count: int) -> None:
        self.left -= count
        if not self.left:
            raise KeyboardInterrupt

    def end(self) -> None:
        pass


def test_an_interrupt_leaves_nothing(world: Path, tmp_path: Path) -> None:
    things = load_tasks(world / "tasks.yaml")["things"]
    with pytest.raises(KeyboardInterrupt):
        finetune(world / "base", things, tmp_path / "out", progress=Stop())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", ["plan_output", "write_file", "root_digest", "_write"])
def test_a_failure_while_writing_leaves_nothing(
    step: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*words: Any) -> None:
        raise PlaitError("the disk is full")

    monkeypatch.setattr(writing, step, fail)
    things = load_tasks(world / "tasks.yaml")["things"]
    with pytest.raises(PlaitError, match="the disk is full"):
        finetune(world / "base", things, tmp_path / "out", Recipe(epochs=1))
    assert list(tmp_path.iterdir()) == []


def test_what_was_made_meanwhile_is_not_replaced(world: Path, tmp_path: Path) -> None:
    class Meanwhile(Stop):
        def advance(self, count: int) -> None:
            (tmp_path / "out").mkdir(exist_ok=True)
            (tmp_path / "out" / "mine").touch()

    things = load_tasks(world / "tasks.yaml")["things"]
    with pytest.raises(RefusedInput, match="out exists"):
        finetune(world / "base", things, tmp_path / "out", Recipe(epochs=1), progress=Meanwhile())
    assert [p.name for p in tmp_path.rglob("*")] == ["out", "mine"]


def test_threads_are_given_back(world: Path, tmp_path: Path) -> None:
    seen: list[int] = []

    class Look(Stop):
        def advance(self, count: int) -> None:
            seen.append(torch.get_num_threads())

    things = load_tasks(world / "tasks.yaml")["things"]
    before = torch.get_num_threads()
    done = finetune(world / "base", things, tmp_path / "out", Recipe(epochs=1), threads=3, progress=Look())
    assert set(seen) == {3}
    assert done["threads"] == 3
    assert torch.get_num_threads() == before
    assert not torch.are_deterministic_algorithms_enabled()
