"""Commands that compute nothing load no tensor library and answer at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from plait import Line
from tests.line.models import base_tensors, expert_tensors, write_folder

PROBE = """
import sys
before = set(sys.modules)
from plait.cli import main
code = main(sys.argv[1:])
print("loaded", *(set(sys.modules) - before), file=sys.stderr)
raise SystemExit(code)
"""

COSTLY = {"torch", "numpy", "yaml", "importlib.metadata", "plait.line", "plait.engine"}
NEEDED: dict[str, set[str]] = {
    **{name: {"plait.line"} for name in ("status", "log", "show", "diff", "verify", "gc")},
    "wrong recipe": {"yaml"},
    "out exists": {"yaml"},
}
"""Which of the costly modules a command of CHEAP is free to load."""

CHEAP: dict[str, tuple[list[str], int]] = {
    "status": (["status", "line"], 0),
    "log": (["log", "line"], 0),
    "show": (["show", "line", "a"], 0),
    "diff": (["diff", "line", "0", "1"], 0),
    "verify": (["verify", "line"], 0),
    "gc": (["gc", "line"], 0),
    "methods": (["methods"], 0),
    "methods of one": (["methods", "ties"], 0),
    "init --help": (["init", "--help"], 0),
    "once --help": (["once", "--help"], 0),
    "finetune --help": (["finetune", "--help"], 0),
    "--help": (["--help"], 0),
    "--version": (["--version"], 0),
    "no words": ([], 2),
    "unknown verb": (["mrge"], 2),
    "wrong option": (["init", "new", "--base", "base", "--method", "average", "--scale", "1"], 2),
    "wrong recipe": (["once", "bad.yaml", "out"], 5),
    "out exists": (["once", "good.yaml", "base"], 5),
    "expert exists": (["finetune", "t", "base", "--tasks", "t.yaml", "--base", "base"], 5),
    "wrong rate": (["finetune", "t", "out", "--tasks", "t.yaml", "--base", "base", "--rate", "0"], 2),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A line with one member; commands are then tried in processes of their own."""
    folder = tmp_path_factory.mktemp("start")
    base = base_tensors()
    write_folder(folder / "base", base)
    write_folder(folder / "a", expert_tensors(base, 0))
    (folder / "bad.yaml").write_text("merge_method: slerp\n")
    (folder / "good.yaml").write_text("{base: base, method: average, members: [{checkpoint: a}]}\n")
    Line.create(folder / "line", folder / "base").merge(folder / "a")
    return folder


def loaded(world: Path, words: list[str], code: int) -> set[str]:
    """The costly modules that one command loads, in a process of its own."""
    done = subprocess.run([sys.executable, "-c", PROBE, *words], cwd=world, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    first, *modules = done.stderr.splitlines()[-1].split()
    assert first == "loaded"
    assert "plait.cli" in modules
    return COSTLY & set(modules)


@pytest.mark.parametrize("name", CHEAP)
def test_nothing_is_loaded_that_is_not_needed(world: Path, name: str) -> None:
    words, code = CHEAP[name]
    assert loaded(world, words, code) <= NEEDED.get(name, set())


def test_the_probe_sees_what_a_merge_loads(world: Path) -> None:
    assert loaded(world, ["once", "good.yaml", "probe-out", "--quiet"], 0) >= COSTLY - {"importlib.metadata"}


def cost(command: list[str], folder: Path) -> float:
    """Seconds of processor time of one run; unlike the time on the clock it hardly counts what others do."""
    bytecode = {
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
    }  # as installed
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **bytecode},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize("name", ["status", "log", "verify", "methods", "--version", "unknown verb"])
def test_cheap_commands_answer_at_once(world: Path, name: str) -> None:
    """At most 20 times a bare start of the interpreter, which takes 0.015 s: 0.3 s. The least of several runs
    counts, as a busy machine can only add to it; loading torch alone is 40 to 100 starts."""
    bare = taken = float("inf")
    for _ in range(20):
        bare = min(bare, cost([sys.executable, "-c", "pass"], world))
        taken = min(taken, cost([sys.executable, "-m", "plait.cli", *CHEAP[name][0]], world))
        if taken < 20 * bare:
            return
    pytest.fail(f"{name} takes {taken:.3f} s, a bare start {bare:.3f} s")
