"""The page: well-formed, closed to the outside, escaped, complete, readable without sight."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plait.report.facts import gather
from plait.report.markup import Html, tag
from plait.report.page import NAV, POLICY, page
from tests.line.models import base_tensors, expert_tensors, write_folder
from tests.report.lines import make, measure
from tests.report.parsing import parse, svg_texts

Facts = dict[str, Any]

TASKS = ["trec6", "sst2", "ag_news", "banking77", "clinc", "snips7", "emotion", "spam"]

ELEMENTS = """
html head meta title style body header h1 h2 h3 p nav ul li a main dl div dt dd section article figure figcaption
details summary table thead tbody tr th td code strong span footer svg g text rect line circle path polyline
"""
ATTRIBUTES = """
lang charset http-equiv content name class href id aria-label aria-labelledby role tabindex scope title viewbox width
height x y x1 y1 x2 y2 cx cy r rx d points text-anchor transform
"""


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """Facts of a line in which everything happened that can happen to one, in part measured."""
    folder = tmp_path_factory.mktemp("page")
    line = make(folder, TASKS, private="head.*")
    line.unmerge("banking77")
    line.reweight("sst2", 2.0)
    line.replace("snips7", write_folder(folder / "snips8", expert_tensors(base_tensors(), 30)))
    line.export(folder / "out")
    line.merge(write_folder(folder / "child", expert_tensors(base_tensors(), 40)), descends_from="2")
    line.unmerge("spam")
    line.purge("spam")
    measure(line, [*TASKS[:6], "child"], entries=[2, 3, 4, 7, 8, 9, 12, 13])
    return gather(line)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return gather(make(tmp_path_factory.mktemp("empty"), []))


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """A line with one member, nothing measured."""
    return gather(make(tmp_path_factory.mktemp("one"), ["only"]))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """A line with one member that left, of which some was measured."""
    line = make(tmp_path_factory.mktemp("small"), ["t"])
    line.unmerge("t")
    line.merge(line.path.parent / "t")
    measure(line, ["t"], entries=[1])
    return gather(line)


@pytest.fixture(params=["facts", "empty", "one", "small"])
def each(request: pytest.FixtureRequest) -> Facts:
    found: Facts = request.getfixturevalue(request.param)
    return found


# form


def test_the_page_is_well_formed(each: Facts) -> None:
    found = parse(page(each))
    assert found.problems == []
    assert {name for name, _ in found.elements} <= set(ELEMENTS.split())
    assert {key for _, attributes in found.elements for key in attributes} <= set(ATTRIBUTES.split())


def test_nothing_leads_outside(each: Facts) -> None:
    found = parse(page(each))
    for name, attributes in found.elements:
        for key, value in attributes.items():
            assert "://" not in (value or ""), f"{name} {key}"
            assert key not in ("src", "srcset", "action", "data", "style"), name
            assert key != "href" or (value or "").startswith("#")
    assert not any(word in found.style for word in ("url(", "@import", "expression", "://", "<"))
    policies = [m for m in found.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert [m["content"] for m in policies] == [POLICY]
    assert POLICY == "default-src 'none'; style-src 'unsafe-inline'"


def test_the_policy_stands_before_what_it_rules(one: Facts) -> None:
    text = page(one)
    assert text.index("Content-Security-Policy") < text.index("<style>")


def test_links_lead_to_parts_of_the_page(each: Facts) -> None:
    found = parse(page(each))
    ids = [attributes["id"] for _, attributes in found.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {f"#{anchor}" for anchor, _ in NAV} <= {a["href"] for a in found.all("a")}
    assert {(a["href"] or "")[1:] for a in found.all("a")} <= set(ids)
    assert {s["aria-labelledby"] for s in found.all("section")} <= set(ids)


def test_the_same_facts_give_the_same_bytes(each: Facts) -> None:
    text = page(each)
    assert page(copy.deepcopy(each)) == text
    assert page(json.loads(json.dumps(each))) == text


def test_the_same_bytes_in_another_process(facts: Facts, tmp_path: Path) -> None:
    (tmp_path / "facts.json").write_text(json.dumps(facts))
    code = (
        "import json, sys; from plait.report.page import page; "
        "sys.stdout.buffer.write(page(json.load(open('facts.json'))).encode())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7", "LC_ALL": "C"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=True, env=environment
    )
    assert done.stdout == page(facts).encode()


def test_drawing_loads_no_tensor_library() -> None:
    code = "import plait.report.page, sys; print([m for m in ('torch', 'numpy', 'plait.line') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# hostile names

HOSTILE = (
    """<script>x()</script>"onload="x' onload='x--><!-- ]]></style></title></svg>&lt;&#x3c; {{x}} \\u003c"""
)
OWN_WORDS = {
    "verb",
    "time",
    "how",
    "retention",
    "removal",
    "about",
    "method",
    "version",
    "digest",
    "tip",
    "plait",
}


def renamed(value: Any, rename: Callable[[str], str]) -> Any:
    """Facts in which every text that is no word of plait is another."""
    if isinstance(value, dict):
        return {k: v if k in OWN_WORDS else renamed(v, rename) for k, v in value.items()}
    if isinstance(value, list):
        return [renamed(item, rename) for item in value]
    return rename(value) if isinstance(value, str) else value


def test_hostile_names_change_no_element(facts: Facts) -> None:
    hostile = parse(page(renamed(facts, lambda text: text + HOSTILE)))
    harmless = parse(page(renamed(facts, lambda text: text + "x" * len(HOSTILE))))
    assert hostile.problems == []
    assert hostile.shape == harmless.shape
    assert hostile.style == harmless.style
    assert f"trec6{HOSTILE}" in hostile.text


def test_a_hostile_name_reads_as_it_is(facts: Facts) -> None:
    found = parse(page(renamed(facts, lambda text: HOSTILE if text == "trec6" else text)))
    assert HOSTILE in found.texts
    assert any(HOSTILE in (attributes.get("aria-label") or "") for _, attributes in found.elements) is False


def test_characters_that_turn_or_hide_text_are_shown(one: Facts) -> None:
    bad = "a\u202eb\x00c\x1bd\u2028e\ud800f"
    text = page(renamed(one, lambda word: bad if word == "only" else word))
    assert not any(c in text for c in "\u202e\x00\x1b\u2028\ud800")
    assert "a\\u202eb\\x00c\\x1bd\\u2028e\\ud800f" in parse(text).text
    text.encode("utf-8")


def test_markup_escapes_by_construction() -> None:
    assert tag("p", "<b>", Html("<i>"), title='"><x') == '<p title="&quot;&gt;&lt;x">&lt;b&gt;<i></p>'
    assert tag("p", ["a", None, False, [1]], hidden=True, lang=None) == "<p hidden>a1</p>"
    assert tag("rect", x=1 / 3, y=-0.001) == '<rect x="0.33" y="0"/>'


# content


def test_every_member_is_listed(facts: Facts) -> None:
    found = parse(page(facts))
    assert [m["task"] for m in facts["members"]] == [
        "trec6",
        "sst2",
        "ag_news",
        "clinc",
        "snips7",
        "emotion",
        "child",
    ]
    for member in facts["members"]:
        assert found.texts.count(member["task"]) >= 5  # members, ledger, timeline, tables
        assert member["digest"] in {c.get("title") for c in found.all("code")}
    for entry in facts["ledger"]:
        assert entry["version"][:12] in found.text


def test_versions_on_disk_are_told(facts: Facts) -> None:
    """Nine are there: the base, the newest ones and how many more."""
    text = parse(page(facts)).text.replace("\n", "")
    assert len(facts["deployed"]["versions"]) == 9
    newest = facts["deployed"]["version"]
    base = facts["deployed"]["base"]["digest"]
    assert f"base {base[:12]}, after entry " in text
    assert f", deployed {newest[:12]} and 1 older" in text


def test_a_version_is_called_by_the_entry_that_made_it(tmp_path: Path) -> None:
    """And not by an export or a purge that left it as it was."""
    line = make(tmp_path, ["a", "b"])
    line.export(tmp_path / "out")
    line.merge(write_folder(tmp_path / "c", expert_tensors(base_tensors(), 40)))
    before = {e["sequence"]: e["version"] for e in line.log()}
    line.unmerge("c")
    line.export(tmp_path / "again")
    line.merge(write_folder(tmp_path / "d", expert_tensors(base_tensors(), 41)))
    line.unmerge("d")
    found = gather(line)
    text = parse(page(found)).text.replace("\n", "")
    assert f"after entry 1 {before[1][:12]}" in text
    assert [row["again"] for row in found["removals"]] == [[2], [2, 5]]
    assert found["deployed"]["same_as"] == [2, 5]
    line.merge(tmp_path / "d")
    text = parse(page(gather(line))).text.replace("\n", "")
    assert f"after entry 8 {before[2][:12]}" in text
    line.export(tmp_path / "more")
    line.reweight("d", 2.0)
    after = line.log()[-2]["version"]
    assert f"after entry 9 {after[:12]}" in parse(page(gather(line))).text.replace("\n", "")


def test_what_was_not_measured_is_said_with_its_command(one: Facts, facts: Facts) -> None:
    text = parse(page(one)).text
    assert "No version of this line was evaluated" in text
    assert f"plait eval {one['line']['path']} --tasks tasks.yaml" in text
    text = parse(page(facts)).text
    assert "not evaluated on emotion" in text
    for gap in facts["gaps"]:
        assert gap["found"] in text
        assert gap["fill"] is None or gap["fill"] in text


def test_transfer_is_never_shown_without_the_gap(facts: Facts) -> None:
    changed = copy.deepcopy(facts)
    for step in changed["evaluation"]["steps"]:
        step["figures"]["plasticity_gap"] = None
    text = parse(page(changed)).text
    assert "Backward transfer is shown only beside the plasticity gap" in text
    assert "BWT and" not in text
    assert "Backward transfer (BWT) and plasticity gap, points" not in text
    assert "Backward transfer (BWT) and plasticity gap, points" in parse(page(full(facts))).text


def full(facts: Facts) -> Facts:
    """Facts in which all figures are known."""
    changed = copy.deepcopy(facts)
    for step in changed["evaluation"]["steps"]:
        step["figures"].update(acc=0.7, backward=-0.02, plasticity_gap=0.1)
    return changed


def test_numbers_have_tables(facts: Facts) -> None:
    """Every figure but the timeline, whose table is the ledger, has its numbers behind a fold."""
    found = parse(page(full(facts)))
    figures = len(found.all("figure"))
    assert figures == len(found.all("details")) + 1 == len(found.all("figcaption"))
    assert len(found.all("table")) == figures + 2  # members and gaps; the ledger stands for the timeline
    assert all(t.get("aria-label") for t in found.all("table"))
    cells = [text for text in found.texts if text.startswith("0.0 points")]
    assert cells


def test_figures_have_names(facts: Facts) -> None:
    found = parse(page(facts))
    assert len(found.all("title")) > 50  # tooltips, beside the title of the page
    assert found.all("svg")
    assert all(s["role"] == "img" and s["aria-label"] for s in found.all("svg"))
    scrolls = [d for d in found.all("div") if d.get("class") == "scroll"]
    assert all(d["tabindex"] == "0" and d["role"] == "group" and d["aria-label"] for d in scrolls)
    assert found.all("html") == [{"lang": "en"}]
    headings = [name for name, _ in found.elements if name in ("h1", "h2", "h3")]
    assert headings[:2] == ["h1", "h2"]
    assert headings.count("h1") == 1


@pytest.mark.parametrize("name", ["facts", "small"])
def test_text_in_figures_stays_inside(request: pytest.FixtureRequest, name: str) -> None:
    """No label is cut by the frame of its figure: six tenths of the font size is a wide letter."""
    labels = svg_texts(page(full(request.getfixturevalue(name))))
    for frame, attributes, words in labels:
        x, wide = float(attributes["x"] or 0), len(words) * 12 * 0.6
        start = {"middle": x - wide / 2, "end": x - wide}.get(attributes.get("text-anchor") or "", x)
        assert 0 <= float(attributes["y"] or 0) <= frame[1]
        if "transform" not in attributes:
            assert start >= -1, words
            assert start + wide <= frame[0] + 1, words
    assert len(labels) > 50


def test_ticks_of_a_narrow_axis_differ(facts: Facts) -> None:
    changed = full(facts)
    for step in changed["evaluation"]["steps"]:
        step["figures"].update(acc=0.822, experts=0.828, base=0.821)
    labels = [
        words for _, attributes, words in svg_texts(page(changed)) if attributes.get("text-anchor") == "end"
    ]
    assert {"81", "81.5", "82", "82.5", "83", "83.5"} <= set(labels)


def test_answers_that_were_nan_are_told(facts: Facts) -> None:
    assert "NaN" not in parse(page(facts)).text
    changed = copy.deepcopy(facts)
    changed["evaluation"]["tasks"][1]["base"]["undefined"] = 3
    assert "Some models put out NaN on sst2; these answers count as wrong." in parse(page(changed)).text


def test_sixty_members(tmp_path: Path) -> None:
    tasks = [f"customer-{number:02d}-support-tickets" for number in range(60)]
    line = make(tmp_path, tasks)
    measure(line, tasks[:3], entries=[60])
    found = gather(line)
    told = parse(page(found))
    assert told.problems == []
    assert all(told.texts.count(task) >= 4 for task in tasks)
    widest = max(float(s["width"] or 0) for s in told.all("svg"))
    assert widest <= 1120  # no figure is wider than the page
