"""Each verb on a fake line: what it asks the line for, and what it prints."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from plait.cli.schema import SCHEMA
from tests.cli.conftest import Plait
from tests.cli.fake import FakeLine, digest

VERBS: dict[str, list[str]] = {
    "merge": ["models/a", "--task", "a"],
    "unmerge": ["a"],
    "reweight": ["a", "0.5"],
    "replace": ["a", "models/b"],
    "status": [],
    "log": [],
    "show": ["a"],
    "diff": ["base", "1"],
    "export": ["OUT"],
    "verify": ["--replay"],
    "gc": ["--dry-run"],
    "purge": ["a", "--yes"],
}


def last() -> Any:
    """The newest call: verb, arguments, named arguments."""
    return FakeLine.calls[-1]


def ready(plait: Plait, line: Path) -> None:
    assert plait("merge", line, "models/a").code == 0


@pytest.mark.parametrize("verb", VERBS)
def test_json_is_one_object_with_the_keys_of_the_schema(plait: Plait, line: Path, verb: str) -> None:
    ready(plait, line)
    done = plait(verb, line, *VERBS[verb], "--json")
    assert done.code == 0
    assert done.err == ""
    assert list(done.json) == ["command", *SCHEMA[verb]]
    assert done.json["command"] == verb
    assert done.json["line"] == str(line)
    empty = {
        "receipt",
        "accounting",
        "task",
        "batchnorm",
        "points",
    }  # the fake gives every other key, so none may be lost on the way
    assert all(value is not None for key, value in done.json.items() if key not in empty), done.json


@pytest.mark.parametrize("verb", VERBS)
def test_quiet_hides_reports_but_not_answers(plait: Plait, line: Path, verb: str) -> None:
    ready(plait, line)
    loud = plait(verb, line, *VERBS[verb])
    ready(plait, line)
    quiet = plait("--quiet", verb, line, *VERBS[verb])
    assert quiet.code == 0
    assert loud.out
    told = verb in ("status", "log", "show", "diff", "gc")
    assert bool(quiet.out) is told


def test_merge_passes_every_flag_on(plait: Plait, line: Path) -> None:
    words = (
        "--task t --weight 2 --allow-nonfinite --allow-distant --allow-pickle --from 9f3a --private head.*"
    )
    assert plait("merge", line, "m", *words.split()).code == 0
    assert last() == (
        "merge",
        ("m", "t"),
        {
            "weight": 2.0,
            "private": ["head.*"],
            "allow_nonfinite": True,
            "allow_distant": True,
            "allow_pickle": True,
            "descends_from": "9f3a",
            "tasks": None,
        },
    )


def test_merge_reports_what_is_deployed_and_how_tensors_were_classed(plait: Plait, line: Path) -> None:
    plait("merge", line, "models/a")
    done = plait("merge", line, "models/b", "--weight", "0.5")
    assert done.out.splitlines()[0].startswith("merged b (weight 0.5), entry ")
    assert "2 members: a, b (weight 0.5)" in done.out
    assert "4 merged, 2 private, 1 frozen, 1 buffer" in done.out
    assert digest(FakeLine.members)[:12] in done.out
    assert "line/versions/x" in done.out
    assert "note: a prefix was removed" in done.out
    assert "0.5 s" in done.out


def test_the_other_changes_pass_their_words_on(plait: Plait, line: Path) -> None:
    ready(plait, line)
    plait("reweight", line, "a", "-0.5", "--checkpoint", "c")
    assert last()[1:] == (("a", -0.5), {"checkpoint": "c", "allow_pickle": False, "tasks": None})
    plait("replace", line, "a", "m", "--old-checkpoint", "c", "--weight", "3")
    assert last()[1] == ("a", "m")
    assert last()[2]["old_checkpoint"] == "c"
    assert last()[2]["weight"] == 3.0
    plait("replace", line, "a", "m")
    assert last()[2]["weight"] is None
    done = plait("unmerge", line, "a", "--checkpoint", "c", "--tasks", "t")
    assert last() == ("unmerge", ("a",), {"checkpoint": "c", "allow_pickle": False, "tasks": "t"})
    assert "no members: the base itself" in done.out
    assert "exact         yes" in done.out
    assert "never merged  " in done.out
    plait("export", line, "o", "--version", "1", "--task", "a", "--force")
    assert last()[1] == ("o",)
    unset = dict.fromkeys(("tasks", "samples", "network", "device"))
    assert last()[2] == {"version": "1", "task": "a", "force": True, "batchnorm": False, **unset}
    given = ("--tasks", "t", "--samples", "7", "--network", "python:m:f", "--device", "cuda")
    done = plait("export", line, "o", "--batchnorm", *given)
    words = {"tasks": "t", "samples": 7, "network": "python:m:f", "device": "cuda"}
    assert last()[2] == {"version": None, "task": None, "force": False, "batchnorm": True, **words}
    assert "batchnorm  1 layer computed anew from calibration examples: 3 of a" in done.out
    plait("gc", line, "--grace", "1.5")
    assert last() == ("gc", (), {"dry_run": False, "grace": 1.5})


def test_init_passes_options_by_flag_and_by_set(plait: Plait, line: Path) -> None:
    words = "--base b --method task_arithmetic --scale 0.7 --set sparsify=dare --set sparsify.density=0.25"
    done = plait(
        "init",
        line / "new",
        *words.split(),
        "--private",
        "h.*",
        "--seed",
        "3",
        "--keep",
        "4",
        "--descent",
        "last",
        "--json",
    )
    assert done.code == 0, done.err
    _, places, named = last()
    assert places == (str(line / "new"), "b", "task_arithmetic")
    assert named["scale"] == 0.7
    assert named["sparsify"] == {"name": "dare", "density": 0.25}
    assert (named["private"], named["seed"], named["keep"], named["snapshots"]) == (["h.*"], 3, 4, 0)
    assert (named["retention"], named["allow_pickle"], named["descent"]) == ("vectors", False, "last")
    assert list(done.json) == ["command", *SCHEMA["init"]]


def test_init_without_a_method_says_which_it_took_and_where_the_choice_is_explained(
    plait: Plait, line: Path
) -> None:
    done = plait("init", line / "new", "--base", "b")
    assert last()[1] == (str(line / "new"), "b", "average")
    assert "no --method was given, so it is average" in done.out
    named = plait("init", line / "newer", "--base", "b", "--method", "average")
    assert "no --method" not in named.out
    assert plait("init", line / "newest", "--base", "b", "--method", "").code == 2


def test_every_option_of_every_method_is_a_flag_of_init(plait: Plait) -> None:
    from dataclasses import fields

    from plait.methods.registry import find, names

    shown = plait("init", "--help").out
    for name in names():
        for option in fields(find(name)):
            assert f"--{option.name.replace('_', '-')} " in shown


def test_verify_with_problems_leaves_with_3_and_prints_its_object(plait: Plait, line: Path) -> None:
    FakeLine.problems = ["object ab\x1b: was changed", "entry 3: hash differs"]
    done = plait("verify", line, "--json")
    assert done.code == 3
    assert done.json["ok"] is False
    assert done.json["problems"] == ["object ab\\x1b: was changed", "entry 3: hash differs"]
    assert (
        done.error == "verification found 2 problems; restore the files from a copy, or go back to an export"
    )
    text = plait("verify", line, "--quiet")
    assert text.code == 3
    assert "  entry 3: hash differs" in text.out


def test_a_replay_that_cannot_be_compared_is_not_ok(plait: Plait, line: Path) -> None:
    FakeLine.replay = "not comparable: this line keeps no members (retention none)"
    done = plait("verify", line, "--replay")
    assert done.code == 3
    assert done.error.startswith("the hashes are right, but the replay is not comparable: this line keeps no")
    assert plait("verify", line).code == 0


def test_purge_asks_on_a_terminal_only(plait: Plait, line: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        def __init__(self, answer: str) -> None:
            self.answer = answer

        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return self.answer

    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    done = plait("purge", line, "a", "--json")
    assert done.code == 2
    assert done.json["error"]["message"] == "not confirmed; nothing was deleted"
    assert "purge" not in [call[0] for call in FakeLine.calls]
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    done = plait("purge", line, "a")
    assert done.code == 0
    assert done.err == "purge deletes what is kept of a for good. Go on? [y/N] "
    assert "export of entry 2 to somewhere" in done.out
    monkeypatch.setattr(sys, "stdin", None)
    assert "add --yes" in plait("purge", line, "a").error
    assert [call[0] for call in FakeLine.calls].count("purge") == 1


def test_names_that_would_steer_the_terminal_are_escaped(plait: Plait, line: Path) -> None:
    done = plait("diff", line, "base", "1")
    assert "\x1b" not in done.out
    assert "x\\x1b[2J" in done.out
    assert "… and 10 more; --json lists all" in done.out
    assert plait("diff", line, "base", "1", "--json").json["members"]["only_b"] == ["x\x1b[2J"]
    done = plait("merge", line, "m", "--task", "evil\n\x1b]0;\u202e")
    assert "merged evil\\n\\x1b]0;\\u202e (weight 1)" in done.out


def test_progress_is_asked_for_unless_quiet(
    plait: Plait, line: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    real = FakeLine.merge

    def merge(self: FakeLine, *words: object, **named: object) -> object:
        seen.append(self.quiet)
        return real(self, *words, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(FakeLine, "merge", merge)
    plait("merge", line, "m")
    plait("merge", line, "n", "--quiet")
    assert seen == [False, True]


def test_once_merges_what_the_recipe_says(plait: Plait, line: Path, tmp_path: Path) -> None:
    for name in ("base", "a", "b"):
        (tmp_path / name).mkdir()
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        json.dumps(
            {
                "base": "base",
                "method": "task_arithmetic",
                "options": {"scale": 0.5},
                "members": [{"checkpoint": "a"}, {"checkpoint": "b", "task": "bee", "weight": 2}],
                "private": ["h.*"],
                "dtype": "bfloat16",
            }
        )
    )
    words = ("--json", "--quiet", "--workers", "2", "--seed", "5", "--private", "x.*")
    done = plait("once", recipe, tmp_path / "out", *words)
    assert done.code == 0, done.err
    assert list(done.json) == ["command", *SCHEMA["once"]]
    assert [m["task"] for m in done.json["members"]] == ["a", "bee"]
    assert done.json["notes"] == ["a: tied", "bee: tied"]
    _, places, named = last()
    assert places == (
        str(tmp_path / "base"),
        [str(tmp_path / "a"), str(tmp_path / "b")],
        str(tmp_path / "out"),
    )
    assert named == {
        "method": "task_arithmetic",
        "weights": [1.0, 2.0],
        "names": ["a", "bee"],
        "private": ["h.*", "x.*"],
        "dtype": "BF16",
        "seed": 5,
        "workers": 2,
        "allow_nonfinite": False,
        "allow_pickle": False,
        "force": False,
        "progress": None,
        "scale": 0.5,
    }
