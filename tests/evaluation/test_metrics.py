"""The figures against cases that were worked by hand, and what must hold of any numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.errors import UsageError
from plait.evaluation import metrics as m

# Three merges. Rows: after merge 1, 2, 3; columns: tasks 1, 2, 3.
A = [
    [0.90, 0.30, 0.25],
    [0.80, 0.70, 0.35],
    [0.60, 0.75, 0.80],
]
E = [1.00, 0.80, 0.80]  # experts


def near(value: float) -> Any:
    return pytest.approx(value, abs=1e-12)


def test_accuracy() -> None:
    assert m.accuracy(A[-1]) == near((0.60 + 0.75 + 0.80) / 3)  # 2.15 / 3
    assert m.accuracy([0.5]) == 0.5


def test_weighted_accuracy() -> None:
    # (2*0.60 + 1*0.75 + 1*0.80) / 4 = 2.75 / 4
    assert m.weighted_accuracy(A[-1], [2, 1, 1]) == near(0.6875)
    # a negative weight counts against its task: (1*0.60 - 0.5*0.80) / 0.5 = 0.4
    assert m.weighted_accuracy([0.60, 0.80], [1, -0.5]) == near(0.4)
    assert m.weighted_accuracy([0.6, 0.8], [1, -1]) is None


def test_normalised_accuracy_is_a_mean_of_ratios() -> None:
    # 0.60/1.00 = 0.6, 0.75/0.80 = 0.9375, 0.80/0.80 = 1; their sum is 2.5375.
    # The ratio of the means would be 2.15/2.60 = 0.82692...
    assert m.normalised_accuracy(A[-1], E) == near(2.5375 / 3)
    assert m.normalised_accuracy([0.5], [0.0]) is None


def test_backward_transfer_with_both_divisors() -> None:
    # task 1: 0.60 - 0.90 = -0.30; task 2: 0.75 - 0.70 = +0.05; task 3 arrived last. Sum -0.25.
    assert m.backward_transfer(A) == near(-0.125)  # over T-1 = 2
    assert m.backward_transfer(A, divisor="T-1") == near(-0.125)
    assert m.backward_transfer(A, divisor="T") == near(-0.25 / 3)


def test_forgetting_takes_the_best_since_arrival() -> None:
    # task 1: max(0.90, 0.80, 0.60) - 0.60 = 0.30; task 2: max(0.70, 0.75) - 0.75 = 0. Mean 0.15.
    assert m.forgetting(A) == near(0.15)
    # task 2 was better before it arrived: 0.95 at step 1 does not count.
    assert m.forgetting([[0.9, 0.95], [0.8, 0.7]]) == near(0.1)
    # The best lies between arrival and the end: max(0.5, 0.9, 0.6) - 0.6 = 0.3; task 2: 0.4 - 0.3 = 0.1. Mean 0.2.
    assert m.forgetting([[0.5, 0.0, 0.0], [0.9, 0.4, 0.0], [0.6, 0.3, 0.1]]) == near(0.2)


def test_plasticity_gap() -> None:
    # 1.00 - 0.90 = 0.10; 0.80 - 0.70 = 0.10; 0.80 - 0.80 = 0. Mean 0.2/3.
    assert m.plasticity_gap(A, E) == near(0.2 / 3)


def test_a_rule_that_never_learns_looks_perfect_without_the_plasticity_gap() -> None:
    still = [[0.4, 0.3], [0.4, 0.3]]
    assert m.backward_transfer(still) == 0.0
    assert m.forgetting(still) == 0.0
    assert m.plasticity_gap(still, [0.9, 0.9]) == near(0.55)  # (0.5 + 0.6) / 2


def test_steps_that_are_no_merges() -> None:
    # Steps: merge 1, reweight 1, merge 2, reweight 2. Task 1 arrived at step 0, task 2 at step 2.
    rows = [[0.9, 0.1], [0.7, 0.1], [0.6, 0.8], [0.8, 0.5]]
    # Both arrived before the last step: (0.8 - 0.9) + (0.5 - 0.8) = -0.4, over 2 tasks either way.
    assert m.backward_transfer(rows, [0, 2]) == near(-0.2)
    assert m.backward_transfer(rows, [0, 2], divisor="T") == near(-0.2)
    # max(0.9, 0.7, 0.6, 0.8) - 0.8 = 0.1; max(0.8, 0.5) - 0.5 = 0.3.
    assert m.forgetting(rows, [0, 2]) == near(0.2)
    assert m.plasticity_gap(rows, [1.0, 1.0], [0, 2]) == near(0.15)  # (0.1 + 0.2) / 2


def test_removal() -> None:
    # Task 2 of three (place 1) is removed.
    before, after = [0.80, 0.90, 0.70], [0.85, 0.30, 0.60]
    assert m.removal_retain(before, after, 1) == near(0.025)  # (-0.05 + 0.10) / 2
    # Signs must not cancel: |0.85 - 0.80| = 0.05, |0.60 - 0.65| = 0.05.
    assert m.removal_fidelity(after, [0.80, 0.10, 0.65], 1) == near(0.05)
    assert m.removal_forget(0.30, 0.25) == near(0.05)
    assert m.removal_retain([0.9], [0.1], 0) is None  # nobody stayed


def test_weight_distance() -> None:
    assert m.weight_distance(3.0, 12.0) == 0.25
    assert m.weight_distance(0.0, 12.0) == 0.0
    assert m.weight_distance(0.0, 0.0) == 0.0
    assert m.weight_distance(1.0, 0.0) is None
    with pytest.raises(UsageError, match="at least 0"):
        m.weight_distance(-1.0, 2.0)


def test_class_incremental_accuracy() -> None:
    # Classes 0-3 were seen. Labels 0 1 2 3 count; the example of class 7 does not. Right: 0 and 3, of four.
    assert m.class_incremental_accuracy([0, 2, 1, 3, 0], [0, 1, 2, 3, 7], {0, 1, 2, 3}) == 0.5
    with pytest.raises(UsageError, match="class 7 was predicted and is none of the 2 seen"):
        m.class_incremental_accuracy([7], [0], [0, 1])
    assert m.class_incremental_accuracy([], [], [0]) is None


def test_one_task_has_no_transfer() -> None:
    assert m.backward_transfer([[0.9]]) is None
    assert m.backward_transfer([[0.9]], divisor="T") is None
    assert m.forgetting([[0.9]]) is None
    assert m.plasticity_gap([[0.9]], [1.0]) == near(0.1)
    assert m.accuracy([]) is None


def test_what_is_missing_makes_a_figure_none_only_where_it_is_needed() -> None:
    future: list[list[m.Cell]] = [[0.90, None, None], [0.80, 0.70, None], [0.60, 0.75, 0.80]]
    assert m.backward_transfer(future) == m.backward_transfer(A)
    assert m.forgetting(future) == m.forgetting(A)
    assert m.plasticity_gap(future, E) == m.plasticity_gap(A, E)
    hole: list[list[m.Cell]] = [[None, None, None], *future[1:]]
    assert m.backward_transfer(hole) is None
    assert m.forgetting(hole) is None
    assert m.plasticity_gap(hole, E) is None
    assert m.plasticity_gap(A, [None, *E[1:]]) is None
    assert m.accuracy([0.5, None]) is None
    assert m.weighted_accuracy([0.5, None], [1, 1]) is None
    assert m.normalised_accuracy([0.5, 0.5], [1.0, None]) is None
    assert m.removal_retain([None, 0.5], [0.1, 0.5], 0) == 0.0
    assert m.removal_retain([0.5, None], [0.1, 0.5], 0) is None
    assert m.removal_forget(None, 0.5) is None
    assert m.weight_distance(None, 1.0) is None
    assert m.weight_distance(0.0, None) is None


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: m.accuracy([0.5, math.nan]), "final[1] is nan, expected a finite number, or None"),
    (lambda: m.accuracy([math.inf]), "final[0] is inf"),
    (lambda: m.weighted_accuracy([0.5], [1.0, 1.0]), "weights has 2 entries, 1 are needed"),
    (lambda: m.normalised_accuracy([0.5], []), "experts has 0 entries, 1 are needed"),
    (lambda: m.backward_transfer([[0.5, 0.5], [0.5]]), "matrix[0] has 2 tasks, the last row has 1"),
    (lambda: m.backward_transfer([[0.5, math.nan]] * 2), "matrix[0][1] is nan"),
    (lambda: m.backward_transfer(A, divisor="N"), "divisor is 'N', expected 'T-1' or 'T'"),  # type: ignore[arg-type]
    (lambda: m.backward_transfer([[0.1, 0.2]]), "arrival[1] is 1, expected a step from 0 to 0"),
    (lambda: m.forgetting(A, [0, 1, 3]), "arrival[2] is 3, expected a step from 0 to 2"),
    (lambda: m.plasticity_gap(A, [1.0, 1.0]), "experts has 2 entries, 3 are needed"),
    (lambda: m.removal_retain([0.5], [0.5, 0.5], 0), "after has 2 entries, 1 are needed"),
    (lambda: m.removal_retain([0.5], [0.5], 1), "gone is 1, expected the place of a task from 0 to 0"),
    (lambda: m.removal_forget(math.nan, 0.5), "unmerged[0] is nan"),
    (lambda: m.class_incremental_accuracy([1], [], [1]), "labels has 0 entries, 1 are needed"),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[words for _, words in WRONG])
def test_wrong_numbers_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        call()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


SHARE = st.integers(0, 1000).map(lambda n: n / 1000)
SQUARE = st.integers(2, 6).flatmap(
    lambda t: st.lists(st.lists(SHARE, min_size=t, max_size=t), min_size=t, max_size=t)
)


@given(SQUARE)
def test_what_holds_of_any_stream(rows: list[list[float]]) -> None:
    count = len(rows)
    transfer, over_t = m.backward_transfer(rows), m.backward_transfer(rows, divisor="T")
    lost = m.forgetting(rows)
    assert transfer is not None
    assert over_t is not None
    assert lost is not None
    assert over_t == pytest.approx(transfer * (count - 1) / count, abs=1e-12)
    assert lost >= 0.0
    assert lost >= -transfer - 1e-12  # the best since arrival is at least what it was on arrival
    diagonal = [rows[i][i] for i in range(count)]
    assert m.plasticity_gap(rows, diagonal) == 0.0
    assert m.normalised_accuracy([0.5] * count, [0.5] * count) == 1.0
    assert m.weighted_accuracy(rows[-1], [3.0] * count) == pytest.approx(m.accuracy(rows[-1]), abs=1e-12)


@given(SQUARE, st.randoms(use_true_random=False))
def test_the_order_of_columns_does_not_matter(rows: list[list[float]], random: Any) -> None:
    order = list(range(len(rows)))
    random.shuffle(order)
    shuffled = [[row[i] for i in order] for row in rows]
    assert m.backward_transfer(shuffled, order) == m.backward_transfer(rows)
    assert m.forgetting(shuffled, order) == m.forgetting(rows)
