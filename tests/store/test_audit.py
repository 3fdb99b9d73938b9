"""Verify sees every changed byte; gc removes what nothing needs, and nothing else."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from plait.errors import PlaitError, VerificationError
from plait.store import Store, gc, kept, needed, verify
from tests.store.stores import fill, merge, model_digest, new_store, publish, put, sha

NOW = -1.0  # a grace period that has passed for what is being written at this moment


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return new_store(tmp_path / "line", "a", "b")


def flip(file: Path, position: int, mask: int = 1) -> bytes:
    """Change one byte; returns the bytes from before."""
    data = file.read_bytes()
    file.chmod(0o644)
    file.write_bytes(data[:position] + bytes([data[position] ^ mask]) + data[position + 1 :])
    return data


def files(store: Store) -> list[Path]:
    return sorted(p for p in store.path.rglob("*") if p.is_file() and p.name != "lock")


# verify


def test_clean(store: Store) -> None:
    report = verify(store, model_digest)
    assert report.ok
    assert report.problems == []
    assert report.counted == {"entries": 3, "objects": 4, "versions": 3}
    assert report.tip == sha(store.ledger.path(2).read_bytes())
    assert report.bytes == sum(p.stat().st_size for p in files(store) if p.suffix != ".json") + 3 * 14


def test_one_flipped_byte_of_any_file_is_reported(store: Store) -> None:
    kinds = set()
    for file in files(store):
        kinds.add(file.relative_to(store.path).parts[0])
        size = file.stat().st_size
        for position in {0, 1, size // 3, size // 2, size - 2, size - 1}:
            before = flip(file, position)
            problems = verify(store, model_digest).problems
            assert any(str(file) in line or str(file.with_suffix("")) in line for line in problems), (
                file,
                position,
            )
            assert all("\n" not in line for line in problems)
            file.write_bytes(before)
    assert kinds == {"plait.json", "ledger", "objects", "versions"}
    assert verify(store, model_digest).ok


@pytest.mark.parametrize("mask", [0x01, 0x20])
def test_every_byte_of_every_entry_counts(tmp_path: Path, mask: int) -> None:
    """0x20 turns a digit into a control character, and a letter of a digest into a capital."""
    store = new_store(tmp_path / "line")
    store.ledger.append({"members": [{"task": "a", "weight": 1.5}], "note": "ä", "state": None})
    for number in range(2):
        file = store.ledger.path(number)
        for position in range(0, file.stat().st_size, 1 if number else 3):
            before = flip(file, position, mask)
            _, problems = store.ledger.scan()
            assert problems, (number, position)
            assert str(file) in problems[0], (number, position)
            assert len(problems) == 1, problems
            file.write_bytes(before)


@pytest.mark.parametrize("cut", [0, 1, -1])
def test_truncated_files_are_reported(store: Store, cut: int) -> None:
    for file in files(store):
        data = file.read_bytes()
        file.chmod(0o644)
        file.write_bytes(data[:cut])
        problems = verify(store, model_digest).problems
        assert any(str(file) in line or str(file.with_suffix("")) in line for line in problems), file
        file.write_bytes(data)


def test_all_problems_are_collected(store: Store) -> None:
    objects, versions = store.objects.all(), store.versions.all()
    flip(store.objects.path(objects[0]), 0)
    needed_object = store.ledger.entries()[-1]["members"][0]["object"]
    if needed_object == objects[0]:
        needed_object = store.ledger.entries()[-1]["state"]["dense"]
    store.objects.delete(needed_object)
    flip(store.versions.path(versions[0]) / "weights", 0)
    (store.versions.path(versions[1]) / "config.json").unlink()
    (store.versions.path(versions[2]) / "extra").write_text("x")
    flip(store.ledger.path(0), 20)
    (store.objects.folder / "readme").write_text("hello")
    (store.versions.folder / "readme").write_text("hello")
    report = verify(store, model_digest)
    for words in (
        f"{objects[0]}: its bytes do not give its name",
        f"{needed_object}: missing, the ledger needs it",
        "weights: its bytes have changed",
        f"{versions[0]}: its tensors give the digest",
        "config.json: missing; restore",
        "extra: not part of the version",
        "00000000.json",
        "objects/readme: not a folder of objects",
        "versions/readme: not a version",
    ):
        assert sum(words in line for line in report.problems) == 1, (words, report.problems)
    assert not report.ok
    assert report.tip == ""


def test_current_and_base_version_must_be_there_older_ones_may_be_gone(store: Store) -> None:
    base, middle, last = (e["version"] for e in store.ledger.entries())
    store.versions.delete(middle)
    assert verify(store, model_digest).ok
    for digest in (base, last):
        aside = store.path.parent / "aside"
        os.rename(store.versions.path(digest), aside)
        assert f"{digest}: missing, the ledger needs it" in " ".join(verify(store, model_digest).problems)
        (store.versions.folder / digest).symlink_to(aside)
        assert f"{digest}: missing, the ledger needs it" in " ".join(verify(store, model_digest).problems)
        (store.versions.folder / digest).unlink()
        os.rename(aside, store.versions.folder / digest)


@pytest.mark.parametrize("error", [PlaitError, OSError, ValueError])
def test_a_version_that_cannot_be_read(store: Store, error: type[Exception]) -> None:
    def digest(folder: Path) -> str:
        raise error("cannot read it")

    problems = verify(store, digest).problems
    assert len(problems) == 3
    assert all("cannot be read as a model (cannot read it); restore" in line for line in problems)


def test_odd_things_in_place_of_objects(store: Store) -> None:
    digest = store.objects.all()[0]
    path = store.objects.path(digest)
    data = path.read_bytes()
    outside = store.path.parent / "outside"
    outside.write_bytes(data)
    for kind in ("pipe", "link", "folder"):
        path.unlink()
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "link":
            path.symlink_to(outside)
        else:
            path.mkdir()
        assert any(f"{digest}: not a regular file" in line for line in verify(store, model_digest).problems)


def test_large_files_are_listed_by_size(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.store.versions.LIMIT", 15)
    version = publish(store, b"weights that are large")
    weights = store.versions.path(version) / "weights"
    before = flip(weights, 0)
    assert store.versions.damage(version) == []  # left to the root digest
    weights.write_bytes(before[:-1])
    assert "weights: its bytes have changed" in store.versions.damage(version)[0]
    flip(store.versions.path(version) / "config.json", 3)
    assert len(store.versions.damage(version)) == 2


def test_temporary_files_are_not_looked_at(store: Store) -> None:
    for folder in (store.ledger.folder, store.objects.folder, store.versions.folder, store.path):
        (folder / ".0123.tmp").write_text("half")
    (store.objects.path(store.objects.all()[0]).parent / ".0123.tmp").write_text("half")
    assert verify(store, model_digest).ok


def test_objects_that_go_while_verify_looks(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    spare = put(store, b"spare")
    real = store.objects.scan

    def scan() -> tuple[list[str], list[str]]:
        found = real()
        store.objects.delete(spare)
        return found

    monkeypatch.setattr(store.objects, "scan", scan)
    assert verify(store, model_digest).ok


# what is needed


def digest(name: str) -> str:
    return sha(name.encode())


def test_needed_reads_every_field_that_names_an_object() -> None:
    base = {"version": digest("v0"), "tensors": digest("t0"), "members": []}
    gone = {
        "version": digest("v1"),
        "members": [{"task": "x", "object": digest("x")}],
        "state": {"s": digest("s1")},
    }
    last = {
        "sequence": 2,
        "version": digest("v2"),
        "tensors": digest("t2"),
        "calibration": None,
        "members": [
            {"task": "a", "object": digest("a"), "config": digest("c"), "digest": digest("checkpoint")},
            {
                "task": "b",
                "object": None,
                "private": ["head.weight"],
                "objects": [digest("b1"), digest("b2")],
            },
        ],
        "state": {"dense": digest("dense"), "sparse": digest("sparse")},
        "snapshots": {"1": {"dense": digest("snap1")}, "2": {"dense": digest("snap2"), "sparse": None}},
        "receipt": {"digest": digest("gone")},
    }
    found = needed([base, gone, last])
    names = ["t0", "t2", "a", "c", "b1", "b2", "dense", "sparse", "snap1", "snap2"]
    assert found.objects == {digest(name) for name in names}
    assert found.versions == {digest("v0"), digest("v2")}
    assert needed([base, gone, last], 2).versions == {digest("v0"), digest("v1"), digest("v2")}
    assert kept([base, gone, last]).objects == found.objects | {digest("checkpoint")}
    assert needed([]) == kept([]) == (set(), set())


def test_the_last_versions_are_counted_once_each() -> None:
    order = ["v0", "v1", "v2", "v3", "v2", "v3", "v3"]
    entries = [{"version": digest(name)} for name in order]
    assert needed(entries, 0).versions == needed(entries, 1).versions == {digest("v0"), digest("v3")}
    assert needed(entries, 2).versions == {digest(n) for n in ("v0", "v2", "v3")}
    assert needed(entries, 3).versions == {digest(n) for n in ("v0", "v1", "v2", "v3")}


def test_tensor_digests_of_kept_versions_are_kept() -> None:
    entries = [{"version": digest(f"v{n}"), "tensors": digest(f"t{n}")} for n in range(4)]
    assert kept(entries, 2).objects == {digest(n) for n in ("t0", "t2", "t3")}
    assert needed(entries, 2).objects == {digest(n) for n in ("t0", "t3")}


@pytest.mark.parametrize(
    "entry",
    [
        {"version": "../../etc"},
        {"members": [{"object": "../../etc"}]},
        {"state": {"dense": 7}},
        {"snapshots": ["x"]},
        {"members": ["a"]},
        {"members": {"a": 1}},
    ],
    ids=str,
)
def test_what_is_no_digest_in_an_entry(store: Store, entry: dict[str, object]) -> None:
    with pytest.raises(VerificationError):
        needed([entry])
    store.ledger.append(entry)
    assert len(verify(store, model_digest).problems) == 1
    spare = put(store, b"spare")
    with pytest.raises(VerificationError):
        gc(store, grace_seconds=NOW)
    assert store.objects.has(spare)


# gc


def test_gc_removes_exactly_what_nothing_needs(store: Store) -> None:
    merge(store, "c")
    base, *_, before, last = (e["version"] for e in store.ledger.entries())
    head = store.ledger.entries()[-1]
    stay = {m["object"] for m in head["members"]} | set(head["state"].values())
    old_states = {e["state"]["dense"] for e in store.ledger.entries()[1:-1]}
    spare, extra = put(store, b"spare!"), put(store, b"extra")
    loose, extra_version = publish(store, b"loose"), publish(store, b"extra model")
    fill(store.workspace("old") / "model", b"w")
    (store.ledger.folder / ".12.tmp").write_text("half")
    (store.versions.folder / f"{digest('gone')}.json").write_text("list of a version that is gone")
    ledger = {p.name: p.read_bytes() for p in store.ledger.folder.glob("*.json")}
    want = {
        "objects": sorted({spare} | old_states),
        "versions": sorted({loose, store.ledger.entries()[1]["version"]}),
        "workspaces": ["old", "work"],
        "leftovers": sorted([".12.tmp", f"{digest('gone')}.json"]),
    }
    everything = files(store)
    dry = gc(store, objects={extra}, versions=[extra_version], dry_run=True, grace_seconds=NOW)
    assert dry["removed"] == want
    assert files(store) == everything
    done = gc(store, objects={extra}, versions=[extra_version], grace_seconds=NOW)
    assert done == dry
    assert set(store.objects.all()) == stay | {extra}
    assert set(store.versions.all()) == {base, before, last, extra_version}
    assert store.workspaces() == []
    assert {p.name: p.read_bytes() for p in store.ledger.folder.iterdir()} == ledger
    assert verify(store, model_digest).ok
    assert gc(store, objects={extra}, versions=[extra_version], grace_seconds=NOW)["bytes"] == 0


def test_gc_counts_bytes(store: Store) -> None:
    gc(store, grace_seconds=NOW)
    put(store, b"12345")
    publish(store, b"123")
    store.clear_workspaces()
    assert gc(store, grace_seconds=NOW)["bytes"] == 5 + 3 + len('{"layers": 2}\n') + len("a\nb\n")


def test_gc_keeps_what_is_young(store: Store) -> None:
    spare, loose = put(store, b"spare"), publish(store, b"loose")
    (store.workspace("resume") / "deep").mkdir()
    (store.workspace("resume") / "deep" / "part").write_text("half")
    (store.ledger.folder / ".12.tmp").write_text("half")
    gc(store, grace_seconds=3600)
    assert store.objects.has(spare)
    assert store.versions.has(loose)
    assert store.workspaces() == ["resume", "work"]
    old = time.time() - 7200
    os.utime(store.objects.path(spare), (old, old))
    os.utime(store.workspace("resume"), (old, old))
    os.utime(store.workspace("resume") / "deep", (old, old))
    done = gc(store, grace_seconds=3600)
    assert done["removed"] == {"objects": [spare], "versions": [], "workspaces": [], "leftovers": []}
    os.utime(store.workspace("resume") / "deep" / "part", (old, old))  # its newest file counts
    assert gc(store, grace_seconds=3600)["removed"]["workspaces"] == ["resume"]


def test_gc_of_a_damaged_or_empty_ledger_removes_nothing(store: Store, tmp_path: Path) -> None:
    put(store, b"spare")
    before = files(store)
    flip(store.ledger.path(1), 30)
    with pytest.raises(VerificationError):
        gc(store, grace_seconds=NOW)
    shutil.rmtree(store.ledger.folder)
    with pytest.raises(VerificationError):
        gc(store, grace_seconds=NOW)
    store.ledger.folder.mkdir()
    assert gc(store, grace_seconds=NOW)["bytes"] == 0
    assert [p for p in before if "ledger" not in p.parts] == files(store)


def test_gc_stopped_half_way_goes_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    loose = publish(store, b"loose")

    def rmtree(path: Path) -> None:
        (Path(path) / "weights").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", rmtree)
        with pytest.raises(KeyboardInterrupt):
            gc(store, grace_seconds=NOW)
    assert not store.versions.has(loose)
    assert verify(store, model_digest).ok
    assert len(gc(store, grace_seconds=NOW)["removed"]["leftovers"]) == 2  # its files, and the list of them
    assert os.listdir(store.scratch) == []
