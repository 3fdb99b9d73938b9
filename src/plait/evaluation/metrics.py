"""The figures of continual merging, as pure functions of plain numbers.

Accuracies are shares from 0 to 1. `matrix[k][i]` is the accuracy on task i after step k; tasks stand in their order
of arrival, and step i is the one at which task i arrived, unless `arrival` says otherwise (a line may hold a
reweight between two merges). The last row is the present; T is the number of tasks.

None stands for what was not measured. A figure that needs such an entry is None itself, and so is one that is not
defined (a mean of nothing, a ratio to zero): nothing is averaged over what happens to be there. NaN, infinity, text
and rows of unequal length are mistakes and raise UsageError.

ACC, BWT: Lopez-Paz and Ranzato 2017, arXiv 1706.08840. Forgetting: Chaudhry et al. 2018, arXiv 1801.10112.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from math import fsum, isfinite
from typing import Literal

from plait.errors import UsageError

Cell = float | None
"""A number, or None where it was not measured."""

Divisor = Literal["T-1", "T"]


def accuracy(final: Sequence[Cell]) -> Cell:
    """ACC = mean over tasks of a[T,i]. final: the last row of the matrix."""
    return _mean(_numbers(final, "final"))


def weighted_accuracy(final: Sequence[Cell], weights: Sequence[float]) -> Cell:
    """ACC_w = Σ wi a[T,i] / Σ wi. weights: one for each task; None where they sum to zero."""
    values, shares = _numbers(final, "final"), _numbers(weights, "weights")
    _same_length("weights", shares, values)
    total = _sum(shares)
    summed = _sum([_times(w, a) for w, a in zip(shares, values, strict=True)])
    return _ratio(summed, total)


def normalised_accuracy(final: Sequence[Cell], experts: Sequence[Cell]) -> Cell:
    """mean over tasks of a[T,i] / e[i]. experts: accuracy of each task's own expert; None where one is 0."""
    values, own = _numbers(final, "final"), _numbers(experts, "experts")
    _same_length("experts", own, values)
    return _mean([_ratio(a, e) for a, e in zip(values, own, strict=True)])


def backward_transfer(
    matrix: Sequence[Sequence[Cell]],
    arrival: Sequence[int] | None = None,
    *,
    divisor: Divisor = "T-1",
) -> Cell:
    """BWT = Σ over tasks that arrived before the last step of (a[T,i] - a[i,i]), divided by their number.

    divisor: "T-1" is that number where every step is a merge (the paper's); "T" divides by the number of all tasks,
    as others do: smaller by (T-1)/T. Negative means that old tasks got worse. A rule that never learns scores 0,
    the best there is without transfer: look at `plasticity_gap` beside it, always.
    """
    if divisor not in ("T-1", "T"):
        raise UsageError(f"divisor is {divisor!r}, expected 'T-1' or 'T'")
    rows, steps = _matrix(matrix, arrival)
    old = _old(rows, steps)
    changes = [_minus(rows[-1][i], rows[steps[i]][i]) for i in old]
    if not changes:
        return None
    return _ratio(_sum(changes), float(len(changes) if divisor == "T-1" else len(steps)))


def forgetting(matrix: Sequence[Sequence[Cell]], arrival: Sequence[int] | None = None) -> Cell:
    """mean over tasks that arrived before the last step of (max over k of a[k,i]) - a[T,i].

    k runs from the task's arrival to the last step, so the result is never negative: before it arrived nothing of
    the task could be forgotten.
    """
    rows, steps = _matrix(matrix, arrival)
    lost = [_minus(_largest(row[i] for row in rows[steps[i] :]), rows[-1][i]) for i in _old(rows, steps)]
    return _mean(lost)


def plasticity_gap(
    matrix: Sequence[Sequence[Cell]], experts: Sequence[Cell], arrival: Sequence[int] | None = None
) -> Cell:
    """mean over tasks of e[i] - a[i,i]: what merging took from an expert at once. 0: every task was learned fully."""
    rows, steps = _matrix(matrix, arrival)
    own = _numbers(experts, "experts")
    _same_length("experts", own, steps)
    return _mean([_minus(own[i], rows[step][i]) for i, step in enumerate(steps)])


def removal_retain(before: Sequence[Cell], after: Sequence[Cell], gone: int) -> Cell:
    """UAD_retain = mean over tasks i ≠ k of a[i] before - a[i] after the removal of task k: what it cost the others.

    gone: the place of k in both. Positive: the others lost accuracy.
    """
    one, two = _others(before, after, gone, "after")
    return _mean([_minus(a, b) for a, b in zip(one, two, strict=True)])


def removal_fidelity(unmerged: Sequence[Cell], never: Sequence[Cell], gone: int) -> Cell:
    """UAD_fidelity = mean over tasks i ≠ k of |a[i] (unmerged) - a[i] (never merged)|. 0 for equal bytes."""
    one, two = _others(unmerged, never, gone, "never")
    apart = [_minus(a, b) for a, b in zip(one, two, strict=True)]
    return _mean([None if d is None else abs(d) for d in apart])


def removal_forget(unmerged: Cell, base: Cell) -> Cell:
    """forget = a[k] (unmerged) - b[k]: what the model still knows of the removed task, beyond the base."""
    (after,), (start,) = _numbers([unmerged], "unmerged"), _numbers([base], "base")
    return _minus(after, start)


def weight_distance(unmerged_never: Cell, never_base: Cell) -> Cell:
    """‖Θ unmerged - Θ never merged‖ / ‖Θ never merged - θ0‖, from the two Euclidean norms.

    0 where the first is 0; None where only the second is (the task was the only member).
    """
    (apart,), (moved,) = _numbers([unmerged_never], "unmerged_never"), _numbers([never_base], "never_base")
    if (apart or 0.0) < 0 or (moved or 0.0) < 0:
        raise UsageError(f"norms are {apart!r} and {moved!r}, expected numbers of at least 0")
    return 0.0 if apart == 0 and moved is not None else _ratio(apart, moved)


def class_incremental_accuracy(
    predicted: Sequence[int], labels: Sequence[int], seen: Collection[int]
) -> Cell:
    """CIL accuracy: top-1 over all classes seen so far, with one head for all of them.

    predicted, labels: numbers of classes, counted over all tasks together, one each for every test example; seen:
    the classes of the tasks so far. Examples of classes that were not seen do not count. A prediction outside `seen`
    is a head that knows the future: UsageError. None where no example is of a class seen.
    """
    _same_length("labels", labels, predicted)
    early = sorted(set(predicted) - set(seen))
    if early:
        raise UsageError(
            f"class {early[0]} was predicted and is none of the {len(seen)} seen; "
            "take the best class among those seen only"
        )
    right = [float(p == t) for p, t in zip(predicted, labels, strict=True) if t in seen]
    return _mean(right)


def _numbers(values: Sequence[Cell], what: str) -> list[Cell]:
    """The values as finite floats or None."""
    found: list[Cell] = []
    for place, value in enumerate(values):
        if value is not None and (isinstance(value, str) or not isfinite(value)):
            raise UsageError(
                f"{what}[{place}] is {value!r}, expected a finite number, or None where it was not measured"
            )
        found.append(None if value is None else float(value))
    return found


def _matrix(
    matrix: Sequence[Sequence[Cell]], arrival: Sequence[int] | None
) -> tuple[list[list[Cell]], list[int]]:
    """The matrix with its entries checked, and the step at which each task arrived."""
    rows = [_numbers(row, f"matrix[{k}]") for k, row in enumerate(matrix)]
    width = len(rows[-1]) if rows else 0
    for k, row in enumerate(rows):
        if len(row) != width:
            raise UsageError(
                f"matrix[{k}] has {len(row)} tasks, the last row has {width}; give every row one length"
            )
    steps = list(range(width)) if arrival is None else list(arrival)
    _same_length("arrival", steps, rows[-1] if rows else [])
    for i, step in enumerate(steps):
        if type(step) is not int or not 0 <= step < len(rows):
            raise UsageError(f"arrival[{i}] is {step!r}, expected a step from 0 to {len(rows) - 1}")
    return rows, steps


def _old(rows: Sequence[object], steps: Sequence[int]) -> list[int]:
    """Tasks that arrived before the last step: i < T."""
    return [i for i, step in enumerate(steps) if step < len(rows) - 1]


def _others(one: Sequence[Cell], two: Sequence[Cell], gone: int, name: str) -> tuple[list[Cell], list[Cell]]:
    first, second = _numbers(one, "accuracies"), _numbers(two, name)
    _same_length(name, second, first)
    if type(gone) is not int or not 0 <= gone < len(first):
        raise UsageError(f"gone is {gone!r}, expected the place of a task from 0 to {len(first) - 1}")
    return first[:gone] + first[gone + 1 :], second[:gone] + second[gone + 1 :]


def _same_length(what: str, values: Sequence[object], like: Sequence[object]) -> None:
    if len(values) != len(like):
        raise UsageError(f"{what} has {len(values)} entries, {len(like)} are needed, one for each task")


def _sum(values: Sequence[Cell]) -> Cell:
    known = [v for v in values if v is not None]
    return fsum(known) if len(known) == len(values) else None


def _mean(values: Sequence[Cell]) -> Cell:
    return _ratio(_sum(values), float(len(values)))


def _largest(values: Iterable[Cell]) -> Cell:
    found = list(values)
    known = [v for v in found if v is not None]
    return max(known) if known and len(known) == len(found) else None


def _ratio(above: Cell, below: Cell) -> Cell:
    return None if above is None or not below else above / below


def _minus(a: Cell, b: Cell) -> Cell:
    return None if a is None or b is None else a - b


def _times(a: Cell, b: Cell) -> Cell:
    return None if a is None or b is None else a * b
