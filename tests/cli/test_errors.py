"""Exit codes, one line for each error, broken pipes and interrupts."""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from plait import errors
from plait.cli import main
from plait.cli.entry import VERBS, describe
from plait.cli.parser import Parser, Verb
from tests.cli.conftest import Plait
from tests.cli.fake import FakeLine

CLASSES = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.PlaitError)]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda c: c.__name__)
def test_the_exit_code_is_that_of_the_class(plait: Plait, line: Path, kind: type[errors.PlaitError]) -> None:
    FakeLine.fail = kind("found this\n  and that; do so\x07")
    done = plait("merge", line, "m")
    assert done.code == kind.exit_code
    assert done.error == "found this and that; do so\\x07"
    told = plait("merge", line, "m", "--json")
    assert told.json == {"error": {"kind": kind.__name__, "message": told.error, "exit_code": kind.exit_code}}


def test_json_lists_every_tensor_that_does_not_fit(plait: Plait, line: Path) -> None:
    names = tuple(f"t{i}: is not in the base" for i in range(30))
    FakeLine.fail = errors.KeyMismatch("30 tensors do not fit", names)
    assert plait("merge", line, "m", "--json").json["error"]["problems"] == list(names)
    FakeLine.fail = errors.RefusedInput("no")
    assert "problems" not in plait("merge", line, "m", "--json").json["error"]


def test_an_unforeseen_error_is_called_a_bug(plait: Plait, line: Path) -> None:
    FakeLine.fail = KeyError("weights")
    done = plait("merge", line, "m")
    assert done.code == 1
    assert done.error.startswith(
        "KeyError: 'weights'; this is a bug in plait, run the command again with --debug"
    )
    assert plait("merge", line, "m", "--json").json["error"]["kind"] == "Bug"


def test_debug_shows_the_traceback(plait: Plait, line: Path) -> None:
    FakeLine.fail = errors.RefusedInput("no")
    done = plait("merge", line, "m", "--debug")
    assert done.code == 5
    assert done.err.startswith("Traceback (most recent call last):")
    assert done.err.endswith("plait: error: no\n")


@pytest.mark.parametrize(
    ("error", "kind", "words", "code"),
    [
        (OSError(28, "No space left on device", "a/b"), "OSError", "a/b: No space left on device", 1),
        (OSError("odd"), "OSError", "odd", 1),
        (MemoryError(), "MemoryError", "not enough memory", 1),
        (KeyboardInterrupt(), "Interrupted", "interrupted; run the command again to go on", 130),
    ],
)
def test_errors_of_the_system(
    plait: Plait, line: Path, error: BaseException, kind: str, words: str, code: int
) -> None:
    FakeLine.fail = error
    done = plait("merge", line, "m", "--json")
    assert done.code == code
    assert done.json["error"]["kind"] == kind
    assert done.error.startswith(words)
    assert "bug" not in done.error


STOPPED = {
    "run the command again to go on where it was": {"merge", "unmerge", "reweight", "replace"},
    "nothing was left half written; run the command again, it begins anew": {
        "init",
        "export",
        "once",
        "report",
    },
    "what was measured is kept": {"eval"},
    "experts and streams that were done are kept": {"bench"},
    "nothing is kept of this training": {"finetune"},
    "run the command again to delete the rest": {"gc", "purge"},
    "nothing was changed": {"status", "log", "show", "diff", "verify", "methods"},
}


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_an_interrupt_says_what_is_true_of_the_command(
    plait: Plait, monkeypatch: pytest.MonkeyPatch, verb: Verb
) -> None:
    def stop(args: Namespace) -> NoReturn:
        raise KeyboardInterrupt

    def nothing(parser: Parser) -> None:
        pass

    stopping = replace(verb, run=stop, arguments=nothing)
    monkeypatch.setattr("plait.cli.entry.VERBS", [stopping if v is verb else v for v in VERBS])
    done = plait("--quiet", verb.name)
    assert done.code == 130
    assert [words for words, verbs in STOPPED.items() if verb.name in verbs and words in done.error]


def test_an_interrupt_before_the_command_began(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(argv: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("plait.cli.entry.run", stop)
    assert main([]) == 130
    assert capsys.readouterr().err == "plait: error: interrupted\n"


def test_describe_never_gives_two_lines() -> None:
    assert "\n" not in describe(ValueError("a\nb\r\nc"))[1]


def run(*words: str, **named: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "plait.cli", *words]
    return subprocess.Popen(command, stderr=subprocess.PIPE, **named)  # type: ignore[call-overload, no-any-return]


def test_a_reader_that_goes_away_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)  # nobody will ever read
    process = run("methods", stdout=write)
    os.close(write)
    _, err = process.communicate()
    assert process.returncode == 141
    assert err == b""


def test_an_error_is_told_although_the_reader_of_its_object_went_away() -> None:
    read, write = os.pipe()
    os.close(read)
    process = run("mrge", "--json", stdout=write)
    os.close(write)
    _, err = process.communicate()
    assert process.returncode == 2
    assert err == b"plait: error: 'mrge' is not a plait command; did you mean merge?\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_output_that_cannot_be_written_is_an_error() -> None:
    with Path("/dev/full").open("wb") as full:
        process = run("methods", stdout=full)
        _, err = process.communicate()
    assert process.returncode == 1
    assert err == b"plait: error: No space left on device\n"


def test_names_that_the_encoding_lacks_do_not_end_the_command() -> None:
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    process = run("status", "τ", stdout=subprocess.PIPE, env=env)
    _, err = process.communicate()
    assert process.returncode == 5
    assert err.startswith(b"plait: error: \\u03c4: there is no line here")
