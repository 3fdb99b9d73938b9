"""A command that stopped between its fold and its ledger entry: the next run computes nothing of it again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import plait.line.commit
from plait import Line
from plait.engine.passes import ExaminePass, FoldPass, GivePass, SurveyPass
from plait.line.resume import NOTE
from tests.line.models import base_tensors, expert_tensors, write_folder


class Stop(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """Checkpoints a, b and c; b alone changes one tensor, so that it has no state once b is gone."""
    base = base_tensors()
    write_folder(tmp_path / "base", base, shards=2)
    for i, name in enumerate("abc"):
        tensors = expert_tensors(base, i)
        if name == "b":
            tensors["layer.0.dense.bias"] = tensors["layer.0.dense.bias"] + 0.01
        write_folder(tmp_path / name, tensors)
    return tmp_path


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The jobs that are run: every pass that reads members or a state is counted."""
    done: list[str] = []

    def counted(kind: Any) -> None:
        real = kind.__call__

        def call(self: Any, job: Any, desk: Any) -> Any:
            done.append(kind.__name__)
            return real(self, job, desk)

        monkeypatch.setattr(kind, "__call__", call)

    for kind in (FoldPass, GivePass, SurveyPass, ExaminePass):
        counted(kind)
    return done


def make(world: Path, name: str, tasks: str, method: str, **options: Any) -> Line:
    line = Line.create(world / name, world / "base", method, **options)
    for task in tasks:
        line.merge(world / task)
    return line


def stop(*args: object, **words: object) -> Any:
    raise Stop


def stop_after(real: Callable[..., Any], wanted: Callable[..., bool] = lambda *_: True) -> Any:
    def act(*args: Any, **words: Any) -> Any:
        result = real(*args, **words)
        if wanted(*args):
            raise Stop
        return result

    return act


def cut(patch: pytest.MonkeyPatch, where: str) -> None:
    """Let the next command end there."""
    from plait.store.objects import Objects
    from plait.store.versions import Versions

    if where == "before the files are finished":
        patch.setattr("plait.checkpoint.output.Output.finish", stop)
    elif where == "before the version has its digest":
        patch.setattr("plait.line.build.root_digest", stop)
    elif where == "before it is published":
        patch.setattr(Versions, "publish", stop)
    elif where == "before it gets its name":
        patch.setattr(Versions, "_rename", stop)
    elif where == "after it is published":
        patch.setattr(Versions, "publish", stop_after(Versions.publish))
    elif where == "between the files of the state":
        first = ("dense.safetensors", "combination.json")
        patch.setattr(
            Objects, "put_file", stop_after(Objects.put_file, lambda self, path: path.name in first)
        )
    elif where == "after the state":
        patch.setattr(plait.line.commit, "_put_state", stop_after(plait.line.commit._put_state))
    else:
        patch.setattr("plait.store.ledger.Ledger.append", stop)


CUTS = (
    *("before the files are finished", "before the version has its digest", "before it is published"),
    *("before it gets its name", "after it is published", "between the files of the state"),
    *("after the state", "before the entry"),
)
METHODS: dict[str, dict[str, Any]] = {
    "average": {},
    "ties": {"density": 0.4},
    "model_stock": {},
    "magmax": {"scale": 1.0},
    "opcm": {"snapshots": 1},
    "mdm_oc": {},
}
VERBS: dict[str, tuple[str, Callable[[Line, Path], Any]]] = {  # the members before, and the command
    "merge": ("ab", lambda line, world: line.merge(world / "c")),
    "unmerge": ("abc", lambda line, world: line.unmerge("b")),
}


def result(row: dict[str, Any]) -> dict[str, Any]:
    """What a command tells, without where and when it ran and what this run cost."""
    counts = {key: count for key, count in row["counts"].items() if not key.startswith("bytes_")}
    return {**row, "counts": counts, "path": "", "time": "", "seconds": 0}


@pytest.mark.parametrize("where", CUTS)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("method", METHODS)
def test_a_finished_fold_is_not_computed_again(
    world: Path, jobs: list[str], monkeypatch: pytest.MonkeyPatch, method: str, verb: str, where: str
) -> None:
    tasks, command = VERBS[verb]
    line = make(world, "line", tasks, method, **METHODS[method])
    before = line.digest
    jobs.clear()
    with monkeypatch.context() as patch:
        cut(patch, where)
        with pytest.raises(Stop):
            command(line, world)
    assert jobs
    assert line.digest == before
    jobs.clear()
    line = Line.open(world / "line")
    row = command(line, world)
    assert jobs == []
    other = make(world, "other", tasks, method, **METHODS[method])
    want = command(other, world)
    assert line.digest == other.digest
    assert result(row) == result(want)
    assert line._head()["state"] == other._head()["state"]
    assert line._head()["snapshots"] == other._head()["snapshots"]
    assert line.verify(replay=True)["replay"] == "equal"


def test_it_is_found_after_a_second_stop_too(
    world: Path, jobs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = make(world, "line", "ab", "average")  # the version of a alone is there already
    for where in ("after it is published", "between the files of the state", "after the state"):
        with monkeypatch.context() as patch:
            cut(patch, where)
            with pytest.raises(Stop):
                line.unmerge("b")
        jobs.clear()
    line.unmerge("b")
    assert jobs == []
    assert line.digest == make(world, "other", "a", "average").digest
    assert line.verify(replay=True)["replay"] == "equal"


def test_objects_that_are_found_are_put_on_the_disk_for_certain(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process may have died between giving an object its name and syncing the name."""
    line = make(world, "line", "ab", "average")
    for path in cut_merge(line, world, monkeypatch, "after the state").values():
        os.utime(path, (0, 0))
    line.merge(world / "c")
    state = [line.store.objects.path(digest) for digest in line._head()["state"].values()]
    assert all(path.stat().st_mtime > 0 for path in state)


def cut_merge(line: Line, world: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> dict[str, Path]:
    """Stop a merge of c; the objects that it has made."""
    before = set(line.store.objects.all())
    with monkeypatch.context() as patch:
        cut(patch, where)
        with pytest.raises(Stop):
            line.merge(world / "c")
    return {digest: line.store.objects.path(digest) for digest in set(line.store.objects.all()) - before}


def spoil(file: Path) -> None:
    """Turn one bit in the middle of a file."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.chmod(0o644)
    file.write_bytes(data)


@pytest.mark.parametrize(
    "what", ["the version", "the dense file", "the sparse file", "the note", "half a note"]
)
def test_what_is_damaged_is_made_again(
    world: Path, jobs: list[str], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    line = make(world, "line", "ab", "average")
    cut_merge(line, world, monkeypatch, "before it is published")
    work = line.store.workspace("merge-c")
    if what == "the version":
        spoil(max(work.glob("version/*.safetensors"), key=lambda p: p.stat().st_size))
    elif what == "the note":
        (work / NOTE).unlink()
    elif what == "half a note":
        (work / NOTE).write_bytes((work / NOTE).read_bytes()[:-40])
    else:
        spoil(work / "state" / f"{what.split()[1]}.safetensors")
    jobs.clear()
    line.merge(world / "c")
    assert bool(jobs) == ("note" not in what)  # without the note, the journal still knows of every job
    assert line.digest == make(world, "other", "abc", "average").digest
    assert line.verify(replay=True)["replay"] == "equal"


@pytest.mark.parametrize("what", ["version", "objects"])
def test_what_was_put_away_and_removed_is_made_again(
    world: Path, jobs: list[str], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    line = make(world, "line", "ab", "average")
    versions = set(line.store.versions.all())
    objects = cut_merge(line, world, monkeypatch, "before the entry")
    assert objects
    if what == "version":
        (version,) = set(line.store.versions.all()) - versions
        line.store.versions.delete(version)
    else:
        for digest in objects:
            line.store.objects.delete(digest)
    jobs.clear()
    line.merge(world / "c")
    assert jobs
    assert line.digest == make(world, "other", "abc", "average").digest
    assert line.verify(replay=True)["replay"] == "equal"


@pytest.mark.parametrize("retention", ["vectors", "statistics"])
@pytest.mark.parametrize("change", ["weight", "checkpoint", "private", "state", "software"])
def test_another_command_finds_nothing(
    world: Path, jobs: list[str], monkeypatch: pytest.MonkeyPatch, change: str, retention: str
) -> None:
    """The workspace is named by verb and task alone."""
    line = make(world, "line", "ab", "average", retention=retention)
    cut_merge(line, world, monkeypatch, "before it is published")
    words: dict[str, Any] = {}
    if change == "weight":
        words["weight"] = 2.0
    elif change == "private":
        words["private"] = "pooler.*"
    elif change == "checkpoint":
        write_folder(world / "c", expert_tensors(base_tensors(), 7))
    elif change == "software":
        monkeypatch.setattr("plait.__version__", "9")
    else:
        kept = line.store.workspace("merge-c").rename(world / "kept")
        line.reweight("a", 3.0, checkpoint=world / "a")
        kept.rename(line.store.workspace("merge-c"))
    jobs.clear()
    line.merge(world / "c", **words)
    assert jobs
    other = make(world, "other", "", "average", retention=retention)
    other.merge(world / "a", weight=3.0 if change == "state" else 1.0)
    other.merge(world / "b")
    other.merge(world / "c", **words)
    assert line.digest == other.digest
    assert line._head()["state"] == other._head()["state"]
    assert line.verify()["ok"]


def test_members_that_are_not_kept_are_found_too(
    tmp_path: Path, jobs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = base_tensors(torch.bfloat16)
    write_folder(tmp_path / "base", base)
    for i, name in enumerate("abc"):
        write_folder(tmp_path / name, expert_tensors(base, i))
    line = make(tmp_path, "line", "ab", "average", retention="statistics")
    cut_merge(line, tmp_path, monkeypatch, "before the entry")
    jobs.clear()
    line.merge(tmp_path / "c")
    with monkeypatch.context() as patch:
        cut(patch, "after the state")
        with pytest.raises(Stop):
            line.unmerge("b", checkpoint=tmp_path / "b")
    assert jobs
    jobs.clear()
    line.unmerge("b", checkpoint=tmp_path / "b")
    assert jobs == []
    assert line.digest == make(tmp_path, "other", "ac", "average", retention="statistics").digest
