"""Creating a store, its lock and workspaces, objects and versions: what is promised and what is refused."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from plait.errors import LockedError, PlaitError, RefusedInput, UsageError, VerificationError
from plait.store import Store, verify
from tests.store.stores import SETTINGS, fill, model_digest, new_store, publish, put, sha


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return new_store(tmp_path / "line")


# creating


def test_create_takes_an_empty_folder_and_makes_parents(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for place in (tmp_path / "empty", tmp_path / "a" / "b"):
        assert verify(Store.create(place, {}), model_digest).ok


def test_create_refuses_what_is_there(tmp_path: Path, store: Store) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("hello")
    (tmp_path / "link").symlink_to(tmp_path / "full")
    for name, words in {
        "full": "the folder is not empty; choose another place",
        "link": "the folder is not empty; choose another place",
        "file": "there is a file already; choose another place",
        "line": "there is a line already; choose another place, or open this one",
    }.items():
        with pytest.raises(RefusedInput, match=words):
            Store.create(tmp_path / name, {})
    assert os.listdir(tmp_path / "full") == ["thesis.txt"]
    assert sorted(os.listdir(tmp_path)) == ["file", "full", "line", "link"]


def test_create_loses_a_race(tmp_path: Path) -> None:
    with pytest.raises(RefusedInput, match="there is a line already"), Store.creating(tmp_path / "line", {}):
        new_store(tmp_path / "line")
    assert os.listdir(tmp_path) == ["line"]


@pytest.mark.parametrize("name", ["format", "checksum"])
def test_reserved_settings(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=f"'{name}' is not a setting"):
        Store.create(tmp_path / "line", {name: 1})


def test_a_failed_block_leaves_nothing(tmp_path: Path) -> None:
    def fail(store: Store) -> None:
        put(store, b"data")
        assert not (tmp_path / "line").exists()
        raise KeyError

    with pytest.raises(KeyError), Store.creating(tmp_path / "line", {}) as store:
        fail(store)
    assert os.listdir(tmp_path) == []


def test_what_a_killed_creation_left_is_swept_by_the_next(tmp_path: Path) -> None:
    code = (
        "import os, sys; from plait.store import Store\n"
        "with Store.creating(sys.argv[1], {}): os.kill(os.getpid(), 9)"
    )
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code, str(tmp_path / "line")], check=False)
        (left,) = os.listdir(tmp_path)
        assert left.startswith(".line.")
    (tmp_path / ".line2.0123456789abcdef.tmp").mkdir()
    Store.create(tmp_path / "line", {})
    assert sorted(os.listdir(tmp_path)) == [".line2.0123456789abcdef.tmp", "line"]


def test_a_creation_under_way_is_not_swept(tmp_path: Path) -> None:
    with Store.creating(tmp_path / "line", SETTINGS) as first:
        Store.create(tmp_path / "line", {})
        assert first.path.exists()
        os.rename(tmp_path / "line", tmp_path / "other")
    assert sorted(os.listdir(tmp_path)) == ["line", "other"]


# lock


def test_lock_names_its_owner(store: Store) -> None:
    with store.lock("merge"), pytest.raises(LockedError) as caught, store.lock("gc"):
        pass
    words = str(caught.value)
    assert words.startswith(
        f"{store.path}: locked by `merge` (process {os.getpid()} on {os.uname().nodename}, since "
    )
    assert words.endswith("wait until it ends, then run the command again")
    with store.lock("gc"):
        assert json.loads((store.path / "lock").read_text())["verb"] == "gc"
    assert (store.path / "lock").read_text() == ""


def test_lock_is_released_by_an_error(store: Store) -> None:
    with pytest.raises(KeyError), store.lock("merge"):
        raise KeyError
    with store.lock("merge"):
        pass


@pytest.mark.parametrize(
    "text", ['{"pid": 1, "host": "x", "since": "then", "verb": "merge"}', "", "[]", "\xff{"]
)
def test_what_a_dead_owner_left_is_no_obstacle(store: Store, text: str) -> None:
    (store.path / "lock").write_text(text)
    with store.lock("gc"):
        pass
    (store.path / "lock").unlink()
    with store.lock("gc"):
        pass


@pytest.mark.parametrize("text", ["", "[]", '{"pid": 1}', "\xff{"])
def test_unreadable_owner(store: Store, text: str) -> None:
    with store.lock("merge"):
        (store.path / "lock").write_text(text)
        with pytest.raises(LockedError, match="locked by another process; wait"), store.lock("gc"):
            pass


def test_lock_of_another_process(store: Store) -> None:
    code = (
        "import sys; from plait.store import Store\n"
        "with Store.open(sys.argv[1]).lock('merge'): print('held', flush=True); sys.stdin.read()"
    )
    argv = [sys.executable, "-c", code, str(store.path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with pytest.raises(LockedError, match=f"process {child.pid} on"), store.lock("gc"):
            pass
        child.kill()
        child.wait()
        with store.lock("gc"):
            pass


def test_a_replaced_lock_file_is_not_mistaken(store: Store) -> None:
    with store.lock("merge"):
        os.unlink(store.path / "lock")
        with store.lock("gc"):
            assert json.loads((store.path / "lock").read_text())["verb"] == "gc"


def test_a_lock_file_replaced_between_open_and_lock(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock on a file that has lost its name would keep nobody out."""
    real = fcntl.flock

    def flock(handle: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        os.unlink(store.path / "lock")
        real(handle, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with store.lock("merge"), pytest.raises(LockedError, match="locked by `merge`"), store.lock("gc"):
        pass


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_file_system_without_locks(store: Store, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def flock(handle: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(
        PlaitError, match=r"this file system has no locks \(.*\); keep the line on a local disk"
    ):
        store.lock("merge").__enter__()


def test_gc_can_lock_on_a_full_disk(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def pwrite(handle: int, data: bytes, start: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", pwrite)
    with store.lock("gc"):
        pass


# workspaces


def test_workspace_is_the_same_for_the_same_name(store: Store) -> None:
    (store.workspace("merge-a") / "part").write_text("half")
    store.workspace("merge-b")
    assert (store.workspace("merge-a") / "part").read_text() == "half"
    assert store.workspaces() == ["merge-a", "merge-b"]
    assert verify(store, model_digest).ok
    assert store.clear_workspaces("merge-b") == ["merge-a"]
    assert store.workspaces() == ["merge-b"]
    assert os.listdir(store.scratch) == ["merge-b"]


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", ".hidden", "a" * 129, "ä", "a\n", "-rf"])
def test_workspace_names(store: Store, name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a workspace"):
        store.workspace(name)


def test_tmp_may_be_removed_by_hand(store: Store) -> None:
    store.scratch.rmdir()
    assert store.workspaces() == []
    assert store.workspace("again").is_dir()


# objects


def test_file_of_the_store_is_moved_any_other_is_copied(store: Store, tmp_path: Path) -> None:
    inside, outside = store.workspace("w") / "inside", tmp_path / "outside"
    inside.write_bytes(b"in")
    outside.write_bytes(b"out")
    outside.chmod(0o640)
    for file, data in ((inside, b"in"), (outside, b"out")):
        digest = store.objects.put_file(file)
        assert digest == sha(data)
        assert store.objects.get(digest) == data
        assert store.objects.size(digest) == len(data)
        path = store.objects.path(digest)
        assert path == store.path / "objects" / digest[:2] / digest
        assert stat.S_IMODE(path.stat().st_mode) == 0o444
    assert not inside.exists()
    assert outside.read_bytes() == b"out"
    assert stat.S_IMODE(outside.stat().st_mode) == 0o640


def test_files_with_other_names_are_copied(store: Store, tmp_path: Path) -> None:
    """A link elsewhere could change the bytes of an object behind its name."""
    (tmp_path / "target").write_bytes(b"target")
    link = store.workspace("w") / "link"
    link.symlink_to(tmp_path / "target")
    hard = store.workspace("w") / "hard"
    hard.write_bytes(b"hard")
    os.link(hard, tmp_path / "other name")
    for file in (link, hard):
        store.objects.put_file(file)
    (tmp_path / "target").write_bytes(b"changed")
    (tmp_path / "other name").write_bytes(b"changed")
    assert store.objects.get(sha(b"target")) == b"target"
    assert store.objects.get(sha(b"hard")) == b"hard"


def test_put_again_changes_nothing(store: Store) -> None:
    first = put(store, b"same")
    inode = store.objects.path(first).stat().st_ino
    assert put(store, b"same") == first == store.objects.put_bytes(b"same")
    assert store.objects.path(first).stat().st_ino == inode
    assert store.objects.all() == [first]
    assert os.listdir(store.workspace("work")) == []
    assert sorted(os.listdir(store.objects.folder)) == [first[:2]]


def test_put_again_saves_it_from_gc(store: Store) -> None:
    digest = put(store, b"old")
    os.utime(store.objects.path(digest), (0, 0))
    put(store, b"old")
    assert store.objects.path(digest).stat().st_mtime > 1e9


def test_kept_without_its_file_it_is_saved_from_gc_and_on_the_disk(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = put(store, b"old")
    path = store.objects.path(digest)
    os.utime(path, (0, 0))
    synced: list[Path] = []
    for name in ("sync_file", "sync_folder"):
        monkeypatch.setattr(f"plait.store.objects.{name}", lambda path, mode=None: synced.append(path))
    assert store.objects.keep(digest) == digest
    assert path.stat().st_mtime > 1e9
    assert synced == [path, path.parent, path.parent.parent]
    assert store.objects.get(digest) == b"old"


def test_damaged_object_is_noticed_on_the_way(store: Store) -> None:
    digest = put(store, b"data")
    path = store.objects.path(digest)
    path.chmod(0o644)
    path.write_bytes(b"daten")
    with pytest.raises(VerificationError, match=r"5 bytes, expected 4: the object is damaged; move it away"):
        put(store, b"data")
    path.write_bytes(b"date")
    with pytest.raises(VerificationError, match="its bytes do not give its name"):
        store.objects.get(digest)


@pytest.mark.parametrize("kind", ["folder", "fifo", "missing"])
def test_only_files_are_stored(store: Store, tmp_path: Path, kind: str) -> None:
    place = tmp_path / "x"
    if kind == "folder":
        place.mkdir()
    elif kind == "fifo":
        os.mkfifo(place)
    words = "no such file" if kind == "missing" else "not a regular file; only files can be stored"
    with pytest.raises(PlaitError, match=words):
        store.objects.put_file(place)


def test_missing_object(store: Store) -> None:
    for ask in (store.objects.path, store.objects.size, store.objects.get, store.objects.keep):
        with pytest.raises(VerificationError, match="the object is missing; restore it from a backup"):
            ask("0" * 64)
    assert not store.objects.has("0" * 64)
    assert store.objects.delete("0" * 64) == 0


@pytest.mark.parametrize("name", ["../../../etc/passwd", "", "A" * 64, "0" * 63, "0" * 64 + "\n", "０" * 64])
def test_what_is_no_digest_never_becomes_a_path(store: Store, name: str) -> None:
    for ask in (store.objects.path, store.objects.has, store.objects.delete, store.versions.path):
        with pytest.raises(VerificationError, match="is not a sha256 digest"):
            ask(name)
    with pytest.raises(VerificationError, match="is not a sha256 digest"):
        store.versions.publish(store.workspace("w"), name)


def test_tmp_on_another_disk(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.rename

    def rename(source: Path, target: Path) -> None:
        if "tmp" in Path(source).parts[-2:-1] + Path(source).parts[-3:-2] and not str(target).endswith(
            ".tmp"
        ):
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    digest = put(store, b"far")
    assert store.objects.get(digest) == b"far"
    version = publish(store, b"far model")
    assert model_digest(store.versions.path(version)) == version
    assert os.listdir(store.workspace("work")) == []
    assert verify(store, model_digest).ok


# versions


def test_published_folder_is_moved_whole(store: Store) -> None:
    folder = fill(store.workspace("w") / "model", b"weights")
    (folder / "weights").chmod(0o600)
    target = store.versions.publish(folder, sha(b"weights"))
    assert not folder.exists()
    assert target == store.versions.path(sha(b"weights"))
    assert (target / "tokenizer" / "vocab.txt").read_text() == "a\nb\n"
    for part in target.rglob("*"):
        assert stat.S_IMODE(part.stat().st_mode) == (0o755 if part.is_dir() else 0o444)
    assert store.versions.size(sha(b"weights")) == len(b"weights" + b'{"layers": 2}\n' + b"a\nb\n")


def test_published_again_the_first_is_kept(store: Store) -> None:
    first = publish(store, b"same")
    inode = store.versions.path(first).stat().st_ino
    assert publish(store, b"same") == first
    assert store.versions.path(first).stat().st_ino == inode
    assert os.listdir(store.workspace("work")) == []


def test_a_list_without_its_folder_is_written_anew(store: Store) -> None:
    """A kill between the two leaves the list alone: no version, no problem."""
    version = publish(store, b"new")
    store.versions.delete(version)
    (store.versions.folder / f"{version}.json").write_text("half")
    assert version not in store.versions.all()
    assert verify(store, model_digest).ok
    publish(store, b"new")
    assert verify(store, model_digest).ok


def test_only_files_and_folders_are_published(store: Store, tmp_path: Path) -> None:
    folder = fill(store.workspace("w") / "model", b"weights")
    (folder / "link").symlink_to(tmp_path)
    with pytest.raises(PlaitError, match="link: neither a file nor a folder"):
        store.versions.publish(folder, sha(b"weights"))
    with pytest.raises(RefusedInput, match="not a folder"):
        store.versions.publish(folder / "weights", sha(b"weights"))
    assert not store.versions.has(sha(b"weights"))


def test_deleted_version(store: Store) -> None:
    version = publish(store, b"model")
    assert store.versions.delete(version) == store.versions.delete(version) + 23
    assert not store.versions.has(version)
    assert os.listdir(store.scratch) == ["work"]
    with pytest.raises(VerificationError, match="the version is missing; build it again from the members"):
        store.versions.path(version)


def test_import_is_light() -> None:
    code = "import sys, plait.store; print([m for m in ('torch', 'numpy', 'plait.checkpoint') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
