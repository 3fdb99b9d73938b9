"""A line's history and its rows put together, against matrices that were laid out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from plait.evaluation.matrix import Matrix, latest, matrix, steps
from plait.evaluation.rows import Row
from plait.evaluation.summary import figures, percent, removals, told
from tests.evaluation.made import condition, row

BASE = "0" * 64


def digest(name: str) -> str:
    return name.encode().hex().ljust(64, "0")


def member(task: str, checkpoint: str = "", weight: float = 1.0, private: bool = False) -> dict[str, Any]:
    names = ["classifier.weight"] if private else []
    return {"task": task, "weight": weight, "digest": digest(checkpoint or f"x{task}"), "private": names}


class History:
    """A ledger made by hand."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.add("init", None, [], BASE)

    def add(
        self, verb: str, task: str | None, members: list[dict[str, Any]], version: str, **receipt: Any
    ) -> None:
        number = len(self.entries)
        words = {"sequence": number, "verb": verb, "task": task, "members": members, "version": version}
        self.entries.append({**words, "receipt": receipt or None})


def three_merges() -> History:
    made = History()
    made.add("merge", "a", [member("a")], digest("v1"))
    made.add("merge", "b", [member("a"), member("b")], digest("v2"))
    made.add("export", None, made.entries[-1]["members"], digest("v2"))
    made.add("merge", "c", [member("a"), member("b"), member("c")], digest("v3"))
    return made


def measure(version: str, task: str, value: float, **words: Any) -> Row:
    return row(version, round(value * 100), 100, task=task, **words)


# The matrix of test_metrics: the same figures must come out of the whole.
A = [[0.90, 0.30, 0.25], [0.80, 0.70, 0.35], [0.60, 0.75, 0.80]]
E, B = [1.00, 0.80, 0.80], [0.20, 0.30, 0.25]


def all_rows() -> list[Row]:
    found = []
    for i, task in enumerate("abc"):
        found += [measure(digest(f"v{k + 1}"), task, A[k][i]) for k in range(3)]
        found.append(measure(BASE, task, B[i], role="base"))
        found.append(measure(digest(f"x{task}"), task, E[i], role="expert", member=task))
    return found


def conditions(tasks: str = "abc") -> dict[str, Any]:
    return {task: condition(task) for task in tasks}


def test_every_row_finds_its_place() -> None:
    found = matrix(three_merges().entries, all_rows(), conditions())
    assert found.tasks == ("a", "b", "c")
    assert [(s.sequence, s.verb, s.task) for s in found.steps] == [
        (1, "merge", "a"), (2, "merge", "b"), (4, "merge", "c")
    ]  # fmt: skip
    assert found.values() == A
    assert [r.value for r in found.base if r] == B
    assert [r.value for r in found.experts if r] == E
    assert found.arrival == (0, 1, 2)
    assert found.weights == (1.0, 1.0, 1.0)


def test_the_figures_of_the_matrix() -> None:
    got = figures(matrix(three_merges().entries, all_rows(), conditions()))
    assert got.tasks == ("a", "b", "c")
    assert got.acc == pytest.approx(2.15 / 3)
    assert got.weighted == pytest.approx(2.15 / 3)
    assert got.normalised == pytest.approx(2.5375 / 3)
    assert got.base == pytest.approx(0.25)
    assert got.experts == pytest.approx(2.6 / 3)
    assert got.backward == pytest.approx(-0.125)
    assert got.backward_over_t == pytest.approx(-0.25 / 3)
    assert got.forgetting == pytest.approx(0.15)
    assert got.plasticity_gap == pytest.approx(0.2 / 3)


def test_weights_of_the_members() -> None:
    made = three_merges()
    heavy = [member("a", weight=2.0), member("b"), member("c")]
    made.add("reweight", "a", heavy, digest("v3"))
    assert figures(matrix(made.entries, all_rows(), conditions())).weighted == pytest.approx(0.6875)


def test_rows_measured_otherwise_stay_out() -> None:
    for field in ("data", "head", "network", "split", "metric"):
        change: dict[str, Any] = {field: "other"}
        rows = [replace(r, **change) for r in all_rows()]
        found = matrix(three_merges().entries, rows, conditions())
        assert not any(any(line) for line in (*found.cells, found.base, found.experts)), field


def test_columns_are_those_asked_for() -> None:
    found = matrix(three_merges().entries, all_rows(), conditions("zcb"))
    assert found.tasks == ("b", "c", "z")  # in order of arrival, then what never was a member
    assert found.arrival == (1, 2, None)
    assert figures(found).tasks == ("b", "c")
    assert found.values()[2] == [0.75, 0.80, None]


def test_missing_cells_are_none_and_so_are_figures_that_need_them() -> None:
    rows = [r for r in all_rows() if r.digest != digest("v1")]
    got = figures(matrix(three_merges().entries, rows, conditions()))
    assert got.acc == pytest.approx(2.15 / 3)
    assert got.plasticity_gap is None
    assert got.backward is None
    assert got.forgetting is None


def test_no_backward_transfer_without_the_plasticity_gap() -> None:
    """The arrival of every task is measured, one expert is not: BWT could be computed, and is not given."""
    rows = [r for r in all_rows() if r.role != "expert" or r.task != "c"]
    got = figures(matrix(three_merges().entries, rows, conditions()))
    assert (got.plasticity_gap, got.backward, got.backward_over_t) == (None, None, None)
    assert got.forgetting == pytest.approx(0.15)
    words = dict(told(got.plain()))
    assert words["BWT"].startswith("- (shown with the plasticity gap only")


def test_backward_transfer_and_the_plasticity_gap_are_one_text() -> None:
    got = figures(matrix(three_merges().entries, all_rows(), conditions()))
    lines = told(got.plain())
    assert [text for label, text in lines if "plasticity" in text + label] == [
        "-12.5 over T-1, -8.3 over T; plasticity gap +6.7"
    ]
    assert ("ACC", "71.7 %") in lines
    assert not any(label == "ACC by weight" for label, _ in lines)
    forged = {**got.plain(), "plasticity_gap": None}
    assert "-12.5" not in dict(told(forged))["BWT"]


def test_nothing_is_there() -> None:
    empty = History()
    found = matrix(empty.entries, [], conditions("a"))
    assert (found.steps, found.cells, found.base, found.arrival) == ((), (), (None,), (None,))
    got = figures(found)
    assert (got.tasks, got.acc, got.backward, got.plasticity_gap) == ((), None, None, None)
    assert figures(matrix(three_merges().entries, all_rows(), {})).acc is None
    assert figures(Matrix((), (), (), (), (), (), ())).acc is None
    assert percent(None) == "-"


def test_steps_are_what_changed_the_members() -> None:
    made = three_merges()
    members = made.entries[-1]["members"]
    made.add("reweight", "a", members, digest("v3"))  # to the weight that it had
    made.add("purge", "z", members, digest("v3"))
    made.add("reweight", "a", [member("a", weight=2.0), *members[1:]], digest("v4"))
    made.add("replace", "b", [member("a", weight=2.0), member("b", "other"), member("c")], digest("v5"))
    assert [s.sequence for s in steps(made.entries)] == [1, 2, 4, 7, 8]


def test_arrival_is_that_of_the_checkpoint_that_is_there_now() -> None:
    made = three_merges()
    made.add("replace", "b", [member("a"), member("b", "new"), member("c")], digest("v4"))
    made.add("unmerge", "a", [member("b", "new"), member("c")], digest("v5"))
    made.add("merge", "a", [member("b", "new"), member("c"), member("a")], digest("v6"))
    made.add("reweight", "c", [member("b", "new"), member("c", weight=2.0), member("a")], digest("v7"))
    rows = [measure(digest("xb"), "b", 0.1, role="expert", member="b")]
    rows += [measure(digest("new"), "b", 0.9, role="expert", member="b")]
    found = matrix(made.entries, rows, conditions())
    assert found.tasks == ("a", "b", "c")
    assert found.arrival == (5, 3, 2)
    assert found.experts[1] == rows[1]  # the expert is the checkpoint that was merged last


def test_equal_versions_share_their_rows() -> None:
    made = three_merges()
    made.add("unmerge", "c", [member("a"), member("b")], digest("v2"), exact=True)
    made.add("unmerge", "a", [member("b")], digest("v5"), exact=True)
    made.add("unmerge", "b", [], BASE, exact=True)
    found = matrix(made.entries, all_rows(), conditions())
    assert found.values()[3] == found.values()[1]
    assert found.values()[5] == B
    assert figures(found).tasks == ()


def test_a_head_of_its_own() -> None:
    """A version is measured with the head of its own member; a base with that of the member as it last was."""
    made = History()
    made.add("merge", "a", [member("a", "old", private=True)], digest("v1"))
    made.add("replace", "a", [member("a", "new", private=True)], digest("v2"))
    rows = [
        measure(version, "a", value, own=digest(own), role=role)
        for version, own, value, role in (
            (digest("v1"), "old", 0.1, "version"),
            (digest("v1"), "new", 0.2, "version"),
            (digest("v2"), "old", 0.3, "version"),
            (digest("v2"), "new", 0.4, "version"),
            (BASE, "old", 0.5, "base"),
            (BASE, "new", 0.6, "base"),
        )
    ]
    found = matrix(made.entries, rows, conditions("a"))
    assert found.values() == [[0.1], [0.4]]
    assert found.base[0] is not None
    assert found.base[0].value == 0.6
    bare = [replace(r, own=None) for r in rows[::2]]  # measured without, where the line keeps no head
    assert matrix(made.entries, bare, conditions("a")).values() == [[0.1], [0.3]]


def test_removals() -> None:
    made = three_merges()
    made.add("unmerge", "b", [member("a"), member("c")], digest("v4"), exact=True)
    rows = [
        *all_rows(),
        *(measure(digest("v4"), t, v) for t, v in zip("abc", (0.7, 0.35, 0.78), strict=True)),
    ]
    (found,) = removals(matrix(made.entries, rows, conditions()))
    assert (found.sequence, found.task, found.bytes_equal) == (5, "b", True)
    assert found.retain == pytest.approx((-0.1 + 0.02) / 2)  # 0.60 -> 0.70, 0.80 -> 0.78
    assert found.fidelity == 0.0
    assert found.forget == pytest.approx(0.05)  # 0.35 against the base's 0.30
    made.entries[-1]["receipt"] = {"exact": False}
    (other,) = removals(matrix(made.entries, rows, conditions()))
    assert (other.fidelity, other.bytes_equal) == (None, False)
    assert other.plain()["retain"] == found.retain
    assert removals(matrix(made.entries, rows, conditions("ac"))) == []


def test_the_newest_measurement_says_how_a_task_is_measured() -> None:
    old = replace(row(), data="e" * 64, time="2025-01-01T00:00:00.000Z")
    rows = [row(), old, replace(row(), task="b", split="validation")]
    assert latest(rows) == {"a": row().condition}
    assert latest(rows, "validation") == {"b": rows[2].condition}
