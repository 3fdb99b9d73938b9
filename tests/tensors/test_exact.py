"""Exact numbers and their rounding against fractions, on raw bit patterns."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from plait.errors import UsageError
from plait.tensors import BLOCK
from plait.tensors.exact import Exact, difference, round_once, scan, settle

from .oracle import (
    FORMATS,
    binade,
    is_minus_zero,
    nearest,
    patterns,
    real,
    reals,
    same_bytes,
    significant,
    tensor,
)

NAMES = list(FORMATS)
BITS = {"BF16": 16, "F16": 20, "F32": 40, "F64": 53}
some = settings(max_examples=60, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))


def pairs(name: str) -> st.SearchStrategy[list[tuple[int, int]]]:
    return st.lists(st.tuples(patterns(name), patterns(name)), min_size=1, max_size=6)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@some
def test_scan_bounds_every_element(name: str, data: st.DataObject) -> None:
    raw = data.draw(st.lists(patterns(name, 1 << 20), min_size=1, max_size=5))
    found = scan(tensor(name, raw))
    values = [real(name, r) for r in raw]
    assert found.finite
    assert found.negative_zero == any(is_minus_zero(name, r) for r in raw)
    if any(values):
        assert all((v / Fraction(2) ** found.low).denominator == 1 for v in values)
        top = max(abs(v) for v in values)
        least = Fraction(2) ** (1 - FORMATS[name][4])  # of normal numbers
        assert 2 * max(top, least) >= Fraction(2) ** found.high > top
    else:
        assert found.bound == 0.0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_scan_sees_what_is_not_finite(name: str, bad: float) -> None:
    dtype = FORMATS[name][0]
    assert not scan(torch.tensor([1.0, bad, 0.0], dtype=dtype)).finite
    assert scan(torch.tensor([1.0, torch.finfo(dtype).max], dtype=dtype)).finite


def test_scan_refuses_a_dtype_that_has_no_sums() -> None:
    with pytest.raises(TypeError, match="has no exact sums; convert"):
        scan(torch.zeros(3, dtype=torch.int32))


@pytest.mark.parametrize("place", [0, BLOCK - 1, BLOCK, 2 * BLOCK + 3])
def test_what_is_found_does_not_hang_on_where_it_lies(place: int) -> None:
    """A look goes run by run: the least, the largest and the sign of a zero may lie in any of them."""
    values = torch.full((2 * BLOCK + 9,), 1.5)
    for number in (2.0**-40, 2.0**50, -0.0, 0.0, float("inf")):
        one = values.clone()
        one[place] = number
        few = scan(torch.tensor([1.5, number]))
        found = scan(one)
        assert (found.low, found.high, found.negative_zero, found.finite) == (
            few.low, few.high, few.negative_zero, few.finite,
        )  # fmt: skip
    assert scan(torch.zeros(2 * BLOCK + 9)).low == scan(torch.zeros(1)).low


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@some
def test_difference_is_exact_to_the_last_bit_of_fp64(name: str, data: st.DataObject) -> None:
    drawn = data.draw(pairs(name))
    expert, base = (tensor(name, [p[i] for p in drawn]) for i in (0, 1))
    delta = difference(expert, base)
    want = [real(name, e) - real(name, b) for e, b in drawn]
    assert reals(delta.double()) == [nearest("F64", v) for v in want]
    assert delta.sign().tolist() == [(v > 0) - (v < 0) for v in want]
    total = [nearest("F64", v) for v in want]
    if delta.tail is not None:
        total = list(reals(delta.double()))
        for i, *rest in zip(delta.tail.index.tolist(), *map(reals, delta.tail.terms), strict=True):
            total[i] += sum(rest)
    assert total == want
    low, bound = delta.claims()
    assert all(abs(v) <= bound and (v == 0 or (v / Fraction(2) ** low).denominator == 1) for v in want)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@some
def test_one_member_of_weight_one_comes_back_bit_for_bit(name: str, data: st.DataObject) -> None:
    drawn = data.draw(pairs(name))
    expert, base = (tensor(name, [p[i] for p in drawn]) for i in (0, 1))
    delta = difference(expert, base)
    shifts = [delta, delta.over(1.0), delta.times(1.0), -delta.times(-1.0), delta + delta + -delta]
    if name != "F64":  # half of the least fp64 is 0
        shifts.append(delta.times(0.5).times(2.0))
    for shift in shifts:
        assert same_bytes(settle(base, shift, expert.dtype), expert)
    ones = torch.ones(len(drawn), dtype=torch.float64)
    assert same_bytes(settle(base, delta.over(ones), expert.dtype), expert)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@some
def test_settle_rounds_the_exact_sum_once(name: str, data: st.DataObject) -> None:
    """The base of another dtype than the output, and a shift of several parts."""
    drawn = data.draw(pairs(name))
    other = data.draw(st.sampled_from(NAMES))
    bases = data.draw(st.lists(patterns(other), min_size=len(drawn), max_size=len(drawn)))
    base = tensor(other, bases)
    a, b = (tensor(name, [p[i] for p in drawn]) for i in (0, 1))
    # Half of the least fp64 is 0: there a power of two is not exact.
    half = data.draw(st.sampled_from([1.0, 2.0] if "F64" in (name, other) else [1.0, 0.25, 2.0]))
    shift = (difference(a, base) + difference(b, base)).times(half)
    out = data.draw(st.sampled_from([n for n in NAMES if n != "F16"]))
    got = settle(base, shift, FORMATS[out][0])
    for g, (ra, rb), rbase in zip(got, drawn, bases, strict=True):
        v = real(other, rbase)
        want = v + Fraction(half) * (real(name, ra) + real(name, rb) - 2 * v)
        assert Fraction(float(g)) == nearest(out, want)


@pytest.mark.parametrize("out", [n for n in NAMES if n != "F16"])
@given(data=st.data())
@some
def test_settle_on_a_base_that_the_shift_does_not_know(out: str, data: st.DataObject) -> None:
    """Numbers near the middle of two neighbours and a base far below, or far above."""
    half = st.sampled_from([1.0, 1.5, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-7, 1 + 2**-24, 1 + 2**-23, 3.0])
    tiny = st.sampled_from([0.0, 2.0**-60, -(2.0**-60), 2.0**-100, -(2.0**-100), 2.0**-8, -1.0, 2.0**40])
    rows = data.draw(st.lists(st.tuples(half, tiny, tiny), min_size=1, max_size=5))
    a, b, base = (torch.tensor([r[i] for r in rows], dtype=torch.float32) for i in range(3))
    share = data.draw(st.sampled_from([1.0, 0.5, -1.0]))
    got = settle(base, difference(a, b).times(share), FORMATS[out][0])
    want = [z + Fraction(share) * (x - y) for x, y, z in zip(reals(a), reals(b), reals(base), strict=True)]
    assert reals(got) == [nearest(out, v) for v in want]


@pytest.mark.parametrize("base", [2.0**-60, -(2.0**-60), 2.0**-100, -(2.0**-100)])
def test_a_tiny_base_decides_a_tie(base: float) -> None:
    """1 + 2^-8 and 1 + 3 * 2^-8 lie between two bf16 numbers; fp64 cannot hold them and the base together."""
    shift = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8], dtype=torch.float32)
    got = settle(torch.full((2,), base), difference(shift, torch.zeros(2)), torch.bfloat16)
    assert got.tolist() == ([1 + 2**-7, 1 + 2**-6] if base > 0 else [1.0, 1 + 2**-7])


@pytest.mark.parametrize("out", NAMES)
@given(data=st.data())
@some
def test_round_once_has_no_second_rounding(out: str, data: st.DataObject) -> None:
    """fp64 values at, just above and just below the middle of two neighbours, denormal ones too."""
    raw = data.draw(st.lists(patterns(out, 15), min_size=1, max_size=4))
    nudges = data.draw(st.lists(st.integers(-2, 2), min_size=len(raw), max_size=len(raw)))
    values = []
    for r, nudge in zip(raw, nudges, strict=True):
        if out == "F64":
            values.append(float(real(out, r)))
            continue
        middle = float((real(out, r) + real(out, r ^ 1)) / 2)
        for _ in range(abs(nudge)):
            middle = float(torch.nextafter(torch.tensor(middle).double(), torch.tensor(nudge * 9e9).double()))
        values.append(middle)
    got = round_once(torch.tensor(values, dtype=torch.float64), FORMATS[out][0])
    assert reals(got) == [nearest(out, Fraction(v)) for v in values]


@pytest.mark.parametrize("out", NAMES)
def test_what_fp32_cannot_tell_from_zero_rounds_to_zero(out: str) -> None:
    values = torch.tensor([1e-50, -1e-50, 0.0, -0.0], dtype=torch.float64)
    got = round_once(values, FORMATS[out][0]).double()
    assert got.tolist() == (values.tolist() if out == "F64" else [0.0] * 4)
    assert torch.signbit(got).tolist() == [False, True, False, True]


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@some
def test_other_weights_round_to_few_bits(name: str, data: st.DataObject) -> None:
    drawn = data.draw(pairs(name))
    w = data.draw(st.sampled_from([0.3, -0.7, 3.0, 1e-3, 1.7]))
    expert, base = (tensor(name, [p[i] for p in drawn]) for i in (0, 1))
    got = reals(difference(expert, base).times(w).double())
    for g, (e, b) in zip(got, drawn, strict=True):
        v = nearest("F64", Fraction(w) * nearest("F64", real(name, e) - real(name, b)))
        if v == 0 or binade(v) >= -1022:
            assert g == significant(v, BITS[name])
        else:
            assert abs(g - v) <= Fraction(2) ** -1020


@given(data=st.data())
@some
def test_claims_hold_after_any_weight(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(NAMES))
    drawn = data.draw(pairs(name))
    w = data.draw(st.one_of(st.floats(2.0**-60, 2.0**20), st.sampled_from([0.0, 0.5, 1024.0, 2.0 - 2**-52])))
    expert, base = (tensor(name, [p[i] for p in drawn]) for i in (0, 1))
    x = difference(expert, base).times(w)
    low, bound = x.claims()
    for v in reals(x.double()):
        assert abs(v) <= bound
        if x.tail is None and v:
            assert (v / Fraction(2) ** low).denominator == 1


def test_over_counts() -> None:
    base = torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.bfloat16)
    expert = torch.tensor([1e-30, 3.0, 2.0, -0.0], dtype=torch.bfloat16)
    delta = difference(expert, base)
    got = delta.over(torch.tensor([2, 3, 0, 0]))
    assert reals(got.double())[1:] == [Fraction(2.0 / 3.0), 0, 0]
    assert got.tail is not None
    assert reals(got.double())[0] + reals(got.tail.terms[0])[0] == (reals(expert)[0] - 1) / 2
    assert got.z is not None
    assert got.z.tolist() == [0, 0, 0, 1]
    # a whole divisor that is no power of two rounds the value to fp64 first
    assert reals(delta.over(3.0).double())[0] == Fraction(float(delta.double()[0]) / 3.0)


def test_division_is_the_same_in_vectors_and_tails() -> None:
    """Some kernels multiply by the reciprocal, or treat the last elements otherwise."""
    x = torch.arange(1, 1004, dtype=torch.float64)
    for d in (3.0, 7.0, 49.0):
        assert Exact.of(x).over(d).double().tolist() == [v / d for v in x.tolist()]
        assert Exact.of(x).over(torch.full_like(x, d)).double().tolist() == [v / d for v in x.tolist()]


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_a_divisor_must_be_positive(bad: float) -> None:
    with pytest.raises(UsageError, match="a number above 0 is needed"):
        Exact.of(torch.ones(1)).over(bad)
    if bad not in (0.0, -1.0):
        with pytest.raises(UsageError, match="a finite number is needed"):
            Exact.of(torch.ones(1)).times(bad)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@some
def test_masks_and_signs(name: str, data: st.DataObject) -> None:
    drawn = data.draw(pairs(name))
    mask = data.draw(st.lists(st.booleans(), min_size=len(drawn), max_size=len(drawn)))
    expert, base = (tensor(name, [p[i] for p in drawn]) for i in (0, 1))
    delta = difference(expert, base)
    want = [real(name, e) - real(name, b) for e, b in drawn]
    zero = Exact.of(torch.zeros(len(drawn)))
    for got, keep in (
        (delta.where(torch.tensor(mask)), mask),
        (delta.positive(), [v > 0 for v in want]),
        (delta.negative(), [v < 0 for v in want]),
    ):
        total = list(reals(got.double()))
        if got.tail is not None:
            for i, *rest in zip(got.tail.index.tolist(), *map(reals, got.tail.terms), strict=True):
                total[i] += sum(rest)
        assert total == [v if k else 0 for v, k in zip(want, keep, strict=True)]
    back = delta.positive() + delta.negative() + zero
    assert same_bytes(settle(base, back, expert.dtype), settle(base, delta, expert.dtype))


ZEROS = [
    # base, expert, other expert -> merged: the sign of a zero is the experts' where they agree against the base
    (-0.0, -0.0, -0.0, True),
    (-0.0, 0.0, -0.0, False),
    (-0.0, 0.0, 0.0, False),
    (0.0, -0.0, -0.0, True),
    (0.0, -0.0, 0.0, True),
    (0.0, 0.0, 0.0, False),
    (0.5, -0.0, -0.0, True),
    (0.5, 0.0, 0.0, False),
]


@pytest.mark.parametrize("dtype", [FORMATS[n][0] for n in NAMES])
def test_signs_of_zeros(dtype: torch.dtype) -> None:
    base, one, two = (torch.tensor([row[i] for row in ZEROS], dtype=dtype) for i in range(3))
    want = [row[3] for row in ZEROS]
    mean = (difference(one, base) + difference(two, base)).over(2.0)
    got = settle(base, mean, dtype)
    assert (got == 0).all()
    assert torch.signbit(got).tolist() == want
    plain = settle(base, Exact.of(-base), dtype)  # no word about zeros: the base decides
    assert torch.signbit(plain).tolist() == [torch.signbit(b).item() and b == 0 for b in base]


def test_a_zero_weight_takes_nothing_in_and_a_negative_one_turns_z() -> None:
    base, expert = torch.tensor([0.0]), torch.tensor([-0.0])
    delta = difference(expert, base)
    assert delta.times(0.0).z is None
    for w, want in ((2.0, 1), (-2.0, -1), (0.3, 1), (-0.3, -1)):
        z = delta.times(w).z
        assert z is not None
        assert z.tolist() == [want]


def test_whole_numbers_and_masks_are_exact() -> None:
    assert Exact.of(torch.tensor([True, False])).double().tolist() == [1.0, 0.0]
    assert Exact.of(torch.tensor([-128, 127], dtype=torch.int8)).times(0.5).double().tolist() == [-64.0, 63.5]
    assert Exact.of(torch.tensor([1.5], dtype=torch.bfloat16)).claims()[1] >= 1.5


def test_round_bits_and_round_to() -> None:
    x = Exact.of(torch.tensor([1.0 + 2**-7, 1.0 + 3 * 2**-7, -5.0, 1e-20], dtype=torch.float64))
    assert x.round_bits(7).double().tolist() == [
        1.0,
        1.0 + 2**-5,
        -5.0,
        float(significant(Fraction(1e-20), 7)),
    ]
    assert x.round_to(-6).double().tolist() == [1.0, 1.0 + 2**-5, -5.0, 0.0]
    assert Exact.of(torch.tensor([2.0**60 + 2**9], dtype=torch.float64)).round_to(-40).double().tolist() == [
        2.0**60 + 2**9
    ]


def test_inputs_are_not_touched_and_outputs_are_new() -> None:
    base = torch.tensor([1.0, -0.0, 3.0], dtype=torch.float64)
    expert = torch.tensor([2.0, 0.0, 1e-30], dtype=torch.float64)
    kept = base.clone(), expert.clone()
    delta = difference(expert, base)
    out = settle(base, delta, torch.float64)
    out.fill_(7.0)
    merged = base.clone()
    settle(base, merged, torch.float64).fill_(9.0)
    assert same_bytes(merged, base)
    assert same_bytes(base, kept[0])
    assert same_bytes(expert, kept[1])
    assert same_bytes(settle(base, delta, torch.float64), expert)
