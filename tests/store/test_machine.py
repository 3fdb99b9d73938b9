"""Random operations on a store and on a dictionary, which must agree after every step."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from plait.store import Store, gc, verify
from tests.store.stores import fill, model_digest, put, sha

WORDS = st.sampled_from([b"", b"a", b"b", b"longer text", bytes(range(256))])
NOW = -1.0


class Machine(RuleBasedStateMachine):
    """The model: what is stored, by digest, and the bodies of all entries."""

    objects = Bundle("objects")
    versions = Bundle("versions")

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(prefix="plait-test-"))
        self.store = Store.create(self.place / "line", {"seed": 0})
        self.stored: dict[str, bytes] = {}
        self.published: dict[str, bytes] = {}
        self.entries: list[dict[str, Any]] = []
        self.works: set[str] = set()

    def teardown(self) -> None:
        shutil.rmtree(self.place)

    @rule(target=objects, data=WORDS, how=st.sampled_from(["inside", "outside", "bytes"]))
    def put(self, data: bytes, how: str) -> str:
        if how == "inside":
            self.works.add("work")
            digest = put(self.store, data)
        elif how == "bytes":
            digest = self.store.objects.put_bytes(data)
        else:
            file = self.place / "outside"
            file.write_bytes(data)
            digest = self.store.objects.put_file(file)
            assert file.read_bytes() == data
        assert digest == sha(data)
        self.stored[digest] = data
        return digest

    @rule(target=versions, weights=WORDS)
    def publish(self, weights: bytes) -> str:
        self.works.add("work")
        folder = fill(self.store.workspace("work") / "model", weights)
        self.store.versions.publish(folder, sha(weights))
        assert not folder.exists()
        self.published[sha(weights)] = weights
        return sha(weights)

    @rule(members=st.lists(objects, max_size=3), state=st.none() | objects, version=versions)
    def append(self, members: list[str], state: str | None, version: str) -> None:
        body = {
            "members": [{"task": str(n), "object": digest} for n, digest in enumerate(members)],
            "state": None if state is None else {"dense": state},
            "version": version,
        }
        entry = self.store.ledger.append(body)
        assert entry["sequence"] == len(self.entries)
        self.entries.append(body)

    @rule(digest=objects)
    def delete_object(self, digest: str) -> None:
        data = self.stored.pop(digest, b"")
        assert self.store.objects.delete(digest) == len(data)

    @rule(digest=versions)
    def delete_version(self, digest: str) -> None:
        freed = self.store.versions.delete(digest)
        assert freed == (len(self.published.pop(digest)) + 18 if digest in self.published else 0)

    @rule(target=objects, keep=st.integers(0, 3), dry_run=st.booleans())
    def gc(self, keep: int, dry_run: bool) -> Any:
        done = gc(self.store, keep_versions=keep, dry_run=dry_run, grace_seconds=NOW)["removed"]
        gone = set(self.stored) - self.need()[0], set(self.published) - self.need(keep)[1]
        if not self.entries:
            gone = set(), set()
        assert (set(done["objects"]), set(done["versions"])) == gone
        if self.entries and not dry_run:
            self.stored = {d: b for d, b in self.stored.items() if d not in gone[0]}
            self.published = {d: b for d, b in self.published.items() if d not in gone[1]}
            self.works.clear()
        return multiple()

    @rule(name=st.sampled_from(["work", "merge-a", "merge-b"]))
    def work(self, name: str) -> None:
        assert self.store.workspace(name).is_dir()
        self.works.add(name)

    @rule(keep=st.sampled_from(["merge-a", "none"]))
    def clear(self, keep: str) -> None:
        assert set(self.store.clear_workspaces(keep)) == self.works - {keep}
        self.works &= {keep}

    @rule()
    def reopen(self) -> None:
        self.store = Store.open(self.store.path)

    @invariant()
    def agrees(self) -> None:
        assert self.store.objects.all() == sorted(self.stored)
        assert {d: self.store.objects.get(d) for d in self.stored} == self.stored
        assert self.store.versions.all() == sorted(self.published)
        found = {d: (self.store.versions.path(d) / "weights").read_bytes() for d in self.published}
        assert found == self.published
        entries = self.store.ledger.entries()
        fields = ("members", "state", "version")
        assert [{name: entry[name] for name in fields} for entry in entries] == self.entries
        assert self.store.ledger.head() == (entries[-1] if entries else None)
        assert set(self.store.workspaces()) == self.works
        objects, versions = self.need()
        lost = (objects - set(self.stored)) | (versions - set(self.published))
        assert {line.split(": ")[0][-64:] for line in verify(self.store, model_digest).problems} == lost

    def need(self, keep: int = 1) -> tuple[set[str], set[str]]:
        """The model's own notion of what is needed."""
        if not self.entries:
            return set(), set()
        objects = set()
        for entry in (self.entries[0], self.entries[-1]):
            objects |= {m["object"] for m in entry["members"]} | set((entry["state"] or {}).values())
        recent = list(dict.fromkeys(e["version"] for e in reversed(self.entries)))
        return objects, {self.entries[0]["version"], *recent[: max(1, keep)]}


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=30,
    stateful_step_count=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
