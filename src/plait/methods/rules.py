"""Numbers that differ from tensor to tensor: by patterns of names, and by the depth of the layer.

Written as `PATTERN:VALUE; PATTERN:VALUE; VALUE`. The first shell pattern that matches the whole name of a tensor
counts; the last value has no pattern and is for all others. A value is a number, or anchors such as `0.2..0.5..0.8`,
between which lines are drawn from the first layer to the last. In Python and YAML [0.2, 0.5, 0.8] are anchors too,
and {pattern: value, "*": value} are rules.

The layer of a tensor is the first number that stands for itself in its name (`model.layers.3.mlp.up.weight`: 3), what
stands before it names the group of layers, and a group of L layers has depths l / (L - 1), 1 where L is 1. A tensor
without such a number has depth 0: it gets the first anchor, the head of the model too. All as in mergekit 0.1.5.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import translate
from functools import lru_cache
from math import isfinite
from typing import Any

from plait.errors import UsageError, shown

EVERY = "*"
_LAYER = re.compile(r"(?:^|\.)(\d+)\.")
_MARKS = (";", ":", "..")
_ANCHORS = "numbers such as 0.2..0.8"
ROUNDING = 1e-12

Layers = tuple[tuple[str, int], ...]
"""What stands before the number of a layer in names of tensors, and how many layers there are."""


@dataclass(frozen=True)
class Depth:
    """A number for each depth. anchors: at least one, at equal distances. layers: of the model that it is used on; ()
    where that is not known yet."""

    anchors: tuple[float, ...]
    layers: Layers = ()

    def at(self, name: str) -> float:
        """The number of a tensor."""
        if len(self.anchors) == 1:
            return self.anchors[0]
        place = _depth(name, self.layers) * (len(self.anchors) - 1)
        below = int(place)
        above = min(len(self.anchors) - 1, below + 1)
        share = place - below
        found = (1 - share) * self.anchors[below] + share * self.anchors[above]
        near = round(found)  # such as 3 instead of 3.0000000000000004, which is no whole number
        return float(near) if abs(found - near) <= ROUNDING * max(1.0, abs(near)) else found

    def over(self, layers: Layers, label: str) -> Depth:
        """The same for a model of these layers; as it is where they are known."""
        if len(self.anchors) == 1 or self.layers:
            return self
        if not layers:
            raise UsageError(
                f"{label} is {self.text}, and no tensor of the base has the number of a layer in its name; give one "
                "number, or patterns of names"
            )
        return Depth(self.anchors, layers)

    @property
    def text(self) -> str:
        known = ",".join(f"{prefix}={count}" for prefix, count in self.layers)
        return "..".join(map(_figure, self.anchors)) + (f"@{known}" if known else "")


@dataclass(frozen=True)
class Rules:
    """pairs: (pattern, value), the first that matches counts. otherwise: for all other names; None until that is
    known."""

    pairs: tuple[tuple[str, Depth], ...]
    otherwise: Depth | None

    def at(self, name: str) -> float:
        """The number of a tensor."""
        for pattern, value in self.pairs:
            if _matches(pattern, name):
                return value.at(name)
        return self.rest.at(name)

    @property
    def constant(self) -> bool:
        """Whether they give one number, and no rule."""
        return not self.pairs and len(self.rest.anchors) == 1

    @property
    def rest(self) -> Depth:
        if self.otherwise is None:
            raise ValueError("rules without a value for all other tensors")
        return self.otherwise

    @property
    def values(self) -> list[float]:
        """All numbers that are written in the rules."""
        return [number for value in (*(v for _, v in self.pairs), self.rest) for number in value.anchors]

    def over(self, names: Iterable[str], label: str) -> Rules:
        """The same for a model of these tensors."""
        layers = layers_of(names)
        pairs = tuple((pattern, value.over(layers, label)) for pattern, value in self.pairs)
        return Rules(pairs, self.rest.over(layers, label))

    def idle(self, names: Iterable[str]) -> list[str]:
        """The patterns that no name is left for."""
        left = set(names)
        found = []
        for pattern, _ in self.pairs:
            mine = {name for name in left if _matches(pattern, name)}
            if not mine:
                found.append(pattern)
            left -= mine
        return found

    @property
    def text(self) -> str:
        """The one way in which these rules are written."""
        return "; ".join([*(f"{pattern}:{value.text}" for pattern, value in self.pairs), self.rest.text])


def read(label: str, value: Any, otherwise: Any = None) -> Rules | None:
    """The rules that an option or a weight is; None where it is a plain value. UsageError where they cannot be read.

    label: what messages call it. otherwise: the number for names that no pattern matches, where the rules do not say
    it.
    """
    if isinstance(value, Mapping):
        pairs = [(str(pattern), _value(label, one)) for pattern, one in value.items()]
    elif isinstance(value, (list, tuple)):
        pairs = [(EVERY, _value(label, value))]
    elif isinstance(value, str) and any(mark in value for mark in _MARKS):
        pairs = [_pair(label, part) for part in value.split(";")]
    else:
        return None
    places = [i for i, (pattern, _) in enumerate(pairs) if pattern == EVERY]
    if places and places[0] != len(pairs) - 1:
        raise UsageError(
            f"{label} is {shown(value)}, and what comes after the value for all names never counts; put it last"
        )
    for pattern, _ in pairs:
        if not pattern or set(pattern) & set(";:"):
            raise UsageError(
                f"{label} has pattern {shown(pattern)}, expected one such as *.mlp.*, without ; and :"
            )
    rules = tuple((pattern, one) for pattern, one in pairs if pattern != EVERY)
    if places:
        return Rules(rules, pairs[-1][1])
    return Rules(rules, None if otherwise is None else Depth((float(otherwise),)))


def completed(rules: Rules, otherwise: Any, label: str) -> Rules:
    """Rules that say what all other tensors get."""
    if rules.otherwise is not None:
        return rules
    if otherwise is None:
        raise UsageError(
            f"{label} has rules, and none for all other tensors; put a value without a pattern last"
        )
    return replace(rules, otherwise=Depth((float(otherwise),)))


def layers_of(names: Iterable[str]) -> Layers:
    """The groups of layers in a model: what stands before their numbers, and one more than the largest of these."""
    counts: dict[str, int] = {}
    for name in names:
        found = _LAYER.search(name)
        if found:
            prefix = name[: found.start()]
            counts[prefix] = max(counts.get(prefix, 0), int(found[1]) + 1)
    return tuple(sorted(counts.items()))


@lru_cache(maxsize=512)
def parsed(text: str) -> Rules:
    """Rules from their own `text`."""
    rules = read("rules", text)
    if rules is None or rules.otherwise is None:
        raise ValueError(f"{text!r} are no complete rules")
    return rules


def _depth(name: str, layers: Layers) -> float:
    found = _LAYER.search(name)
    if not found:
        return 0.0
    prefix = name[: found.start()]
    count, layer = dict(layers).get(prefix, 0), int(found[1])
    if layer >= count:
        raise UsageError(
            f"{name} is layer {layer}, and a depth is only known for layers {_listed(layers)}; leave @ and what "
            "follows it out, and the layers of the base are counted"
        )
    return layer / (count - 1) if count > 1 else 1.0


def _listed(layers: Layers) -> str:
    return ", ".join(f"{prefix}.0 to {prefix}.{count - 1}" for prefix, count in layers) or "of no model yet"


def _pair(label: str, part: str) -> tuple[str, Depth]:
    pattern, mark, value = part.rpartition(":")
    return (pattern.strip() if mark else EVERY), _value(label, value)


def _value(label: str, given: Any) -> Depth:
    layers: Layers = ()
    if isinstance(given, str):
        words, mark, known = given.partition("@")
        layers = _layers(label, given, known) if mark else ()
        given = words.split("..")
    anchors = list(given) if isinstance(given, (list, tuple)) else [given]
    if not anchors:
        raise UsageError(f"{label} has no number, expected {_ANCHORS}")
    numbers = tuple(_number(label, one) for one in anchors)
    return Depth(numbers, layers if len(numbers) > 1 else ())


def _layers(label: str, given: str, known: str) -> Layers:
    rows = [part.rpartition("=") for part in known.split(",")]
    if not all(mark and count.strip().isdigit() and int(count) > 0 for _, mark, count in rows):
        raise UsageError(f"{label} is {shown(given)}, expected layers after @ such as model.layers=12")
    return tuple(sorted((prefix.strip(), int(count)) for prefix, _, count in rows))


def _number(label: str, value: Any) -> float:
    try:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ValueError
        number = float(value) + 0.0
        if not isfinite(number):
            raise ValueError
    except (ValueError, OverflowError):
        raise UsageError(f"{label} has {shown(value)} where a number is expected, or {_ANCHORS}") from None
    return number


def _figure(number: float) -> str:
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else repr(number)


@lru_cache(maxsize=4096)
def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))


def _matches(pattern: str, name: str) -> bool:
    return _pattern(pattern).match(name) is not None
