"""Confidence intervals of accuracies: the percentile bootstrap over test examples (Efron 1979).

Drawing n examples with replacement, of which `right` are answered correctly, gives a number of right answers that is
binomial; so that number is drawn, not the examples. The result depends on the counts only, not on the order of the
examples, and is the same for the same seed and version of numpy. Where an example holds several answers (the tokens
of a text), whole examples are drawn: answers within one are not independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from plait.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

RESAMPLES = 10_000
LEVEL = 0.95
_AT_ONCE = 1 << 22  # examples drawn at a time, to bound memory


class Interval(NamedTuple):
    """The measured value and the ends of its confidence interval."""

    value: float
    low: float
    high: float


def interval(
    right: Sequence[bool],
    *,
    groups: Sequence[int] | None = None,
    level: float = LEVEL,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Interval:
    """The share of true entries, with its interval.

    right: for every answer whether it is correct. groups: how many answers each example has, in order; None: one.
    level: share of resamples inside, over 0 and under 1. Where all are right (or wrong) both ends are 1 (or 0):
    resampling cannot show what was never seen. Raises UsageError for no answers, groups that do not add up to them,
    and a level, seed or number of resamples that makes no sense.
    """
    import numpy as np

    sizes = _check(len(right), groups, level, seed, resamples)
    count = len(right)
    value = sum(map(bool, right)) / count
    rng = np.random.default_rng(seed)
    if sizes is None:
        drawn = rng.binomial(count, value, resamples) / count
    else:
        drawn = _clusters(rng, _by_group(list(map(int, right)), sizes), sizes, resamples)
    return _ends(value, drawn, level)


def difference(
    one: Sequence[bool],
    two: Sequence[bool],
    *,
    groups: Sequence[int] | None = None,
    level: float = LEVEL,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Interval:
    """The accuracy of `two` less that of `one` on the same examples, with its paired interval.

    one, two: right or wrong, answer by answer in the same order. Answers that both models give alike cancel, which
    makes the interval narrower than those of the two accuracies suggest. Raises UsageError as `interval` does, and
    for vectors of unequal length.
    """
    import numpy as np

    if len(one) != len(two):
        raise UsageError(
            f"{len(one)} and {len(two)} answers, expected the same ones; compare on one data digest"
        )
    sizes = _check(len(one), groups, level, seed, resamples)
    changes = [int(b) - int(a) for a, b in zip(one, two, strict=True)]
    count, better, worse = len(one), changes.count(1), changes.count(-1)
    rng = np.random.default_rng(seed)
    if sizes is None:
        shares = [better / count, worse / count, (count - better - worse) / count]
        table = rng.multinomial(count, shares, resamples)
        drawn = (table[:, 0] - table[:, 1]) / count
    else:
        drawn = _clusters(rng, _by_group(changes, sizes), sizes, resamples)
    return _ends((better - worse) / count, drawn, level)


def _ends(value: float, drawn: np.ndarray, level: float) -> Interval:
    import numpy as np

    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(low), float(high))


def _by_group(values: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """The sum of each group's values."""
    return [sum(values[a:b]) for a, b in pairwise([0, *accumulate(sizes)])]


def _clusters(
    rng: np.random.Generator, sums: Sequence[int], sizes: Sequence[int], resamples: int
) -> np.ndarray:
    """Ratios of summed sums to summed sizes, over groups that are drawn with replacement."""
    import numpy as np

    above, below, count = np.array(sums), np.array(sizes), len(sizes)
    found = []
    for first in range(0, resamples, max(1, _AT_ONCE // count)):
        picked = rng.integers(0, count, (min(max(1, _AT_ONCE // count), resamples - first), count))
        found.append(above[picked].sum(1) / below[picked].sum(1))
    return np.concatenate(found)


def _check(
    count: int, groups: Sequence[int] | None, level: float, seed: int, resamples: int
) -> list[int] | None:
    """The sizes of the groups; None where every example has one answer."""
    if not count:
        raise UsageError("no answers, expected at least one; an accuracy of nothing has no interval")
    if not 0 < level < 1:
        raise UsageError(f"level is {level!r}, expected a number over 0 and under 1, such as 0.95")
    if type(seed) is not int or seed < 0:
        raise UsageError(f"seed is {seed!r}, expected a whole number of at least 0")
    if type(resamples) is not int or resamples < 1:
        raise UsageError(f"resamples is {resamples!r}, expected a whole number of at least 1")
    if groups is None:
        return None
    sizes = list(groups)
    if min(sizes, default=0) < 1 or sum(sizes) != count:
        raise UsageError(
            f"groups of {sum(sizes)} answers for {count}, expected groups of at least 1 that add up"
        )
    return None if len(sizes) == count else sizes
