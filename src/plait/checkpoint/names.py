"""Names of tensors: wrappers' prefixes, one prefix between base and expert, patterns."""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from plait.errors import FormatError

WRAPPERS = ("module.", "_orig_mod.", "base_model.model.")
"""Prefixes that wrappers (DataParallel, torch.compile, peft) put before every name."""


def canonical_names(path: str, names: Sequence[str]) -> tuple[dict[str, str], str]:
    """Names without the prefixes that wrappers put before all of them: (name -> canonical name, prefix).

    Errors: FormatError where two names become one.
    """
    prefix = ""
    while True:
        found = next(
            (w for w in WRAPPERS if all(n.startswith(prefix + w) and n != prefix + w for n in names)), None
        )
        if found is None:
            break
        prefix += found
    return {name: name[len(prefix) :] for name in names}, prefix


def map_names(
    base: Sequence[str], expert: Sequence[str], private: Callable[[str], bool] = lambda name: False
) -> tuple[dict[str, str], str, str]:
    """Fit an expert's names to the base's by removing or adding one common prefix, such as `bert.`.

    Returns (name in the base -> name in the expert, prefix removed, prefix added). Names that do not carry the
    prefix, such as those of a task's head, stay. The prefix that fits most tensors of the base is taken, private
    ones not counted; none if none helps.
    Errors: FormatError where two names become one.
    """
    ours = set(base)
    most = sum(name in ours and not private(name) for name in expert)
    best: tuple[Callable[[str], str], str, str] = (lambda name: name, "", "")
    if most < len(ours):
        for prefix in _prefixes(base, expert):
            best, most = _better(best, most, _remover(prefix, ours), (prefix, ""), expert, ours, private)
        for prefix in _prefixes(expert, base):
            best, most = _better(best, most, _adder(prefix, ours), ("", prefix), expert, ours, private)
    rename, removed, added = best
    return _unique((rename(name), name) for name in expert), removed, added


def _better(
    best: tuple[Callable[[str], str], str, str],
    most: int,
    rename: Callable[[str], str],
    prefixes: tuple[str, str],
    expert: Sequence[str],
    ours: set[str],
    private: Callable[[str], bool],
) -> tuple[tuple[Callable[[str], str], str, str], int]:
    fit = len({rename(name) for name in expert if not private(name)} & ours)
    return ((rename, *prefixes), fit) if fit > most else (best, most)


def _remover(prefix: str, ours: set[str]) -> Callable[[str], str]:
    def rename(name: str) -> str:
        short = name.removeprefix(prefix)
        return short if short in ours else name

    return rename


def _adder(prefix: str, ours: set[str]) -> Callable[[str], str]:
    return lambda name: prefix + name if prefix + name in ours else name


def _prefixes(short: Sequence[str], long: Sequence[str]) -> list[str]:
    """Prefixes that turn some name of `short` into one of `long`. A few names are tried."""
    samples = {*short[:: max(1, len(short) // 6)], max(short, key=lambda name: name.count("."))}
    return sorted({n[: -len(s)] for s in samples for n in long if n.endswith("." + s)})


def _unique(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    table: dict[str, str] = {}
    for name, theirs in pairs:
        if name in table:
            raise FormatError(
                f"expert: {table[name]} and {theirs} would both be {name} of the base; rename one of the two"
            )
        table[name] = theirs
    return table


def matcher(patterns: Sequence[str]) -> Callable[[str], bool]:
    """A test whether a canonical name, as a whole, matches any of the shell patterns. Case counts.

    It is what `--private` means: everything that asks whether a tensor is private asks this.
    """
    if not patterns:
        return lambda name: False
    match = re.compile("|".join(f"(?:{fnmatch.translate(pattern)})" for pattern in patterns)).match
    return lambda name: match(name) is not None


def suggest(names: Sequence[str], others: set[str]) -> list[str]:
    """Shell patterns that match all of `names` and none of `others`, few and short where possible."""
    patterns: dict[str, None] = {}
    endings = Counter(".".join(name.split(".")[-2:]) for name in names)
    for name in names:
        parts = name.split(".")
        ending = ".".join(parts[-2:])
        if len(parts) > 2 and endings[ending] > 2 and not any(o.endswith("." + ending) for o in others):
            patterns[f"*.{ending}"] = None
            continue
        for length in range(1, len(parts)):
            prefix = ".".join(parts[:length]) + "."
            if not any(other.startswith(prefix) for other in others):
                patterns[prefix + "*"] = None
                break
        else:
            patterns[name] = None
    return list(patterns)
