"""The parts of figures: scales, ticks, places of labels, lengths of bars, outlines."""

from __future__ import annotations

import re

import pytest

from plait import words
from plait.report import palette
from plait.report.charts import Bar, Panel, Series, bars, columns, lines
from plait.report.figures import Heat, Spot, heat
from plait.report.lanes import lanes
from plait.report.style import style
from plait.report.svg import fit, spread, thinned, ticks, width_of
from tests.report.parsing import parse

# colours


@pytest.mark.parametrize("mode", [0, 1])
def test_text_can_be_read(mode: int) -> None:
    """WCAG AA: 4.5 for text, 3 for marks."""
    colours = {name: pair[mode] for name, pair in palette.TOKENS.items()}
    for ground in ("page", "card"):
        for ink in palette.TEXT:
            assert palette.contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
    for mark in ("deployed", "expert", "base", "good", "bad"):
        assert palette.contrast(colours[mark], colours["page"]) >= 3, mark


@pytest.mark.parametrize("anchors", [*palette.SEQUENTIAL, *palette.DIVERGING])
def test_numbers_on_every_cell_can_be_read(anchors: tuple[str, ...]) -> None:
    found = palette.scale(anchors)
    assert len(found) == len(set(found)) == palette.BINS
    assert (found[0], found[-1]) == (anchors[0], anchors[-1])
    assert all(palette.contrast(palette.text_on(colour), colour) >= 4.5 for colour in found)


def test_contrast_is_that_of_the_standard() -> None:
    assert palette.contrast("#000000", "#ffffff") == pytest.approx(21)
    assert palette.contrast("#777777", "#ffffff") == pytest.approx(
        4.48, abs=0.005
    )  # the grey that just fails


@pytest.mark.parametrize("mode", [0, 1])
def test_a_sequential_scale_goes_one_way(mode: int) -> None:
    """From little to much contrast with the page: its order can be seen without colour."""
    ground = palette.TOKENS["page"][mode]
    steps = [palette.contrast(colour, ground) for colour in palette.scale(palette.SEQUENTIAL[mode])]
    assert steps == sorted(steps)


def test_bins() -> None:
    assert [palette.bin_of(v, 0.0, 1.0) for v in (-1.0, 0.0, 0.5, 1.0, 2.0)] == [0, 0, 10, 20, 20]
    assert palette.bin_of(0.3, 0.3, 0.3) == 0


def test_every_class_of_a_figure_has_a_rule() -> None:
    found = style()
    for letter in "sd":
        for number in range(palette.BINS):
            assert f".pic .{letter}{number}{{" in found
            assert f".pic .{letter}{number}t{{" in found
            assert found.count(f"--{letter}{number}:#") == 2  # light and dark
    for name in set(re.findall(r"var\(--([a-z0-9-]+)\)", found)):
        assert found.count(f"--{name}:#") == 2, name


# places


@pytest.mark.parametrize(
    ("low", "high", "want"),
    [
        (0.0, 1.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.41, 0.93, [0.4, 0.6, 0.8, 1.0]),
        (-0.03, 0.11, [-0.05, 0.0, 0.05, 0.1, 0.15]),
        (0.0, 0.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.7, 0.7, [0.6, 0.8, 1.0, 1.2, 1.4]),
        (0, 123456, [0, 25000, 50000, 75000, 100000, 125000]),
    ],
)
def test_ticks_are_round_and_cover(low: float, high: float, want: list[float]) -> None:
    found = ticks(low, high)
    assert found == pytest.approx(want)


def test_labels_move_apart_in_their_order() -> None:
    found = spread([10, 11, 12, 100], 15, 0, 120)
    assert found == [10, 25, 40, 100]
    assert spread([118, 119], 15, 0, 120) == [105, 120]
    assert spread([119, 118], 15, 0, 120) == [120, 105]
    assert spread([], 15, 0, 120) == []


def test_long_names_keep_start_and_end() -> None:
    name = "customer-03-support-tickets-language-model"
    short = fit(name, 120)
    assert width_of(short) <= 120
    start, end = short.split("…")
    assert name.startswith(start)
    assert name.endswith(end)
    assert fit("short", 120) == "short"
    assert fit("模" * 40, 120).count("模") < 10  # wide letters take their room


def test_labels_of_an_axis_are_thinned() -> None:
    assert thinned(5, 30, 20) == [0, 1, 2, 3, 4]
    assert thinned(6, 10, 20) == [0, 3]
    assert thinned(0, 10, 20) == []


# figures


def spot(value: int | None) -> Spot | None:
    return None if value is None else Spot(value, str(value), str(value), f"tip {value}")


def test_a_heat_map_has_a_cell_for_every_value() -> None:
    cells = [[spot(0), spot(5), None], [spot(20), None, None]]
    inside = [[True, False, False], [True, True, False]]
    chart = Heat("name", ["r", "s"], ["a", "b", "c"], cells, "s", ("0", "1"), "empty", inside, "in")
    found = parse(heat(chart))
    tips = [text for text in found.texts if text.startswith("tip")]
    assert tips == ["tip 0", "tip 5", "tip 20"]
    drawn = [r["class"] for r in found.all("rect")]
    assert drawn[palette.BINS + 1 :] == ["s0", "s5", "s20"]  # after the legend and its outline
    assert len(found.all("circle")) == 3 + 1  # empty cells, and the one in the legend
    (outline,) = found.all("path")
    path = outline["d"] or ""
    assert path.count("h") == 4  # two cells have a top edge, two a bottom edge: (0,0), (1,1) and (1,0), (1,1)
    assert path.count("v") == 4  # and a left and a right edge for each of the two rows


def test_bars_are_as_long_as_their_values() -> None:
    group = ("task", "", [Bar("x", 0.5, 0.4, 0.6, "50"), Bar("y", None, None, None, "not evaluated")])
    found = parse(bars("name", [group], [("x", "first")]))
    (bar,) = [r for r in found.all("rect") if r["class"] == "x"][1:]  # the first is the legend's
    axis = {float(a["x1"] or 0) for a in found.all("line") if a["class"] in ("zero", "grid")}
    assert float(bar["width"] or 0) == pytest.approx((max(axis) - min(axis)) / 2)
    whiskers = [a for a in found.all("line") if a["class"] == "whisker"]
    share = (float(whiskers[0]["x2"] or 0) - float(whiskers[0]["x1"] or 0)) / (max(axis) - min(axis))
    assert share == pytest.approx(0.2, abs=1e-4)
    assert "not evaluated" in found.texts


def test_a_line_is_broken_where_a_value_is_missing() -> None:
    values = [0.1, 0.2, None, 0.3, 0.4, 0.5, None, 0.6]
    series = [Series("ACC", "deployed", "circle", values)]
    panel = Panel("title", series, words.percent, words.percent)
    found = parse(lines("name", [str(n) for n in range(8)], [f"step {n}" for n in range(8)], [panel]))
    assert [len((p["points"] or "").split()) for p in found.all("polyline")] == [2, 3]
    assert len(found.all("circle")) == 6
    assert "step 4: ACC 40.0" in found.texts
    assert "ACC 60.0" in found.texts  # the label at its end


def test_a_line_that_ends_early_says_where() -> None:
    series = [
        Series("gap", "expert", "diamond", [0.1, None, None]),
        Series("ACC", "deployed", "circle", [0.2] * 3),
    ]
    panel = Panel("title", series, words.percent, words.percent)
    found = parse(lines("name", ["1", "4", "5"], ["a", "b", "c"], [panel]))
    assert "gap 10.0 (entry 1)" in found.texts
    assert "ACC 20.0" in found.texts
    assert len([p for p in found.all("path") if p["class"] == "leader"]) == 1


@pytest.mark.parametrize(("value", "zero", "want"), [(0.0, True, 1), (0.82, False, 1), (0.82, True, 100)])
def test_a_level_line_has_a_narrow_axis(value: float, zero: bool, want: int) -> None:
    """Two to four points for values that are all alike, not the whole of what is possible."""
    panel = Panel("t", [Series("s", "x", "circle", [value, value])], words.percent, words.percent, zero)
    told = parse(lines("name", ["0", "1"], ["a", "b"], [panel])).texts
    axis = [float(text) for text in told if text.replace(".", "").replace("-", "").isdigit() and "." in text]
    assert min(axis) <= 100 * value <= max(axis)
    assert max(axis) - min(axis) <= 4 * want


def test_columns_mark_what_is_not_known() -> None:
    found = parse(columns("name", "Bytes", ["0", "1", "2"], [10.0, None, 20.0], ["a", "b", "c"], words.size))
    tall = [float(r["height"] or 0) for r in found.all("rect")]
    assert tall[0] * 2 == pytest.approx(tall[1])
    assert len(found.all("circle")) == 1


def test_lanes_follow_members() -> None:
    members: list[list[str]] = [[], ["a"], ["a", "b"], ["b"], ["b"], ["b", "a"]]
    verbs = ["init", "merge", "merge", "unmerge", "purge", "merge"]
    tasks = [None, "a", "b", "a", "a", "a"]
    ledger = [
        {"sequence": i, "time": "t", "verb": v, "task": t, "members": m}
        for i, (v, t, m) in enumerate(zip(verbs, tasks, members, strict=True))
    ]
    found = parse(lanes("name", ledger))
    bars_ = [r for r in found.all("rect") if r["class"] == "member"]
    wide = [float(r["width"] or 0) for r in bars_]
    pitch = wide[0] / 2  # a was in from entry 1 to entry 3
    assert wide == pytest.approx([2 * pitch, 0.5 * pitch, 3.5 * pitch])
    assert "a: member from entry 1 to entry 3" in found.texts
    assert "b: member from entry 2" in found.texts
    assert sum(text.startswith("entry ") and text.endswith(", t") for text in found.texts) == 6


# words


@pytest.mark.parametrize(
    ("got", "want"),
    [
        (words.size(0), "0 B"),
        (words.size(999), "999 B"),
        (words.size(999_950), "1.0 MB"),
        (words.size(1.25e9), "1.2 GB"),
        (words.size(3e15), "3000.0 TB"),
        (words.size(None), "–"),
        (words.seconds(0.0), "0.00 s"),
        (words.seconds(12.34), "12.3 s"),
        (words.seconds(99.97), "1 min 40 s"),
        (words.seconds(3725), "1 h 02 min"),
        (words.percent(0.8734), "87.3"),
        (words.points(-0.0004), "0.0"),
        (words.points(0.0123), "+1.2"),
        (words.points(-0.0123), "−1.2"),
        (words.points(None), "–"),
        (words.time("2026-01-31T12:00:00.000Z"), "2026-01-31 12:00:00 UTC"),
        (words.time("later"), "later"),
        (words.ranges([0, 1, 2, 5, 7, 8]), "0–2, 5, 7–8"),
        (words.weight(2.0), "2"),
        (words.weight(0.1), "0.1"),
        (words.figure(0.000123456), "0.000123"),
        (
            words.options({"scale": 0.3, "trim": None, "sparsify": {"name": "dare", "density": 0.5}}),
            "scale 0.3, sparsify dare (density 0.5)",
        ),
        (words.safe("a\x1b[2J\u202e"), "a\\x1b[2J\\u202e"),
        (words.short("a" * 64), "a" * 12),
        (words.plural(1, "entry", "entries"), "1 entry"),
    ],
)
def test_words(got: str, want: str) -> None:
    assert got == want
