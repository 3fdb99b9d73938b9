"""mergekit's recipes that `make conformance` gives to mergekit and to plait alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

Row = dict[str, Any]


def recipes(folder: Path) -> dict[str, Row]:
    """Name -> recipe, over the base and the experts in `folder`."""
    base, *tasks = (
        str(folder / f"{n}.safetensors") for n in ("base", "task_0", "task_1", "task_2", "task_3")
    )

    def rows(*each: Row) -> list[Row]:
        return [{"model": task, "parameters": row} for task, row in zip(tasks, each, strict=False)]

    def all_four(**parameters: float) -> list[Row]:
        return rows(*(parameters for _ in tasks))

    crumbs = all_four(weight=0.5, density=0.6, gamma=0.05)
    two = rows({"weight": 1.0}, {"weight": 3.0})
    made: dict[str, Row] = {
        "slerp": {"base_model": base, "models": rows({}), "parameters": {"t": 0.3}},
        "slerp_experts": {
            "base_model": tasks[0],
            "models": [{"model": tasks[2]}, {"model": tasks[0]}],
            "parameters": {"t": 0.25},
        },
        "nuslerp": {"base_model": base, "models": two},
        "nuslerp_experts": {"models": two},
        "linear_weights": {"models": rows({"weight": 2.0}, {"weight": 0.5}, {"weight": 1.5})},
        "ties_sum": {
            "base_model": base,
            "models": all_four(weight=0.7, density=0.3),
            "parameters": {"normalize": False, "lambda": 0.4},
        },
        "breadcrumbs": {"base_model": base, "models": crumbs},
        "breadcrumbs_ties": {"base_model": base, "models": crumbs},
    }
    methods = {"slerp_experts": "slerp", "nuslerp_experts": "nuslerp", "linear_weights": "linear"}
    methods["ties_sum"] = "ties"
    return {
        name: {"merge_method": methods.get(name, name), **row, "dtype": "float32"}
        for name, row in made.items()
    }
