"""A task that was purged leaves no name in a report: it is called `purged task 1`, wherever it appears."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_WORD = re.compile(r"[A-Za-z0-9._-]+")

OWN = frozenset(
    ("verb", "time", "method", "options", "retention", "removal", "how", "plait", "software", "layers")
)
"""Keys whose values are words of plait or names of tensors, never of tasks; a task may be called `merge`."""


def purged(entries: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What each purged task is called, in the order in which they first came.

    entries: the whole ledger. A task that came back after its purge is not purged.
    """
    came: dict[str, bool] = {}
    for entry in entries:
        for member in entry["members"]:
            came[member["task"]] = False
        if entry["verb"] == "purge":
            came[entry["task"]] = True
    gone = [task for task, is_gone in came.items() if is_gone]
    return {task: f"purged task {number}" for number, task in enumerate(gone, start=1)}


def without(value: Any, names: Mapping[str, str], kept: frozenset[str]) -> Any:
    """A JSON value in which none of `names` stands: a text that is one becomes what it is called; in other texts
    (paths, notes) it is replaced wherever it stands as a word, also as a part of one, such as a file's name.

    names: names of tasks and digests of checkpoints -> what they are called. kept: names of other tasks; they stay,
    even where one of `names` is a part of them. Keys, and values under the keys of OWN, stay as they are.
    """
    if not names:
        return value
    if isinstance(value, Mapping):
        return {k: item if k in OWN else without(item, names, kept) for k, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without(item, names, kept) for item in value]
    return _text(value, names, kept) if isinstance(value, str) else value


def _text(text: str, names: Mapping[str, str], kept: frozenset[str]) -> str:
    def word(found: re.Match[str]) -> str:
        word = found[0]
        if word in kept or word.rstrip("._-") in kept:
            return word
        parts = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
        return re.sub(rf"(?<![A-Za-z0-9])({parts})(?![A-Za-z0-9])", lambda part: names[part[0]], word)

    return names.get(text) or _WORD.sub(word, text)
