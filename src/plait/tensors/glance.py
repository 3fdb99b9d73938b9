"""Answers to the surveys of `select.largest` from the raw tensors, in compiled loops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plait.tensors import BLOCK, Tensor
from plait.tensors.compiled import LONG, known, loops, raw
from plait.tensors.select import cuts_at, listing
from plait.types import Where


def glance(base: Tensor, expert: Tensor, where: Where, ask: Mapping[str, Any]) -> Any:
    """What `select.answer` returns for the keys of expert - base, both flat and of the dtype of the base's tensor;
    LONG where it must be asked."""
    plan = ask["scopes"].get(ask["of"].get(where.name))
    if plan is None:
        return None
    if plan["wide"] or ask["kind"] == "place" or not known(base) or base.dtype != expert.dtype:
        return LONG
    ours, theirs = raw(base), raw(expert)
    if ask["kind"] == "sample":
        return _sample(ours, theirs, plan["step"])
    answers = []
    for first, end in cuts_at(where):
        part = slice(first - where.first, end - where.first)
        counts = _count(ours[part], theirs[part], plan)
        if counts is LONG:
            return LONG
        answers.append((first, *counts))
    return answers


def _sample(base: Any, expert: Any, step: int) -> Any:
    import numpy as np

    some = np.ascontiguousarray(expert[::step])
    keys = np.empty(len(some), np.int32)
    *_, bad = loops().compare(some, np.ascontiguousarray(base[::step]), np.int32(0), np.int32(0), keys)
    return LONG if bad else keys


def _count(base: Any, expert: Any, plan: Mapping[str, int]) -> Any:
    import numpy as np

    low, high = np.int32(plan["low"]), np.int32(plan["high"])
    keys = np.empty(min(len(base), BLOCK), np.int32)
    above, at_high, at_low, count, bad = loops().compare(expert, base, low, high, keys)
    if bad:
        return LONG
    if low == high:
        return int(above), int(at_high), 0, None
    inside = np.empty(count + 1, np.int32)
    loops().between(keys, low, high, inside)
    return int(above), int(at_high), int(at_low), listing(inside[:count], plan)
