"""What is gathered of real lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plait import Line
from plait.evaluation.rows import Rows
from plait.report.facts import gather
from plait.report.page import page
from tests.line.models import base_tensors, expert_tensors, write_folder
from tests.report.lines import make, measure, row

TASKS = ["trec6", "sst2", "ag_news", "snips7"]


@pytest.fixture
def line(tmp_path: Path) -> Line:
    return make(tmp_path, TASKS)


def strings(value: Any) -> list[str]:
    """Every text in a JSON value, keys included."""
    if isinstance(value, dict):
        return [text for key, item in value.items() for text in (key, *strings(item))]
    if isinstance(value, list):
        return [text for item in value for text in strings(item)]
    return [value] if isinstance(value, str) else []


def test_facts_are_json_and_the_same_each_time(line: Line) -> None:
    line.unmerge("sst2")
    measure(line, TASKS)
    found = gather(line)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert gather(line) == found
    assert gather(Line.open(line.path)) == found


def test_what_is_deployed_and_why(line: Line) -> None:
    version = line.digest
    line.reweight("sst2", 2.0)
    line.reweight("sst2", 1.0)
    found = gather(line)
    told = found["deployed"]
    assert told["version"] == version
    assert told["same_as"] == [4]
    assert (told["method"], told["options"]["scale"], told["removal"]) == ("task_arithmetic", 0.4, "subtract")
    assert found["line"]["tip"] == line.verify()["tip"]
    assert [m["task"] for m in found["members"]] == TASKS
    assert [m["since"] for m in found["members"]] == [1, 2, 3, 4]
    assert all(m["bytes"] > 0 and m["distance"] > 0 and m["changed"] == 5 for m in found["members"])
    assert [e["verb"] for e in found["ledger"]] == ["init", *["merge"] * 4, *["reweight"] * 2]
    assert all(e["counts"]["bytes_read"] > 0 for e in found["ledger"][1:])
    assert found["ledger"][2]["kept"] == sum(m["bytes"] for m in found["members"][:2])


def test_a_replaced_member_is_there_since_its_checkpoint_came(line: Line, tmp_path: Path) -> None:
    other = write_folder(tmp_path / "other", expert_tensors(base_tensors(), 9))
    line.replace("sst2", other)
    line.reweight("sst2", 2.0)
    found = {m["task"]: m for m in gather(line)["members"]}
    assert found["sst2"]["since"] == 5
    assert found["sst2"]["source"] == "other"
    assert found["trec6"]["since"] == 1


def test_a_member_that_came_back_is_there_since_its_return(line: Line, tmp_path: Path) -> None:
    line.unmerge("sst2")
    line.merge(tmp_path / "sst2")
    found = {m["task"]: m["since"] for m in gather(line)["members"]}
    assert found == {"trec6": 1, "ag_news": 3, "snips7": 4, "sst2": 6}


def test_accuracies_stand_in_their_places(line: Line) -> None:
    digest = line.digest
    told = [
        row(line, digest, "trec6", 0.8),
        row(line, line.store.settings["base"]["digest"], "trec6", 0.4),
        row(line, line.members[0].digest, "trec6", 0.9, "expert"),
    ]
    Rows(line.store).put(told)
    found = gather(line)["evaluation"]
    assert found["rows"] == 3
    tasks = {t["task"]: t for t in found["tasks"]}
    assert list(tasks) == TASKS
    assert [tasks["trec6"][key]["value"] for key in ("now", "base", "expert")] == [0.8, 0.4, 0.9]
    assert tasks["trec6"]["now"]["right"] == 160
    assert tasks["sst2"]["now"] is None
    assert [s["sequence"] for s in found["steps"]] == [1, 2, 3, 4]
    assert [s["measured"] for s in found["steps"]] == [False, False, False, True]
    assert found["steps"][1]["members"] == [True, True, False, False]
    figures = found["steps"][3]["figures"]
    assert (figures["tasks"], figures["acc"]) == (["trec6"], 0.8)
    assert figures["backward"] is None  # nothing was measured when the task came
    assert figures["plasticity_gap"] is None


def test_figures_follow_the_stream(line: Line) -> None:
    """By hand: a[1,1] 0.8; a[2,1] 0.7, a[2,2] 0.6; experts 0.9 and 0.8; base 0.5 for both."""
    base = line.store.settings["base"]["digest"]
    one, two = (line.store.ledger.entry(number)["version"] for number in (1, 2))
    told = [row(line, base, task, 0.5) for task in ("trec6", "sst2")]
    told += [row(line, one, "trec6", 0.8), row(line, two, "trec6", 0.7), row(line, two, "sst2", 0.6)]
    told += [row(line, line.members[0].digest, "trec6", 0.9, "expert")]
    told += [row(line, line.members[1].digest, "sst2", 0.8, "expert")]
    Rows(line.store).put(told)
    first, second = (s["figures"] for s in gather(line)["evaluation"]["steps"][:2])
    assert first["acc"] == pytest.approx(0.8)
    assert first["backward"] is None  # no task is older than the step
    assert first["plasticity_gap"] == pytest.approx(0.1)
    assert second["acc"] == pytest.approx(0.65)
    assert second["backward"] == pytest.approx(-0.1)
    assert second["plasticity_gap"] == pytest.approx(0.15)
    assert second["experts"] == pytest.approx(0.85)


def test_a_removal_tells_before_after_and_never_merged(line: Line) -> None:
    before = line.digest
    receipt = line.unmerge("sst2")["receipt"]
    base = line.store.settings["base"]["digest"]
    told = [row(line, base, "sst2", 0.30)]
    for digest, shares in ((before, (0.8, 0.9, 0.7)), (line.digest, (0.82, 0.35, 0.66))):
        told += [row(line, digest, t, s) for t, s in zip(("trec6", "sst2", "ag_news"), shares, strict=True)]
    Rows(line.store).put(told)
    (removal,) = gather(line)["removals"]
    assert (removal["sequence"], removal["task"], removal["how"]) == (5, "sst2", "subtraction")
    assert removal["before"] == before
    assert removal["after"] == removal["never_merged"] == receipt["never_merged"] == line.digest
    assert removal["same_bytes"] is True
    assert removal["exact"] is True
    effects = {t["task"]: t for t in removal["tasks"]}
    assert list(effects) == ["trec6", "sst2", "ag_news"]
    assert [t["gone"] for t in removal["tasks"]] == [False, True, False]
    assert effects["sst2"]["change"]["value"] == pytest.approx(-0.55)
    assert effects["sst2"]["change"]["low"] < -0.55 < effects["sst2"]["change"]["high"]
    assert effects["trec6"]["never"] == effects["trec6"]["after"]
    assert removal["retain"] == pytest.approx((-0.02 + 0.04) / 2)
    assert removal["forget"] == pytest.approx(0.05)
    assert removal["fidelity"] == 0.0


def test_an_unmerge_of_the_last_merge_leads_back(line: Line) -> None:
    line.unmerge("snips7")
    (removal,) = gather(line)["removals"]
    assert removal["again"] == [3]
    assert removal["tasks"] == []


def test_a_removal_that_is_not_exact_says_so(tmp_path: Path) -> None:
    made = make(tmp_path, ["a"])
    made.merge(write_folder(tmp_path / "b", expert_tensors(base_tensors(), 5)), descends_from="1")
    made.unmerge("a")
    (removal,) = gather(made)["removals"]
    assert removal["exact"] is False
    assert removal["same_bytes"] is False
    assert "b descends from a version that held a" in removal["note"]
    assert "✗ not exact" in page(gather(made))


def about(found: dict[str, Any]) -> dict[str, str | None]:
    return {gap["about"]: gap["fill"] for gap in found["gaps"]}


def test_gaps_name_the_command(tmp_path: Path) -> None:
    made = make(tmp_path / "a b", TASKS)
    told = about(gather(made, read=False))
    place = f"'{made.path}'"
    assert told["accuracies"] == f"plait eval {place} --tasks tasks.yaml"
    assert told["cosines and norms of task vectors"] == f"plait report {place} --out FILE"
    assert "cosines and norms of task vectors" not in about(gather(made))
    measure(made, TASKS[:2])
    told = about(gather(made))
    assert "accuracies" not in told
    assert told["accuracy of the deployed version"] == f"plait eval {place} --tasks tasks.yaml"
    assert told["accuracy of experts"] == f"plait eval {place} --tasks tasks.yaml"
    measure(made, TASKS)
    assert gather(made)["gaps"] == []


def test_gaps_tell_what_can_be_made_again(line: Line) -> None:
    line.unmerge("sst2")
    measure(line, TASKS, entries=[1, 5])
    gaps = [g for g in gather(line)["gaps"] if g["about"] == "accuracy of earlier versions"]
    assert [(g["found"], g["fill"] is None) for g in gaps] == [("not evaluated: entries 2, 3, 4", False)]
    assert gaps[0]["fill"].endswith("--tasks tasks.yaml --all")
    line.purge("sst2")
    gaps = [g for g in gather(line)["gaps"] if g["about"] == "accuracy of earlier versions"]
    assert [(g["found"][-7:], g["fill"]) for g in gaps] == [("2, 3, 4", None)]


def test_a_line_that_keeps_no_members_says_so(tmp_path: Path) -> None:
    made = make(tmp_path, TASKS[:2], retention="statistics")
    found = gather(made)
    assert found["vectors"] is None
    assert (
        about(found)["cosines and norms of task vectors"] == "plait init LINE --base DIR --retention vectors"
    )
    assert about(found)["bytes kept of members"] is None
    assert [m["bytes"] for m in found["members"]] == [None, None]
    assert "retention statistics" in page(found)


def test_a_new_line_and_one_that_is_empty_again(tmp_path: Path) -> None:
    made = make(tmp_path, [])
    found = gather(made)
    assert found["members"] == found["evaluation"]["steps"] == found["removals"] == []
    assert "the base itself is deployed" in page(found)
    made.merge(write_folder(tmp_path / "a", expert_tensors(base_tensors(), 1)))
    made.unmerge("a")
    measure(made, ["a"])
    found = gather(made)
    assert found["removals"][0]["again"] == [0]
    assert "the base itself is deployed" in page(found)


# purged tasks


def purged(tmp_path: Path, secret: str = "acme-tickets") -> Line:
    """A line from which a task was purged that left traces wherever a task can."""
    made = make(tmp_path, ["first", secret, "last"])
    made.merge(write_folder(tmp_path / "child", expert_tensors(base_tensors(), 8)), descends_from="2")
    made.export(tmp_path / f"out-{secret}")
    measure(made, ["first", secret, "last"])
    made.unmerge(secret)
    made.purge(secret)
    return made


def test_a_purged_task_is_not_named(tmp_path: Path) -> None:
    made = purged(tmp_path)
    entries = made.store.ledger.entries()
    digest = next(m["digest"] for e in entries for m in e["members"] if m["task"] == "acme-tickets")
    Rows(made.store).put([row(made, made.digest, "acme-tickets", 0.4)])  # as if it had been measured again
    found = gather(made)
    assert found["purged"] == ["purged task 1"]
    for text in (json.dumps(found), page(found)):
        assert "acme" not in text
        assert digest not in text
        assert digest[:12] not in text
    assert found["ledger"][2]["task"] == "purged task 1"
    assert found["removals"][0]["task"] == "purged task 1"
    assert "child descends from a version that held purged task 1" in found["removals"][0]["note"]
    assert [m["task"] for m in found["members"]] == ["first", "last", "child"]
    assert "out-purged task 1" in json.dumps(found["ledger"])


def test_a_name_that_holds_the_purged_one_stays(tmp_path: Path) -> None:
    made = make(tmp_path, ["sst", "sst-2"])
    made.unmerge("sst")
    made.purge("sst")
    found = gather(made)
    assert [m["task"] for m in found["members"]] == ["sst-2"]
    assert found["members"][0]["source"] == "sst-2"
    assert "sst" not in set(strings(found))


@pytest.mark.parametrize(
    "name", ["merge", "version", "init", "average", "task", "subtraction", "eval", "report"]
)
def test_a_purged_task_may_be_called_like_a_word_of_plait(tmp_path: Path, name: str) -> None:
    made = make(tmp_path, ["first", name])
    made.unmerge(name)
    made.purge(name)
    found = gather(made)
    assert [e["verb"] for e in found["ledger"]] == ["init", "merge", "merge", "unmerge", "purge"]
    assert [e["task"] for e in found["ledger"]][2:] == ["purged task 1"] * 3
    assert found["removals"][0]["how"] == "subtraction"
    assert next(g["fill"] for g in found["gaps"] if g["about"] == "accuracies").startswith("plait eval ")
    assert page(found)


def test_a_task_that_came_back_is_named(tmp_path: Path) -> None:
    made = purged(tmp_path)
    made.merge(tmp_path / "acme-tickets")
    found = gather(made)
    assert found["purged"] == []
    assert found["members"][-1]["task"] == "acme-tickets"


def test_two_purged_tasks_have_two_names(tmp_path: Path) -> None:
    made = make(tmp_path, ["one", "two", "three"])
    for task in ("two", "one"):
        made.unmerge(task)
        made.purge(task)
    found = gather(made)
    assert found["purged"] == ["purged task 1", "purged task 2"]
    assert [r["task"] for r in found["removals"]] == ["purged task 2", "purged task 1"]


def test_a_checkpoint_that_a_member_shares_is_told(tmp_path: Path) -> None:
    made = make(tmp_path, ["one"])
    made.merge(tmp_path / "one", "twin")
    made.unmerge("one")
    made.purge("one")
    found = gather(made)
    assert found["members"][0]["digest"] == made.members[0].digest
