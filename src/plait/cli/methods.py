"""`plait methods`: what can be chosen, and what each method needs and costs."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict, fields
from inspect import cleandoc
from typing import Any

from plait.cli.output import Answer, listed, one_line, pairs, table
from plait.cli.parser import Parser, Verb
from plait.words import safe

_FACTS = ("summary", "family", "removal", "data", "order", "memory", "cost", "paper")


def _arguments(parser: Parser) -> None:
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="one method, with its options and description"
    )


def _row(name: str) -> dict[str, Any]:
    """All about one method, in plain values."""
    from plait.methods.registry import find
    from plait.methods.varied import rule_options

    kind = find(name)
    made = kind()
    options = {f.name: made.options()[f.name] for f in fields(kind)}
    facts = {key: value for key, value in asdict(kind.facts).items() if key in _FACTS}
    by_tensor = rule_options(kind)
    description = cleandoc(kind.__doc__ or "")
    return {
        "name": name,
        **facts,
        "options": options,
        "by_tensor": by_tensor,
        "description": description,
        "problem": None,
    }


def _broken(name: str, error: Exception) -> dict[str, Any]:
    empty = dict.fromkeys((*_FACTS, "options", "by_tensor", "description"))
    return {"name": name, **empty, "problem": one_line(f"cannot be loaded: {error}")}


def _methods(args: Namespace) -> Answer:
    from plait.methods.registry import names

    if args.name is not None:
        return _one(_row(args.name))
    rows = []
    for name in names():
        try:
            rows.append(_row(name))
        except Exception as error:  # a package of somebody else must not hide all other methods
            rows.append(_broken(name, error))
    cells = [
        (
            row["name"],
            row["family"] or "-",
            row["removal"] or "-",
            row["data"] or "-",
            row["summary"] or row["problem"],
        )
        for row in rows
    ]
    return Answer({"methods": rows}, table(("method", "family", "unmerge", "data", "what it is"), cells))


def _one(row: dict[str, Any]) -> Answer:
    facts: list[tuple[str, object]] = [
        ("family", row["family"]),
        ("unmerge", row["removal"]),
        ("data", row["data"]),
        ("order", "matters" if row["order"] else "does not matter"),
        ("memory", row["memory"]),
        ("cost", row["cost"]),
        ("paper", row["paper"]),
        ("options", listed(_named(row["options"])) or "none"),
        ("by tensor", ", ".join(row["by_tensor"]) or None),
    ]
    text = ["  " + safe(line) if line else "" for line in row["description"].splitlines()]
    return Answer({"methods": [row]}, [f"{row['name']}: {row['summary']}", *pairs(facts), "", *text])


VERBS = (Verb("methods", "list the methods, or describe one", _arguments, _methods),)


def _named(options: dict[str, object]) -> dict[str, object]:
    """Options with words for values that would not show."""
    return {
        key: "none" if value is None else "empty" if value == "" else value for key, value in options.items()
    }
