"""`plait eval` on a real line: its tables, its object, and what it says where something is missing or wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from plait import Line
from plait.cli.evaluate import VERBS, _figures
from plait.cli.schema import SCHEMA
from tests.cli.conftest import Plait
from tests.evaluation import world as w


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Line:
    """Three members, tasks for them and for a task that is no member."""
    monkeypatch.chdir(tmp_path)
    w.write_models(tmp_path)
    w.write_tasks(tmp_path, "abcz")
    made = Line.create("line", "base", private="classifier.*", keep=1)
    for name in "abc":
        made.merge(name)
    return made


EVAL = ("eval", "line", "--tasks", "tasks.yaml", "--network", w.NETWORK)


def percent(row: dict[str, Any]) -> str:
    return " ".join(f"{100 * row[key]:.1f}" for key in ("value", "low", "high"))


def test_the_object(plait: Plait, line: Line) -> None:
    done = plait(*EVAL, "--json")
    assert done.code == 0
    assert done.err == ""
    assert list(done.json) == ["command", *SCHEMA["eval"]]
    assert None not in done.json.values()
    assert done.json["computed"] == 11
    told = SCHEMA["eval"]["rows"]
    fields = set(re.findall(r"\w+", told[told.index("{") : told.index("}: see")]))
    assert {key for row in done.json["rows"] for key in row} == fields - {"base", "version", "expert"}
    for key in ("matrix", "figures"):
        words = SCHEMA["eval"][key]
        assert list(done.json[key]) == re.findall(r"\w+", words[: words.index("}")])
    (task,) = [t for t in done.json["tasks"] if t["name"] == "z"]
    assert set(task) == set(re.findall(r"\w+", SCHEMA["eval"]["tasks"].split("}")[0])) - {"list", "of"}
    assert task["member"] is False
    assert plait(*EVAL, "--json").json["reused"] == 11


def test_batch_and_dtype_are_passed_on(plait: Plait, line: Line) -> None:
    w.ran.clear()
    rows = plait(*EVAL, "--batch", "9", "--dtype", "float64", "--json").json["rows"]
    assert max(w.ran) == 9
    assert {row["network"] for row in rows} == {f"{w.NETWORK} float64"}


def test_the_table_has_every_accuracy_with_its_interval(plait: Plait, line: Line) -> None:
    rows = plait(*EVAL, "--json").json["rows"]
    lines = plait(*EVAL).out.splitlines()
    assert lines[0] == "line line: accuracy on test examples in percent, 95 % intervals"
    assert lines[1].split() == ["task", "examples", "base", "expert", "version", line.digest[:12]]
    for text, task in zip(lines[2:6], "abcz", strict=True):
        mine = {row["role"]: row for row in rows if row["task"] == task}
        order = [percent(mine[role]) if role in mine else "-" for role in ("base", "expert", "version")]
        assert re.sub(r"[\[\],]", "", text).split() == [task, "40", *" ".join(order).split()]
    assert "0 measured now, 11 known before" in lines[-1]
    assert not any("after each change" in text for text in lines)


def test_all_versions_and_the_figures(plait: Plait, line: Line) -> None:
    found = plait(*EVAL, "--all", "--json").json
    text = plait(*EVAL, "--all").out
    assert "after each change of the members:" in text
    for k, step in enumerate(found["matrix"]["steps"]):
        row = next(t for t in text.splitlines() if f"merge {step['task']} " in t)
        assert step["version"][:12] in row
        for i in range(4):
            ends = (found["matrix"][name][k][i] for name in ("values", "low", "high"))
            value, low, high = (f"{100 * end:.1f}" for end in ends)
            assert f"{value} [{low}, {high}]" in row
    figures = found["figures"]
    assert f"ACC            {100 * figures['acc']:.1f} %" in text
    (transfer,) = [t for t in text.splitlines() if "BWT" in t]
    assert f"{100 * figures['backward']:+.1f} over T-1" in transfer
    assert f"plasticity gap {100 * figures['plasticity_gap']:+.1f}" in transfer


def test_many_tasks_stand_below_each_other(plait: Plait, line: Line, tmp_path: Path) -> None:
    w.write_tasks(tmp_path, "abcdefgh")
    text = plait(*EVAL, "--all").out.splitlines()
    heads = [t.split() for t in text if t.split()[:1] == ["entry"]]
    assert heads == [["entry", "change", "version", *"abcde"], ["entry", "change", "version", *"fgh"]]
    assert max(map(len, text)) < 150


def test_no_backward_transfer_is_printed_without_the_plasticity_gap(plait: Plait, line: Line) -> None:
    for name in "ab":  # every version of arrival, but no expert
        line.unmerge(name)
    text = plait(*EVAL, "--task", "z", "--task", "c", "--version", "base").out
    assert re.search(r"BWT +- \(shown with the plasticity gap only", text)
    found = plait(*EVAL, "--json").json
    forged = {**found, "figures": {**found["figures"], "backward": -0.125, "plasticity_gap": None}}
    assert not any("12.5" in str(words) for _, words in _figures(forged))


def test_what_is_missing_is_told_once_for_all_versions(plait: Plait, line: Line) -> None:
    line.unmerge("a")
    text = plait(*EVAL, "--all").out
    (gone,) = [t for t in text.splitlines() if "and what is kept lacks a" in t]
    assert gone.strip().startswith("not measured: version ")
    assert gone.count("version ") == 3
    assert " on a, b, c, z: it is not on disk any more" in gone
    assert "not measured: expert a on a: its checkpoint is not kept" in text
    # The version before is gone and cannot be compared with; the bytes are those of never merged all the same.
    assert re.search(
        r"^  unmerge a +apart from never merged 0\.0, left of it beyond the base \S+$", text, re.M
    )


def test_a_removal(plait: Plait, line: Line) -> None:
    plait(*EVAL)
    line.unmerge("b")
    text = plait(*EVAL).out
    (row,) = [t for t in text.splitlines() if t.strip().startswith("unmerge b ")]
    assert "others lost " in row
    assert "apart from never merged 0.0" in row
    assert "left of it beyond the base " in row


def test_names_are_escaped(plait: Plait, line: Line) -> None:
    found = plait(*EVAL, "--json").json
    evil = "x\x1b[2J"
    found["figures"]["tasks"] = [evil]
    found["removals"] = [{"task": evil, "retain": 0.1, "fidelity": None, "forget": None}]
    for label, words in _figures(found):
        assert "\x1b" not in f"{label}{words}"


WRONG: list[tuple[str, int, str]] = [
    ("--tasks none.yaml", 5, "none.yaml: there is no such list of tasks"),
    ("--tasks tasks.yaml --task q", 5, "task 'q' is not among the tasks; there are a, b, c, z"),
    ("--tasks tasks.yaml --version 99", 5, "'99' is no entry and no version of this line"),
    ("--tasks tasks.yaml --version 1 --all", 2, "give --version or --all, not both"),
    ("--tasks tasks.yaml --split validation", 5, "validation"),
    ("--tasks tasks.yaml --split tset", 2, "argument --split: invalid choice: 'tset'"),
    ("--tasks tasks.yaml --batch 0", 2, "argument --batch: '0' is too small"),
    ("--tasks tasks.yaml --device gpu", 2, "device is gpu, expected cpu or cuda"),
    ("--tasks tasks.yaml --network python:none:x", 5, "python:none:x: cannot be imported"),
    ("--tasks tasks.yaml --all --taks a", 2, "plait eval does not know '--taks', 'a'; did you mean"),
]


@pytest.mark.parametrize(("words", "code", "message"), WRONG, ids=[words for words, _, _ in WRONG])
def test_one_line_for_what_is_wrong(plait: Plait, line: Line, words: str, code: int, message: str) -> None:
    network = [] if "--network" in words else ["--network", w.NETWORK]
    done = plait("eval", "line", *words.split(), *network, "--quiet")
    assert done.code == code
    assert message in done.error
    assert done.out == ""
    assert not (line.path / "rows").exists()


def test_the_verb_is_there() -> None:
    assert [verb.name for verb in VERBS] == ["eval"]
