"""docs/command-line.md says what the parser takes and what the commands print: no more and no less."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from plait import errors
from plait.cli.entry import GLOBAL, VERBS
from plait.cli.parser import build
from plait.cli.schema import SCHEMA
from plait.recipe.mergekit import METHODS

DOCS = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
TOP, PARSERS = build(VERBS, [verb.name for verb in VERBS])
OPTIONS = {
    flag for action in PARSERS["init"]._actions if action.dest == "options" for flag in action.option_strings
} - {"--set"}
SECTIONS = dict(re.findall(r"^### plait (\w+)[^\n]*\n(.*?)(?=^##)", DOCS, re.M | re.S))


def flags(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))


def keys(text: str) -> list[str]:
    """First cells of the table of JSON keys."""
    table = re.search(r"^\| JSON key .*\n\|[-|]+\n((?:\|.*\n)*)", text, re.M)
    assert table is not None
    return re.findall(r"^\| `(\w+)`", table[1], re.M)


def test_every_verb_has_a_section_and_every_section_a_verb() -> None:
    assert list(SECTIONS) == [verb.name for verb in VERBS]


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS])
def test_arguments(verb: str) -> None:
    own = {flag for flag in PARSERS[verb].flags() if flag.startswith("--")} - {*GLOBAL, "--help"}
    tabled = set(re.findall(r"^\| `(--[a-z-]+)", SECTIONS[verb], re.M))
    assert tabled == own - (OPTIONS if verb == "init" else set())
    assert flags(SECTIONS[verb]) <= own | {*GLOBAL, "--help"} | ({"--from"} if verb == "unmerge" else set())
    places = [a.metavar for a in PARSERS[verb]._actions if not a.option_strings]
    heading = re.search(rf"^### plait {verb}(.*)$", DOCS, re.M)
    assert heading is not None
    assert re.findall(r"[A-Z]+", heading[1]) == places
    assert re.findall(r"^\| `([A-Z]+)`", SECTIONS[verb], re.M) == places


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS])
def test_json_keys(verb: str) -> None:
    assert keys(SECTIONS[verb]) == list(SCHEMA[verb])
    for key, words in SCHEMA[verb].items():
        assert f"| `{key}` | {words} |" in SECTIONS[verb]


def test_global_flags() -> None:
    part = DOCS[DOCS.index("## For every command") : DOCS.index("## Exit codes")]
    assert set(re.findall(r"^\| `(--[a-z]+)`", part, re.M)) == {*GLOBAL, "--help"}


def test_error_kinds_and_exit_codes() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", DOCS, re.M))
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.PlaitError)]
    for kind in classes:
        assert rows.pop(kind.__name__) == str(kind.exit_code)
    assert rows == {"OSError": "1", "MemoryError": "1", "Bug": "1", "Interrupted": "130"}


def test_every_mergekit_method_is_named() -> None:
    part = DOCS[DOCS.index("### mergekit's") :]
    assert {name for name in METHODS if f"`{name}`" not in part} == set()
