"""The model card: what is in it, and that no name can break out of it."""

from __future__ import annotations

from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from plait.checkpoint.card import card, escape, quote

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
