"""Results made by hand: two tasks, one method, one order."""

from __future__ import annotations

from typing import Any

from plait.bench.results import REMOVAL, empty

BASE, A, B, BOTH = ("0" * 64, "a" * 64, "b" * 64, "c" * 64)


def task(name: str, count: int = 10) -> dict[str, Any]:
    return {"name": name, "classes": 2, "head": "zero-shot", "test": {"examples": count, "data": name}}


def score(right: int, count: int = 10) -> dict[str, Any]:
    return {"right": right, "count": count, "undefined": 0, "value": right / count, "low": 0.0, "high": 1.0}


def same(**changes: Any) -> dict[str, Any]:
    """What is equal in all runs of one file."""
    return {
        "suite": "tiny",
        "setting": {"base": BASE, "about": "a small base", "budget": 5, "recipe": {"rate": 1e-4}},
        "tasks": {"one": task("one"), "two": task("two", 20)},
        "experts": {"one": {"digest": A, "recipe": "r"}, "two": {"digest": B, "recipe": "s"}},
        **changes,
    }


def cell(seed: int = 42, method: str = "average", **changes: Any) -> dict[str, Any]:
    """`one` falls from 9 to 8 of 10 when `two`, 12 of 20, comes in."""
    return {
        "seed": seed,
        "run": 0,
        "method": method,
        "order": ["one", "two"],
        "versions": [A, BOTH],
        "right": [[9, None], [8, 12]],
        "undefined": [[0, None], [1, 0]],
        "values": [[0.9, None], [0.8, 0.6]],
        "low": [[0.7, None], [0.5, 0.4]],
        "high": [[1.0, None], [1.0, 0.8]],
        "seconds": [1.0, 3.0],
        "cpu": [1.0, 2.0],
        "memory": [2_000_000, 5_000_000],
        "bytes": {"members": [10, 1_000_000], "state": [20, 2_000_000]},
        "figures": {
            "acc": 0.7,
            "normalised": 0.8,
            "backward": -0.1,
            "backward_over_t": -0.05,
            "plasticity_gap": 0.1,
            "forgetting": 0.1,
        },
        **changes,
    }


def told(**changes: Any) -> dict[str, Any]:
    """What results say of a method."""
    tried = [{"value": 0.3, "accuracy": 0.6}, {"value": 0.5, "accuracy": 0.7}]
    tuning = {"option": "scale", "tried": tried, "chosen": 0.5, "edge": True}
    return {"options": {"scale": 0.5}, "order": False, "tuning": tuning, **changes}


def results(*cells: dict[str, Any], **methods: dict[str, Any]) -> dict[str, Any]:
    """Results with these cells, and with the methods that are named in them."""
    found = empty(**same())
    found["rows"] = {
        "base": {"one": score(5), "two": score(8, 20)},
        "experts": {"one": score(9), "two": score(15, 20)},
    }
    found["cells"] = list(cells)
    found["methods"] = {c["method"]: told() for c in cells} | methods
    found["runs"] = [{"machine": {"cores": 2, "processor": "a processor"}}]
    return found


def removal(method: str, place: int, **figures: float | None) -> dict[str, Any]:
    """One of two tasks taken out."""
    none = dict.fromkeys(("distance", "retain", "fidelity", "forget", "left"), 0.0)
    return {
        "method": method,
        "seed": 42,
        "place": place,
        "equal": not figures,
        "figures": {**none, **figures},
        "cpu": 1.0 + place,
        "seconds": 2.0 + 2 * place,
        "bytes": {"members": 1_500_000, "state": 500_000},
    }


def removals() -> dict[str, Any]:
    """Results of a method that removes exactly and of one that does not."""
    found = results()
    one = removal("subtraction bf16", 0, distance=0.1, retain=0.01, fidelity=0.01, forget=0.01, left=0.0)
    two = removal("subtraction bf16", 1, distance=0.2, retain=-0.03, fidelity=None, forget=-0.05, left=0.01)
    found["cells"] = [removal("mdm_oc", 0), removal("mdm_oc", 1), one, two]
    found["methods"] = {"mdm_oc": {"how": "exact"}, "subtraction bf16": {"how": "bf16"}}
    return {**found, "schema": REMOVAL}
