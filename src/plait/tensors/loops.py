"""Loops over the elements of a chunk, compiled by numba. Imported by `plait.tensors.compiled` only.

Chunks are flat numpy arrays: bf16 as uint16 bit patterns, fp16 as int16 bit patterns, fp32 as float32. All arithmetic
is fp64, element by element, in the order written; every sum is checked by its error (Knuth's two-sum), and what was
seen is returned as flags:

    1   something was rounded that must not be, is NaN or infinite, or is too large
    2   an input holds -0.0; of a result: it holds a 0
    4   of a result: the base holds -0.0

The loops have no branches, so that the compiler makes them vector instructions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload

SUMS = 2.0**50
"""Sums reach no more than this; the exact sums of the long way are refused from 2^52 on."""

INFINITE = 0x7F800000


def compiled(function: Any) -> Any:
    """Compile at the first call, for the types it is called with; kept on the disk for other processes where there
    is a place for that."""
    try:
        return njit(nogil=True, error_model="numpy", cache=True)(function)
    except RuntimeError:  # no folder to keep it in
        return njit(nogil=True, error_model="numpy")(function)


@intrinsic
def _float(context: Any, bits: Any) -> Any:
    """The fp32 number of an int32 bit pattern."""
    return types.float32(types.int32), lambda c, b, s, a: b.bitcast(a[0], ir.FloatType())


@intrinsic
def _bits(context: Any, value: Any) -> Any:
    """The int32 bit pattern of an fp32 number."""
    return types.int32(types.float32), lambda c, b, s, a: b.bitcast(a[0], ir.IntType(32))


@intrinsic
def _long(context: Any, value: Any) -> Any:
    """The int64 bit pattern of an fp64 number."""
    return types.int64(types.float64), lambda c, b, s, a: b.bitcast(a[0], ir.IntType(64))


@intrinsic
def _double(context: Any, bits: Any) -> Any:
    """The fp64 number of an int64 bit pattern."""
    return types.float64(types.int64), lambda c, b, s, a: b.bitcast(a[0], ir.DoubleType())


def widen(raw: Any) -> Any:
    """An element as fp64; NaN for the NaN and infinity of fp16."""


@overload(widen, strict=False)
def _widen(raw: Any) -> Any:
    if raw == types.uint16:
        return lambda raw: np.float64(_float(np.int32(raw) << np.int32(16)))
    if raw == types.int16:
        return _widen_half
    return lambda raw: np.float64(raw)


def _widen_half(raw: Any) -> Any:
    bits = np.int32(raw)
    magnitude = bits & np.int32(0x7FFF)
    # The exponent is put right by an exact product, which also serves denormal numbers.
    size = np.float64(_float(magnitude << np.int32(13))) * 5.192296858534828e33  # 2^112
    known = np.nan if magnitude >= np.int32(0x7C00) else size
    return -known if bits < np.int32(0) else known


def minus_zero(raw: Any) -> Any:
    """1 for -0.0, else 0."""


@overload(minus_zero, strict=False)
def _minus_zero(raw: Any) -> Any:
    if raw == types.uint16:
        return lambda raw: np.int32(raw == np.uint16(0x8000))
    if raw == types.int16:
        return lambda raw: np.int32(raw == np.int16(-0x8000))
    return lambda raw: np.int32(_bits(raw) == np.int32(-0x80000000))


def narrow(value: Any, error: Any, like: Any) -> Any:
    """value + error, where |error| is at most half a unit in the last place of fp64 `value`, rounded once to the
    format of `like`. Not for fp16 from 65504 on."""


@overload(narrow, strict=False)
def _narrow(value: Any, error: Any, like: Any) -> Any:
    if like == types.uint16:
        return _narrow_bfloat
    if like == types.int16:
        return _narrow_half
    return _narrow_single


def odd(value: Any, error: Any) -> Any:
    """value + error in fp32, rounded to odd, as int32 bits: to round that to fewer bits rounds once."""


@overload(odd, strict=False)
def _odd(value: Any, error: Any) -> Any:
    def rounded(value: Any, error: Any) -> Any:
        near = np.float32(value)
        lacking = value - np.float64(near)
        lacking = error if lacking == 0.0 else lacking
        bits = _bits(near)
        some = np.int32(lacking != 0.0)
        inward = np.int32(lacking < 0.0) ^ ((bits >> np.int32(31)) & np.int32(1))
        return (bits - (inward & some)) | some

    return rounded


def _narrow_bfloat(value: Any, error: Any, like: Any) -> Any:
    bits = odd(value, error)
    bits = bits + np.int32(0x7FFF) + ((bits >> np.int32(16)) & np.int32(1))
    return np.uint16(bits >> np.int32(16))


def _narrow_half(value: Any, error: Any, like: Any) -> Any:
    bits = odd(value, error)
    magnitude = bits & np.int32(0x7FFFFFFF)
    usual = magnitude + np.int32(0xFFF) + ((magnitude >> np.int32(13)) & np.int32(1))
    usual = (usual >> np.int32(13)) - np.int32(112 << 10)
    # Below 2^-14 the steps are those of fp32 at 0.5, so that one addition rounds.
    tiny = _bits(_float(magnitude) + np.float32(0.5)) - np.int32(0x3F000000)
    magnitude = tiny if magnitude < np.int32(0x38800000) else usual
    return np.int16(magnitude | ((bits >> np.int32(16)) & np.int32(-0x8000)))


def _narrow_single(value: Any, error: Any, like: Any) -> Any:
    # fp64 rounded to odd first: the last bit of `value` tells of the error.
    bits = _long(value)
    some = np.int64(error != 0.0)
    inward = np.int64(error < 0.0) ^ ((bits >> np.int64(63)) & np.int64(1))
    return np.float32(_double((bits - (inward & some)) | some))


@compiled
def shift_by(expert: Any, base: Any, weight: Any, drop: Any, fresh: Any, total: Any) -> Any:
    """total += weight * (expert - base), the product rounded to 53 - drop bits, drop > 0. total: fp64; 0 if `fresh`,
    whatever it holds."""
    bad, minus = np.int32(0), np.int32(0)
    half, mask = (np.int64(1) << np.int64(drop - 1)) - np.int64(1), -(np.int64(1) << np.int64(drop))
    for i in range(base.size):
        e, b = widen(expert[i]), widen(base[i])
        minus |= minus_zero(expert[i]) | minus_zero(base[i])
        d = e - b
        t = d - e
        bad |= np.int32((e - (d - t)) - (b + t) != 0.0)
        k = _long(weight * d)
        x = _double((k + half + ((k >> np.int64(drop)) & np.int64(1))) & mask)
        a = 0.0 if fresh else total[i]
        s = a + x
        t = s - a
        bad |= np.int32((a - (s - t)) + (x - t) != 0.0)
        total[i] = s
    return bad | (minus << np.int32(1))


@compiled
def add_by(expert: Any, weight: Any, fresh: Any, total: Any) -> Any:
    """total += weight * expert, for a weight that is a power of two. `fresh` and `total` as in `shift_by`."""
    bad, minus = np.int32(0), np.int32(0)
    for i in range(expert.size):
        minus |= minus_zero(expert[i])
        x = weight * widen(expert[i])
        a = 0.0 if fresh else total[i]
        s = a + x
        t = s - a
        bad |= np.int32((a - (s - t)) + (x - t) != 0.0)
        total[i] = s
    return bad | (minus << np.int32(1))


@compiled
def settle_sum(base: Any, total: Any, weight: Any, factor: Any, divisor: Any, limit: Any, out: Any) -> Any:
    """out = base + (total - weight * base) * factor / divisor, where factor or divisor is 1.0 and the weight a sum of
    few powers of two; the product is rounded to fp64, then the last sum once. Results stay below `limit`."""
    bad, zero, minus = np.int32(0), np.int32(0), np.int32(0)
    for i in range(base.size):
        b, s = widen(base[i]), total[i]
        minus |= minus_zero(base[i])
        y = weight * b
        a = s - y
        t = a - s
        bad |= np.int32((s - (a - t)) - (y + t) != 0.0)
        x = a * factor if divisor == 1.0 else a / divisor
        v = b + x
        t = v - b
        bad |= np.int32(not (abs(s) < SUMS)) | np.int32(not (abs(a) < SUMS)) | np.int32(not (abs(v) < limit))
        zero |= np.int32(v == 0.0)
        out[i] = narrow(v, (b - (v - t)) + (x - t), out[i])
    return bad | (zero << np.int32(1)) | (minus << np.int32(2))


@compiled
def shift_pair(expert: Any, base: Any, weight: Any, drop: Any, fresh: Any, total: Any, rest: Any) -> Any:
    """total + rest += weight * (expert - base), rounding and `fresh` as in `shift_by`, drop 0: not rounded. What the
    sum in `total` loses is added up in `rest`; both fp64."""
    bad, minus = np.int32(0), np.int32(0)
    half, mask = np.int64(0), np.int64(-1)
    if drop:
        half, mask = (np.int64(1) << np.int64(drop - 1)) - np.int64(1), -(np.int64(1) << np.int64(drop))
    for i in range(base.size):
        e, b = widen(expert[i]), widen(base[i])
        minus |= minus_zero(expert[i]) | minus_zero(base[i])
        d = e - b
        t = d - e
        bad |= np.int32((e - (d - t)) - (b + t) != 0.0)
        x = weight * d
        if drop:
            k = _long(x)
            x = _double((k + half + ((k >> np.int64(drop)) & np.int64(1))) & mask)
        a = 0.0 if fresh else total[i]
        s = a + x
        t = s - a
        lost = (a - (s - t)) + (x - t)
        a = 0.0 if fresh else rest[i]
        r = a + lost
        t = r - a
        bad |= np.int32((a - (r - t)) + (lost - t) != 0.0)
        total[i] = s
        rest[i] = r
    return bad | (minus << np.int32(1))


@compiled
def settle_pair(base: Any, total: Any, rest: Any, limit: Any, out: Any) -> Any:
    """out = base + total + rest, rounded once. Results stay below `limit`."""
    bad, zero, minus = np.int32(0), np.int32(0), np.int32(0)
    for i in range(base.size):
        b, s, r = widen(base[i]), total[i], rest[i]
        minus |= minus_zero(base[i])
        v = b + s
        t = v - b
        lost = (b - (v - t)) + (s - t)
        more = lost + r
        t = more - lost
        bad |= np.int32((lost - (more - t)) + (r - t) != 0.0)
        w = v + more
        t = w - v
        bad |= np.int32(not (abs(s) < SUMS)) | np.int32(not (abs(w) < limit))
        zero |= np.int32(w == 0.0)
        out[i] = narrow(w, (v - (w - t)) + (more - t), out[i])
    return bad | (zero << np.int32(1)) | (minus << np.int32(2))


@compiled
def leaf_sums(rows: Any, other: Any, leaf: Any, out: Any) -> Any:
    """out[i, k] = the sum of rows[i] * other over the k-th run of `leaf` elements (a power of two, the last run
    padded with zeros), by halving: the second half is added to the first, and again. All fp64."""
    products = np.empty(leaf, np.float64)
    for i in range(rows.shape[0]):
        for k in range(out.shape[1]):
            first = k * leaf
            count = min(leaf, other.size - first)
            for j in range(count):
                products[j] = rows[i, first + j] * other[first + j]
            for j in range(count, leaf):
                products[j] = 0.0
            width = leaf // 2
            while width > 0:
                for j in range(width):
                    products[j] += products[width + j]
                width //= 2
            out[i, k] = products[0]


@compiled
def farther(expert: Any, base: Any, weight: Any, winner: Any) -> Any:
    """winner = what is farther from the base, the winner or base + weight * (expert - base); the latter where they
    are equally far. winner: fp32."""
    bad = np.int32(0)
    for i in range(base.size):
        e, b, w = widen(expert[i]), widen(base[i]), np.float64(winner[i])
        c = np.float64(np.float32(e if weight == 1.0 else b + (e - b) * weight))
        bad |= np.int32(c - c != 0.0) | np.int32(b - b != 0.0)
        winner[i] = np.float32(c if abs(c - b) >= abs(w - b) else w)
    return bad


@compiled
def settle_winner(base: Any, winner: Any, scale: Any, limit: Any, out: Any) -> Any:
    """out = base + scale * (winner - base), each step rounded to fp64; the base itself where nothing is added.
    Results stay below `limit`."""
    bad = np.int32(0)
    for i in range(base.size):
        b, w = widen(base[i]), np.float64(winner[i])
        v = b if scale == 0.0 or w == b else b + (w - b) * scale
        v = w if scale == 1.0 else v
        bad |= np.int32(not (abs(v) < limit))
        out[i] = narrow(v, 0.0, out[i])
    return bad


@compiled
def trim_by(
    expert: Any,
    base: Any,
    least: Any,
    weight: Any,
    drop: Any,
    behind: Any,
    fresh: Any,
    positive: Any,
    negative: Any,
    above: Any,
    below: Any,
) -> Any:
    """Add weight * (expert - base), where that difference is at least `least` in magnitude, to `positive` or
    `negative` by its sign, and `behind` to `above` or `below`. Rounding (none for drop 0) and `fresh` as in
    `shift_by`; sums: fp64, the last two fp32 or fp64."""
    bad, minus = np.int32(0), np.int32(0)
    half, mask = np.int64(0), np.int64(-1)
    if drop:
        half, mask = (np.int64(1) << np.int64(drop - 1)) - np.int64(1), -(np.int64(1) << np.int64(drop))
    for i in range(base.size):
        e, b = widen(expert[i]), widen(base[i])
        minus |= minus_zero(expert[i]) | minus_zero(base[i])
        d = e - b
        t = d - e
        bad |= np.int32((e - (d - t)) - (b + t) != 0.0)
        x = weight * d
        if drop:
            k = _long(x)
            x = _double((k + half + ((k >> np.int64(drop)) & np.int64(1))) & mask)
        kept = abs(d) >= least
        up = x if kept and x > 0.0 else 0.0
        a = 0.0 if fresh else positive[i]
        s = a + up
        t = s - a
        bad |= np.int32((a - (s - t)) + (up - t) != 0.0)
        positive[i] = s
        down = x if kept and x < 0.0 else 0.0
        a = 0.0 if fresh else negative[i]
        s = a + down
        t = s - a
        bad |= np.int32((a - (s - t)) + (down - t) != 0.0)
        negative[i] = s
        none = behind - behind
        above[i] = (none if fresh else above[i]) + (behind if up > 0.0 else none)
        below[i] = (none if fresh else below[i]) + (behind if down < 0.0 else none)
    return bad | (minus << np.int32(1))


@compiled
def settle_agreed(
    base: Any,
    positive: Any,
    negative: Any,
    above: Any,
    below: Any,
    mean: Any,
    scale: Any,
    limit: Any,
    out: Any,
) -> Any:
    """out = base + scale * the sum that outweighs the other (nothing where they are equal), if `mean` divided by the
    weight behind it; each step is rounded to fp64, the last sum once. Results stay below `limit`."""
    bad, zero = np.int32(0), np.int32(0)
    for i in range(base.size):
        b, p, m = widen(base[i]), positive[i], negative[i]
        up, down = p > -m, p < -m
        a = p if up else (m if down else 0.0)
        w = np.float64(above[i] if up else (below[i] if down else 1.0))
        x = (a / w if mean else a) * scale
        v = b + x
        t = v - b
        bad |= np.int32(not (p - m < SUMS)) | np.int32(not (abs(v) < limit))
        zero |= np.int32(v == 0.0)
        out[i] = narrow(v, (b - (v - t)) + (x - t), out[i])
    return bad | (zero << np.int32(1))


@compiled
def compare(expert: Any, base: Any, low: Any, high: Any, keys: Any) -> Any:
    """keys = the bits of |expert - base|, rounded once to fp32. How many are above `high`, equal to it, equal to
    `low`, strictly between; and a flag."""
    bad, above, at_high, at_low, inside = np.int32(0), np.int32(0), np.int32(0), np.int32(0), np.int32(0)
    for i in range(base.size):
        k = _bits(np.float32(widen(expert[i])) - np.float32(widen(base[i]))) & np.int32(0x7FFFFFFF)
        keys[i] = k
        bad |= np.int32(k >= np.int32(INFINITE))
        above += np.int32(k > high)
        at_high += np.int32(k == high)
        at_low += np.int32(k == low)
        inside += np.int32(k > low and k < high)
    return above, at_high, at_low, inside, bad


@compiled
def between(keys: Any, low: Any, high: Any, found: Any) -> Any:
    """The keys strictly between, in order, at the front of `found`, which has room for one more than they are.
    Returns how many they are."""
    count = 0
    for i in range(keys.size):
        found[count] = keys[i]
        count += int(keys[i] > low and keys[i] < high)
    return count


@compiled
def place_of(expert: Any, base: Any, key: Any, count: Any) -> Any:
    """The index of the `count`-th element (from 1) whose key, as in `compare`, is `key`; -1 where there are fewer."""
    for i in range(base.size):
        k = _bits(np.float32(widen(expert[i])) - np.float32(widen(base[i]))) & np.int32(0x7FFFFFFF)
        if k == key:
            count -= 1
            if count == 0:
                return i
    return -1
