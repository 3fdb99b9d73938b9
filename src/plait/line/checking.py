"""Proving that a line is what its ledger says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import file_digest
from pathlib import Path
from typing import Any

from plait.errors import UsageError
from plait.evaluation.rows import Rows
from plait.line.algebra import again, combination
from plait.line.build import Setting, stack_of, version_digest
from plait.line.member import Member
from plait.line.views import last, tensors
from plait.store import Store
from plait.store import verify as audit


def verify(store: Store, setting: Callable[[], Setting], *, replay: bool) -> dict[str, Any]:
    """Hash every object, version and ledger entry again; with `replay`, also make the model anew. Rows of
    evaluations are checked too: their checksums, and that they agree with themselves."""
    report = audit(store, version_digest)
    problems = list(report.problems)
    answer: str | None = None
    if replay and not problems:
        with store.lock("verify --replay"):
            answer, found = _replay(store, setting())
        problems += found
    problems += Rows(store).problems()
    return {
        "ok": not problems and (answer is None or answer == "equal"),
        "problems": problems,
        "checked": {**report.counted, "bytes": report.bytes},
        "tip": report.tip,
        "replay": answer,
        "version": None if report.problems else last(store)["version"],
    }


def _replay(store: Store, setting: Setting) -> tuple[str, list[str]]:
    """("equal" | "different" | "not comparable: why", problems)."""
    head = last(store)
    members = [Member.of(row) for row in head["members"]]
    if any(m.object is None for m in members):
        kept = store.settings["retention"]
        return f"not comparable: this line keeps no members (retention {kept})", []
    inexact = head.get("inexact")
    if inexact and combination(store, head) is None:
        return f"not comparable: {inexact['note']}, and what was kept of {inexact['task']} was purged", []
    store.clear_workspaces()
    work = store.workspace("replay")
    device = _device(head)
    if device is not None:
        from plait.problem.module import parse_device

        setting = replace(setting, compute=replace(setting.compute, device=device))
        try:
            parse_device(device)
        except UsageError:
            return (
                f"not comparable: made with {'; '.join(head['stack'])}, and this machine has no such device",
                [],
            )
    built = again(setting, head, work)
    problems = []
    recorded = tensors(store, head)
    if built.digest != head["version"]:
        wrong = sorted(n for n, d in built.tensors.items() if d != recorded.get(n))
        problems.append(
            f"replay: the members give version {built.digest[:12]}, the ledger says {head['version'][:12]}; "
            f"{'1 tensor differs' if len(wrong) == 1 else f'{len(wrong)} tensors differ'}"
            f"{f', such as {wrong[0]}' if wrong else ''}"
        )
    elif built.state is not None and not inexact:
        problems += _same_state(built.state, head["state"] or {})
    store.clear_workspaces()
    now = stack_of([], built.ran)
    if problems and head["stack"] != now:
        before = "; ".join(head["stack"])
        return f"not comparable: made with {before}, this is {now[0]}", []
    return ("different" if problems else "equal"), problems


def _device(head: Mapping[str, Any]) -> str | None:
    """Where the networks ran, `cpu`, `cuda` or `cuda:1`; None where none did."""
    named = head.get("software", {}).get("device")
    return None if named is None else str(named).partition(" ")[0]


def _same_state(folder: Path, recorded: dict[str, str]) -> list[str]:
    found = {}
    for file in sorted(folder.glob("*")):  # a method that makes the model anew each time leaves no folder
        with file.open("rb") as handle:
            found[file.name] = file_digest(handle, "sha256").hexdigest()
    if found != recorded:
        return ["replay: the model is equal, but the state kept for the next merge is not; rebuild the line"]
    return []
