"""Confidence intervals of accuracies: the percentile bootstrap over test examples (Efron 1979).

Drawing n examples with replacement, of which `right` are answered correctly, gives a number of right answers that is
binomial; so that number is drawn, not the examples. The result depends on the counts only, not on the order of the
examples, and is the same for the same seed and version of numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from plait.errors import UsageError

RESAMPLES = 10_000
LEVEL = 0.95


class Interval(NamedTuple):
    """The measured value and the ends of its confidence interval."""

    value: float
    low: float
    high: float


def interval(
    right: Sequence[bool], *, level: float = LEVEL, seed: int = 0, resamples: int = RESAMPLES
) -> Interval:
    """The share of true entries, with its interval.

    right: for every test example whether it was answered correctly. level: share of resamples inside, over 0 and
    under 1. Where all are right (or wrong) both ends are 1 (or 0): resampling cannot show what was never seen.
    Raises UsageError for no examples, and for a level, seed or number of resamples that makes no sense.
    """
    import numpy as np

    _check(len(right), level, seed, resamples)
    count = len(right)
    value = sum(map(bool, right)) / count
    drawn = np.random.default_rng(seed).binomial(count, value, resamples) / count
    low, high = np.quantile(drawn, _ends(level))
    return Interval(value, float(low), float(high))


def difference(
    one: Sequence[bool],
    two: Sequence[bool],
    *,
    level: float = LEVEL,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Interval:
    """The accuracy of `two` less that of `one` on the same examples, with its paired interval.

    one, two: right or wrong, example by example in the same order. Examples that both models answer alike cancel,
    which makes the interval narrower than those of the two accuracies suggest. Raises UsageError as `interval` does,
    and for vectors of unequal length.
    """
    import numpy as np

    if len(one) != len(two):
        raise UsageError(
            f"{len(one)} and {len(two)} examples, expected the same ones; compare on one data digest"
        )
    _check(len(one), level, seed, resamples)
    count = len(one)
    better = sum(1 for a, b in zip(one, two, strict=True) if b and not a)
    worse = sum(1 for a, b in zip(one, two, strict=True) if a and not b)
    shares = [better / count, worse / count, (count - better - worse) / count]
    drawn = np.random.default_rng(seed).multinomial(count, shares, resamples)
    low, high = np.quantile((drawn[:, 0] - drawn[:, 1]) / count, _ends(level))
    return Interval((better - worse) / count, float(low), float(high))


def _ends(level: float) -> list[float]:
    return [(1 - level) / 2, (1 + level) / 2]


def _check(count: int, level: float, seed: int, resamples: int) -> None:
    if not count:
        raise UsageError("no examples, expected at least one; an accuracy of nothing has no interval")
    if not 0 < level < 1:
        raise UsageError(f"level is {level!r}, expected a number over 0 and under 1, such as 0.95")
    if type(seed) is not int or seed < 0:
        raise UsageError(f"seed is {seed!r}, expected a whole number of at least 0")
    if type(resamples) is not int or resamples < 1:
        raise UsageError(f"resamples is {resamples!r}, expected a whole number of at least 1")
