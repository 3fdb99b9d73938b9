"""The proofs: never merged, plain subtraction, replay, export. Each states claims that are computed on the spot."""

from __future__ import annotations

import filecmp
from collections.abc import Sequence

import torch
from torch import Tensor

from plait import Line
from plait.demo.minilm import WEIGHTS, load
from plait.demo.screen import percent
from plait.demo.subtraction import Undo, subtract_again
from plait.demo.tasks import Task
from plait.demo.training import Score
from plait.demo.walk import Options, Walk, digest_of, matrix_row, plain

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def never_merged(w: Walk, options: Options, names: Sequence[str]) -> dict[str, Line]:
    """New lines, made from the base, into which only the experts `names` are merged."""
    lines = {}
    with w.screen.timed("merge without it"):
        for method, chosen in options.items():
            line = Line.create(w.out / "never" / method, w.base, method, seed=w.seed, **chosen)
            for name in names:
                line.merge(w.expert(name), name)
            lines[method] = line
    return lines


def compare_with_never(w: Walk, lines: dict[str, Line], never: dict[str, Line], removed: str) -> None:
    """Claim that each line's model has the bytes of the line that never saw the task."""
    s = w.screen
    s.say(f"For comparison, two new lines were made from the base that never saw the {removed} expert:")
    s.results["never_merged"] = {}
    table = []
    for method, line in lines.items():
        mine, theirs = digest_of(line.model), digest_of(never[method].model)
        same = filecmp.cmp(line.model / WEIGHTS, never[method].model / WEIGHTS, shallow=False)
        equal = mine == theirs == line.digest and same
        s.results["never_merged"][method] = {"unmerged": mine, "never": theirs, "equal": equal}
        table.append([method, mine[:24], theirs[:24], "equal" if equal else "DIFFERENT"])
    s.table(["line", "digest after unmerge", "digest, never merged", "files"], table)
    for method, found in s.results["never_merged"].items():
        s.claim(
            f"unmerge equals never merged: {method}",
            found["equal"],
            f"{method}: unmerging {removed} gives the very bytes of never having merged it.",
        )


def try_plain_subtraction(
    w: Walk, before: dict[str, dict[str, Tensor]], never: dict[str, Line], undo: dict[str, Undo], removed: str
) -> None:
    """Claim that undoing the formula on the merged weights does not give the model that never had the task.

    before: weights of each line's model while all tasks were in.
    """
    s = w.screen
    s.section(
        "What plain arithmetic does",
        f"Without a line, one would take the merged weights and undo the formula: subtract the {removed} expert "
        "again. Rounding stays behind, and nobody knows where. Against the model that never had the task:",
    )
    base, expert = load(w.base), load(w.expert(removed))
    table = []
    s.results["subtraction"] = {}
    with s.timed("plain subtraction"):
        for method, line in never.items():
            want = load(line.model)
            for label, dtype in DTYPES.items():
                gap = subtract_again(before[method], base, expert, want, undo[method], dtype)
                s.results["subtraction"][f"{method}, {label}"] = vars(gap)
                counts = [f"{gap.differing:,}", f"{gap.elements:,}", percent(gap.differing / gap.elements)]
                table.append([f"{method}, {label}", *counts, f"{gap.largest:.1e}"])
    s.table(["subtracted again in", "elements differ", "of", "%", "largest difference"], table)
    s.claim(
        "plain subtraction is not exact",
        all(found["differing"] > 0 for found in s.results["subtraction"].values()),
        "None of these gives the model that never had the task; the line does, to the last bit.",
    )


def replay(w: Walk, lines: dict[str, Line]) -> None:
    """Claim that every line verifies, and that making its model anew gives the same bytes."""
    s = w.screen
    s.section(
        "Verify",
        "`verify --replay` hashes everything that a line keeps, checks the chain of its ledger, and makes the "
        "model anew from its members.",
    )
    s.results["verify"] = {}
    for method, line in lines.items():
        with s.timed("verify") as timer:
            found = line.verify(replay=True)
        s.results["verify"][method] = found
        checked = found["checked"]
        counts = ", ".join(f"{checked[what]} {what}" for what in ("entries", "objects", "versions"))
        s.claim(
            f"verify: {method}",
            found["ok"] and found["replay"] == "equal" and not found["problems"],
            f"{method}: checked {counts} in {timer.seconds:.1f} s; problems: "
            f"{'; '.join(found['problems']) or 'none'}. The model made anew is {found['replay']}.",
        )


def export_and_reload(
    w: Walk, line: Line, tasks: Sequence[Task], inside: dict[str, Score], removed: str
) -> None:
    """Claim that the exported folder has the line's bytes and answers as the line's model did (`inside`)."""
    s = w.screen
    s.section(
        "Export and reload",
        "The export is an ordinary model folder, with a model card that names the members. The demo's own "
        "network, which knows nothing of lines, loads it and answers the test questions again.",
    )
    target = w.out / "export"
    with s.timed("export"):
        line.export(target)
    (scores,) = w.scores([target], tasks)
    kept = [name for name in scores if name != removed]
    table = [matrix_row("in the line", inside, kept), matrix_row("reloaded export", scores, kept)]
    s.table([line.status()["method"], *(f"{n} " for n in scores), "mean"], table)
    found = digest_of(target)
    s.results["export"] = {"digest": found, "line": line.digest, "scores": plain(scores)}
    s.claim(
        "the export has the line's bytes",
        found == line.digest,
        f"The export's digest is {found[:24]}, the line's is {line.digest[:24]}.",
    )
    s.claim(
        "the export answers alike",
        scores == inside,
        "It gives as many right answers as the line's model on every task.",
    )
