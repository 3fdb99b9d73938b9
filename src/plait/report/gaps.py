"""What a report cannot tell, why, and the command that would fill it in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from shlex import quote
from typing import Any

Facts = Mapping[str, Any]


def gaps(found: Facts) -> list[dict[str, Any]]:
    """List of {about, found, fill}; fill is null where nothing can fill it in any more.

    found: facts without this list.
    """
    rows = [*_accuracies(found), *_vectors(found)]
    entries = [e["sequence"] for e in found["ledger"] if e["kept"] is None]
    if entries:
        words = f"tensors of members after {_entries(entries)} are gone, or were never kept"
        rows.append(_gap("bytes kept of members", words, None))
    changes = [e for e in found["ledger"] if e["members"] and e["verb"] not in ("export", "purge")]
    silent = [e["sequence"] for e in changes if "bytes_read" not in (e["counts"] or {})]
    if silent:
        words = f"not recorded by the plait that made {_entries(silent)}"
        rows.append(_gap("bytes read and written", words, None))
    return rows


def evaluate(found: Facts, more: str = "") -> str:
    """The command that measures what is missing."""
    return f"plait eval {quote(found['line']['path'])} --tasks tasks.yaml{more}"


def _accuracies(found: Facts) -> Iterator[dict[str, Any]]:
    measured = found["evaluation"]
    if not measured["rows"]:
        yield _gap("accuracies", "no version of this line was evaluated", evaluate(found))
        return
    tasks = measured["tasks"]
    for about, key in (("accuracy of the deployed version", "now"), ("accuracy of the base", "base")):
        missing = [t["task"] for t in tasks if t[key] is None]
        if missing:
            yield _gap(about, f"not evaluated on {_some(missing)}", evaluate(found))
    kept = {m["task"]: m["bytes"] is not None for m in found["members"]}
    experts = [t["task"] for t in tasks if t["expert"] is None and t["member"]]
    yield from _two(
        found,
        "accuracy of experts",
        ([t for t in experts if kept.get(t)], "not evaluated: "),
        ([t for t in experts if not kept.get(t)], "not evaluated, and the checkpoints are not kept: "),
        "",
    )
    yield from _earlier(found)
    yield from _cells(found)


def _makeable(found: Facts) -> set[int]:
    """Ledger entries whose version is on disk or can be made again."""
    disk = set(found["deployed"]["versions"])
    return {e["sequence"] for e in found["ledger"] if e["kept"] is not None or e["version"] in disk}


def _cells(found: Facts) -> Iterator[dict[str, Any]]:
    """Empty cells of earlier versions of which others were measured: those of members then, and the others."""
    steps, whole = found["evaluation"]["steps"], _makeable(found)
    for about, member in (
        ("cells of earlier versions, of tasks that were members then", True),
        ("cells of earlier versions, of tasks that were no members then", False),
    ):
        empty = [
            (step["sequence"], sum(c is None and m is member for c, m in zip(*_pair(step), strict=True)))
            for step in steps[:-1]
            if step["measured"]
        ]
        entries = [sequence for sequence, count in empty if count]
        yield from _two(
            found,
            about,
            ([s for s in entries if s in whole], "not evaluated: after entries "),
            (
                [s for s in entries if s not in whole],
                "not evaluated, and the versions cannot be made again: after entries ",
            ),
            " --all",
        )


def _pair(step: Facts) -> tuple[Sequence[Any], Sequence[bool]]:
    return step["cells"], step["members"]


def fill_means(found: Facts) -> str | None:
    """The command after which means over the members of some step are known; None where there is none."""
    steps, whole = found["evaluation"]["steps"], _makeable(found)
    for place in range(len(steps) - 1, -1, -1):
        if any(steps[place]["members"]) and steps[place]["sequence"] in whole:
            current = steps[place]["version"] == found["deployed"]["version"]
            return evaluate(found, "" if current else " --all")
    return None


def fill_transfer(found: Facts) -> str | None:
    """The command after which the plasticity gap of some step is known; None where there is none."""
    steps = found["evaluation"]["steps"]
    for place in range(len(steps) - 1, -1, -1):
        more = _transfer_at(found, place) if any(steps[place]["members"]) else None
        if more is not None:
            return evaluate(found, more)
    return None


def _transfer_at(found: Facts, place: int) -> str | None:
    """What the command needs beside the tasks for the plasticity gap after a step; None where nothing helps."""
    whole, steps, tasks = _makeable(found), found["evaluation"]["steps"], found["evaluation"]["tasks"]
    every = found["deployed"]["version"] != steps[place]["version"]
    kept = {e["sequence"] for e in found["ledger"] if e["kept"] is not None}
    held = {m["task"] for m in found["members"] if m["bytes"] is not None}
    for column in [c for c, inside in enumerate(steps[place]["members"]) if inside]:
        name, came = tasks[column]["task"], steps[_came(found, place, column)]
        if not (tasks[column]["expert"] or name in held or steps[place]["sequence"] in kept):
            return None
        if came["cells"][column] is None:
            if came["sequence"] not in whole:
                return None
            every = every or came["version"] != found["deployed"]["version"]
    return " --all" if every else ""


def _came(found: Facts, place: int, column: int) -> int:
    """The step with which the checkpoint came that a column's task has after a step."""
    steps, name = found["evaluation"]["steps"], found["evaluation"]["tasks"][column]["task"]
    while place and steps[place - 1]["members"][column]:
        if steps[place]["verb"] == "replace" and steps[place]["task"] == name:
            break
        place -= 1
    return place


def _earlier(found: Facts) -> Iterator[dict[str, Any]]:
    """Versions of which nothing was measured: those that can still be made, and those that cannot."""
    whole = _makeable(found)
    silent = [s["sequence"] for s in found["evaluation"]["steps"] if not s["measured"]]
    gone = "not evaluated, and their versions cannot be made again: entries "
    yield from _two(
        found,
        "accuracy of earlier versions",
        ([s for s in silent if s in whole], "not evaluated: entries "),
        ([s for s in silent if s not in whole], gone),
        " --all",
    )


def _two(
    found: Facts, about: str, open_: tuple[list[Any], str], lost: tuple[list[Any], str], more: str
) -> Iterator[dict[str, Any]]:
    for (items, words), fill in ((open_, evaluate(found, more)), (lost, None)):
        if items:
            yield _gap(about, words + _some(items), fill)


def _vectors(found: Facts) -> Iterator[dict[str, Any]]:
    if found["vectors"] is not None or not found["members"]:
        return
    about, retention = "cosines and norms of task vectors", found["deployed"]["retention"]
    if retention == "vectors":
        fill = f"plait report {quote(found['line']['path'])} --out FILE"
        yield _gap(about, "this report was made with --quick, which reads no tensors", fill)
    else:
        fill = "plait init LINE --base DIR --retention vectors"
        words = f"this line keeps no tensors of its members (retention {retention}); a new line can"
        yield _gap(about, words, fill)


def _entries(numbers: Sequence[int]) -> str:
    return f"{'entry' if len(numbers) == 1 else 'entries'} {_some(numbers)}"


def _some(items: Sequence[object], most: int = 8) -> str:
    """`a, b, c and 4 more`."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(map(str, items[:most])) + more


def _gap(about: str, words: str, fill: str | None) -> dict[str, Any]:
    return {"about": about, "found": words, "fill": fill}
