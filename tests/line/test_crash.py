"""A command that is killed, or whose disk fails, at any file-system call: the line is as before or as after."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from plait import Line
from tests.crash import Trial, fail_at_every, has_strace, kill_at_every
from tests.line.models import base_tensors, differing, expert_tensors, read, write_folder

PLAIT = [sys.executable, "-m", "plait.cli", "--quiet"]
VERBS = ("merge", "unmerge", "purge", "export", "init")
FEW, MANY = 5, 12


def argv(verb: str) -> list[str]:
    line = "{folder}/line"
    words = {
        "init": ["init", "{folder}/new", "--base", "{folder}/base", "--method", "opcm"],
        "merge": ["merge", line, "{folder}/c", "--task", "c"],
        "unmerge": ["unmerge", line, "b"],
        "purge": ["purge", line, "x", "--yes"],
        "export": ["export", line, "{folder}/out"],
    }
    return [*PLAIT, *words[verb]]


class World:
    """A line with two members and one that left, made once and copied for every trial."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.made = root / "made"
        base = base_tensors()
        write_folder(self.made / "base", base, shards=2)
        for i, name in enumerate("abcx"):
            write_folder(self.made / name, expert_tensors(base, i))
        line = Line.create(self.made / "line", self.made / "base", "model_stock")
        for task in "axb":
            line.merge(self.made / task)
        self.held = {e["version"] for e in line.log() if any(m["task"] == "x" for m in e["members"])}
        line.unmerge("x")
        self.before = line.digest

    def prepare(self, folder: Path) -> None:
        shutil.copytree(self.made, folder, symlinks=True, dirs_exist_ok=True)

    def finish(self, verb: str, folder: Path) -> tuple[str, int]:
        """Run the verb in this process: (digest, members) after it."""
        if verb == "init":
            line = Line.create(folder / "new", folder / "base", "opcm")
            return line.digest, len(line.members)
        line = Line.open(folder / "line")
        tasks = [m.task for m in line.members]
        if verb == "merge" and "c" not in tasks:
            line.merge(folder / "c")
        elif verb == "unmerge" and "b" in tasks:
            line.unmerge("b")
        elif verb == "purge":
            line.purge("x")
        elif verb == "export":
            line.export(folder / "out", force=True)
        return line.digest, len(line.members)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("crash-world"))


def checker(world: World, verb: str) -> Callable[[Path], None]:
    after = Path(tempfile.mkdtemp(dir=world.root))
    world.prepare(after)
    digest, members = world.finish(verb, after)
    never = read(after / "out") if verb == "export" else None
    shutil.rmtree(after)

    def check(folder: Path) -> None:
        if verb == "init":
            if (folder / "new").exists():
                assert Line.open(folder / "new").verify()["problems"] == []
                assert Line.open(folder / "new").digest == digest
            else:
                assert world.finish(verb, folder) == (digest, members)
            return
        line = Line.open(folder / "line")
        assert line.verify()["problems"] == []
        assert line.digest in (world.before, digest)
        if verb == "export" and (folder / "out").exists():
            assert never is not None
            assert not differing(read(folder / "out"), never)
        assert world.finish(verb, folder) == (digest, members)
        assert line.verify(replay=True)["ok"]
        if verb == "purge":
            assert not world.held & set(line.store.versions.all())
            assert not list((folder / "line" / "tmp").iterdir())

    return check


@pytest.mark.parametrize("verb", VERBS)
def test_killed_at_a_few_calls(world: World, verb: str, tmp_path: Path) -> None:
    trials = kill_at_every(argv(verb), world.prepare, checker(world, verb), root=tmp_path, limit=FEW)
    assert len(trials) == FEW


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_killed_at_every_call(world: World, verb: str, tmp_path: Path) -> None:
    trials = kill_at_every(argv(verb), world.prepare, checker(world, verb), root=tmp_path, limit=MANY)
    assert trials


@pytest.mark.skipif(not has_strace(), reason="a failing disk is imitated with strace, which is not here")
@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
@pytest.mark.parametrize(
    ("verb", "limit"),
    [("merge", FEW), ("export", FEW), *(pytest.param(v, MANY, marks=pytest.mark.slow) for v in VERBS)],
)
def test_disk_that_fails(world: World, verb: str, limit: int, error: str, tmp_path: Path) -> None:
    check = checker(world, verb)

    def told(folder: Path, trial: Trial) -> None:
        if trial.code != 0:  # a failed clean-up after the commit is no failure of the command
            assert trial.code in (1, 5), trial
            lines = [row for row in trial.error.splitlines() if row.strip()]
            assert len(lines) == 1, trial
            assert lines[0].startswith("plait: error: "), trial
            assert "bug" not in lines[0], trial
        check(folder)

    calls = {
        "EIO": ("fsync",),
        "ENOSPC": ("write", "pwrite64", "ftruncate", "fallocate", "link", "rename", "mkdir"),
    }[error]
    assert fail_at_every(
        argv(verb), world.prepare, told, root=tmp_path, error=error, calls=calls, limit=limit
    )
