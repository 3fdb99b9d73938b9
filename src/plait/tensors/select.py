"""The k-th largest magnitude, exactly, in bounded memory: a sample gives a bracket, one pass counts and lists what
lies in the bracket. Where the bracket missed or held too much, it is narrowed and the pass repeated.

Keys are bit patterns of |tau| and grow with it. Exactly k elements are kept; among equal keys those of the lower
place are, by tensor name, then flat index.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

from plait.tensors import BLOCK as BLOCK
from plait.tensors import Tensor, torch
from plait.tensors.exact import Exact
from plait.tensors.rounding import odd
from plait.types import Answers, Survey, Where

NARROW_TOP = 0x7F800000  # bits of the fp32 infinity, above every finite key
WIDE_TOP = 0x7FF0000000000000  # the same for fp64

SAMPLED = 64  # blocks that a sample has at least, where there are so many
SAMPLE = 1 << 20  # keys that all sampled blocks send together, about
LISTED = 1 << 22  # keys that all blocks list together, about
LEAST = 256  # keys that any block may list
BUCKETS = 64  # a block that would list more sends a histogram of so many buckets instead


def keys(delta: Exact) -> Tensor:
    """|tau| rounded once to fp32, as int32 bit patterns; for chunks of an F64 base, of fp64 as int64."""
    if delta.bits == 53:
        return delta.double().abs().view(torch.int64)
    single = _subtracted(delta)
    if single is None:
        v = delta.double()
        if delta.tail is not None:
            index = delta.tail.index
            v = v.index_copy(0, index, odd(v[index], delta.tail.terms[0]))
        single = v.to(torch.float32)  # v is exact, or rounded to odd
    found = single.view(torch.int32).numpy()
    found &= 0x7FFFFFFF
    return single.view(torch.int32)


def _subtracted(delta: Exact) -> Tensor | None:
    """expert - base in fp32, rounded once, where both are of dtypes that fp32 holds."""
    if len(delta.pieces) != 2:
        return None
    expert, base = delta.pieces
    if (expert.coef, base.coef) != (1.0, -1.0) or base.seen is None:
        return None
    if torch.float64 in (expert.tensor.dtype, base.tensor.dtype):
        return None
    single = expert.tensor.to(torch.float32, copy=True)
    return single.sub_(base.seen.wider(base.tensor, torch.float32))


@dataclass(frozen=True)
class Cut:
    """What is kept: every key above `threshold`, and of the equal ones all where `last` is None, else those of
    tensors before last[0] by name, those of last[0] before flat index last[1], and last[2] from there on.

    Where last[2] is more than 1, last[1] is a multiple of BLOCK and they lie in that block.
    """

    threshold: int
    wide: bool = False  # keys are fp64 patterns
    last: tuple[str, int, int] | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "threshold": self.threshold,
            "wide": self.wide,
            "last": list(self.last) if self.last else None,
        }

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Cut:
        last = plain["last"]
        return cls(plain["threshold"], plain["wide"], (last[0], last[1], last[2]) if last else None)

    def keep(self, keys: Tensor, where: Where) -> Tensor:
        """bool mask of the elements of a chunk that are kept. `keys`: what `keys` made of the chunk, which starts
        at a multiple of BLOCK or, if the surveys of `largest` saw such chunks, at any row."""
        found = (widen(keys) if self.wide else keys).numpy()
        if self.last is None or where.name < self.last[0]:
            return torch.from_numpy(found >= self.threshold)
        mask = found > self.threshold
        name, start, count = self.last
        if where.name == name and where.first <= start:
            equal = (found == self.threshold).nonzero()[0]
            before = int((equal < start - where.first).sum())
            mask[equal[: before + count]] = True
        return torch.from_numpy(mask)


def widen(keys: Tensor) -> Tensor:
    """Keys as fp64 patterns, so that tensors of all dtypes compare."""
    if keys.dtype == torch.int64:
        return keys
    return keys.view(torch.float32).to(torch.float64).view(torch.int64)


def answer(keys: Tensor, where: Where, ask: Any) -> Any:
    """What a method's `measure` returns for the surveys of `largest`. `keys`: what `keys` made of the chunk."""
    plan = ask["scopes"].get(ask["of"].get(where.name))
    if plan is None:
        return None
    found = (widen(keys) if plan["wide"] else keys).numpy()
    if ask["kind"] == "sample":
        return found[:: plan["step"]].copy()
    if ask["kind"] == "place":
        skip = plan["start"] - where.first
        if where.name != plan["tensor"] or not 0 <= skip < len(found):
            return None
        return plan["start"] + int((found[skip:] == plan["key"]).nonzero()[0][plan["count"] - 1])
    return [(a, *_count(found[a - where.first : b - where.first], plan)) for a, b in cuts_at(where)]


def cuts_at(where: Where) -> list[tuple[int, int]]:
    """(first, end) of the runs of a chunk that are counted by themselves: it is cut at multiples of BLOCK."""
    end = where.first + where.count
    cuts = [where.first, *range((where.first // BLOCK + 1) * BLOCK, end, BLOCK)]
    return list(zip(cuts, [*cuts[1:], end], strict=True))


def _count(found: Any, plan: Mapping[str, int]) -> tuple[int, int, int, Any]:
    """How many keys lie above the bracket, at its high end, at its low end; and those strictly inside: the keys,
    (distinct keys, counts) or, where these are more than the cap, a histogram of BUCKETS equal parts (uint32)."""
    import numpy as np

    low, high = plan["low"], plan["high"]
    over = found > high
    above = int(np.count_nonzero(over))
    if low == high:
        return above, int(np.count_nonzero(found == high)), 0, None
    held = over ^ (found >= low)
    if np.count_nonzero(held) * 8 > len(found):  # many equal ones, and taking out a few is faster
        at_high, at_low = int(np.count_nonzero(found == high)), int(np.count_nonzero(found == low))
        held = (found > low) & (found < high)
        inside = found[held.nonzero()[0]]
    else:
        inside = found[held.nonzero()[0]]  # faster than by the mask itself
        at_high, at_low = int(np.count_nonzero(inside == high)), int(np.count_nonzero(inside == low))
        inside = inside[(inside != high) & (inside != low)]
    return above, at_high, at_low, listing(inside, plan)


def listing(inside: Any, plan: Mapping[str, int]) -> Any:
    """What is told of the keys strictly inside the bracket, see `_count`."""
    import numpy as np

    if len(inside) <= plan["cap"]:
        return inside
    distinct, counts = np.unique(inside, return_counts=True)
    if 2 * len(distinct) <= plan["cap"]:
        return distinct, counts.astype(np.uint32)
    return _buckets(distinct, counts, plan)


def _buckets(distinct: Any, counts: Any, plan: Mapping[str, int]) -> Any:
    import numpy as np

    width = _width(plan)
    place = (distinct.astype(np.int64) - plan["low"]) // width
    return np.bincount(place, weights=counts, minlength=BUCKETS).astype(np.uint32)


def _width(plan: Mapping[str, int]) -> int:
    return -(-(plan["high"] - plan["low"] + 1) // BUCKETS)


class _Search:
    """The search in one scope. The threshold always lies in [floor, ceiling]."""

    def __init__(self, tensors: list[Where], k: int) -> None:
        self.tensors = sorted(tensors, key=lambda w: w.name)
        self.size = sum(w.count for w in tensors)
        self.k = k
        self.wide = any(w.dtype == "F64" for w in tensors)
        self.limit = WIDE_TOP if self.wide else NARROW_TOP
        self.floor, self.ceiling = 0, self.limit - 1
        self.low, self.high = self.floor, self.ceiling
        self.inside = 1.0  # expected share of keys strictly inside the bracket
        self.tries = 0
        self.sample: list[tuple[Any, float]] = []  # sorted keys of a tensor, the weight of each
        self.spread = 0.0  # how far the sample's shares may be from the truth
        self.cut: Cut | None = None
        self.unplaced: tuple[str, int, int] | None = None
        if k <= 0 or k >= self.size:
            self.cut = Cut(self.ceiling + 1 if k <= 0 else 0, self.wide)

    def learn_sample(self, answers: Answers, stride: int) -> None:
        """Weigh the sampled keys of each tensor by its size, and find how much the share of large keys varies
        from block to block."""
        import numpy as np

        blocks: list[tuple[Any, float]] = []  # keys, weight of one
        for w in self.tensors:
            parts = [a for _, a in answers.get(w.name, []) if a is not None and len(a)]
            if parts:
                weight = w.count / self.size / sum(map(len, parts))
                self.sample.append((np.sort(np.concatenate(parts)), weight))
                blocks += [(a, weight) for a in parts]
        keys = sum(len(a) for a, _ in blocks)
        if not keys:
            return
        p = self.k / self.size
        self.spread = 2 / keys
        if keys < self.size:
            middle = self.quantile(p)
            weights = np.array([len(a) * weight for a, weight in blocks])
            shares = np.array([np.count_nonzero(a >= middle) / len(a) for a, _ in blocks])
            between = float(np.sum((weights * (shares - weights @ shares)) ** 2)) ** 0.5
            few = 0.04 * (p * (1 - p)) ** 0.5 / len(blocks) if stride > 1 else 0.0
            self.spread += 3 * max(between, few) + 4 * (p * (1 - p) / keys) ** 0.5
        self.aim()

    def quantile(self, share: float) -> int:
        """The largest key that at least `share` of the sample reaches, 0 where none does."""
        low, high = 0, self.limit
        while high - low > 1:
            middle = (low + high) // 2
            if self.reached(middle) >= share:
                low = middle
            else:
                high = middle
        return low

    def reached(self, key: int) -> float:
        """The share of the sample that is at least `key`."""
        import numpy as np

        return sum(
            float(len(a) - np.searchsorted(a, a.dtype.type(key))) * weight for a, weight in self.sample
        )

    def aim(self) -> None:
        """Choose the next bracket inside [floor, ceiling]: from the sample twice, then all of it."""
        self.low, self.high, self.inside = self.floor, self.ceiling, 1.0
        if self.sample and self.tries < 2:
            p, spread = self.k / self.size, self.spread * 4**self.tries
            if p - spread > 0:
                self.high = max(min(self.quantile(p - spread), self.ceiling), self.floor)
            if p + spread < 1:
                self.low = min(max(self.quantile(p + spread), self.floor), self.high)
            self.inside = max(self.reached(self.low + 1) - self.reached(self.high), 0.0) + 1e-4
        self.tries += 1

    def learn_counts(self, answers: Answers) -> None:
        """Place the threshold, or narrow the search."""
        segments = [(w.name, s) for w in self.tensors for _, a in answers.get(w.name, []) for s in a]
        above = sum(s[1] for _, s in segments)
        at_high = sum(s[2] for _, s in segments)
        at_low = sum(s[3] for _, s in segments)
        if self.k <= above:
            self.floor = self.high + 1
            return self.aim()
        if self.k <= above + at_high:
            return self.place(segments, self.high, self.k - above)
        left = self.k - above - at_high
        plan = {"low": self.low, "high": self.high}
        listed = [s[4] for _, s in segments if s[4] is not None]
        inside = sum(_held(a) for a in listed)
        if left > inside + at_low:
            self.ceiling = self.low - 1
            return self.aim()
        if left > inside:
            return self.place(segments, self.low, left - inside)
        if any(_is_histogram(a) for a in listed):
            return self.narrow(listed, left, plan)
        key, above_key = _pick(listed, left)
        return self.place(segments, key, left - above_key)

    def narrow(self, listed: list[Any], left: int, plan: Mapping[str, int]) -> None:
        """Keep the bucket in which the threshold lies."""
        import numpy as np

        total = np.zeros(BUCKETS, np.int64)
        for a in listed:
            if _is_histogram(a):
                total += a
            elif isinstance(a, tuple):
                total += _buckets(a[0], a[1], plan)
            elif len(a):
                total += _buckets(a, np.ones(len(a)), plan)
        bucket = BUCKETS - 1 - int(np.searchsorted(np.cumsum(total[::-1]), left))
        width = _width(plan)
        self.floor = max(plan["low"] + bucket * width, self.low + 1)
        self.ceiling = min(plan["low"] + (bucket + 1) * width - 1, self.high - 1)
        self.low, self.high, self.tries = self.floor, self.ceiling, 2
        self.inside = float(total[bucket]) / self.size

    def place(self, segments: list[tuple[str, Any]], key: int, count: int) -> None:
        """The threshold is `key`; `count` of the elements equal to it are kept. Find where the last of them is."""
        self.cut = Cut(key, self.wide)
        equal = [(name, s[0], _equal(s, key, self.low, self.high)) for name, s in segments]
        if count == sum(e for _, _, e in equal):
            return
        for name, start, number in equal:
            if count <= number:
                self.cut = Cut(key, self.wide, (name, start, count))
                if any(at % BLOCK for tensor, at, _ in equal if tensor == name):
                    self.unplaced = (name, start, count)  # other chunks may divide the block
                return
            count -= number


def _is_histogram(a: Any) -> bool:
    return not isinstance(a, tuple) and str(a.dtype) == "uint32"


def _held(a: Any) -> int:
    if isinstance(a, tuple):
        return int(a[1].sum())
    return int(a.sum()) if _is_histogram(a) else len(a)


def _equal(segment: Any, key: int, low: int, high: int) -> int:
    """How many keys of a segment equal `key`, which is in the bracket."""
    if key == high:
        return int(segment[2])
    if key == low:
        return int(segment[3])
    listed = segment[4]
    if isinstance(listed, tuple):
        return int(listed[1][listed[0] == key].sum())
    return int((listed == key).sum())


def _pick(listed: list[Any], k: int) -> tuple[int, int]:
    """The k-th largest of the listed keys, and how many are larger."""
    import numpy as np

    if not any(isinstance(a, tuple) for a in listed):
        values = np.concatenate(listed)
        key = int(np.partition(values, len(values) - k)[len(values) - k])
        return key, int(np.count_nonzero(values > key))
    values = np.concatenate([a[0] if isinstance(a, tuple) else a for a in listed])
    counts = np.concatenate([a[1] if isinstance(a, tuple) else np.ones(len(a), np.uint32) for a in listed])
    order = np.argsort(values, kind="stable")[::-1]
    cumulated = np.cumsum(counts[order], dtype=np.int64)
    key = int(values[order[int(np.searchsorted(cumulated, k))]])
    return key, int(counts[values > key].sum())


def largest(
    places: Mapping[str, Where], scope: Mapping[str, str], kept: Mapping[str, int]
) -> Generator[Survey, Answers, dict[str, Cut]]:
    """Find, for every scope, the cut that keeps its k elements of largest key.

    places: whole tensors by name. scope: tensor -> scope. kept: scope -> k. Answer each survey with `answer`.
    Returns scope -> Cut; k <= 0 keeps nothing, k >= the scope's size keeps all.
    """
    groups: dict[str, list[Where]] = {}
    for name, where in places.items():
        groups.setdefault(scope[name], []).append(where)
    searches = {s: _Search(tensors, kept[s]) for s, tensors in sorted(groups.items())}
    of = {name: scope[name] for name in places}

    todo = {s: v for s, v in searches.items() if v.cut is None}
    if todo:
        total = sum(v.size for v in todo.values())
        stride = max(1, min(16, total // BLOCK // SAMPLED))
        step = max(1, total // stride // SAMPLE) | 1
        plans = {s: {"wide": v.wide, "step": step} for s, v in todo.items()}
        answers = yield Survey({"kind": "sample", "of": of, "scopes": plans}, stride, _names(todo, searches))
        for v in todo.values():
            v.learn_sample(answers, stride)
        answers = {}  # not held while the next pass runs
    while todo:
        expected = sum(v.inside * v.size for v in todo.values())
        scale = min(1.0, LISTED / max(expected, 1.0))
        plans = {
            s: {
                "wide": v.wide,
                "low": v.low,
                "high": v.high,
                "cap": LEAST + int(4 * scale * v.inside * BLOCK),
            }
            for s, v in todo.items()
        }
        answers = yield Survey({"kind": "count", "of": of, "scopes": plans}, only=_names(todo, searches))
        for v in todo.values():
            v.learn_counts(answers)
        answers = {}
        todo = {s: v for s, v in todo.items() if v.cut is None}
    unplaced = {s: v for s, v in searches.items() if v.unplaced}
    if unplaced:
        plans = {s: _placing(v) for s, v in unplaced.items()}
        only = tuple(v.unplaced[0] for v in unplaced.values() if v.unplaced)
        answers = yield Survey({"kind": "place", "of": of, "scopes": plans}, only=only)
        for v in unplaced.values():
            name, _, _ = v.unplaced or ("", 0, 0)
            index = next(a for _, a in answers[name] if a is not None)
            v.cut = Cut(v.cut.threshold if v.cut else 0, v.wide, (name, index, 1))
    return {s: v.cut for s, v in searches.items() if v.cut is not None}


def _names(todo: Mapping[str, _Search], all_of: Mapping[str, _Search]) -> tuple[str, ...] | None:
    """The tensors that are still searched, None where that is all."""
    return None if len(todo) == len(all_of) else tuple(w.name for v in todo.values() for w in v.tensors)


def _placing(search: _Search) -> dict[str, Any]:
    name, start, count = search.unplaced or ("", 0, 0)
    key = search.cut.threshold if search.cut else 0
    return {"wide": search.wide, "tensor": name, "start": start, "count": count, "key": key}
