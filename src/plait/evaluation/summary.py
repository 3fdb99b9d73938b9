"""A matrix in a few figures. Backward transfer and the plasticity gap come together or not at all.

A rule that never learns has a backward transfer of zero, the best there is without transfer between tasks; only the
plasticity gap shows that it learned nothing. So there is no backward transfer here without the gap, and one line
holds both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from plait.evaluation import metrics
from plait.evaluation.matrix import Matrix, Step, accuracies
from plait.evaluation.metrics import Cell


@dataclass(frozen=True)
class Figures:
    """A matrix in figures, over the members of now: shares from 0 to 1, None where a measurement is missing.

    tasks: the members that were measured, over which all means run. acc, weighted, normalised, base, experts: means
    over them of a[T,i], of a[T,i] by weight, of a[T,i]/e[i], of b[i] and of e[i]. backward, backward_over_t: BWT with
    the number of tasks that arrived before the last step as its divisor ("T-1"), and with that of all ("T"); None
    also where the plasticity gap is. See `plait.evaluation.metrics`.
    """

    tasks: tuple[str, ...]
    acc: Cell
    weighted: Cell
    normalised: Cell
    base: Cell
    experts: Cell
    backward: Cell
    backward_over_t: Cell
    forgetting: Cell
    plasticity_gap: Cell

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "tasks": list(self.tasks)}


@dataclass(frozen=True)
class Removal:
    """What an unmerge did, from accuracies before and after it.

    retain, fidelity, forget: UAD_retain, UAD_fidelity and forget, see `plait.evaluation.metrics`, over the members
    that stayed. bytes_equal: whether the receipt says that the model has the bytes of never having merged the task;
    the fidelity is then 0 by definition, else it is not known, because that other model was never made.
    """

    sequence: int
    task: str
    retain: Cell
    fidelity: Cell
    forget: Cell
    bytes_equal: bool

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def figures(matrix: Matrix) -> Figures:
    """The figures of the last step, over the tasks that are members then."""
    columns = matrix.members()
    rows = [[row[i] for i in columns] for row in matrix.values()]
    final = rows[-1] if columns else []
    experts, base = ([accuracies(side)[i] for i in columns] for side in (matrix.experts, matrix.base))
    arrival = [step for step in matrix.arrival if step is not None]
    weights = [w for w in matrix.weights if w is not None]
    numbers = [w for w in weights if not isinstance(w, str)]
    gap = metrics.plasticity_gap(rows, experts, arrival) if columns else None
    over_old, over_all = (
        None if gap is None else metrics.backward_transfer(rows, arrival, divisor=divisor)
        for divisor in _DIVISORS
    )
    return Figures(
        tasks=tuple(matrix.tasks[i] for i in columns),
        acc=metrics.accuracy(final),
        weighted=metrics.weighted_accuracy(final, numbers) if len(numbers) == len(weights) else None,
        normalised=metrics.normalised_accuracy(final, experts),
        base=metrics.accuracy(base),
        experts=metrics.accuracy(experts),
        backward=over_old,
        backward_over_t=over_all,
        forgetting=metrics.forgetting(rows, arrival) if columns else None,
        plasticity_gap=gap,
    )


_DIVISORS: tuple[metrics.Divisor, ...] = ("T-1", "T")


def removals(matrix: Matrix) -> list[Removal]:
    """Every unmerge of a measured task."""
    found = []
    values = matrix.values()
    for k, step in enumerate(matrix.steps):
        if step.verb == "unmerge" and step.task in matrix.tasks and k > 0:
            found.append(_removal(matrix, values, k, step))
    return found


def _removal(matrix: Matrix, values: Sequence[Sequence[Cell]], k: int, step: Step) -> Removal:
    gone = matrix.tasks.index(step.task)
    stayed = [i for i, task in enumerate(matrix.tasks) if task in step.members]
    before, after = ([values[at][i] for i in (gone, *stayed)] for at in (k - 1, k))
    equal = bool((step.entry["receipt"] or {}).get("exact"))
    fidelity = metrics.removal_fidelity(after, after, 0) if equal else None
    base = accuracies(matrix.base)[gone]
    return Removal(
        step.sequence,
        step.task,
        metrics.removal_retain(before, after, 0),
        fidelity,
        metrics.removal_forget(after[0], base),
        equal,
    )


def percent(value: Cell, sign: str = "") -> str:
    """A share as a percentage with one digit, `-` where there is none; sign "+" also marks what is not negative."""
    return "-" if value is None else f"{100 * value:{sign}.1f}"


ALL = "which needs experts and the versions of arrival: --all"
"""What is said of a plasticity gap that is not known, unless the caller knows better."""


def told(row: Mapping[str, Any], missing: str = ALL) -> list[tuple[str, str]]:
    """Figures (as `Figures.plain` gives them) in words, in percent: labels and texts for a table of two columns.

    missing: why there is no plasticity gap, and what to do, where there is none.
    """
    lines = [
        ("ACC", _whole(row["acc"])),
        ("ACC by weight", _whole(row["weighted"]) if row["weighted"] != row["acc"] else ""),
        ("base, experts", f"{_whole(row['base'])}, {_whole(row['experts'])}"),
        ("normalised", _whole(row["normalised"], " of the experts")),
        ("forgetting", percent(row["forgetting"])),
    ]
    return [*[(label, text) for label, text in lines if text], ("BWT", _transfer(row, missing))]


def _whole(value: Cell, more: str = "") -> str:
    return "-" if value is None else f"{percent(value)} %{more}"


def _transfer(row: Mapping[str, Any], missing: str) -> str:
    gap = row["plasticity_gap"]
    if gap is None:
        return f"- (shown with the plasticity gap only, {missing})"
    both = f"plasticity gap {percent(gap, '+')}"
    if len(row["tasks"]) < 2:
        return f"-; {both}"  # divided by T-1 = 0: one task has no transfer
    if row["backward"] is None:
        return f"- (no task is older than the last step, or one was not measured), {both}"
    return f"{percent(row['backward'], '+')} over T-1, {percent(row['backward_over_t'], '+')} over T; {both}"
