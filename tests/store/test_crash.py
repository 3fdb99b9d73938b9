"""Processes that are killed: at any moment verify is clean, and the ledger is as it was or one entry longer."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from plait.store import Store, gc, verify
from tests import crash
from tests.store.stores import merge, model_digest, new_store, publish, put

ROOT = Path(__file__).parents[2]

LOOP = """
import sys
from plait.store import Store, gc
from tests.store.stores import merge
store = Store.open(sys.argv[1])
print("ready", flush=True)
for turn in range(1000):
    with store.lock("merge"):
        entry = merge(store, f"{turn}")
        print(entry["sequence"], flush=True)
        gc(store, keep_versions=2, grace_seconds=-1)
"""

ONE = """
import sys
from plait.store import Store, gc
from tests.store.stores import merge
store = Store.open(sys.argv[1] + "/line")
with store.lock("merge"):
    merge(store, "b")
    gc(store, keep_versions=1, grace_seconds=-1)
"""

CREATE = """
import sys
from pathlib import Path
from tests.store.stores import new_store
new_store(Path(sys.argv[1]) / "line")
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}", "{folder}"]


def test_killed_at_random_moments(tmp_path: Path) -> None:
    store = new_store(tmp_path / "line")
    chance = random.Random(0)
    known: list[bytes] = []
    for _ in range(12):
        argv = [word.replace("{folder}", str(store.path)) for word in python(LOOP)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            time.sleep(chance.uniform(0, 0.15))
            child.kill()
            said = [line for line in child.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        report = verify(store, model_digest)
        assert report.problems == []
        files = [store.ledger.path(n).read_bytes() for n in range(report.counted["entries"])]
        assert files[: len(known)] == known
        if said:
            assert int(said[-1]) + 1 <= len(files) <= int(said[-1]) + 2
        known = files
        with store.lock("verify"):
            pass
    assert len(known) > 3
    gc(store, grace_seconds=-1)
    assert list(store.path.rglob(".*.tmp")) == []


def before(folder: Path) -> None:
    """A line with one member, and something to collect."""
    store = new_store(folder / "line", "a")
    publish(store, b"loose")
    put(store, b"spare")


def after(folder: Path) -> None:
    """Old or new, never half; and the command can be run again."""
    store = Store.open(folder / "line")
    report = verify(store, model_digest)
    assert report.problems == []
    assert report.counted["entries"] in (2, 3)
    with store.lock("merge"):
        merge(store, "c")
        gc(store, keep_versions=1, grace_seconds=-1)
    assert verify(store, model_digest).problems == []
    assert len(store.versions.all()) == 2
    assert not list(store.path.rglob(".*.tmp"))


def limits() -> list[object]:
    return [pytest.param(10, id="some"), pytest.param(1000, id="all", marks=pytest.mark.slow)]


@pytest.mark.parametrize("limit", limits())
def test_killed_at_every_call(tmp_path: Path, limit: int) -> None:
    trials = crash.kill_at_every(python(ONE), before, after, root=tmp_path, limit=limit)
    assert trials
    if crash.has_strace():
        assert all(trial.code == -9 for trial in trials)


@pytest.mark.parametrize("limit", limits())
def test_killed_while_creating(tmp_path: Path, limit: int) -> None:
    def check(folder: Path) -> None:
        if (folder / "line").exists():
            assert verify(Store.open(folder / "line"), model_digest).ok
            assert len(Store.open(folder / "line").ledger.entries()) == 1
        else:
            new_store(folder / "line")
        assert [p.name for p in folder.iterdir()] == ["line"]

    assert crash.kill_at_every(python(CREATE), lambda folder: None, check, root=tmp_path, limit=limit)


@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
@pytest.mark.parametrize(
    "limit", [pytest.param(5, id="some"), pytest.param(40, id="more", marks=pytest.mark.slow)]
)
@pytest.mark.skipif(not crash.has_strace(), reason="strace is missing or may not trace")
def test_failing_disk(tmp_path: Path, error: str, limit: int) -> None:
    def check(folder: Path, trial: crash.Trial) -> None:
        assert trial.code in (0, 1)
        if trial.code:
            assert "PlaitError" in trial.error
            assert {"ENOSPC": "the disk is full", "EIO": "input/output error"}[error] in trial.error
        after(folder)

    # The test's own writes of model files are no calls of the store, and raise what Python raises.
    calls = ("fsync", "link", "rename", "fchmod", "chmod", "unlink", "utimensat")
    trials = crash.fail_at_every(
        python(ONE), before, check, root=tmp_path, error=error, calls=calls, limit=limit
    )
    assert any(trial.code for trial in trials)


def test_the_helper_sees_a_half_done_write(tmp_path: Path) -> None:
    """The helper itself must be able to fail: a file written in two steps is caught between them."""
    code = "import os, sys; f = os.open(sys.argv[1] + '/f', 66); os.write(f, b'one'); os.write(f, b'two')"

    def check(folder: Path) -> None:
        assert not (folder / "f").exists() or (folder / "f").read_bytes() in (b"", b"onetwo")

    if not crash.has_strace():
        pytest.skip("strace is missing or may not trace")
    with pytest.raises(AssertionError, match="disturbed at write number 2"):
        crash.kill_at_every(
            [sys.executable, "-c", code, "{folder}"], lambda folder: None, check, root=tmp_path
        )


def test_the_helper_without_strace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash, "has_strace", lambda: False)
    trials = crash.kill_at_every(python(ONE), before, after, root=tmp_path, limit=4)
    assert [trial.call for trial in trials] == ["random"] * 4
    assert any(trial.code == -9 for trial in trials)
    with pytest.raises(AssertionError, match="the undisturbed run failed"):
        crash.kill_at_every([sys.executable, "-c", "1 / 0"], before, after, root=tmp_path, limit=4)
