"""Experts are made once: a digest of all that decides them names them."""

from __future__ import annotations

import json
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plait.bench import experts
from plait.bench.suites import Sources, find
from plait.bench.worker import Setup
from plait.errors import RefusedInput
from tests.line.models import base_tensors, expert_tensors, write_folder

TASK = {"train": {"examples": 9, "data": "d"}, "head_digest": "h"}
SOFTWARE = {"torch": "2", "plait": "0"}


def test_a_digest_for_all_that_decides_an_expert() -> None:
    suite = find("tiny")
    words: dict[str, Any] = {
        "suite": suite, "task": TASK, "base": "base", "files": "files", "software": SOFTWARE,
    }  # fmt: skip
    changes: dict[str, list[Any]] = {
        "suite": [replace(suite, recipe={"epochs": 9}), replace(suite, network="python:a:b")],
        "task": [{**TASK, "train": {"examples": 9, "data": "e"}}, {**TASK, "head_digest": "i"}],
        "base": ["other"],
        "files": ["others"],
        "software": [{**SOFTWARE, "torch": "3"}],
    }
    digests = [experts.recipe_digest(**words)]
    assert experts.recipe_digest(**words) == digests[0]
    for word, others in changes.items():
        digests += [experts.recipe_digest(**{**words, word: other}) for other in others]
    assert len(set(digests)) == len(digests)


def test_files_beside_the_weights_have_a_digest(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    first = experts.beside(tmp_path)
    (tmp_path / "model.safetensors").write_text("weights are not among them")
    assert experts.beside(tmp_path) == first
    (tmp_path / "config.json").write_text("{ }")
    assert experts.beside(tmp_path) != first


class Training:
    """Stands for a pool: an expert is a checkpoint with its record."""

    def __init__(self, base: Path) -> None:
        self.setup = Setup("tiny", Sources(), base, None)
        self.trained: list[str] = []

    def submit(self, job: Any, task: str, out: Path) -> Future[dict[str, Any]]:
        self.trained.append(task)
        write_folder(out, expert_tensors(base_tensors(), len(task)))
        record = {"digest": experts.digest_of(out), "seconds": 1.5}
        (out / "plait_training.json").write_text(json.dumps(record))
        done: Future[dict[str, Any]] = Future()
        done.set_result(record)
        return done


def test_experts_are_trained_once_and_looked_at_every_time(tmp_path: Path) -> None:
    write_folder(tmp_path / "base", base_tensors())
    suite, pool, said = find("tiny"), Training(tmp_path / "base"), list[str]()
    words: dict[str, Any] = {
        "suite": suite,
        "pool": pool,
        "tasks": dict.fromkeys(suite.tasks, TASK),
        "base": "base",
        "software": SOFTWARE,
        "cache": tmp_path / "cache",
        "say": said.append,
    }
    folders, rows = experts.trained(**words)
    assert pool.trained == list(suite.tasks)
    assert rows["kind"]["digest"] == experts.digest_of(folders["kind"])
    assert said[0] == "training 3 of 3 experts"
    assert experts.trained(**words) == (folders, rows)
    assert len(pool.trained) == 3
    other = {**words["tasks"], "mood": {**TASK, "head_digest": "i"}}
    experts.trained(**{**words, "tasks": other})
    assert pool.trained[3:] == ["mood"]
    write_folder(folders["kind"], expert_tensors(base_tensors(), 9))
    with pytest.raises(
        RefusedInput, match=r"its bytes are not those that were trained; remove it and run again"
    ):
        experts.trained(**words)
