"""The whole road on a real line: every verb, its object complete, and refusals that change nothing."""

from __future__ import annotations

import fcntl
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from plait.cli.schema import SCHEMA
from tests.cli.conftest import Plait
from tests.line.models import base_tensors, differing, expert_tensors, read, write_folder

NULL_IS_FINE = {"receipt", "accounting", "replay", "task", "dtype", "note", "batchnorm", "points"}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A base and three experts, each with a head of its own, in the working directory."""
    monkeypatch.chdir(tmp_path)
    base = base_tensors()
    write_folder(tmp_path / "base", base, shards=2)
    for i, name in enumerate("abc"):
        head = torch.full((3, 12), float(i))
        write_folder(tmp_path / name, {**expert_tensors(base, i), "classifier.weight": head})
    return tmp_path


INIT = "init line --base base --method task_arithmetic --scale 0.7 --private classifier.*"


def told(plait: Plait, words: str, code: int = 0) -> dict[str, Any]:
    """The object that a command prints; it has all keys of its schema, and values wherever there is one."""
    done = plait(*words.split(), "--json", "--quiet")
    assert done.code == code, done.err
    verb = words.split()[0]
    assert list(done.json) == ["command", *SCHEMA[verb]]
    missing = {key for key, value in done.json.items() if value is None} - NULL_IS_FINE
    assert not missing, f"{verb} says nothing of {missing}"
    return done.json


@pytest.mark.usefixtures("world")
def test_the_whole_road(plait: Plait) -> None:
    start = told(plait, INIT)
    assert start["options"]["scale"] == 0.7
    first = told(plait, "merge line a")
    assert [m["task"] for m in first["members"]] == ["a"]
    assert first["accounting"]["private"] == 1
    told(plait, "merge line b --task bee --weight 2")
    both = told(plait, "merge line c --from 1")
    assert both["members"][2]["descends"]["tasks"] == ["a"]
    told(plait, "reweight line bee 0.5")
    told(plait, "replace line bee b --weight 2")
    assert told(plait, "status line")["version"] == both["version"]
    assert told(plait, "diff line 3 5")["equal"] is True
    assert told(plait, "diff line base 5")["members"]["only_b"] == ["a", "bee", "c"]
    gone = told(plait, "unmerge line bee")
    assert gone["receipt"]["exact"] is True
    assert gone["version"] == gone["receipt"]["never_merged"]
    assert told(plait, "verify line --replay")["replay"] == "equal"
    out = told(plait, "export line out --task a")
    assert out["version"] == gone["version"]
    assert float(read(Path("out"))["classifier.weight"].max()) == 0.0
    assert told(plait, "purge line bee --yes")["removed"]["objects"]
    assert told(plait, "gc line --dry-run --grace 0")["dry_run"] is True
    assert [e["verb"] for e in told(plait, "log line")["entries"]] == [
        "init", "merge", "merge", "merge", "reweight", "replace", "unmerge", "export", "purge"
    ]  # fmt: skip
    assert told(plait, "show line 6")["kind"] == "entry"
    assert told(plait, "show line a")["kind"] == "member"
    assert told(plait, "verify line")["ok"] is True
    carried = told(plait, "unmerge line a")
    assert carried["receipt"]["exact"] is False  # c was trained from a version that held a


@pytest.mark.usefixtures("world")
def test_the_same_road_in_words(plait: Plait) -> None:
    assert "started the line line" in plait(*INIT.split()).out
    merged = plait("merge", "line", "a")
    assert "5 merged, 1 private, 1 frozen, 1 buffer" in merged.out
    assert merged.out.startswith("merged a (weight 1), entry 1\n")
    plait("merge", "line", "b", "--weight", "2")
    state = plait("status", "line").out
    assert "task_arithmetic (scale 0.7)" in state
    assert "2 members: a, b (weight 2)" in state
    gone = plait("unmerge", "line", "b").out
    assert "exact         yes" in gone
    assert "subtraction" in gone
    digest = json.loads(plait("status", "line", "--json").out)["version"]
    for words in (
        "log line",
        "show line 1",
        "show line a",
        "diff line 0 1",
        "verify line --replay",
        "export line out",
    ):
        done = plait(*words.split())
        assert done.code == 0, done.err
        assert done.out
    assert digest[:12] in plait("log", "line").out


@pytest.mark.usefixtures("world")
def test_the_size_of_the_state_is_told_before_the_first_merge(plait: Plait) -> None:
    made = plait("init", "line", "--base", "base", "--method", "covariance", "--private", "classifier.*")
    (told,) = (line.split("about")[1] for line in made.out.splitlines() if line.split()[:1] == ["state"])
    assert f"will take about{told}" in plait("status", "line").out
    expected = json.loads(plait("--json", "status", "line").out)["state_bytes"]
    for task in "abc":
        plait("merge", "line", task)
    after = json.loads(plait("--json", "status", "line").out)
    assert "will take" not in plait("status", "line").out
    assert expected / 3 < after["bytes"]["state"] < 3 * expected + 4096
    plait("init", "other", "--base", "base", "--method", "mdm_oc")
    assert "will take" not in plait("status", "other").out


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("method", ["ode_m", "trm"])
def test_the_seed_of_the_line_is_that_of_its_method(plait: Plait, method: str) -> None:
    for number, words in enumerate(("", "--seed 3", "--set seed=3")):
        made = plait("init", f"line{number}", "--base", "base", "--method", method, *words.split())
        assert made.code == 0, made.err
        state = json.loads(plait("--json", "status", f"line{number}").out)
        assert state["seed"] == state["options"]["seed"] == (3 if words else 0)


@pytest.mark.usefixtures("world")
def test_a_removal_by_algebra_says_that_it_is_not_exact(plait: Plait) -> None:
    plait("init", "line", "--base", "base", "--method", "mdm_oc", "--private", "classifier.*")
    for task in "abc":
        plait("merge", "line", task)
    gone = plait("unmerge", "line", "a", "--algebraic")
    assert gone.code == 0, gone.err
    rows = [line.split() for line in gone.out.splitlines()]
    assert ["how", "algebraic"] in rows
    assert ["exact", "no"] in rows
    assert "note: not exact: algebraic removal of a (" in gone.out
    assert "not exact: algebraic removal of a" in plait("status", "line").out
    assert "recomputation" in plait("unmerge", "line", "b").out
    assert "not exact" not in plait("status", "line").out
    plait("init", "other", "--base", "base", "--private", "classifier.*")
    plait("merge", "other", "a")
    refused = plait("unmerge", "other", "a", "--algebraic")
    assert refused.code != 0
    assert "method average has no algebraic removal" in refused.err


@pytest.mark.usefixtures("world")
def test_once_gives_the_model_of_the_line(plait: Plait) -> None:
    told(plait, INIT)
    told(plait, "merge line a")
    line = told(plait, "merge line b --weight 2")
    members = [{"checkpoint": "a"}, {"checkpoint": "b", "weight": 2}]
    recipe = {"base": "base", "method": "task_arithmetic", "options": {"scale": 0.7}, "members": members}
    Path("r.yaml").write_text(json.dumps({**recipe, "private": ["classifier.*"]}))
    once = told(plait, "once r.yaml out")
    assert once["version"] == line["version"]
    assert not differing(read(Path("out")), read(Path(line["model"])))
    Path("r16.yaml").write_text(json.dumps({**recipe, "dtype": "bfloat16"}))
    assert "--private 'classifier.*'" in plait("once", "r16.yaml", "out16").error
    told(plait, "once r16.yaml out16 --private classifier.*")
    assert read(Path("out16"))["layer.0.dense.weight"].dtype == torch.bfloat16
    assert "out16 exists; give another place, or --force" in plait("once", "r16.yaml", "out16").error


def test_once_says_what_it_merged_and_what_it_replaced(plait: Plait, world: Path) -> None:
    """The notes on the merged model, such as elements that became infinite, are told too."""
    broken = {**expert_tensors(base_tensors(), 1), "classifier.weight": torch.zeros(3, 12)}
    broken["embeddings.weight"][0, :2] = float("nan")
    write_folder(world / "b", broken)
    members = [{"checkpoint": "a"}, {"checkpoint": "b", "task": "bee"}]
    recipe = {"base": "base", "method": "task_arithmetic", "options": {"scale": 1e9}, "dtype": "float16"}
    Path("r.yaml").write_text(json.dumps({**recipe, "members": members, "private": ["classifier.*"]}))
    assert (
        plait("once", "r.yaml", "out")
        .err.splitlines()[-1]
        .startswith("plait: error: bee: embeddings.weight[0, 0]")
    )
    done = plait("once", "r.yaml", "out", "--allow-nonfinite")
    assert "tensors  6 merged, 1 private, 1 buffer, 2 elements with NaN or infinity" in done.out
    assert "note: bee: 2 elements with NaN or infinity; the base's value was taken there" in done.out
    assert "elements of the merged model are infinite in its dtype, most of them in" in done.out
    told(plait, "once r.yaml out --allow-nonfinite --force")


@pytest.mark.usefixtures("world")
def test_the_next_command_can_be_pasted_into_a_shell(plait: Plait) -> None:
    name = "my line's"
    assert f"plait merge {shlex.quote(name)} CHECKPOINT" in plait("init", name, "--base", "base").out
    assert "`plait init 'no line' --base DIR`" in plait("status", "no line").error


@pytest.mark.usefixtures("world")
def test_one_thing_is_told_in_the_singular(plait: Plait) -> None:
    told(plait, INIT)
    assert "1 entry in the ledger" in plait("status", "line").out
    assert "1 entry, 1 object" in plait("verify", "line").out
    told(plait, "merge line a")
    told(plait, "unmerge line a")
    done = plait("purge", "line", "a", "--yes")
    assert ", 1 version, " in done.out
    assert plait("verify", "line").out.splitlines()[1].startswith("  checked   4 entries, ")


def test_the_task_is_the_whole_name_of_the_folder(plait: Plait, world: Path) -> None:
    (world / "a").rename(world / "gpt-3.5")
    told(plait, INIT)
    assert told(plait, "merge line gpt-3.5/")["task"] == "gpt-3.5"


REFUSALS = [
    ("init line --base base", 5, "line"),
    ("init new --base nowhere", 5, "nowhere"),
    ("merge line nowhere", 5, "nowhere"),
    ("merge line a", 5, "task a is a member already; use replace"),
    ("merge line b --task ../b", 2, "task name '../b' cannot be used"),
    ("merge line b --weight 0", 2, "weight is 0.0, expected a number from"),
    ("merge line b --from 99", 5, "'99' is no entry and no version of this line"),
    ("unmerge line ghost", 5, "task 'ghost' is not a member; members are: a"),
    ("reweight line ghost 2", 5, "task 'ghost' is not a member"),
    ("replace line ghost b", 5, "task 'ghost' is not a member"),
    ("status base", 5, "base"),
    ("show line zzzz", 5, "'zzzz' is no entry and no version of this line"),
    ("diff line base 9", 5, "'9' is no entry and no version of this line"),
    ("export line base", 5, "base exists; give another place, or --force"),
    ("purge line a --yes", 5, "task a is still a member; unmerge it first, then purge"),
    ("purge line ghost --yes", 5, "task 'ghost' was never a member of this line"),
]


@pytest.mark.usefixtures("world")
def test_refusals_change_nothing(plait: Plait) -> None:
    told(plait, INIT)
    told(plait, "merge line a")
    before = plait("status", "line").out
    for words, code, message in REFUSALS:
        done = plait(*words.split())
        assert done.code == code, (words, done)
        assert message in done.error, words
        assert done.out == ""
    assert plait("status", "line").out == before
    assert told(plait, "verify line")["ok"] is True


@pytest.mark.usefixtures("world")
def test_a_damaged_line_and_a_locked_one(plait: Plait) -> None:
    told(plait, INIT)
    told(plait, "merge line a")
    with (Path("line") / "lock").open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = plait("merge", "line", "b", "--json")
        assert done.code == 4
        assert done.json["error"]["kind"] == "LockedError"
        assert told(plait, "status line")["members"]
    victim = next(path for path in sorted((Path("line") / "objects").rglob("*")) if path.is_file())
    victim.chmod(0o644)
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data)
    found = plait("verify", "line", "--json")
    assert found.code == 3
    assert found.json["ok"] is False
    assert any(victim.name[:8] in problem for problem in found.json["problems"])
