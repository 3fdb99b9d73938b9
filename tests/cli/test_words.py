"""Words that make no sense: one wrong input for every verb at least, with its message and exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

import plait as package
from plait.cli.entry import VERBS
from plait.cli.parser import nearest
from tests.cli.conftest import Plait
from tests.cli.fake import FakeLine

WRONG: dict[str, list[tuple[list[str], int, str]]] = {
    "init": [
        (
            ["LINE"],
            2,
            "the following arguments are required: --base; `plait init --help` lists the arguments",
        ),
        (
            ["LINE", "--base", "b", "--method", "averag"],
            2,
            "method 'averag' is not known; choose one of: average,",
        ),
        (["LINE", "--base", "b", "--scale", "1"], 2, "method average has no option scale"),
        (["LINE", "--base", "b", "--set", "scale"], 2, "--set scale: expected NAME=VALUE"),
        (["LINE", "--base", "b", "--retention", "all"], 2, "invalid choice: 'all'"),
        (
            ["LINE", "--base", "b", "--keep", "0"],
            2,
            "argument --keep: '0' is too small, 1 or more is expected",
        ),
        (["LINE", "--base", "b", "--seed", "x"], 2, "argument --seed: 'x' is not a whole number"),
        (
            ["LINE", "--base", "b", "--method", "task_arithmetic", "--scale", "1", "--set", "scale=2"],
            2,
            "option scale is given twice (1 and 2)",
        ),
        (
            ["LINE", "--base", "b", "--method", "task_arithmetic", "--scale", "abc"],
            2,
            "scale is 'abc', expected a number",
        ),
    ],
    "merge": [
        (["LINE"], 2, "the following arguments are required: CHECKPOINT"),
        (["LINE", "m", "--weight", "heavy"], 2, "argument --weight: 'heavy' is not a number"),
        (["LINE", "m", "--weight", "nan"], 2, "argument --weight: 'nan' is not a finite number"),
        (["LINE", "m", "--taks", "t"], 2, "plait merge does not know '--taks', 't'; did you mean --tasks?"),
        (
            ["NOWHERE", "m"],
            5,
            "NOWHERE: there is no line here; make one with `plait init NOWHERE --base DIR`",
        ),
    ],
    "unmerge": [(["LINE", "ghost"], 5, "task 'ghost' is not a member")],
    "reweight": [(["LINE", "a", "inf"], 2, "argument WEIGHT: 'inf' is not a finite number")],
    "replace": [(["LINE", "a"], 2, "the following arguments are required: CHECKPOINT")],
    "status": [
        (["LINE", "more"], 2, "plait status does not know 'more'"),
        (["NOWHERE"], 5, "there is no line here"),
    ],
    "log": [(["--task", "a", "LINE"], 2, "plait log does not know '--task'")],
    "show": [(["LINE"], 2, "the following arguments are required: WHAT")],
    "diff": [(["LINE", "1"], 2, "the following arguments are required: B")],
    "export": [(["LINE"], 2, "the following arguments are required: OUT")],
    "eval": [
        (["LINE"], 2, "the following arguments are required: --tasks"),
        (["LINE", "--tasks", "t.yaml", "--split", "tset"], 2, "argument --split: invalid choice: 'tset'"),
        (["NOWHERE", "--tasks", "t.yaml"], 5, "there is no line here"),
        (
            ["LINE", "--tasks", "t.yaml", "--network", "net"],
            2,
            "'net' does not begin with python:, python:module",
        ),
    ],
    "report": [
        (["LINE", "--quik"], 2, "plait report does not know '--quik'; did you mean --quick?"),
        (["LINE", "--out"], 2, "argument -o/--out: expected one argument"),
        (["NOWHERE", "-o", "r.html"], 5, "there is no line here"),
    ],
    "verify": [(["LINE", "--repaly"], 2, "did you mean --replay?")],
    "gc": [
        (["LINE", "--grace", "-1"], 2, "argument --grace: '-1' is negative, 0 or more hours are expected")
    ],
    "purge": [
        (
            ["LINE", "a"],
            2,
            "purge deletes what is kept of a for good; there is no terminal to ask on, add --yes",
        )
    ],
    "methods": [(["tise"], 2, "method 'tise' is not known; choose one of: average,")],
    "once": [
        (["LINE/none.yaml", "out"], 5, "none.yaml: there is no such recipe; expected a YAML file"),
        (["LINE/none.yaml", "out", "--workers", "0"], 2, "argument --workers: '0' is too small"),
    ],
    "finetune": [
        (
            ["t", "out", "--tasks", "t.yaml", "--network", "net"],
            2,
            "'net' does not begin with python:, python:mod",
        ),
        (["t"], 2, "the following arguments are required: OUT, --tasks"),
        (
            ["t", "out", "--tasks", "t.yaml"],
            2,
            "no start is given; name a base with --base DIR, or a line",
        ),
        (
            ["t", "out", "--tasks", "t.yaml", "--base", "b", "--from", "LINE"],
            2,
            "--base and --from are both given; a line brings its own base: leave one of the two out",
        ),
        (["t", "LINE", "--tasks", "t.yaml", "--base", "b"], 5, "exists; give another place, or remove it"),
        (["t", "out", "--tasks", "none.yaml", "--base", "b"], 5, "none.yaml: there is no such list of tasks"),
        (
            ["t", "out", "--tasks", "t.yaml", "--rate", "0", "--base", "b"],
            2,
            "rate is 0.0, expected a number above 0",
        ),
        (
            ["t", "out", "--tasks", "t.yaml", "--rate", "nan", "--base", "b"],
            2,
            "'nan' is not a finite number",
        ),
        (
            ["t", "out", "--tasks", "t.yaml", "--warmup", "2", "--base", "b"],
            2,
            "warmup is 2.0, expected a share",
        ),
        (["t", "out", "--tasks", "t.yaml", "--epochs", "0"], 2, "argument --epochs: '0' is too small"),
        (
            ["t", "out", "--tasks", "t.yaml", "--form", "LINE"],
            2,
            "does not know '--form', 'line'; did you mean --from?",
        ),
    ],
    "bench": [
        (["run"], 2, "a suite is needed: plait bench run SUITE"),
        (["table"], 2, "a file of results is needed: plait bench table FILE"),
        (["walk", "text8"], 2, "argument ACTION: invalid choice: 'walk'"),
        (
            ["run", "text9"],
            2,
            "suite 'text9' is not known; choose one of: text8, text12, vision8, clip8, clip14, clip20, tiny",
        ),
        (["run", "tiny"], 2, "--methods is needed, for example --methods average,task_arithmetic,ties"),
        (
            ["run", "tiny", "--methods", "average,tise", "--cache", "LINE"],
            2,
            "method 'tise' is not known; choose one of: average,",
        ),
        (
            ["run", "tiny", "--methods", "slerp", "--cache", "LINE"],
            5,
            "method slerp merges at most 2 members and would get",
        ),
        (["run", "tiny", "--orders", "46-42"], 2, "argument --orders: '46-42' is no range"),
        (["run", "tiny", "--orders", "x"], 2, "argument --orders: 'x' is no list of seeds"),
        (["run", "tiny", "--methods", ","], 2, "argument --methods: ',' names nothing"),
        (["run", "tiny", "--budget", "0"], 2, "argument --budget: '0' is too small"),
        (["table", "r.json", "--budget", "3"], 2, "--budget is for `plait bench run`; leave it out of table"),
        (["list", "text8"], 2, "list takes no more words, found 'text8'"),
        (
            ["run", "text8", "--methods", "average", "--data", "LINE"],
            5,
            "trec6.parquet: is not there, and suite",
        ),
        (
            ["table", "none.json"],
            5,
            "none.json: there are no results; make some with `plait bench run SUITE`",
        ),
    ],
}
CASES = [(verb, words, code, message) for verb, rows in WRONG.items() for words, code, message in rows]


def test_every_verb_has_a_wrong_input() -> None:
    assert set(WRONG) == {verb.name for verb in VERBS}


@pytest.mark.parametrize(
    ("verb", "words", "code", "message"),
    CASES,
    ids=lambda v: "_".join(v) if isinstance(v, list) else str(v)[:12],
)
def test_wrong_input(
    plait: Plait,
    line: Path,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    words: list[str],
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(line.parent)
    monkeypatch.setattr("sys.stdin", None)
    given = [word.replace("LINE", line.name) for word in words]
    done = plait(verb, *given)
    assert done.code == code
    assert message in done.error
    assert done.out == ""
    assert {call[0] for call in FakeLine.calls} <= {"open", "unmerge"}
    told = plait(verb, *given, "--json")
    assert told.code == code
    assert told.json["error"]["exit_code"] == code
    assert told.json["error"]["message"] == told.error
    assert told.json["error"]["kind"] == {2: "UsageError", 5: "RefusedInput"}[code]


def test_unknown_verbs_suggest_the_nearest(plait: Plait) -> None:
    done = plait("mereg", "x")
    assert done.code == 2
    assert done.error == "'mereg' is not a plait command; did you mean merge?"
    done = plait("--json", "frobnicate")
    assert done.code == 2
    assert "; the commands are: init, merge," in done.json["error"]["message"]


def test_dashes_alone_make_no_word_near() -> None:
    assert nearest("--size", ["--seed"]) == ""
    assert nearest("-seed", ["--from", "--seed"]) == "; did you mean --seed?"


def test_a_beginning_is_nearest_to_what_it_begins() -> None:
    assert nearest("--conv", ["--common", "--convolutions"]) == "; did you mean --convolutions?"


def test_no_words_list_the_verbs(plait: Plait) -> None:
    done = plait()
    assert done.code == 2
    assert done.out == ""
    lines = done.err.splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == [verb.name for verb in VERBS]
    assert lines[-1].startswith("plait: error: a command is needed")
    assert plait("--json").json["error"]["kind"] == "UsageError"


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_global_flags_stand_before_or_after_the_verb(plait: Plait, line: Path, place: int) -> None:
    words = ["show", str(line), "a"]
    words.insert(place, "--json")
    done = plait(*words)
    assert done.code == 0
    assert done.json["kind"] == "member"


def test_flags_are_not_abbreviated(plait: Plait, line: Path) -> None:
    assert plait("verify", line, "--rep").code == 2
    assert plait("verify", line, "--js").code == 2


def test_a_task_may_start_with_a_dash_after_two_dashes(plait: Plait, line: Path) -> None:
    done = plait("show", "--", line, "--json")
    assert done.code == 0
    assert done.out.startswith("member --json")


def test_version(plait: Plait) -> None:
    assert plait("--version").out == f"plait {package.__version__}\n"
    assert plait("--version", "--json").json == {"command": "version", "version": package.__version__}


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS])
def test_help_of_every_verb(plait: Plait, verb: str) -> None:
    long, also = plait(verb, "--help"), plait("help", verb)
    assert long.code == also.code == 0
    assert long.out == also.out
    assert long.out.startswith(f"usage: plait {verb} ")
    assert long.err == ""


def test_help_of_all(plait: Plait) -> None:
    done = plait("help")
    assert done.code == 0
    assert all(f"    {verb.name} " in done.out for verb in VERBS)
