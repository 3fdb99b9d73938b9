"""The model card: what is in it, and that no name can break out of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from plait.checkpoint.card import TAKEN, card, card_facts_of_base, escape, quote

FACTS: dict[str, Any] = {
    "base": "org/base-7b",
    "base_digest": "b" * 64,
    "method": "task_arithmetic",
    "options": {"scale": 0.3, "density": 0.2},
    "members": [
        {"task": "legal", "weight": 1.0, "digest": "1" * 64},
        {"task": "medical", "weight": 0.5, "digest": "2" * 64},
    ],
    "digest": "d" * 64,
    "license": "apache-2.0",
    "language": ["en", "no"],
    "tags": ["demo"],
}


def front(text: str) -> dict[str, Any]:
    before, matter, _ = text.split("---\n", 2)
    assert before == ""
    return dict(yaml.safe_load(matter))


def test_the_front_matter_is_what_model_hubs_read() -> None:
    assert front(card(FACTS)) == {
        "base_model": "org/base-7b",
        "base_model_relation": "merge",
        "license": "apache-2.0",
        "language": ["en", "no"],
        "tags": ["merge", "plait", "demo"],
    }


def test_members_weights_options_and_digests_are_on_the_page() -> None:
    text = card(FACTS)
    assert f"| legal | 1.0 | {'1' * 64} |" in text
    assert f"| medical | 0.5 | {'2' * 64} |" in text
    assert "| density | 0.2 |\n| scale | 0.3 |" in text
    assert "d" * 64 in text
    assert "b" * 64 in text
    assert "2 fine-tuned models" in text
    assert card(FACTS) == text  # no time in it


def test_a_removed_member_is_not_named() -> None:
    assert "medical" not in card({**FACTS, "members": FACTS["members"][:1]})


def test_a_base_alone_and_unknown_facts() -> None:
    text = card({"base": "b", "method": "average", "members": [{"task": "a", "digest": None}]})
    assert "| a | 1 | unknown |" in text
    assert "Options" not in text
    assert "None" not in text
    assert "Members" not in card({"base": "b", "method": "average"})


NASTY = st.text(min_size=1) | st.sampled_from(
    [
        "---",
        "\n---\n",
        "a: b",
        "'",
        '"',
        "\\",
        "yes",
        "1.0",
        "null",
        "| x |",
        "<script>",
        "`",
        "#",
        "\u2028",
        "\x85",
        "\ufeff",
    ]
)


@given(NASTY, NASTY)
def test_any_name_stays_data(base: str, task: str) -> None:
    text = card(
        {**FACTS, "base": base, "tags": [task], "members": [{"task": task, "weight": 1, "digest": "x"}]}
    )
    matter = front(text)
    clean = "".join("�" if 0xD800 <= ord(c) < 0xE000 else c for c in base)
    assert matter["base_model"] == clean
    assert len(text.splitlines()) == len(card({**FACTS, "members": FACTS["members"][:1]}).splitlines())
    text.encode()


def test_escapes() -> None:
    assert quote('a"b\\c\n\x00') == '"a\\"b\\\\c\\U0000000A\\U00000000"'
    assert escape("a|b <i> *c*\n[d](e)") == "a\\|b &lt;i\\> \\*c\\* \\[d\\]\\(e\\)"


README = """---
# the card of a base
library_name: transformers  # a comment
license: other
license_name: 'llama3'
license_link: "https://host/LICENSE#part"
language:
- en
  # one more
- "no"
tags:
- license
model-index:
- name: x
  license: inner
pipeline_tag : ignored
---
license: mit
"""


def facts_of(folder: Path, text: str | bytes) -> dict[str, Any]:
    (folder / "README.md").write_bytes(text if isinstance(text, bytes) else text.encode())
    return dict(card_facts_of_base(folder))


def test_facts_of_a_base_go_into_the_card(tmp_path: Path) -> None:
    found = facts_of(tmp_path, README)
    assert found == {
        "library_name": "transformers",
        "license": "other",
        "license_name": "llama3",
        "license_link": "https://host/LICENSE#part",
        "language": ["en", "no"],
    }
    assert facts_of(tmp_path, "\ufeff" + README.replace("\n", "\r\n")) == found
    matter = front(card({"base": "b", "method": "average", **found}))
    assert {key: matter[key] for key in found} == found


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("language: [en, 'no', \"de\"]", ["en", "no", "de"]),
        ("language: no", "no"),
        ("language:\n  - en\n  - fr", ["en", "fr"]),
        ("license: apache-2.0", "apache-2.0"),
        ("license: null", None),
        ("license:", None),
        ("license: |\n  long\n  text", None),
        ("license: two\n  lines", None),
        ("license: &a x", None),
        ("license: {a: b}", None),
        ('license: "a\\nb"', None),
        ("license:mit", None),
        ("  license: mit", None),
        ("license: " + "x" * 501, None),
        ("license: a\x00b", None),
        ("license: '", None),
        ("license: []", None),
    ],
)
def test_simple_values_are_read_and_others_left_out(tmp_path: Path, line: str, value: object) -> None:
    found = facts_of(tmp_path, f"---\n{line}\ntags: []\n---\n")
    assert list(found.values()) == ([] if value is None else [value])


def test_a_base_without_a_card_that_can_be_read(tmp_path: Path) -> None:
    assert card_facts_of_base(tmp_path / "none") == card_facts_of_base("a\0b") == {}
    assert (
        facts_of(tmp_path, "") == facts_of(tmp_path, "---") == facts_of(tmp_path, "---\nlicense: mit\n") == {}
    )
    assert facts_of(tmp_path, "text\n---\nlicense: mit\n---\n") == {}
    late = "---\nlicense: mit\n" + "# " + "x" * 1_000_000 + "\n---\n"
    assert facts_of(tmp_path, late) == {}  # its end is beyond the limit
    assert facts_of(tmp_path, "---\nlicense: mit\n---\n" + "x" * 2_000_000) == {"license": "mit"}
    many = "---\nlanguage:\n" + "- en\n" * 5000 + "---\n"
    assert facts_of(tmp_path, many) == {"language": ["en"] * 200}
    assert card_facts_of_base(tmp_path / "README.md") == {}  # a bare file has no card
    (tmp_path / "README.md").unlink()
    os.mkfifo(tmp_path / "README.md")
    assert card_facts_of_base(tmp_path) == {}


@given(st.binary(max_size=60), st.sampled_from(TAKEN), NASTY)
def test_no_readme_raises_or_breaks_the_card(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, key: str, value: str
) -> None:
    folder = tmp_path_factory.getbasetemp()
    start = f"---\n{key}: ".encode()
    for text in (data, start + data + b"\n---\n", start + value.encode("utf-8", "replace") + b"\n---\n"):
        found = facts_of(folder, text)
        assert found.keys() <= set(TAKEN)
        matter = front(card({"base": "b", "method": "average", **found}))
        assert {name: matter[name] for name in found} == found
