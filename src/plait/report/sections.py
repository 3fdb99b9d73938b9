"""The parts of a report that are about what is deployed: recipe, members, ledger, removals, cost, gaps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any

from plait import words
from plait.report.charts import columns
from plait.report.lanes import lanes
from plait.report.markup import Child, Html, tag
from plait.report.parts import code, digest, facts, figure, note, section, table

Facts = Mapping[str, Any]

REMOVAL = {
    "subtract": "its addend is subtracted from exact sums",
    "refold": "the members after it are folded again",
    "recompute": "the model is computed again without it",
    "never": "it cannot be taken out (retention none)",
}


CHANGES = ("merge", "unmerge", "reweight", "replace")
"""Verbs that change the members; after the others the version is the one that was there."""


def deployed(found: Facts) -> Html:
    row, members = found["deployed"], found["members"]
    same = ", ".join(map(str, row["same_as"]))
    return section(
        "deployed",
        "What is deployed, and why",
        tag("p", _why(found)),
        facts(
            (
                ("version", code(row["version"])),
                ("same bytes as", f"the version after ledger entry {same}" if same else None),
                ("folder", code(row["model"])),
                ("base", [row["base"]["name"], " ", code(row["base"]["digest"])]),
                ("method", row["method"]),
                ("options", words.options(row["options"])),
                ("seed", str(row["seed"])),
                ("private tensors", _list(row["private"])),
                ("retention", row["retention"]),
                ("a member leaves", REMOVAL.get(row["removal"], row["removal"])),
                ("on disk", _disk(found)),
                (
                    "kept",
                    f"members {words.size(row['bytes']['members'])}, state {words.size(row['bytes']['state'])}",
                ),
                ("to prove it", code(f"plait verify {quote(found['line']['path'])} --replay")),
            )
        ),
        _members(members, found) if members else None,
    )


def _disk(found: Facts, most: int = 8) -> Child:
    """The versions on disk, and what each is: the base, the deployed one, the one after an entry; newest last."""
    row = found["deployed"]
    after = {e["version"]: f"after entry {e['sequence']}" for e in found["ledger"] if e["verb"] in CHANGES}
    known = {**after, row["base"]["digest"]: "base", row["version"]: "deployed"}
    order = [v for v in {row["base"]["digest"]: 0, **after} if v in row["versions"]]
    more = len(order) - most
    shown = order if more <= 0 else [order[0], *order[-most + 1 :]]
    parts: list[Child] = [[", " if i else None, known[v], " ", digest(v)] for i, v in enumerate(shown)]
    return [*parts, f" and {more} older" if more > 0 else None]


def _list(names: Sequence[str]) -> Child:
    return [[", " if i else None, code(name)] for i, name in enumerate(names)] if names else None


def _why(found: Facts) -> Child:
    row, count = found["deployed"], len(found["members"])
    if not count:
        return "The line has no members: the base itself is deployed."
    newest = [e for e in found["ledger"] if e["verb"] in CHANGES][-1]
    return [
        f"The deployed model is the {row['method']} merge of {words.plural(count, 'member')} into ",
        f"{row['base']['name']}. It is a pure function of the base, the method with its options, the seed and the ",
        f"members in this order, with these weights. The newest change was entry {newest['sequence']}: ",
        tag("strong", f"{newest['verb']} {newest['task']}"),
        f", {words.time(newest['time'])}.",
    ]


def _members(members: Sequence[Facts], found: Facts) -> Html:
    by_task = {t["task"]: t for t in found["evaluation"]["tasks"]}
    rows = []
    for place, m in enumerate(members, start=1):
        now = by_task.get(m["task"], {}).get("now")
        rows.append(
            (
                m["task"],
                str(place),
                words.weight(m["weight"]),
                [
                    digest(m["digest"]),
                    f" from {m['source']}" if m["source"] not in (None, m["task"]) else None,
                ],
                str(m["since"]),
                words.figure(m["distance"]),
                words.figure(m["changed"]),
                words.size(m["bytes"]),
                words.interval(now) if now else "not evaluated",
                _descent(m),
            )
        )
    head = (
        *("task", "order", "weight", "checkpoint", "since entry", "distance", "tensors"),
        *("kept", "accuracy now, %", "trained from"),
    )
    caption = (
        "Members in order of arrival. Distance: the norm of the task vector over that of the base, over tensors "
        "of two and more dimensions. Tensors: how many it changes. Accuracy on the test split, with its 95 % "
        "interval."
    )
    return table(head, rows, caption, "-nnwnnnnn-")


def _descent(member: Facts) -> Child:
    row = member.get("descends")
    if not row:
        return "the base"
    return [digest(row["version"]), f", which held {', '.join(row['tasks']) or 'no task'}"]


def ledger(found: Facts) -> Html:
    rows = []
    for e in found["ledger"]:
        rows.append(
            (
                str(e["sequence"]),
                words.time(e["time"]).removesuffix(" UTC"),
                e["verb"],
                e["task"] or words.NOTHING,
                str(len(e["members"])),
                digest(e["version"]),
                words.seconds(e["seconds"]),
                _told(e),
            )
        )
    head = ("entry", "time (UTC)", "verb", "task", "members", "version after", "took", "receipt and notes")
    return section(
        "ledger",
        "Ledger",
        tag(
            "p",
            f"{words.plural(len(rows), 'entry', 'entries')}, each with the hash of the one before. The hash of the ",
            "newest fixes the whole history: ",
            code(found["line"]["tip"]),
        ),
        figure(
            "Who was in, and when. A bar is a member, a mark an event.",
            lanes("Timeline of the ledger: members and events by ledger entry", found["ledger"]),
        ),
        table(head, rows, "All events, oldest first.", "nw--nwnx"),
        _software(found["ledger"]),
    )


def _software(entries: Sequence[Facts]) -> Html | None:
    """Which versions of software made which entries."""
    made: dict[str, list[int]] = {}
    for entry in entries:
        row = entry["software"]
        told = [f"{key} {row[key]}" for key in ("plait", "python", "torch") if row.get(key)]
        told += [row["cpu"]] if row.get("cpu") else []
        if told:
            made.setdefault(", ".join(told), []).append(entry["sequence"])
    if not made:
        return None
    return facts(
        (f"{'entry' if len(numbers) == 1 else 'entries'} {words.ranges(numbers)} by", stack)
        for stack, numbers in made.items()
    )


def _told(entry: Facts) -> Child:
    """Receipt and notes of an entry in words."""
    receipt = entry["receipt"] or {}
    lines: list[Child] = []
    if entry["verb"] == "unmerge" and receipt:
        exact = "exact" if receipt.get("exact") else "not exact"
        lines.append(
            [f"{receipt.get('how')}, {exact}; never merged gives ", digest(receipt.get("never_merged"))]
        )
    elif entry["verb"] == "purge" and receipt:
        lines.append(
            f"deleted {words.plural(len(receipt.get('objects', ())), 'object')} and "
            f"{words.plural(len(receipt.get('versions', ())), 'version')}, {words.size(receipt.get('bytes'))}"
        )
        lines += [f"still held by the export to {e['out']}" for e in receipt.get("exports", ())]
    elif entry["verb"] == "export" and receipt:
        lines.append([digest(receipt.get("version")), f" to {receipt.get('out')}"])
        if renewed := receipt.get("batchnorm"):
            lines.append(f"BatchNorm statistics computed anew from examples of {', '.join(renewed['tasks'])}")
    elif receipt:
        lines.append(", ".join(f"{key.replace('_', ' ')} {_value(value)}" for key, value in receipt.items()))
    lines += [receipt["note"]] if receipt.get("note") else []
    lines += list(entry["notes"] or ())
    return [tag("div", one) for one in lines] or words.NOTHING


def _value(value: object) -> str:
    if isinstance(value, float):
        return words.weight(value)
    text = str(value)
    return text[:12] if len(text) == 64 else text


def cost(found: Facts) -> Html:
    entries = [e for e in found["ledger"] if e["verb"] in ("init", "merge", "unmerge", "reweight", "replace")]
    names = [str(e["sequence"]) for e in entries]
    counts = [e["counts"] or {} for e in entries]
    series = [
        ("Seconds", [e["seconds"] for e in entries], words.seconds),
        ("Bytes read", [c.get("bytes_read") for c in counts], words.size),
        ("Bytes written", [c.get("bytes_written") for c in counts], words.size),
        ("Bytes kept of members", [e["kept"] for e in entries], words.size),
    ]
    drawn = []
    for title, values, say in series:
        if any(v is not None for v in values):
            tips = [
                f"entry {e['sequence']} {e['verb']} {e['task'] or ''}: {say(v)}"
                for e, v in zip(entries, values, strict=True)
            ]
            drawn.append(columns(f"{title} by ledger entry", f"{title} by entry", names, values, tips, say))
    head = ("entry", "verb", "task", "seconds", "tensors merged", "tensors copied", "read", "written", "kept")
    rows = [
        (
            str(e["sequence"]),
            e["verb"],
            e["task"] or words.NOTHING,
            words.seconds(e["seconds"]),
            words.figure(c.get("merged"), 9),
            words.figure(c.get("copied"), 9),
            words.size(c.get("bytes_read")),
            words.size(c.get("bytes_written")),
            words.size(e["kept"]),
        )
        for e, c in zip(entries, counts, strict=True)
    ]
    bytes_ = found["deployed"]["bytes"]
    return section(
        "cost",
        "Cost of each step",
        tag(
            "p",
            f"As recorded in the ledger. The line keeps {words.size(bytes_['members'])} of its members and "
            f"{words.size(bytes_['state'])} of state now. “Kept” is what the tensors of the members after an entry "
            "take on disk.",
        ),
        None
        if any("bytes_read" in c for c in counts)
        else note("The bytes that each step read and wrote were not recorded by the plait that made it."),
        figure(
            "Seconds and bytes of every step that changed the model.",
            Html("".join(drawn)),
            table(head, rows, "Cost by ledger entry.", "n--nnnnnn"),
        ),
    )


def gaps(found: Facts) -> Html:
    rows = found["gaps"]
    if not rows:
        return section(
            "gaps", "What is missing", tag("p", "Nothing: all that this page can show was recorded.")
        )
    cells = [
        (g["about"], g["found"], code(g["fill"]) if g["fill"] else "nothing can, any more") for g in rows
    ]
    return section(
        "gaps",
        "What is missing",
        tag("p", "Nothing on this page is estimated. What was not measured or not kept is listed here."),
        table(("missing", "why", "what would fill it in"), cells, "Gaps of this report.", "-xx"),
    )
