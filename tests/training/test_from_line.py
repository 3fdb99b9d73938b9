"""Training from what a line is now: which weights, which head, and that a later merge knows of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from plait import Line
from plait.errors import FormatError, RefusedInput
from plait.problem.task import load_tasks
from plait.training import Recipe, finetune
from tests.line.models import differing
from tests.training.world import TABLE, read, write_base, write_tasks

RECORD = "plait_training.json"


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A base, tasks, and a line with the experts one and two."""
    write_base(tmp_path / "base")
    write_tasks(tmp_path, two={}, three={})
    line = Line.create(tmp_path / "line", tmp_path / "base", "task_arithmetic", scale=1.0)
    for i, name in enumerate(("one", "two")):
        made(tmp_path, name, base=tmp_path / "base", seed=i)
        line.merge(tmp_path / name)
    return tmp_path


def made(world: Path, name: str, task: str = "things", seed: int = 0, **words: Any) -> dict[str, Any]:
    things = load_tasks(world / "tasks.yaml")[task]
    recipe = Recipe(epochs=3, rate=1e-2, batch=8, seed=seed)
    return finetune(words.pop("base", None), things, world / name, recipe, **words)


def test_it_starts_where_the_line_is(world: Path) -> None:
    line = Line.open(world / "line")
    done = made(world, "next", line=line)
    assert done["start"] == {"digest": line.digest, "tasks": ["one", "two"]}
    assert done["base"] == {"name": "base", "digest": line.status()["base"]["digest"]}
    found, start = read(world / "next"), read(line.model)
    assert torch.equal(found["pooler.dense.bias"], start["pooler.dense.bias"])
    assert not torch.equal(found[TABLE], start[TABLE])
    # a start is not far from where training goes, in three epochs; the base is further away
    to_start = sum((found[n] - start[n]).square().sum() for n in found)
    to_base = sum((found[n] - t).square().sum() for n, t in read(world / "base").items())
    assert to_start < to_base


def test_the_head_is_that_of_the_base_all_the_same(world: Path) -> None:
    """The first loss is that of the version under the base's head."""
    from plait.problem.heads import make_head
    from plait.problem.network import open_network
    from plait.problem.objective import Objective

    done = finetune(
        None,
        load_tasks(world / "tasks.yaml")["things"],
        world / "n",
        Recipe(epochs=1, batch=99),
        line=world / "line",
    )
    things = load_tasks(world / "tasks.yaml")["things"]
    network = open_network(world / "base", things.kind)
    head = make_head(things, network, read(world / "base"))
    wanted = Objective(network, head, things.examples("train")).loss(read(Line.open(world / "line").model))
    assert done["loss"]["values"] == [pytest.approx(wanted, rel=1e-6)]


def test_a_merge_knows_what_it_descends_from(world: Path) -> None:
    line = Line.open(world / "line")
    start = line.digest
    made(world, "three", task="three", line=line)
    done = line.merge(world / "three")
    assert done["members"][2]["descends"] == {"version": start, "tasks": ["one", "two"]}
    (note,) = done["notes"]
    assert note == (
        f"plait_training.json says that it was trained from {start[:12]}, which holds one, two: recorded as descent"
    )
    receipt = line.unmerge("one")["receipt"]
    assert receipt["exact"] is False
    assert receipt["descends"] == ["three"]
    assert line.unmerge("three")["receipt"]["exact"] is True


def test_a_replacement_knows_it_too(world: Path) -> None:
    line = Line.open(world / "line")
    made(world, "other", line=line)
    done = line.replace("two", world / "other")
    assert done["members"][1]["descends"]["tasks"] == ["one", "two"]


def test_an_older_version_by_number_or_digest(world: Path) -> None:
    line = Line.open(world / "line")
    first = line.log()[1]["version"]
    by_number = made(world, "a", line=world / "line", version="1")
    by_digest = made(world, "b", line=str(world / "line"), version=first[:8])
    assert by_number["start"] == by_digest["start"] == {"digest": first, "tasks": ["one"]}
    assert by_number["digest"] == by_digest["digest"]
    line.merge(world / "two", "again")  # keeps two versions
    with pytest.raises(
        RefusedInput, match=rf"^version {first[:12]} is not on disk any more \(this line keeps 2\)"
    ):
        made(world, "c", line=line, version="1")


def test_from_the_base_of_a_line_is_no_descent(world: Path) -> None:
    line = Line.open(world / "line")
    done = made(world, "three", line=line, version="base")
    assert done["start"] == {"digest": done["base"]["digest"], "tasks": []}
    plain = made(world, "plain", base=world / "base")
    assert differing(read(world / "three"), read(world / "plain")) == []
    assert plain["base"]["digest"] == done["base"]["digest"]
    assert line.merge(world / "three")["members"][2]["descends"] is None
    assert line.merge(world / "plain")["notes"] == []


def test_an_export_of_a_version_is_known_again(world: Path) -> None:
    line = Line.open(world / "line")
    line.export(world / "out")
    done = made(world, "three", base=world / "out")
    assert done["start"] == {"digest": line.digest, "tasks": []}
    assert line.merge(world / "three")["members"][2]["descends"]["tasks"] == ["one", "two"]


def test_what_an_expert_was_trained_from_is_carried_on(world: Path) -> None:
    """An expert of an expert holds the first one's task and all that it held; another line learns of it too."""
    line = Line.open(world / "line")
    made(world, "three", task="three", line=line)
    done = made(world, "four", base=world / "three")
    assert done["start"]["tasks"] == ["one", "three", "two"]
    other = Line.create(world / "other", world / "base")
    assert other.merge(world / "four")["members"][0]["descends"] == {
        "version": done["start"]["digest"],
        "tasks": ["one", "three", "two"],
    }


def test_what_the_user_says_counts_more(world: Path) -> None:
    line = Line.open(world / "line")
    made(world, "three", line=line)
    told = line.merge(world / "three", descends_from="1")
    assert told["members"][2]["descends"]["tasks"] == ["one"]
    assert told["notes"] == []


def test_the_record_is_of_these_weights_alone(world: Path) -> None:
    """A line made of an expert hands out other weights: they must not carry its record."""
    made(world, "three", line=world / "line")
    line = Line.create(world / "of-three", world / "three")
    line.merge(world / "two")
    line.export(world / "out")
    assert list((world / "of-three").rglob(RECORD)) == []
    assert not (world / "out" / RECORD).exists()
    made(world, "five", base=world / "three")
    assert json.loads((world / "five" / RECORD).read_text())["start"]["tasks"] == ["one", "things", "two"]
    assert (
        line.merge(world / "five")["members"][1]["descends"] is None
    )  # what the base holds, all members hold


@pytest.mark.parametrize(
    "change",
    [
        "not JSON",
        "[]",
        "{}",
        {"format": 2},
        {"task": "../x"},
        {"task": None},
        {"start": None},
        {"start": {"digest": "00", "tasks": []}},
        {"start": {"digest": "0" * 64, "tasks": "one"}},
        {"start": {"digest": "0" * 64, "tasks": [1]}},
        "[" * 100_000,
    ],
    ids=lambda change: str(change)[:40],
)
def test_a_record_that_makes_no_sense_is_refused(change: Any, world: Path) -> None:
    line = Line.open(world / "line")
    shutil.copytree(world / "one", world / "odd")
    file = world / "odd" / RECORD
    found = json.loads(file.read_text())
    file.write_text(change if isinstance(change, str) else json.dumps({**found, **change}))
    before = line.log()
    with pytest.raises(FormatError, match=r"odd/plait_training.json: is no record of format 1, .*--from"):
        line.merge(world / "odd")
    with pytest.raises(FormatError, match=r"is no record of format 1"):
        made(world, "six", base=world / "odd")
    assert line.log() == before
    assert line.store.workspaces() == []
    assert line.merge(world / "odd", descends_from="base")["members"][2]["descends"]["tasks"] == []


def test_nothing_is_written_into_a_line(world: Path) -> None:
    with pytest.raises(RefusedInput, match="which is needed; give another place"):
        made(world, "line/versions/new", line=world / "line")
