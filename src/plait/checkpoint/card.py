"""The model card of a merged checkpoint: README.md with the front matter that model hubs read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, takewhile
from typing import Any

from plait.checkpoint.header import open_regular
from plait.errors import PlaitError
from plait.words import plural

TAKEN = ("library_name", "pipeline_tag", "license", "license_name", "license_link", "language")
"""Fields of a base's card that a merged model's card takes along."""

_LIMIT = 1_000_000  # bytes of a base's README.md that are looked at
_LONG = 500  # characters of a value; a longer one is not such a field
_MANY = 200  # values in a list
_MARKS = frozenset("\\`*_{}[]()#+!|~>$&")


def card(facts: Mapping[str, Any]) -> str:
    """The text of a model card. The same facts give the same text; there is no date in it.

    facts: `base` (name of the base), `method`, and where known: `options` (table), `members` (list of tables
    with `task`, `weight`, `digest`), `digest` (root digest of the merged checkpoint), `base_digest`, `plait`
    (version), `tags` (beside `merge` and `plait`), what `card_facts_of_base` found (a string or a list of strings
    each), `notes` (list of sentences).
    All values are data: nothing in them can end the front matter, open a table cell or become markup.
    Source of the front matter: https://huggingface.co/docs/hub/model-cards.
    """
    return _front_matter(facts) + "\n" + "\n\n".join(_body(facts)) + "\n"


def _front_matter(facts: Mapping[str, Any]) -> str:
    lines = ["---", f"base_model: {quote(facts['base'])}", "base_model_relation: merge"]
    for key in TAKEN:
        value = facts.get(key)
        if isinstance(value, list | tuple):
            lines += [f"{key}:", *(f"- {quote(item)}" for item in value)]
        elif value:
            lines.append(f"{key}: {quote(value)}")
    tags = dict.fromkeys(("merge", "plait", *map(str, facts.get("tags") or ())))
    lines += ["tags:", *(f"- {quote(tag)}" for tag in tags), "---", ""]
    return "\n".join(lines)


def _body(facts: Mapping[str, Any]) -> Iterable[str]:
    members = list(facts.get("members") or ())
    yield f"# {escape(facts['base'])}, merged with {plural(len(members), 'fine-tuned model')}"
    maker = f"plait {escape(facts['plait'])}" if facts.get("plait") else "plait"
    yield (
        f"This model was made by {maker} from **{escape(facts['base'])}** with the method "
        f"**{escape(facts['method'])}**. It is a pure function of what this page lists."
    )
    if members:
        yield "## Members"
        rows = ["| task | weight | checkpoint (sha256) |", "|---|---|---|"]
        for member in members:
            digest = str(member.get("digest") or "")
            cells = (escape(member["task"]), escape(member.get("weight", 1)), escape(digest) or "unknown")
            rows.append(f"| {' | '.join(cells)} |")
        yield "\n".join(rows)
    options = facts.get("options") or {}
    if options:
        yield "## Options"
        rows = ["| option | value |", "|---|---|"]
        rows += [f"| {escape(name)} | {escape(options[name])} |" for name in sorted(options)]
        yield "\n".join(rows)
    digests = [("base", facts.get("base_digest")), ("this model", facts.get("digest"))]
    known = [f"- {name}: {escape(digest)}" for name, digest in digests if digest]
    if known:
        yield "## Digests"
        yield "\n".join(known)
        yield (
            "A digest is the sha256 of one line per tensor, sorted by name: the tensor's sha256 (of its dtype, "
            "shape and bytes), two spaces, its name. It does not depend on how the checkpoint is cut into files."
        )
    notes = [str(note) for note in facts.get("notes") or ()]
    if notes:
        yield "## Notes"
        yield "\n".join(f"- {escape(note)}" for note in notes)


def card_facts_of_base(path: str | os.PathLike[str]) -> dict[str, str | list[str]]:
    """What the front matter of a base's README.md says of TAKEN, as facts for `card`; {} if it says nothing.

    path: the checkpoint, a folder or a file (which has no card). Read line by line: words, quoted strings, and
    lists of them in either form. Whatever is more than that is left out. Never raises.
    """
    try:
        text = _read_start(os.path.join(os.fspath(path), "README.md"))
    except (PlaitError, OSError, ValueError):
        return {}
    lines = text.removeprefix("\ufeff").splitlines()
    lines = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not lines or lines[0].rstrip() != "---":
        return {}
    end = next((i for i, line in enumerate(lines) if i and line.rstrip() in ("---", "...")), 0)
    found: dict[str, str | list[str]] = {}
    for place in range(1, end):
        key, colon, rest = lines[place].partition(":")
        if not colon or key not in TAKEN or rest[:1] not in ("", " ", "\t"):
            continue
        value = _value(rest, lines[place + 1 : end])
        if value:
            found[key] = value
    return found


def _read_start(path: str) -> str:
    descriptor, size = open_regular(path)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(min(size, _LIMIT)).decode("utf-8", "replace")


def _value(rest: str, following: Sequence[str]) -> str | list[str] | None:
    """The value that begins after a colon: a scalar, a list in brackets, or a list on the lines below."""
    rest = _without_comment(rest)
    if rest.startswith("[") and rest.endswith("]"):
        return _plain(rest[1:-1].split(","))
    if rest:
        # a line that is set in goes on with the value: such values are not read
        return None if following and following[0][:1] in (" ", "\t") else _scalar(rest)
    items = takewhile(lambda line: line.startswith("- "), (line.lstrip() for line in following))
    return _plain(line[2:] for line in items)


def _plain(items: Iterable[str]) -> list[str] | None:
    values = [_scalar(_without_comment(item)) for item in islice(items, _MANY)]
    return [value for value in values if value] or None


def _scalar(text: str) -> str | None:
    """A word or a quoted string without escapes, else None."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        text = text[1:-1]
        known = "\\" not in text and "'" not in text and '"' not in text
    else:
        known = text[:1] not in tuple("\"'[]{}&*!|>%@`#,?") and ": " not in text and text not in ("null", "~")
    return text if known and text.isprintable() and 0 < len(text) <= _LONG else None


def _without_comment(text: str) -> str:
    text = text.strip()
    if text[:1] in ("'", '"'):
        end = text.find(text[0], 1) + 1
        return text[:end] if end and text[end:].lstrip()[:1] in ("", "#") else text
    return re.split(r"(?:^|\s)#", text, maxsplit=1)[0].rstrip()


def quote(value: object) -> str:
    """A value as a double-quoted YAML string, on one line, whatever it holds."""
    return '"' + "".join(_yaml(character) for character in str(value)) + '"'


def _yaml(character: str) -> str:
    if character in '\\"':
        return "\\" + character
    if character.isprintable():
        return character
    code = ord(character)
    return "\\uFFFD" if 0xD800 <= code < 0xE000 else f"\\U{code:08X}"


def escape(value: object) -> str:
    """A value as Markdown text on one line: no markup, no HTML, no end of a table cell."""
    text = "".join(c if c.isprintable() else " " for c in str(value))
    return "".join("&lt;" if c == "<" else f"\\{c}" if c in _MARKS else c for c in text)
