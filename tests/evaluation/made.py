"""Rows made by hand."""

from __future__ import annotations

from typing import Any

from plait.evaluation.rows import Condition, Row, pack

MODEL = "1" * 64
OTHER = "2" * 64
DATA = "d" * 64


def row(digest: str = MODEL, right: int = 3, count: int = 4, **words: Any) -> Row:
    """A row on which the first `right` of `count` examples are right."""
    fields: dict[str, Any] = {
        "role": "version",
        "task": "a",
        "member": None,
        "own": None,
        "split": "test",
        "metric": "accuracy",
        "data": DATA,
        "head": "h" * 8,
        "network": "toy",
        "low": 0.0,
        "high": 1.0,
        "level": 0.95,
        "seed": 0,
        "device": "cpu",
        "time": "2026-01-01T00:00:00.000Z",
        "software": {"plait": "0"},
    }
    bits = pack([i < right for i in range(count)])
    return Row(digest, value=right / count, right=right, count=count, bits=bits, **{**fields, **words})


def condition(task: str = "a") -> Condition:
    return row(task=task).condition
