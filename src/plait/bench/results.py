"""The file of results: what was measured and how, so that an interrupted run goes on, and no other one does.

Its keys are described in docs/benchmarks-suites.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from plait.errors import RefusedInput

SCHEMA = "plait bench"
REMOVAL = "plait bench removal"
CIL = "plait bench cil"
PATH = "plait bench path"
VERBS = {SCHEMA: "run", REMOVAL: "removal", CIL: "cil", PATH: "path"}
"""What a file of results is, and the action that makes it."""

FORMAT = 1
LEVEL = 0.95

SAME = ("suite", "setting", "tasks", "experts")
"""Keys that are equal in all runs whose results stand in one file."""


@dataclass(frozen=True)
class Score:
    """right of count answers; undefined: how many of the others were NaN."""

    right: int
    count: int
    undefined: int = 0

    @property
    def value(self) -> float:
        return self.right / self.count

    def plain(self) -> dict[str, Any]:
        """The score with the ends of its interval."""
        low, high = interval(self.right, self.count)
        return {**asdict(self), "value": self.value, "low": low, "high": high}


@lru_cache(maxsize=4096)
def interval(right: int, count: int) -> tuple[float, float]:
    """The ends of the bootstrap interval of right / count."""
    from plait.evaluation import bootstrap

    found = bootstrap.interval([True] * right + [False] * (count - right), level=LEVEL)
    return found.low, found.high


def empty(schema: str = SCHEMA, **same: Any) -> dict[str, Any]:
    """Results without anything measured. same: a value for every key of SAME."""
    return {
        "schema": schema,
        "format": FORMAT,
        **{key: same[key] for key in SAME},
        "rows": {"base": {}, "experts": {}},
        "methods": {},
        "cells": [],
        "runs": [],
    }


def read(path: Path, *schemas: str) -> dict[str, Any]:
    """The results in a file, of one of the schemas (SCHEMA by default). RefusedInput, one line, where it holds
    something else."""
    wanted = schemas or (SCHEMA,)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RefusedInput(f"{path}: there are no results; make some with `plait bench run SUITE`") from None
    except IsADirectoryError:
        raise RefusedInput(f"{path}: is a folder, expected a file of results") from None
    except (ValueError, RecursionError) as error:
        raise RefusedInput(f"{path}: is no JSON ({str(error).splitlines()[0]}); expected results") from None
    if not isinstance(found, dict) or found.get("schema") not in wanted:
        raise RefusedInput(
            f"{path}: is no file of suite results (schema {' or '.join(map(repr, wanted))}); was it made by "
            f"{' or '.join(f'plait bench {VERBS[schema]}' for schema in wanted)}?"
        )
    if found.get("format") != FORMAT:
        raise RefusedInput(
            f"{path}: has format {found.get('format')!r}, this plait reads {FORMAT}; give another file with --out"
        )
    lacking = [key for key, kind in _KINDS.items() if not isinstance(found.get(key), kind)]
    if lacking:
        raise RefusedInput(f"{path}: lacks {', '.join(lacking)}; it was damaged: remove it and run again")
    return found


_KINDS: Mapping[str, type] = {
    "suite": str, "setting": dict, "tasks": dict, "experts": dict, "rows": dict, "methods": dict, "cells": list,
    "runs": list,
}  # fmt: skip


def check_suite(path: Path, suite: str, schema: str = SCHEMA) -> None:
    """RefusedInput where the file is there and holds no results of this suite: known before hours of work."""
    if path.exists() and (found := read(path, schema)["suite"]) != suite:
        raise RefusedInput(
            f"{path}: holds results of suite {found}, expected {suite}; give another file with --out"
        )


def go_on(path: Path, now: Mapping[str, Any], schema: str = SCHEMA) -> dict[str, Any]:
    """The results in the file, if it is there, else empty ones. now: what this run measures, by the keys of SAME.

    RefusedInput names the first thing in which the file's differ.
    """
    if not path.exists():
        return empty(schema, **now)
    found = read(path, schema)
    for key in SAME:
        apart = next(_apart(key, found[key], now[key]), None)
        if apart is not None:
            where, then, today = apart
            raise RefusedInput(
                f"{path}: holds results with {where} {_short(then)}, this run has {_short(today)}; give another file "
                "with --out, or the words of before"
            )
    return found


def _apart(where: str, one: Any, two: Any) -> Iterator[tuple[str, Any, Any]]:
    """Places in which two values differ, innermost first."""
    if isinstance(one, dict) and isinstance(two, dict):
        for key in dict.fromkeys((*one, *two)):
            yield from _apart(f"{where}.{key}", one.get(key), two.get(key))
    elif one != two:
        yield where, one, two


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:59]}…"


def scores(found: Mapping[str, Any]) -> dict[tuple[str, str], Score]:
    """Every score on test examples that the results hold, by digest of the model and task."""
    held = row_scores(found)
    for cell in found["cells"]:
        for version, right, undefined in zip(cell["versions"], cell["right"], cell["undefined"], strict=True):
            for task, hits, lost in zip(cell["order"], right, undefined, strict=True):
                if hits is not None:
                    held[version, task] = Score(hits, found["tasks"][task]["test"]["examples"], lost)
    return held


def row_scores(found: Mapping[str, Any]) -> dict[tuple[str, str], Score]:
    """Those of the base and of the experts."""
    held: dict[tuple[str, str], Score] = {}
    digests = {"base": dict.fromkeys(found["tasks"], found["setting"]["base"])}
    digests["experts"] = {t: row["digest"] for t, row in found["experts"].items()}
    for who, row in found["rows"].items():
        for task, cell in row.items():
            held[digests[who][task], task] = Score(cell["right"], cell["count"], cell["undefined"])
    return held


def cell_of(found: Mapping[str, Any], method: str, seed: int, *, last: bool = False) -> dict[str, Any] | None:
    """The finished cell of a method and an order. last: one of the last model alone will do."""
    cells = (c for c in found["cells"] if (c["method"], c["seed"]) == (method, seed))
    return next((c for c in cells if last or not c.get("last")), None)


def last_figures(
    final: Sequence[float],
    order: Sequence[str],
    rows: Mapping[str, Any],
    weights: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """The figures that the last model alone has; None for the others."""
    from plait.evaluation import metrics

    base, experts = ([rows[who][task]["value"] for task in order] for who in ("base", "experts"))
    return {
        "acc": metrics.accuracy(final),
        "normalised": metrics.normalised_accuracy(final, experts),
        "base": metrics.accuracy(base),
        "experts": metrics.accuracy(experts),
        **_weighted(final, order, weights),
        **dict.fromkeys(("backward", "backward_over_t", "forgetting", "plasticity_gap")),
    }


def figures(
    order: Sequence[str],
    values: Sequence[Sequence[float | None]],
    rows: Mapping[str, Any],
    weights: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """All figures of one stream. order: tasks as they arrived; values[k][i]: accuracy on the i-th after merge k.
    weights: by task, where the accuracy weighted by them is to be told too."""
    from plait.evaluation import metrics

    base, experts = ([rows[who][task]["value"] for task in order] for who in ("base", "experts"))
    final = values[-1]
    return {
        "acc": metrics.accuracy(final),
        "normalised": metrics.normalised_accuracy(final, experts),
        "base": metrics.accuracy(base),
        "experts": metrics.accuracy(experts),
        **_weighted(final, order, weights),
        "backward": metrics.backward_transfer(values),
        "backward_over_t": metrics.backward_transfer(values, divisor="T"),
        "forgetting": metrics.forgetting(values),
        "plasticity_gap": metrics.plasticity_gap(values, experts),
    }


def _weighted(
    final: Sequence[float | None], order: Sequence[str], weights: Mapping[str, float] | None
) -> dict[str, Any]:
    from plait.evaluation import metrics

    if weights is None:
        return {}
    return {"weighted": metrics.weighted_accuracy(final, [weights[task] for task in order])}
