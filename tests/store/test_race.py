"""Two writers: exactly one wins each number of the ledger."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from plait.errors import LockedError
from plait.store import Ledger, Store
from tests.store.stores import new_store

APPENDER = """
import sys
from pathlib import Path
from plait.errors import LockedError
from plait.store import Ledger
ledger, name = Ledger(Path(sys.argv[1])), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
lost, won = 0, []
while len(won) < 60:
    try:
        won.append(ledger.append({"who": name, "turn": len(won)})["sequence"])
    except LockedError:
        lost += 1
import json
print(json.dumps({"won": won, "lost": lost}))
"""


def test_two_processes_append(tmp_path: Path) -> None:
    ledger = Store.create(tmp_path / "line", {}).ledger
    children = [
        subprocess.Popen(
            [sys.executable, "-c", APPENDER, str(ledger.folder), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "ab"
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    results = {
        name: json.loads(child.communicate(timeout=60)[0]) for name, child in zip("ab", children, strict=True)
    }
    won = sorted(results["a"]["won"] + results["b"]["won"])
    assert won == list(range(120))
    entries = ledger.entries()
    for name in "ab":
        mine = [e for e in entries if e["who"] == name]
        assert [e["sequence"] for e in mine] == results[name]["won"]
        assert [e["turn"] for e in mine] == list(range(60))
    assert sorted(os.listdir(ledger.folder)) == [f"{n:08d}.json" for n in range(120)]


def test_the_loser_of_a_race_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = new_store(tmp_path / "line").ledger
    real = os.link

    def link(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "link", real)
        Ledger(ledger.folder).append({"who": "first"})
        real(source, target)

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(
        LockedError, match=r"another process wrote entry 1; nothing was changed, run the command"
    ):
        ledger.append({"who": "second"})
    assert [e.get("who") for e in ledger.entries()] == [None, "first"]
    assert sorted(os.listdir(ledger.folder)) == ["00000000.json", "00000001.json"]
    assert ledger.append({"who": "second"})["sequence"] == 2


def test_a_repeated_link_request_is_no_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network file system may carry out link(2), lose the answer, ask again and hear that the name is taken."""
    ledger = new_store(tmp_path / "line").ledger
    real = os.link

    def link(source: Path, target: Path) -> None:
        real(source, target)
        real(source, target)

    monkeypatch.setattr(os, "link", link)
    assert ledger.append({"who": "me"})["sequence"] == 1
    assert len(ledger.entries()) == 2
