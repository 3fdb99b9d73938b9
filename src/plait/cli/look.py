"""`plait status`, `log`, `show`, `diff`: look at a line. Nothing is computed and nothing is changed."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from plait.cli.opening import add_line, deployed, open_line
from plait.cli.output import Answer, listed, number, one_line, pairs, short, table
from plait.cli.parser import Parser, Verb
from plait.words import plural, safe, size


def _status(args: Namespace) -> Answer:
    state = open_line(args).status()
    result = {**state, "line": str(args.line)}
    base, chosen, bytes_ = state["base"], listed(state["options"]), state["bytes"]
    rows: list[tuple[str, object]] = [
        ("base", f"{safe(base['name'])} ({short(base['digest'])})"),
        ("method", f"{state['method']} ({chosen})" if chosen else state["method"]),
        ("unmerge by", state["removal"]),
        ("retention", f"{state['retention']}, seed {state['seed']}"),
        ("takes", "experts of its last model only" if state["descent"] == "last" else None),
        ("private", ", ".join(map(safe, state["private"]))),
        ("data", _needs(state)),
        ("on disk", ", ".join(f"{kind} {size(n)}" for kind, n in bytes_.items() if n or kind != "data")),
        ("state", _expected(state)),
        ("changed", f"{state['changed']}, {plural(state['events'], 'entry', 'entries')} in the ledger"),
        *deployed(result),
        ("note", one_line(state["note"]) if state.get("note") else None),
        ("versions", _versions(state)),
    ]
    lines = [f"line {safe(args.line)}", *pairs(rows)]
    if state["members"]:
        cells = [
            (m["task"], number(m["weight"]), short(m["digest"]), m["source"] or "-", _descent(m))
            for m in state["members"]
        ]
        lines += ["", *table(("task", "weight", "digest", "from", "trained from"), cells, "  ")]
        lines += _examples(state["members"])
    return Answer(result, lines)


def _expected(state: Mapping[str, Any]) -> str | None:
    """How large the state becomes, before there is one."""
    if state["members"] or not state["state_bytes"]:
        return None
    return f"will take about {size(state['state_bytes'])}"


def _needs(state: Mapping[str, Any]) -> str | None:
    """What a merge needs of a task; None for methods that look at no data."""
    return None if state["data"] == "none" else f"{state['data']}, by --tasks"


def _examples(members: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is known of each member's examples, where any were used."""
    cells = [
        (m["task"], split, f"{row['count']} of {row['of']}", short(row["digest"]))
        for m in members
        for split, row in (m.get("examples") or {}).items()
    ]
    return ["", *table(("task", "split", "examples", "digest"), cells, "  ")] if cells else []


def _versions(state: Mapping[str, Any]) -> str:
    """The versions on disk: what each is, where that is known."""
    known = {state["base"]["digest"]: " (base)", state["version"]: " (deployed)"}
    return ", ".join(short(digest) + known.get(digest, "") for digest in state["versions"])


def _descent(member: Mapping[str, Any]) -> str:
    """What a member was fine-tuned from: the base, or a version that held other tasks."""
    row = member.get("descends")
    if not row:
        return "base"
    return f"{short(row['version'])} ({', '.join(map(safe, row['tasks'])) or 'no tasks'})"


def _log(args: Namespace) -> Answer:
    entries = open_line(args).log()
    cells = [
        (e["sequence"], e["time"], e["verb"], e["task"] or "-", len(e["members"]), short(e["version"]))
        for e in entries
    ]
    lines = table(("entry", "time", "verb", "task", "members", "version"), cells)
    return Answer({"line": str(args.line), "entries": entries}, lines)


def _show_arguments(parser: Parser) -> None:
    add_line(parser)
    parser.add_argument(
        "what",
        metavar="WHAT",
        help="number of a ledger entry, name of a task, or first characters of a digest",
    )


def _show(args: Namespace) -> Answer:
    found = dict(open_line(args).show(args.what))
    kind = str(found.pop("kind"))
    title = f"{kind} {safe(args.what)}"
    return Answer({"line": str(args.line), "kind": kind, "found": found}, [title, *_tree(found, "  ")])


def _tree(value: Mapping[str, Any], indent: str) -> list[str]:
    """All that is recorded, one value a line, parts indented."""
    lines: list[str] = []
    width = max((len(safe(key)) for key, item in value.items() if not _deep(item)), default=0)
    for key, item in value.items():
        if isinstance(item, Mapping) and item:
            lines += [f"{indent}{safe(key)}", *_tree(item, indent + "  ")]
        elif _deep(item):
            lines.append(f"{indent}{safe(key)}")
            for part in item:
                words = _flat(part) if isinstance(part, Mapping) else number(part)
                lines.append(f"{indent}  {words}")
        else:
            lines.append(f"{indent}{safe(key):<{width}}  {_leaf(item)}")
    return lines


def _deep(item: Any) -> bool:
    return bool(item) and isinstance(item, (Mapping, list, tuple))


def _leaf(item: Any) -> str:
    if item is None or item in ("", [], {}, ()):
        return "-"
    if isinstance(item, bool):
        return "yes" if item else "no"
    return number(item)


def _flat(part: Mapping[str, Any]) -> str:
    shown = ((key, short(v) if _digest(v) else _leaf(v)) for key, v in part.items() if not _deep(v))
    return ", ".join(f"{safe(key)} {words}" for key, words in shown)


def _digest(value: object) -> bool:
    return isinstance(value, str) and len(value) == 64 and all(c in "0123456789abcdef" for c in value)


def _diff_arguments(parser: Parser) -> None:
    add_line(parser)
    for name in ("a", "b"):
        parser.add_argument(name, metavar=name.upper(), help="an entry's number, a version's digest, or base")


def _diff(args: Namespace) -> Answer:
    found = open_line(args).diff(args.a, args.b)
    result = {**found, "line": str(args.line)}
    one, two = safe(args.a), safe(args.b)
    members, tensors = found["members"], found["tensors"]
    rows: list[tuple[str, object]] = [
        (f"only in {one}", _names(members["only_a"])),
        (f"only in {two}", _names(members["only_b"])),
        ("other weight", _names(members["weight"])),
        ("other checkpoint", _names(members["checkpoint"])),
        ("tensors", f"{tensors['same']} equal, {len(tensors['differ'])} different"),
    ]
    words = "the same bytes" if found["equal"] else "different bytes"
    title = f"{one} ({short(found['a'])}) and {two} ({short(found['b'])}): {words}"
    return Answer(result, [title, *pairs(rows), *_first(tensors, one, two)])


def _names(tasks: Sequence[str]) -> str:
    return ", ".join(map(safe, tasks))


def _first(tensors: Mapping[str, Any], one: str, two: str, limit: int = 20) -> list[str]:
    """The first names of tensors that are not equal."""
    rows = [safe(name) for name in tensors["differ"]]
    rows += [f"{safe(name)} (only in {one})" for name in tensors["only_a"]]
    rows += [f"{safe(name)} (only in {two})" for name in tensors["only_b"]]
    more = [f"… and {len(rows) - limit} more; --json lists all"] if len(rows) > limit else []
    return [f"    {row}" for row in [*rows[:limit], *more]]


VERBS = (
    Verb("status", "show what is deployed and of what it is made", add_line, _status),
    Verb("log", "list all events, oldest first", add_line, _log),
    Verb("show", "show all that is recorded of an entry, a task or a version", _show_arguments, _show),
    Verb("diff", "show how two versions differ", _diff_arguments, _diff),
)
