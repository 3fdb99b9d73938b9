"""The part of a report that is about task vectors: how they lie to each other, and how far they reach."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plait import words
from plait.report import palette
from plait.report.figures import Heat, Spot, heat
from plait.report.markup import Html, tag
from plait.report.parts import figure, note, section, table

Facts = Mapping[str, Any]


def vectors(found: Facts) -> Html:
    title = "Task vectors"
    told = found["vectors"]
    if not found["members"]:
        return section("vectors", title, tag("p", "There is no member, so there is no task vector."))
    if told is None:
        gap = next(g for g in found["gaps"] if g["about"].startswith("cosines"))
        return section(
            "vectors", title, note(f"Cosines and norms are missing: {gap['found']}.", fill=gap["fill"])
        )
    return section(
        "vectors",
        title,
        tag(
            "p", "A task vector is an expert less the base, over all mergeable tensors; weights do not count."
        ),
        _cosines(told),
        _norms(told),
    )


def _cosines(told: Facts) -> Html:
    tasks, cosines = told["tasks"], told["cosines"]
    apart = [c for i, row in enumerate(cosines) for j, c in enumerate(row) if i != j and c is not None]
    reach = _nice(max(map(abs, apart), default=0.0) or 0.1)

    def spot(i: int, j: int) -> Spot | None:
        value = cosines[i][j]
        if value is None:
            return None
        if i == j:
            return Spot(None, "1", "1", f"{tasks[i]}: norm {words.figure(told['norms'][i])}")
        text = f"{value:.2f}".replace("-", "−")
        brief = text.replace("0.", ".") if abs(value) < 1 else "1"
        return Spot(
            palette.bin_of(value, -reach, reach),
            text,
            brief,
            f"{tasks[i]}, {tasks[j]}: cosine {words.figure(value)}",
        )

    count = range(len(tasks))
    chart = Heat(
        "Cosines between task vectors",
        tasks,
        tasks,
        [[spot(i, j) for j in count] for i in count],
        "d",
        (words.figure(-reach), words.figure(reach)),
        gap="no task vector" if any(c is None for row in cosines for c in row) else "",
    )
    rows = [(tasks[i], *(words.figure(c) for c in cosines[i])) for i in count]
    numbers = table(("task", *tasks), rows, "Cosines between task vectors.", "-" + "n" * len(tasks))
    caption = (
        "Cosines between task vectors: 0 is at right angles, 1 the same direction. "
        "Orange pulls apart, blue pulls together; the scale ends at the largest cosine of two different members."
    )
    return figure(caption, heat(chart), numbers)


def _nice(value: float) -> float:
    """The next larger round number: 0.01, 0.02, …, 0.1, 0.15, 0.2, 0.3, …, 1."""
    steps = (*(n / 100 for n in range(1, 11)), 0.15, *(n / 10 for n in range(2, 10)))
    return next((step for step in steps if value <= step), 1.0)


def _norms(told: Facts) -> Html:
    layers, tasks = told["layers"], told["tasks"]
    shares = [
        [own / base if base else None for own, base in zip(row, told["base_norms"], strict=True)]
        for row in told["layer_norms"]
    ]
    top = max((s for row in shares for s in row if s is not None), default=0.0) or 1.0

    def spot(layer: int, task: int) -> Spot | None:
        share = shares[task][layer]
        if share is None:
            return None
        own = told["layer_norms"][task][layer]
        tip = f"{layers[layer]}, {tasks[task]}: {100 * share:.3g} % of the base's norm ({own:.3g})"
        text = f"{100 * share:.2g}" if share < 1 else f"{100 * share:.0f}"
        return Spot(palette.bin_of(share, 0.0, top), text, text if len(text) < 4 else "", tip)

    chart = Heat(
        "Norms of task vectors by layer, relative to the base",
        layers,
        tasks,
        [[spot(i, j) for j in range(len(tasks))] for i in range(len(layers))],
        "s",
        ("0 %", f"{100 * top:.0f} %" if top >= 0.1 else f"{100 * top:.2g} %"),
        gap="the base is zero there" if any(s is None for row in shares for s in row) else "",
    )
    rows = [
        (name, words.figure(base, 4), *(words.figure(row[i], 4) for row in told["layer_norms"]))
        for i, (name, base) in enumerate(zip(layers, told["base_norms"], strict=True))
    ]
    rows.append(("all", words.figure(told["base_norm"], 4), *(words.figure(n, 4) for n in told["norms"])))
    numbers = table(("layer", "base", *tasks), rows, "Norms by layer.", "-" + "n" * (len(tasks) + 1))
    caption = "How far each task moved each layer: the norm of its task vector there, in per cent of the base's norm."
    return figure(caption, heat(chart), numbers)
