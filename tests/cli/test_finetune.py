"""`plait finetune` on a small encoder: its object, its words, and what it says when it cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plait.cli.finetune import _line_and_version
from plait.cli.schema import SCHEMA
from tests.cli.conftest import Plait
from tests.training.world import write_base, write_tasks

WORDS = "finetune things out --tasks tasks.yaml --epochs 1 --rate 0.01 --batch 8"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_base(tmp_path / "base")
    write_tasks(tmp_path, other={})
    return tmp_path


def told(plait: Plait, words: str) -> dict[str, Any]:
    done = plait(*words.split(), "--json", "--quiet")
    assert done.code == 0, done.err
    assert done.err == ""
    return done.json


def test_the_object_is_the_record_and_where_it_lies(plait: Plait, world: Path) -> None:
    done = told(
        plait,
        f"{WORDS} --base base --seed 3 --examples 20 --weight-decay 0.1 --warmup 0.5 --train *.bias --threads 3",
    )
    assert list(done) == ["command", *SCHEMA["finetune"]]
    record = json.loads((world / "out" / "plait_training.json").read_text())
    assert record.pop("format") == 1
    assert {**record, "out": "out", "command": "finetune", "seconds": done["seconds"]} == done
    assert done["threads"] == 3
    assert done["recipe"] == {
        "epochs": 1,
        "rate": 0.01,
        "batch": 8,
        "warmup": 0.5,
        "examples": 20,
        "seed": 3,
        "weight_decay": 0.1,
        "train": ["*.bias"],
        "freeze": [],
    }


def test_every_default_is_the_recipe_s(plait: Plait, world: Path) -> None:
    from plait.training import Recipe

    done = told(plait, "finetune things out --tasks tasks.yaml --base base")
    assert done["recipe"] == Recipe().plain()
    assert Recipe() == Recipe(3, 1e-4, 32, 0.1, 1500, 0, 0.0)
    words = " ".join(plait("finetune", "--help").out.split())
    assert all(f"{value} by default" in words for value in (3, 0.0001, 32, 0.1, 1500, 0))


def test_what_people_read(plait: Plait, world: Path) -> None:
    done = plait(*WORDS.split(), "--base", "base")
    first, *rows = done.out.splitlines()
    assert first == "trained things into out"
    assert [row.split()[0] for row in rows] == ["base", "examples", "trained", "loss", "digest", "time"]
    assert "24 of 24" in rows[1]
    assert "37 tensors, " in rows[2]
    assert "steps: 3" in rows[3]
    assert plait(*WORDS.replace("out", "two").split(), "--base", "base", "--quiet").out == ""


def test_the_whole_road_from_a_line(plait: Plait, world: Path) -> None:
    told(plait, f"{WORDS} --base base")
    told(plait, "init line --base base")
    merged = told(plait, "merge line out --task things")
    done = plait(*f"{WORDS} --from line".replace("out", "next").split())
    assert f"  from      {merged['version'][:12]}, which holds things" in done.out.splitlines()
    last = told(plait, "merge line next --task other")
    assert last["members"][1]["descends"] == {"version": merged["version"], "tasks": ["things"]}
    old = told(plait, f"{WORDS} --from line@1".replace("out", "old"))
    assert old["start"]["digest"] == merged["version"] != last["version"]
    assert old["digest"] == json.loads((world / "next" / "plait_training.json").read_text())["digest"]
    assert "exact         no" in plait("unmerge", "line", "things").out


def test_a_line_may_have_an_at_in_its_name(world: Path) -> None:
    assert _line_and_version(None) == (None, None)
    assert _line_and_version("a/line") == ("a/line", None)
    assert _line_and_version("a@b/line@3") == ("a@b/line", "3")
    (world / "line@home").mkdir()
    assert _line_and_version("line@home") == ("line@home", None)
    assert _line_and_version("line@home@9f3a") == ("line@home", "9f3a")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("--base nowhere", 5, "nowhere: does not exist"),
        ("--from nowhere", 5, "nowhere: there is no line here"),
        ("--from base", 5, "not a line (it has no plait.json)"),
        ("--base base --freeze *", 5, "things: none of the 37 tensors is left to train"),
        (
            "--base base --rate 1e30",
            5,
            "things: the loss is nan at step 2 of 3; lower the rate, which is 1e+30",
        ),
        ("--base base --device tpu", 2, "device is tpu, expected cpu or cuda"),
        ("--base base --network python:no:where", 5, "python:no:where: cannot be imported"),
    ],
)
def test_what_is_refused_leaves_nothing(
    plait: Plait, world: Path, words: str, code: int, message: str
) -> None:
    before = sorted(world.rglob("*"))
    done = plait(*WORDS.split(), *words.split())
    assert done.code == code
    assert message in done.error
    assert sorted(world.rglob("*")) == before


def test_an_unknown_task_is_told_with_those_there_are(plait: Plait, world: Path) -> None:
    done = plait("finetune", "thing", "out", "--tasks", "tasks.yaml", "--base", "base")
    assert done.code == 5
    assert done.error == "task 'thing' is not among the tasks; there are things, other"
