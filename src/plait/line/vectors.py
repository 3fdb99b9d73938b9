"""How the members of a line lie to each other: cosines of their task vectors, and their norms by layer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from math import fsum, sqrt
from typing import TYPE_CHECKING, Any

from plait.errors import PlaitError
from plait.line.build import Setting, engine_settings, mergeable, operand, write_json
from plait.line.member import Member
from plait.line.opening import open_setting
from plait.line.views import last
from plait.methods.groups import layer_of
from plait.store import Store

if TYPE_CHECKING:
    from plait.engine.gram import Gram

DIGITS = 6
"""Significant digits that are told: the same on every processor, and more than a picture shows."""

_WORKSPACE, _FILE, _FORMAT = "report", "vectors.json", 1


def compare(
    store: Store,
    *,
    workers: int | None = None,
    chunk: int | None = None,
    quiet: bool = True,
    read: bool = True,
) -> dict[str, Any] | None:
    """Cosines and norms of the members' task vectors (expert minus base, weights do not count), in one read of base
    and members, in memory that does not grow with the model.

    read: False to take only what an earlier call kept. Returns None where it kept nothing, or where the line keeps
    no members; else {"tasks", "norms", "base_norm", "cosines" (tasks × tasks, None for a task vector of zeros),
    "layers", "base_norms" (by layer), "layer_norms" (tasks × layers)}, numbers to DIGITS digits.

    The result is kept in the line until its next change, if the line can be written to and nobody else writes.
    """
    members = [Member.of(row) for row in last(store)["members"]]
    if any(member.object is None for member in members):
        return None
    key = _key(store, members)
    found = _kept(store, key)
    if found is None and read:
        setting = open_setting(store, workers=workers, chunk=chunk, quiet=quiet)
        found = _measure(setting, members)
        _keep(store, key, found)
    return found


def _measure(setting: Setting, members: Sequence[Member]) -> dict[str, Any]:
    from plait import engine
    from plait.engine.gram import gram

    base = mergeable(setting.base, setting.private)
    operands = [operand(setting, member) for member in members]
    incoming = [engine.Incoming(o.member.task, refs=dict(o.refs)) for o in operands]
    progress = None if setting.quiet else engine.Progress()
    found = gram(base, incoming, engine_settings(setting.workers, None, True), progress)
    return table([member.task for member in members], found)


def table(tasks: Sequence[str], found: Gram) -> dict[str, Any]:
    """The words of `compare` from sums of squares and products."""
    inner: list[list[float]] = found.inner.tolist()
    lengths = [sqrt(inner[i][i]) for i in range(len(tasks))]
    layers: dict[str, list[str]] = {}
    for name in sorted(found.base, key=_natural):
        layers.setdefault(layer_of(name), []).append(name)

    def cosine(i: int, j: int) -> float | None:
        scale = lengths[i] * lengths[j]
        return _digits(inner[i][j] / scale) if scale else None

    return {
        "tasks": list(tasks),
        "norms": [_digits(length) for length in lengths],
        "base_norm": _digits(sqrt(fsum(found.base.values()))),
        "cosines": [[cosine(i, j) for j in range(len(tasks))] for i in range(len(tasks))],
        "layers": list(layers),
        "base_norms": [_digits(sqrt(fsum(found.base[n] for n in names))) for names in layers.values()],
        "layer_norms": [
            [_digits(sqrt(fsum(found.norms[n][i] for n in names))) for names in layers.values()]
            for i in range(len(tasks))
        ],
    }


def _natural(name: str) -> list[tuple[int, int, str]]:
    """A sorting key that puts layer.2 before layer.10."""
    return [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in name.split(".")]


def _digits(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _key(store: Store, members: Sequence[Member]) -> str:
    rows = [[member.task, member.digest, member.object] for member in members]
    told = [_FORMAT, store.settings["base"]["digest"], store.settings["private"], rows]
    return sha256(json.dumps(told).encode()).hexdigest()


def _kept(store: Store, key: str) -> dict[str, Any] | None:
    """What an earlier call found for the same members; whatever is wrong with the file, it is only not used."""
    try:
        kept: Any = json.loads((store.scratch / _WORKSPACE / _FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    found = kept.get("found") if isinstance(kept, Mapping) and kept.get("key") == key else None
    return dict(found) if isinstance(found, Mapping) else None


def _keep(store: Store, key: str, found: Mapping[str, Any]) -> None:
    """Put the result into a workspace, which the next command that changes the line removes. Nothing is kept of
    members that another command took out meanwhile."""
    with suppress(PlaitError, OSError), store.lock("report"):
        if _key(store, [Member.of(row) for row in last(store)["members"]]) == key:
            write_json(store.workspace(_WORKSPACE) / _FILE, {"key": key, "found": found})
