"""The model card of a merged checkpoint: README.md with the front matter that model hubs read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_MARKS = frozenset("\\`*_{}[]()#+!|~>$&")


def card(facts: Mapping[str, Any]) -> str:
    """The text of a model card. The same facts give the same text; there is no date in it.

    facts: `base` (name of the base), `method`, and where known: `options` (table), `members` (list of tables
    with `task`, `weight`, `digest`), `digest` (root digest of the merged checkpoint), `base_digest`, `plait`
    (version), `tags` (beside `merge` and `plait`), `license`, `language`, `library_name`, `pipeline_tag`,
    `notes` (list of sentences).
    All values are data: nothing in them can end the front matter, open a table cell or become markup.
    Source of the front matter: https://huggingface.co/docs/hub/model-cards.
    """
    return _front_matter(facts) + "\n" + "\n\n".join(_body(facts)) + "\n"


def _front_matter(facts: Mapping[str, Any]) -> str:
    lines = ["---", f"base_model: {quote(facts['base'])}", "base_model_relation: merge"]
    for key in ("library_name", "pipeline_tag", "license", "language"):
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
    yield f"# {escape(facts['base'])}, merged with {len(members)} fine-tuned {_plural('model', len(members))}"
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


def _plural(word: str, count: int) -> str:
    return word if count == 1 else word + "s"
