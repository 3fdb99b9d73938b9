"""Rows on disk: packed, sealed, replaced in one step, and looked after by verify, gc and purge."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait import Line
from plait.errors import PlaitError, VerificationError
from plait.evaluation.rows import Row, Rows, pack, unpack
from plait.store import Store, verify
from tests.evaluation.made import DATA, MODEL, OTHER, row
from tests.line.models import base_tensors, expert_tensors, write_folder
from tests.store.stores import model_digest, new_store


@given(st.lists(st.booleans(), max_size=70))
def test_bits_come_back(answers: list[bool]) -> None:
    assert unpack(pack(answers), len(answers)) == answers


def test_the_first_example_is_the_highest_bit() -> None:
    assert pack([True, False, False, False, False, False, False, False, True]) == "gIA="  # 0x80 0x80
    assert pack([]) == ""
    for bits, count in (("gIA=", 8), ("gIA=", 17), ("/w==", 4), ("?", 1)):
        with pytest.raises(ValueError):
            unpack(bits, count)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return new_store(tmp_path / "line", "a")


def test_rows_come_back_and_take_the_place_of_their_like(store: Store) -> None:
    rows = Rows(store)
    assert rows.all() == rows.of(MODEL) == []
    assert rows.digests() == []
    rows.put([row(), row(OTHER), row(task="b")])
    again = row(right=1)
    rows.put([again])
    assert rows.of(MODEL) == [again, row(task="b")]
    assert rows.digests() == [MODEL, OTHER]
    assert rows.all() == [again, row(task="b"), row(OTHER)]
    assert again.answers == [True, False, False, False]
    assert sorted(os.listdir(store.path / "rows")) == [f"{MODEL}.json", f"{OTHER}.json"]


OTHERS: dict[str, Any] = {
    "role": "expert",
    "member": "m",
    "own": OTHER,
    "task": "b",
    "split": "validation",
    "metric": "loss",
    "data": OTHER,
    "head": "x",
    "network": "y",
}


@pytest.mark.parametrize("field", OTHERS)
def test_what_makes_another_measurement(store: Store, field: str) -> None:
    rows = Rows(store)
    other = row(**{field: OTHERS[field]})
    rows.put([row(), other])
    assert len(rows.of(MODEL)) == 2
    rows.put([replace(row(), device="cuda", seed=1, level=0.9, time="now", software={})])
    assert len(rows.of(MODEL)) == 2


def test_the_file_can_be_read_without_plait(store: Store) -> None:
    Rows(store).put([row()])
    path = store.path / "rows" / f"{MODEL}.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    assert sorted(found) == ["checksum", "rows"]
    assert found["rows"][0]["value"] == 0.75
    assert path.stat().st_mode & 0o777 == 0o444


def test_a_row_of_a_later_plait_is_read(store: Store) -> None:
    assert Row.of({**row().plain(), "mood": "good"}) == row()


def damage(path: Path, change: Any) -> None:
    data = change(path.read_bytes())
    path.unlink()
    path.write_bytes(data)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.replace(b"0.75", b"0.85"),
        lambda d: d[:-20],
        lambda d: b"",
        lambda d: b"[]\n",
    ],
)
def test_damage_is_found(store: Store, change: Any) -> None:
    rows = Rows(store)
    rows.put([row(), row(OTHER)])
    assert rows.problems() == []
    damage(store.path / "rows" / f"{MODEL}.json", change)
    with pytest.raises(VerificationError, match=r"1{64}\.json: .*; delete it and run plait eval again$"):
        rows.of(MODEL)
    (problem,) = rows.problems()
    assert f"{MODEL}.json" in problem
    with pytest.raises(VerificationError):
        rows.put([row()])


def test_rows_of_another_model_under_this_name(store: Store) -> None:
    rows = Rows(store)
    rows.put([row()])
    os.rename(store.path / "rows" / f"{MODEL}.json", store.path / "rows" / f"{OTHER}.json")
    with pytest.raises(VerificationError, match="contradicts itself"):
        rows.of(OTHER)
    rows = Rows(store)
    rows.put([replace(row(), right=2)])
    with pytest.raises(VerificationError, match="contradicts itself"):
        rows.of(MODEL)


def test_strange_names_are_told_and_temporary_ones_skipped(store: Store) -> None:
    rows = Rows(store)
    rows.put([row()])
    (store.path / "rows" / "notes.txt").write_text("x")
    (store.path / "rows" / ".x.tmp").write_text("half")
    (problem,) = rows.problems()
    assert problem.endswith("notes.txt: not a file of rows; move it out")
    assert rows.all() == [row()]


@pytest.mark.parametrize("name", ["write", "fsync", "replace"])
def test_a_write_that_fails_leaves_the_rows_of_before(
    store: Store, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    rows = Rows(store)
    rows.put([row()])

    def full(*words: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, name, full)
        with pytest.raises(PlaitError, match="writing rows failed: the disk is full"):
            rows.put([row(right=1)])
    assert rows.of(MODEL) == [row()]
    assert os.listdir(store.path / "rows") == [f"{MODEL}.json"]


def test_the_store_is_not_confused(store: Store) -> None:
    Rows(store).put([row()])
    assert verify(store, model_digest).problems == []
    assert Store.open(store.path).ledger.head() == store.ledger.head()


@pytest.fixture
def world(tmp_path: Path) -> Path:
    base = base_tensors()
    write_folder(tmp_path / "base", base)
    for i, name in enumerate("abc"):
        write_folder(tmp_path / name, expert_tensors(base, i))
    return tmp_path


def measured(line: Line) -> Rows:
    """A row on every version and on every expert, whoever was a member when; each on task `a`."""
    rows = Rows(line.store)
    for entry in line.store.ledger.entries():
        rows.put([row(entry["version"], role="version" if entry["members"] else "base")])
        rows.put(row(m["digest"], role="expert", task=m["task"], member=m["task"]) for m in entry["members"])
    return rows


def test_verify_reads_rows(world: Path) -> None:
    line = Line.create(world / "line", world / "base")
    rows = measured(line)
    assert line.verify(replay=True)["ok"] is True
    damage(rows.folder / f"{line.digest}.json", lambda d: d + b" ")
    found = line.verify()
    assert found["ok"] is False
    assert found["version"] == line.digest  # the model is as it was
    assert "is not what plait eval wrote" in found["problems"][0]


def test_gc_removes_rows_of_models_that_the_ledger_does_not_know(world: Path) -> None:
    line = Line.create(world / "line", world / "base", keep=1)
    line.merge(world / "a")
    line.merge(world / "b")
    rows = measured(line)
    before = rows.digests()
    rows.put([row(MODEL)])
    (rows.folder / ".x.tmp").write_text("half")
    (rows.folder / "kept.tmp").write_text("not ours")
    assert line.gc(dry_run=True, grace=0.0)["removed"]["rows"] == [".x.tmp", MODEL]
    assert line.gc(grace=1.0)["removed"]["rows"] == []
    done = line.gc(grace=0.0)
    assert done["removed"]["rows"] == [".x.tmp", MODEL]
    assert done["bytes"] > 400
    assert rows.digests() == before  # also those of versions that are no longer on disk
    assert not (rows.folder / ".x.tmp").exists()
    assert (rows.folder / "kept.tmp").exists()


def test_purge_removes_rows_of_the_expert_and_of_versions_with_it(world: Path) -> None:
    line = Line.create(world / "line", world / "base", keep=1)
    versions = [line.digest]
    for name in "abc":
        versions.append(line.merge(world / name)["version"])
    expert = {m.task: m.digest for m in line.members}
    versions.append(line.unmerge("b")["version"])
    rows = measured(line)
    base = versions[0]
    # The head of b put into the base, and that of c; a row on the task of b that has nothing of its checkpoint.
    heads = [
        row(base, role="base", task="b", own=expert["b"]),
        row(base, role="base", task="c", own=expert["c"]),
    ]
    rows.put([*heads, row(base, role="base", task="b")])
    gone = line.purge("b")
    assert gone["receipt"]["rows"] == 4  # two versions, the expert, the base with its head
    assert set(rows.digests()) == {base, versions[1], versions[4], expert["a"], expert["c"]}
    assert {(r.task, r.own) for r in rows.of(base)} == {("a", None), ("b", None), ("c", expert["c"])}
    assert line.verify()["ok"] is True


def test_purge_leaves_the_same_checkpoint_under_another_name(world: Path) -> None:
    line = Line.create(world / "line", world / "base")
    line.merge(world / "a")
    line.merge(world / "a", "same")
    line.unmerge("a")
    digest = line.members[0].digest
    rows = Rows(line.store)
    rows.put(row(digest, role="expert", task=t, member=t, own=digest) for t in ("a", "same"))
    line.purge("a")
    assert [r.member for r in rows.of(digest)] == ["same"]


def test_purge_leaves_a_version_that_has_its_bytes_without_the_task_too(world: Path) -> None:
    line = Line.create(world / "line", world / "base", "task_arithmetic")
    version = line.merge(world / "a")["version"]
    assert line.merge(world / "base", "nothing")["version"] == version
    line.unmerge("nothing")
    rows = Rows(line.store)
    rows.put([row(version)])
    line.purge("nothing")
    assert rows.of(version) == [row(version)]


def test_purge_removes_damaged_files_whose_rows_nobody_can_tell(world: Path) -> None:
    line = Line.create(world / "line", world / "base")
    line.merge(world / "a")
    line.unmerge("a")
    rows = measured(line)
    damage(rows.folder / f"{line.digest}.json", lambda d: d[:-9])
    line.purge("a")
    assert rows.digests() == []
    assert line.verify()["ok"] is True


def test_rows_say_what_data_they_were_measured_on() -> None:
    assert row().condition.data == DATA
