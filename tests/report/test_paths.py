"""Paths and descents of members: what is told of them, and what is drawn."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plait.methods import registry
from plait.report.curves import LEFT, SPAN
from plait.report.facts import gather
from plait.report.page import page
from plait.report.paths import kind_of, paths
from tests.line.calibrated import make, register, write_world
from tests.report.lines import make as plain
from tests.report.parsing import Parsed, parse, svg_texts

OPTIONS: dict[str, dict[str, Any]] = {
    "ode_m": {"h": 0.25, "samples": 12, "line": 3, "budget": 0.0},
    "trm": {"steps": 4, "batch": 5, "pre": 0.0, "res": 0.0},
}
Facts = dict[str, Any]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    register(tmp_path, monkeypatch)
    write_world(tmp_path)
    yield tmp_path
    registry._points.cache_clear()


def told(world: Path, method: str, order: str, **options: Any) -> Facts:
    return gather(make(world, method, order, method, **{**OPTIONS[method], **options}))


def drawn(found: Facts) -> Parsed:
    read = parse(page(found))
    assert read.problems == []
    return read


def ends(read: Parsed, cls: str) -> list[list[tuple[float, float]]]:
    """The first and last points of the lines of a class, as shares of the width, and heights."""
    rows = []
    for line in read.all("polyline"):
        if line["class"] == cls:
            points = [tuple(map(float, p.split(","))) for p in (line["points"] or "").split()]
            rows.append([((x - LEFT) / SPAN, y) for x, y in (points[0], points[-1])])
    return rows


def test_a_path_is_told_and_drawn(world: Path) -> None:
    found = told(world, "ode_m", "abc")
    assert [(r["task"], r["kind"]) for r in found["paths"]] == [("b", "path"), ("c", "path")]
    trace = found["paths"][0]["trace"]
    assert trace["t"] == [0.0, 0.25, 0.5]
    read = drawn(found)
    assert "#paths" in [a["href"] for a in read.all("a")]
    for task in "bc":
        assert f"The path to {task}" in read.text
    assert f"stops at t = {trace['t_end']:.4g}" in read.text
    one = drawn({**found, "paths": found["paths"][:1]})
    # b's own loss ends where the path stops, those of the straight line at the expert
    own, straight = ends(one, "stroke expert"), ends(one, "stroke expert dash")
    assert [line[1][0] for line in own] == pytest.approx([0.5], abs=1e-3)
    assert [line[1][0] for line in straight] == pytest.approx([1.0, 1.0], abs=1e-3)
    assert own[0][0] == straight[0][0]  # both begin at the model before
    before, after = trace["losses"]["b"][0], trace["losses"]["b"][-1]
    assert (own[0][1][1] < own[0][0][1]) == (after > before)  # upwards is more
    for value in (*trace["losses"]["a"], *trace["target"].values()):
        assert f"{value:.5g}" in one.text
    assert f"{trace['norm'][1]:.4g}" in one.text
    summary = next(t for t in svg_texts(page(found)) if t[2].startswith("straight line"))
    assert summary[1]["x"]


def test_a_step_that_is_held_back_is_seen(world: Path) -> None:
    found = told(world, "ode_m", "ab")
    trace = found["paths"][0]["trace"]
    trace["gamma"], trace["norm"] = [1.0, 0.25], [1.0, 2.0]
    (gamma,) = ends(drawn(found), "stroke good")
    assert gamma[1][0] == pytest.approx(0.5, abs=1e-3)
    assert gamma[1][1] > gamma[0][1]
    rows = re.findall(r"<tr><th[^>]*>b</th>(.*?)</tr>", page(found))
    assert ">1</td>" in next(row for row in rows if "0.5" in row)  # of the two steps


@pytest.mark.parametrize(
    "options", [{"variant": "released", "refine": 2, "line": 0, "budget": None}, {"line": 0}]
)
def test_without_the_straight_line_the_axis_ends_with_the_path(world: Path, options: dict[str, Any]) -> None:
    found = told(world, "ode_m", "ab", **options)
    read = drawn(found)
    assert [line[1][0] for line in ends(read, "stroke expert")] == pytest.approx([1.0], abs=1e-3)
    assert "were not recorded" in read.text
    assert ("Share of the step that was made" in read.text) == ("variant" in options)


def test_a_descent_is_told_and_drawn(world: Path) -> None:
    found = told(world, "trm", "ab")
    (row,) = found["paths"]
    assert (row["task"], row["kind"]) == ("b", "descent")
    read = drawn(found)
    assert "How b was fitted" in read.text
    assert not any("pre " in words for _, _, words in svg_texts(page(found)))  # it was left out of the loss
    path = row["trace"]["path"]
    for word in ("least", "mean", "most"):
        name = f"{word} α {path['alpha'][word][-1]:.4g}"
        assert any(words.startswith(name) for _, _, words in svg_texts(page(found)))
    for group, value in row["trace"]["alpha"].items():
        assert group in read.text
        assert f"{value:.4g}" in read.text


def test_of_many_members_the_newest_are_drawn(world: Path) -> None:
    found = told(world, "ode_m", "ab")
    many = [{**found["paths"][0], "task": f"m{n:02}"} for n in range(14)]
    read = drawn({**found, "paths": many})
    assert "The path to m01" not in read.text
    assert "The path to m02" in read.text
    assert "The newest 12 of 14 are drawn." in read.text


def test_other_lines_have_no_such_part(world: Path, tmp_path: Path) -> None:
    found = gather(plain(tmp_path / "other", ["x", "y"]))
    assert found["paths"] == []
    assert paths(found) is None
    assert "#paths" not in page(found)
    assert gather(make(world, "one", "a", "ode_m"))["paths"] == []  # the first member is the model
    for known in ({"losses": [1.0], "t": 1}, {"alpha": {"model": 0.5}, "beta": {"model": 0.0}}):
        assert kind_of(known) is None
