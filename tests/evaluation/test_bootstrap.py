"""Intervals against the exact binomial distribution and against resampling done the long way."""

from __future__ import annotations

import random
from math import comb, sqrt

import pytest

from plait.errors import UsageError
from plait.evaluation.bootstrap import difference, interval


def answers(right: int, count: int) -> list[bool]:
    return [True] * right + [False] * (count - right)


def exact(right: int, count: int, tail: float) -> int:
    """The smallest number of right answers whose probability of being reached from below is at least `tail`."""
    p, total = right / count, 0.0
    for k in range(count + 1):
        total += comb(count, k) * p**k * (1 - p) ** (count - k)
        if total >= tail:
            return k
    return count


@pytest.mark.parametrize(("right", "count"), [(30, 40), (1, 40), (150, 200), (100, 200)])
def test_the_ends_are_quantiles_of_the_binomial(right: int, count: int) -> None:
    found = interval(answers(right, count))
    assert found.value == right / count
    # 10,000 draws place a quantile within one answer of the exact one, near enough always
    assert abs(found.low * count - exact(right, count, 0.025)) <= 1
    assert abs(found.high * count - exact(right, count, 0.975)) <= 1


def test_it_agrees_with_drawing_examples() -> None:
    vector, rng = answers(60, 90), random.Random(0)
    means = sorted(sum(rng.choices(vector, k=90)) / 90 for _ in range(4000))
    found = interval(vector, level=0.8)
    assert found.low == pytest.approx(means[400], abs=2 / 90)
    assert found.high == pytest.approx(means[3600], abs=2 / 90)


def test_the_interval_is_as_wide_as_theory_says() -> None:
    found = interval(answers(1500, 2000))
    error = sqrt(0.75 * 0.25 / 2000)  # standard error of a share; 1.96 of them make 95 %
    assert found.high - found.value == pytest.approx(1.96 * error, rel=0.05)
    assert found.value - found.low == pytest.approx(1.96 * error, rel=0.05)
    assert interval(answers(1500, 2000), level=0.5).low > found.low


def test_order_does_not_matter_and_seeds_do() -> None:
    vector = answers(700, 1000)
    assert interval(vector) == interval(vector[::-1]) == interval(vector, seed=0)
    ends = {interval(vector, seed=seed, resamples=50)[1:] for seed in range(5)}
    assert len(ends) > 1


def test_all_right_or_all_wrong() -> None:
    assert interval(answers(5, 5)) == (1.0, 1.0, 1.0)
    assert interval(answers(0, 5)) == (0.0, 0.0, 0.0)


def test_paired_differences() -> None:
    one, two = answers(60, 100), answers(70, 100)
    found = difference(one, two)
    assert found.value == pytest.approx(0.1)
    assert found.low > 0.0  # 10 examples better, none worse
    assert difference(two, one).value == pytest.approx(-0.1)
    assert difference(one, one) == (0.0, 0.0, 0.0)
    apart = [not a for a in one]  # 60 % against 40 %, no example alike: error of the mean of ±1
    wide = difference(one, apart)
    assert wide.value == pytest.approx(-0.2)
    assert wide.high - wide.low == pytest.approx(2 * 1.96 * sqrt((1 - 0.04) / 100), rel=0.1)


def test_pairs_are_not_independent_samples() -> None:
    """Two models that differ on few examples are told apart although their own intervals overlap."""
    one, two = answers(600, 1000), answers(620, 1000)
    assert interval(one).high > interval(two).low
    assert difference(one, two).low > 0.0


def test_answers_of_one_example_are_drawn_together() -> None:
    """Ten texts of 20 tokens, each all right or all wrong: as uncertain as ten examples, not as two hundred."""
    texts = answers(6, 10)
    tokens = [answer for answer in texts for _ in range(20)]
    sizes = [20] * 10
    found, plain, apart = interval(tokens, groups=sizes), interval(texts), interval(tokens)
    assert found.value == plain.value == apart.value == 0.6
    assert found.low == pytest.approx(plain.low, abs=0.1)
    assert found.high == pytest.approx(plain.high, abs=0.1)
    assert apart.high - apart.low < 0.5 * (found.high - found.low)
    assert interval(texts, groups=[1] * 10) == plain


def test_groups_of_unequal_size_against_the_long_way() -> None:
    rng = random.Random(1)
    sizes = [rng.randrange(1, 30) for _ in range(40)]
    values = [rng.random() < 0.3 + 0.02 * size for size in sizes for _ in range(size)]
    starts = [sum(sizes[:i]) for i in range(40)]
    means = []
    for _ in range(4000):
        picked = rng.choices(range(40), k=40)
        drawn = [value for i in picked for value in values[starts[i] : starts[i] + sizes[i]]]
        means.append(sum(drawn) / len(drawn))
    means.sort()
    found = interval(values, groups=sizes, level=0.8)
    assert found.value == sum(values) / len(values)
    assert found.low == pytest.approx(means[400], abs=0.01)  # the spread of the means is 0.03
    assert found.high == pytest.approx(means[3600], abs=0.01)


def test_paired_differences_of_groups() -> None:
    one = [False] * 200
    two = [text < 6 for text in range(10) for _ in range(20)]
    found = difference(one, two, groups=[20] * 10)
    assert found == interval(two, groups=[20] * 10)
    assert difference(two, one, groups=[20] * 10).value == -0.6


def test_wrong_words() -> None:
    with pytest.raises(UsageError, match="no answers, expected at least one"):
        interval([])
    for level in (0.0, 1.0, 95, float("nan")):
        with pytest.raises(UsageError, match="expected a number over 0 and under 1"):
            interval([True], level=level)
    with pytest.raises(UsageError, match="seed is -1"):
        interval([True], seed=-1)
    with pytest.raises(UsageError, match="resamples is 0"):
        interval([True], resamples=0)
    for groups in ([1, 1], [3, 0], [2, 2]):
        with pytest.raises(UsageError, match="answers for 3, expected groups of at least 1 that add up"):
            interval([True] * 3, groups=groups)
    with pytest.raises(UsageError, match="1 and 2 answers, expected the same ones"):
        difference([True], [True, False])
