"""Killed at any instant, `plait finetune` leaves a whole expert or none."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from plait.checkpoint import open_checkpoint, root_digest
from plait.cli import main
from tests.crash import kill_at_every
from tests.training.world import write_base, write_tasks

ARGV = [
    *(
        sys.executable,
        "-m",
        "plait.cli",
        "finetune",
        "things",
        "{folder}/out",
        "--tasks",
        "{folder}/tasks.yaml",
    ),
    *("--base", "{folder}/base", "--epochs", "1", "--threads", "1"),
]


def prepare(folder: Path) -> None:
    write_base(folder / "base")
    write_tasks(folder)


def check(folder: Path) -> None:
    out = folder / "out"
    if out.exists():
        record = json.loads((out / "plait_training.json").read_text())
        assert record["digest"] == root_digest(open_checkpoint(out).digests())
        assert {p.name for p in out.iterdir()} >= {"config.json", "tokenizer.json"}
        return
    words = [word.replace("{folder}", str(folder)) for word in ARGV[3:]]
    assert main([*words, "--quiet"]) == 0  # whatever was left behind is not in the way
    assert {p.name for p in folder.iterdir() if p.name.startswith(".")} == set()


@pytest.mark.slow
def test_killed_at_any_instant(tmp_path: Path) -> None:
    trials = kill_at_every(ARGV, prepare, check, root=tmp_path, limit=20)
    assert trials
