"""A line that computes nothing: it keeps members in a list and answers with the keys of the real one."""

from __future__ import annotations

import types
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

import plait
from plait.errors import RefusedInput


def digest(*words: object) -> str:
    return sha256(repr(words).encode()).hexdigest()


class FakeLine:
    """Records every call; `fail`, if set, is raised by the next verb."""

    calls: ClassVar[list[tuple[str, tuple[Any, ...], dict[str, Any]]]] = []
    fail: ClassVar[BaseException | None] = None
    members: ClassVar[list[dict[str, Any]]] = []
    problems: ClassVar[list[str]] = []
    replay: ClassVar[str] = "equal"

    def __init__(self) -> None:
        self.quiet = True

    @classmethod
    def reset(cls) -> None:
        cls.calls, cls.fail, cls.members, cls.problems, cls.replay = [], None, [], [], "equal"

    @classmethod
    def create(cls, *words: Any, **named: Any) -> FakeLine:
        return cls._called("create", words, named)

    @classmethod
    def open(cls, path: Path) -> FakeLine:
        return cls._called("open", (str(path),), {})

    @classmethod
    def _called(cls, verb: str, words: tuple[Any, ...], named: dict[str, Any]) -> FakeLine:
        cls.calls.append((verb, words, named))
        if cls.fail is not None and verb != "open":
            raise cls.fail
        return cls()

    def _event(self, verb: str, task: str, receipt: dict[str, Any] | None) -> dict[str, Any]:
        reads = verb in ("merge", "replace")
        return {
            "sequence": len(self.calls),
            "time": "2026-01-01T00:00:00.000Z",
            "verb": verb,
            "task": task,
            "version": digest(self.members),
            "accounting": {
                "merged": 4,
                "frozen": 1,
                "private": 2,
                "buffer": 1,
                "nonfinite": 0,
                "distance": 0.1,
            }
            if reads
            else None,
            "counts": {"copied": 1},
            "notes": ["a prefix was removed"] if reads else [],
            "receipt": receipt,
            "seconds": 0.5,
            "members": [dict(m) for m in self.members],
            "path": "line/versions/x",
        }

    def merge(self, checkpoint: str, task: str | None, **named: Any) -> dict[str, Any]:
        self._called("merge", (checkpoint, task), named)
        name = task or Path(checkpoint).name
        row = {"task": name, "weight": named["weight"], "digest": digest(checkpoint), "source": checkpoint}
        self.members.append({**row, "private": [], "descends": None, "examples": None})
        return self._event("merge", name, None)

    def unmerge(self, task: str, **named: Any) -> dict[str, Any]:
        self._called("unmerge", (task,), named)
        if task not in [m["task"] for m in self.members]:
            raise RefusedInput(f"task {task!r} is not a member; members are: none yet")
        type(self).members = [m for m in self.members if m["task"] != task]
        receipt = {"removed": task, "how": "subtraction", "exact": True, "never_merged": digest(self.members)}
        return self._event("unmerge", task, receipt)

    def reweight(self, task: str, weight: float, **named: Any) -> dict[str, Any]:
        self._called("reweight", (task, weight), named)
        for member in self.members:
            if member["task"] == task:
                member["weight"] = weight
        return self._event("reweight", task, {"weight_before": 1.0, "weight_after": weight})

    def replace(self, task: str, checkpoint: str, **named: Any) -> dict[str, Any]:
        self._called("replace", (task, checkpoint), named)
        return self._event("replace", task, {"digest_before": digest(1), "digest_after": digest(2)})

    def status(self) -> dict[str, Any]:
        return {
            "path": "line",
            "version": digest(self.members),
            "model": "line/versions/x",
            "base": {"name": "base", "digest": digest("base")},
            "method": "average",
            "options": {"sparsify": None},
            "retention": "vectors",
            "descent": "any",
            "seed": 0,
            "private": ["classifier.*"],
            "members": [dict(m) for m in self.members],
            "events": 1 + len(self.members),
            "changed": "2026-01-01T00:00:00.000Z",
            "versions": [digest(self.members)],
            "state_bytes": 1000,
            "bytes": {"members": 2048, "state": 1024, "data": 0},
            "removal": "subtract",
            "data": "none",
            "note": "not exact: a note",
        }

    def log(self) -> list[dict[str, Any]]:
        event = self._event("merge", "a", None)
        return [{k: v for k, v in event.items() if k != "path"}]

    def show(self, what: str) -> dict[str, Any]:
        self._called("show", (what,), {})
        return {
            "kind": "member",
            "task": what,
            "weight": 1.0,
            "digest": digest(what),
            "history": [{"sequence": 1}],
        }

    def diff(self, a: str, b: str) -> dict[str, Any]:
        self._called("diff", (a, b), {})
        return {
            "a": digest(a),
            "b": digest(b),
            "equal": a == b,
            "members": {"only_a": [], "only_b": ["x\x1b[2J"], "weight": [], "checkpoint": []},
            "tensors": {"same": 3, "differ": [f"t{i}" for i in range(30)], "only_a": [], "only_b": []},
        }

    def export(self, out: str, **named: Any) -> dict[str, Any]:
        self._called("export", (out,), named)
        return {
            "out": out,
            "version": digest(self.members),
            "task": named["task"],
            "batchnorm": {"tensors": ["m", "v"], "tasks": {"a": {"count": 3}}}
            if named["batchnorm"]
            else None,
            "files": ["config.json"],
            "sequence": 3,
        }

    def verify(self, *, replay: bool = False) -> dict[str, Any]:
        self._called("verify", (), {"replay": replay})
        answer = self.replay if replay else None
        return {
            "ok": not self.problems and answer in (None, "equal"),
            "problems": list(self.problems),
            "checked": {"entries": 1, "objects": 2, "versions": 1},
            "replay": answer,
            "version": digest(self.members),
        }

    def gc(self, *, dry_run: bool, grace: float) -> dict[str, Any]:
        self._called("gc", (), {"dry_run": dry_run, "grace": grace})
        return {"dry_run": dry_run, "removed": {"objects": [digest(1)], "versions": []}, "bytes": 123456}

    def purge(self, task: str) -> dict[str, Any]:
        self._called("purge", (task,), {})
        held = {"sequence": 2, "time": "2026-01-01T00:00:00.000Z", "version": digest(2), "out": "somewhere"}
        receipt = {"objects": [digest(1)], "versions": [digest(2)], "bytes": 99, "exports": [held]}
        return self._event("purge", task, receipt)


def merge_files(base: str, experts: list[str], out: str, **named: Any) -> dict[str, Any]:
    FakeLine.calls.append(("merge_files", (base, experts, out), named))
    rows = [{"source": e, "weight": 1.0, "private": [], "notes": ["tied"]} for e in experts]
    return {
        "out": out,
        "method": named["method"],
        "options": {"scale": 1.0},
        "members": rows,
        "counts": {"merged": 3},
        "version": digest(out),
        "seconds": 0.1,
    }


def module() -> types.ModuleType:
    """What stands for `plait.line`; modules inside it are the real ones."""
    made = types.ModuleType("plait.line")
    made.__path__ = [str(Path(plait.__file__).parent / "line")]
    made.Line = FakeLine  # type: ignore[attr-defined]
    made.merge_files = merge_files  # type: ignore[attr-defined]
    return made
