"""A disk that fails: at every single call, the error is clear and the state is the one before."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from plait.errors import PlaitError
from plait.store import Store, gc, verify
from tests.store.stores import SETTINGS, merge, model_digest, new_store, publish, put, sha

CALLS = ("write", "fsync", "rename", "replace", "link", "mkdir", "fchmod", "chmod", "utime")
ADVICE = {
    errno.ENOSPC: "the disk is full; free some space, then run the command again",
    errno.EDQUOT: "the disk is full; free some space, then run the command again",
    errno.EIO: "input/output error; check the disk, then run `plait verify` and the command again",
    errno.EROFS: "read-only file system; make the folder writable for this user, then run the command again",
    errno.EACCES: "permission denied; make the folder writable for this user, then run the command again",
}


class Disk:
    """Counts the calls that the store makes, by name; the one that is to fail, fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: dict[str, int] = {}
        self.fails: tuple[str, int, int] | None = None
        self.failed = False
        for name in CALLS:
            monkeypatch.setattr(os, name, self._wrap(name, getattr(os, name)))

    def _wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*words: Any, **more: Any) -> Any:
            if "plait/store" not in sys._getframe(1).f_code.co_filename:
                return real(*words, **more)
            self.counts[name] = self.counts.get(name, 0) + 1
            if self.fails is not None and self.fails[:2] == (name, self.counts[name]):
                self.failed = True
                raise OSError(self.fails[2], os.strerror(self.fails[2]))
            return real(*words, **more)

        return call

    def start(self, fails: tuple[str, int, int] | None) -> None:
        self.counts, self.fails, self.failed = {}, fails, False


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    with monkeypatch.context() as patch:
        yield Disk(patch)


def trials(disk: Disk, run: Callable[[], object], number: int) -> Iterator[tuple[str, int]]:
    """Runs `run` once undisturbed, then says for every call of it which one is to fail now."""
    disk.start(None)
    run()
    counts = dict(disk.counts)
    assert counts["fsync"] > 3
    for name, count in counts.items():
        for turn in range(1, count + 1):
            disk.start((name, turn, number))
            yield name, turn


def failure(run: Callable[[], object]) -> str:
    """The message of the PlaitError that `run` ends with, or nothing if it succeeds. Other errors pass."""
    try:
        run()
    except PlaitError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_merge_fails_at_every_call(tmp_path: Path, disk: Disk, number: int) -> None:
    template = new_store(tmp_path / "template", "a")
    store = Store(tmp_path / "line", SETTINGS)

    def run() -> None:
        merge(store, "b")

    def anew() -> None:
        shutil.rmtree(store.path, ignore_errors=True)
        shutil.copytree(template.path, store.path)

    anew()
    for name, turn in trials(disk, run, number):
        anew()
        before = [store.ledger.path(n).read_bytes() for n in range(2)]
        message = failure(run)
        assert disk.failed
        disk.start(None)
        assert ADVICE[number] in message, (name, turn)
        assert str(store.path) in message
        assert "\n" not in message
        assert len(store.ledger.entries()) == 2
        assert [store.ledger.path(n).read_bytes() for n in range(2)] == before
        assert verify(store, model_digest).problems == []
        assert [p for p in store.path.rglob(".*.tmp") if store.scratch not in p.parents] == []
        run()  # the same merge again
        assert len(store.ledger.entries()) == 3
        assert verify(store, model_digest).problems == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES])
def test_creation_fails_at_every_call(tmp_path: Path, disk: Disk, number: int) -> None:
    turn = 0

    def run() -> None:
        nonlocal turn
        turn += 1
        Store.create(tmp_path / str(turn), SETTINGS)

    for name, _ in trials(disk, run, number):
        with pytest.raises(PlaitError) as caught:
            run()
        assert ADVICE[number] in str(caught.value), name
        assert disk.failed
        assert [p.name for p in tmp_path.iterdir()] == ["1"]


def test_what_a_failed_fsync_touched_is_never_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed fsync the kernel may call the pages clean: a second fsync would succeed and prove nothing."""
    store = new_store(tmp_path / "line")

    def fsync(handle: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        store.workspace("work") if (store.scratch / "work").exists() else (store.scratch / "work").mkdir()
        with pytest.raises(PlaitError):
            put(store, b"data")
        with pytest.raises(PlaitError):
            publish(store, b"weights")
    assert os.listdir(store.scratch / "work") == []
    assert store.objects.all() == []
    assert store.versions.all() == [sha(b"base")]


def test_a_name_that_may_not_be_on_the_disk_is_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_store(tmp_path / "line")
    parents = {"objects": "??", "versions": "versions", "ledger": "ledger"}
    for kind, folder in parents.items():

        def fsync(handle: int, folder: str = folder) -> None:
            if Path(os.readlink(f"/proc/self/fd/{handle}")).match(folder):
                raise OSError(errno.EIO, "Input/output error")

        def work(kind: str = kind) -> None:
            if kind == "ledger":
                store.ledger.append({})
            else:
                (put if kind == "objects" else publish)(store, b"data")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            assert ADVICE[errno.EIO] in failure(work)
            if kind == "objects":
                outside = tmp_path / "outside"
                outside.write_bytes(b"data")
                assert ADVICE[errno.EIO] in failure(lambda: store.objects.put_file(outside))  # noqa: B023
        assert store.objects.all() == []
        assert store.versions.all() == [sha(b"base")]
        assert len(store.ledger.entries()) == 1
        assert not list(store.ledger.folder.glob(".*"))


def test_a_version_whose_name_may_not_be_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_store(tmp_path / "line")

    def fsync(handle: int) -> None:
        if os.readlink(f"/proc/self/fd/{handle}").endswith("versions") and store.versions.has(sha(b"data")):
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    assert ADVICE[errno.EIO] in failure(lambda: publish(store, b"data"))
    assert store.versions.all() == [sha(b"base")]


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, bytes(data[:7])))
    store = new_store(tmp_path / "line", "a", "b")
    outside = tmp_path / "outside"
    outside.write_bytes(bytes(1000))
    assert store.objects.get(store.objects.put_file(outside)) == bytes(1000)
    assert verify(store, model_digest).ok


def test_a_folder_that_cannot_be_synced_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some network file systems answer fsync of a folder with EINVAL."""

    def fsync(handle: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", fsync)
    assert verify(new_store(tmp_path / "line", "a"), model_digest).ok


def test_disk_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_store(tmp_path / "line")

    def link(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    words = r"this file system has no hard links \(operation not permitted\), which the ledger needs; keep the line"
    with pytest.raises(PlaitError, match=words):
        merge(store, "a")
    with pytest.raises(PlaitError, match=words):
        Store.create(tmp_path / "other", SETTINGS)
    assert os.listdir(tmp_path) == ["line"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_store_can_be_read(tmp_path: Path) -> None:
    store = new_store(tmp_path / "line", "a")
    folders = [store.path, *(p for p in store.path.rglob("*") if p.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        assert verify(Store.open(store.path), model_digest).ok
        for work in (lambda: merge(store, "b"), lambda: gc(store, grace_seconds=-1)):
            with pytest.raises(PlaitError, match="make the folder writable for this user"):
                work()
    finally:
        for folder in folders:
            folder.chmod(0o755)


def test_everything_is_synced_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of calls of a merge: every file is synced before it is renamed or linked, its folder after."""
    store = new_store(tmp_path / "line", "a")
    log: list[tuple[str, str]] = []

    def note(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*words: Any) -> Any:
            if name == "fsync":
                log.append((name, os.readlink(f"/proc/self/fd/{words[0]}")))
                return None
            log.append((name, str(words[0])))
            log.append(("named", str(words[1])))
            return real(*words)

        return call

    for name in ("fsync", "rename", "replace", "link"):
        monkeypatch.setattr(os, name, note(name, getattr(os, name)))
    merge(store, "b")
    names = 0
    for place, (what, path) in enumerate(log):
        if what in ("rename", "replace", "link") and not log[place + 1][1].startswith(str(store.scratch)):
            inside = [p for w, p in log[:place] if w == "fsync" and (p == path or p.startswith(path + "/"))]
            parts = [path]
            if os.path.isdir(log[place + 1][1]):
                parts += [
                    path + "/" + name
                    for name in ("weights", "config.json", "tokenizer", "tokenizer/vocab.txt")
                ]
            for part in parts:
                assert part in inside, f"{part} was named before it was on the disk"
        elif what == "named" and not path.startswith(str(store.scratch)):
            names += 1
            folders = [os.path.dirname(path)]
            if "/objects/" in path:
                folders.append(str(store.objects.folder))
            for folder in folders:
                assert ("fsync", folder) in log[place:], f"the name {path} is not on the disk"
    assert names == 5  # two objects, the version and its list, the entry
    assert log[-1] == ("fsync", str(store.ledger.folder))
