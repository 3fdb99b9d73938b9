"""Exact sums against fractions: any order, any removals, one form on disk."""

from __future__ import annotations

from fractions import Fraction
from math import prod

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from plait.errors import NonFinite, RefusedInput
from plait.tensors.exact import Exact, ExactSum, dense_bins, difference, settle
from plait.tensors.sums import Dense, Sparse

from .oracle import FORMATS, nearest, patterns, real, reals, same_bytes, tensor

NAMES = list(FORMATS)
some = settings(max_examples=60, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))


def packed(total: ExactSum) -> list[tuple[object, bytes, bytes]]:
    """All that `pack` returns, as bytes."""
    dense, sparse = total.pack()
    rows: list[tuple[object, bytes, bytes]] = [(e, t.numpy().tobytes(), b"") for e, t in dense.items()]
    for key, (index, value) in sparse.items():
        assert index.dtype == torch.int64
        assert value.dtype == torch.float64
        rows.append((key, index.numpy().tobytes(), value.numpy().tobytes()))
    return rows


def total_of(dense: Dense, sparse: Sparse, count: int) -> list[Fraction]:
    """The numbers that packed digits stand for; asserts that they have the canonical form."""
    out = [Fraction(0)] * count
    for e, digits in dense.items():
        for i, d in enumerate(reals(digits)):
            out[i] += checked(e, d)
    for key, (index, value) in sparse.items():
        assert index.tolist() == sorted(set(index.tolist()))
        assert (value != 0).all()
        if isinstance(key, int):
            for i, d in zip(index.tolist(), reals(value), strict=True):
                out[i] += checked(key, d)
    return out


def checked(e: int, digit: Fraction) -> Fraction:
    quantum = Fraction(2) ** e
    assert (digit / quantum).denominator == 1 or e == -1080
    assert -(2**39) <= digit / quantum < 2**39 or (e == 0 and abs(digit) < 2**53)
    return digit


@st.composite
def histories(draw: st.DrawFn, name: str) -> tuple[list[int], list[list[int]], list[tuple[str, int]]]:
    """A base, members, and a sequence of steps on a sum: members added and taken out again, and reads."""
    count = draw(st.integers(1, 4))
    row = st.lists(patterns(name), min_size=count, max_size=count)
    base = draw(row)
    members = draw(st.lists(row, min_size=1, max_size=4))
    steps: list[tuple[str, int]] = [("add", i) for i in range(len(members))]
    for i in draw(st.lists(st.integers(0, len(members) - 1), max_size=4)):
        steps += [("subtract", i), ("add", i)]
    steps += [(what, 0) for what in draw(st.lists(st.sampled_from(["value", "reload"]), max_size=3))]
    return base, members, draw(st.permutations(steps))


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@some
def test_any_route_leads_to_the_same_bytes_and_the_exact_sum(name: str, data: st.DataObject) -> None:
    """Steps come in any order, so a member may be taken out before it is in."""
    raw_base, raw_members, steps = data.draw(histories(name))
    base = tensor(name, raw_base)
    members = [tensor(name, m) for m in raw_members]
    count = len(raw_base)
    total = ExactSum(count, name)
    for what, i in steps:
        if what == "value":
            total.value().double()
        elif what == "reload":
            total = ExactSum.unpack(count, name, *total.pack())
        else:
            getattr(total, what)(difference(members[i], base))
    plain = ExactSum(count, name)
    for m in members:
        plain.add(difference(m, base))
    assert packed(total) == packed(plain)

    want = [sum(real(name, m[i]) - real(name, raw_base[i]) for m in raw_members) for i in range(count)]
    assert total_of(*total.pack(), count) == want
    assert reals(total.value().double()) == [nearest("F64", Fraction(w)) for w in want]
    if len(members) in (1, 2) or name != "F64":
        mean = settle(base, total.value().over(4.0 if name != "F64" else 1.0), torch.float64)
        share = 4 if name != "F64" else 1
        exact = [real(name, b) + Fraction(w) / share for b, w in zip(raw_base, want, strict=True)]
        assert reals(mean) == [nearest("F64", v) for v in exact]


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@some
def test_taking_out_leaves_what_never_having_added_gives(name: str, data: st.DataObject) -> None:
    """Weighted members, all but the first taken out: the first comes back bit for bit where its weight is 1."""
    raw_base, raw_members, _ = data.draw(histories(name))
    weights = data.draw(st.lists(st.sampled_from([1.0, 0.3, 2.0, 1.7]), min_size=4, max_size=4))
    weights[0] = 1.0
    base, members = tensor(name, raw_base), [tensor(name, m) for m in raw_members]
    count = len(raw_base)
    total, first = ExactSum(count, name), ExactSum(count, name)
    first.add(difference(members[0], base))
    addends = [difference(m, base).times(w) for m, w in zip(members, weights, strict=False)]
    for a in addends:
        total.add(a)
    total = ExactSum.unpack(count, name, *total.pack())
    for a in reversed(addends[1:]):
        total.subtract(a)
    assert packed(total) == packed(first)
    assert same_bytes(settle(base, total.value(), base.dtype), members[0])


def mixed(dtype: torch.dtype, count: int, seed: int) -> Tensor:
    """Weights as they are, with a few tiny, large and zero ones."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(count, generator=rng, dtype=torch.float64) * 0.02
    for scale in (1e-30, 1e-12, 1e5, 0.0, -0.0):
        x[torch.randint(count, (3,), generator=rng)] *= scale
    return x.to(dtype)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("weight", [1.0, 0.3])
def test_neighbours_do_not_matter(name: str, weight: float) -> None:
    """A chunk of ordinary numbers takes a fast route, one with tiny or huge numbers another: cut in pieces of
    any size, the same elements have the same digits and the same merged bits."""
    count, dtype = 400, FORMATS[name][0]
    base = mixed(dtype, count, 0)
    members = [(base.double() + mixed(torch.float64, count, i) / 8).to(dtype) for i in range(1, 5)]

    def run(cut: int, order: list[int]) -> list[tuple[Dense, Sparse, Tensor, Tensor]]:
        out = []
        for a in range(0, count, cut):
            at = slice(a, a + cut)
            total = ExactSum(len(base[at]), name)
            for i in order:
                total.add(difference(members[i][at], base[at]).times(weight))
            shift = total.value()
            third = settle(base[at], shift.over(3.0), dtype)
            out.append((*total.pack(), settle(base[at], shift.over(4.0), dtype), third))
        return out

    whole = run(count, [0, 1, 2, 3])[0]
    for cut, order in ((1, [3, 1, 2, 0]), (7, [2, 0, 1, 3]), (150, [1, 0, 3, 2])):
        pieces = run(cut, order)
        for e in dense_bins(name):
            assert same_bytes(torch.cat([p[0][e] for p in pieces]), whole[0][e])
        for key, (index, value) in whole[1].items():
            found = [(n * cut + p[1][key][0], p[1][key][1]) for n, p in enumerate(pieces) if key in p[1]]
            assert same_bytes(torch.cat([f[0] for f in found]), index)
            assert same_bytes(torch.cat([f[1] for f in found]), value)
        assert same_bytes(torch.cat([p[2] for p in pieces]), whole[2])
        assert same_bytes(torch.cat([p[3] for p in pieces]), whole[3])


@pytest.mark.parametrize("tiny", [0.0, 2.0**-100])
def test_digits_at_the_middle(tiny: float) -> None:
    """Half a unit of the bin above: the lower digit is -2^39, never 2^39, whichever way it came about."""
    values = [0.5, 1.5, 2.5, -0.5, -1.5, 2.0**-41, 3 * 2.0**-41, -(2.0**-41), 0.5 + 2.0**-41, 0.5 - 2.0**-41]
    expert = torch.tensor([*values, tiny], dtype=torch.float64)
    base = torch.zeros_like(expert)
    packs = []
    for parts in ([1.0], [0.5, 0.5], [2.0, -1.0], [0.25, 1.0, -0.25]):
        total = ExactSum(len(expert), "F32")
        for w in parts:
            total.add(difference(expert, base).times(w))
        packs.append(packed(total))
        dense, sparse = total.pack()
        assert total_of(dense, sparse, len(expert)) == reals(expert)
        assert dense[-40][0] == -0.5
        assert dense[-80][5] == -(2.0**-41)
    assert all(p == packs[0] for p in packs)


def test_a_wide_sum_over_many_members() -> None:
    """Digits are carried long before they could overflow. The last element has the largest digit in bin -120."""
    base = torch.tensor([1.0, 0.0, 1e-30, 3e4, 0.0], dtype=torch.float32)
    expert = torch.tensor([1e-40, -1e-20, 1e11, 3e-30, (2**24 - 1) * 2.0**-105], dtype=torch.float32)
    total = ExactSum(5, "F32")
    addend = difference(expert, base)
    times = 5000
    for _ in range(times):
        total.add(addend)
    assert all(float(d.abs().max()) < 2.0 ** (e + 51) for e, d in total._bins.items())
    want = [times * (e - b) for e, b in zip(reals(expert), reals(base), strict=True)]
    assert total_of(*total.pack(), 5) == want
    for _ in range(times - 1):
        total.subtract(addend)
    assert same_bytes(settle(base, total.value(), torch.float32), expert)


def test_unpacked_tensors_are_not_written() -> None:
    rng = torch.Generator().manual_seed(0)
    base, expert = (torch.randn(64, generator=rng, dtype=torch.float64) for _ in range(2))
    base[::2] *= 1e-25  # so that no two accumulators hold all bins
    expert[::2] *= 1e-25
    total = ExactSum(64, "F64")
    total.add(difference(expert, base))
    dense, sparse = total.pack()
    assert all(dense[e].any() for e in dense_bins("F64"))
    kept = packed(total)
    again = ExactSum.unpack(64, "F64", dense, sparse)
    assert again._bins[-120] is dense[-120]
    other = base.clone()
    other[5] = 2.0**-118  # less the base it has bits in every bin
    other[7] = 1.0
    again.add(difference(other, base))
    assert packed(again) != kept
    assert packed(ExactSum.unpack(64, "F64", dense, sparse)) == kept


def test_values_do_not_change_when_the_sum_goes_on() -> None:
    base, one = torch.tensor([1.0, 2.0]), torch.tensor([1.5, 1e-30])
    total = ExactSum(2, "F32")
    total.add(difference(one, base))
    before = total.value()
    total.add(difference(one, base))
    assert same_bytes(settle(base, before, torch.float32), one)
    assert settle(base, total.value(), torch.float32).tolist() == [2.0, -2.0]
    dense, sparse = total.pack()
    again = ExactSum.unpack(2, "F32", dense, sparse)
    kept = {e: t.clone() for e, t in dense.items()}
    again.add(difference(one, base))
    assert all(same_bytes(dense[e], kept[e]) for e in kept)


def test_an_empty_sum_gives_the_base() -> None:
    base = torch.tensor([1.0, -0.0, 0.0, -3.5], dtype=torch.bfloat16)
    assert same_bytes(settle(base, ExactSum(4, "BF16").value(), torch.bfloat16), base)
    dense, sparse = ExactSum(4, "BF16").pack()
    assert list(dense) == [-40]
    assert not sparse
    assert not ExactSum(0, "BF16").pack()[1]


def test_numbers_too_large_or_not_finite_are_refused() -> None:
    base = torch.tensor([1.0, 0.0])
    for value in (2.0**53, -(2.0**60), 3e38):
        with pytest.raises(RefusedInput, match=r"need magnitudes below 2\^52; look for overflow"):
            ExactSum(2, "F32").add(difference(torch.tensor([1.0, value]), base))

    total = ExactSum(2, "F32")
    with pytest.raises(RefusedInput, match=r"reaches (4.5|6.7)\d*e\+15"):
        add_many(total, difference(torch.tensor([1.0, 2.0**51]), base))
    for value in (float("nan"), float("inf"), float("-inf")):
        for weight in (1.0, 0.3, 0.5):
            with pytest.raises(NonFinite, match="holds NaN or infinity"):
                ExactSum(2, "F32").add(difference(torch.tensor([1.0, value]), base).times(weight))
        with pytest.raises(NonFinite):
            ExactSum(2, "F32").add(Exact.of(torch.tensor([value, 1.0])))


def test_huge_elements_that_do_not_change_are_no_obstacle() -> None:
    """Masks of -3e38 lie in real checkpoints."""
    base = torch.tensor([torch.finfo(torch.bfloat16).min, 0.5], dtype=torch.bfloat16)
    expert = torch.tensor([torch.finfo(torch.bfloat16).min, 0.75], dtype=torch.bfloat16)
    total = ExactSum(2, "BF16")
    total.add(difference(expert, base))
    assert same_bytes(settle(base, total.value(), torch.bfloat16), expert)


def test_narrow_sums_hold_counts_and_weights_in_one_dense_bin() -> None:
    total = ExactSum(3, "BF16", narrow=True)
    mask = torch.tensor([True, False, True])
    total.add(Exact.of(mask))
    total.add(Exact.of(mask).times(0.3))
    total.add(Exact.of(mask.to(torch.int8)).times(40.0))
    tenth = Fraction(round(Fraction(0.3) * 2**40), 2**40)
    dense, sparse = total.pack()
    assert list(dense) == [-40]
    assert not sparse
    assert reals(dense[-40]) == [41 + tenth, 0, 41 + tenth]
    total = ExactSum.unpack(3, "BF16", dense, sparse, narrow=True)
    total.subtract(Exact.of(mask).times(0.3))
    total.subtract(Exact.of(mask.to(torch.int8)).times(40.0))
    assert total.value().double().tolist() == [1.0, 0.0, 1.0]
    total.add(Exact.of(torch.tensor([2, 3, 4], dtype=torch.int8)).times(2.0**-41))
    assert total.value().double().tolist() == [1.0 + 2**-40, 2 * 2**-40, 1.0 + 2 * 2**-40]
    for huge in (4096.0, 1e10, 1e300):
        with pytest.raises(RefusedInput):
            ExactSum(1, "F32", narrow=True).add(Exact.of(torch.tensor([huge], dtype=torch.float64)))


def test_counts_beyond_any_small_integer() -> None:
    total = ExactSum(2, "F32", narrow=True)
    mask = Exact.of(torch.tensor([True, False]))
    for _ in range(40_000):
        total.add(mask.times(2.0**-4))
    before = total.value()
    total.subtract(mask.times(2.0**-4))
    assert before.double().tolist() == [2500.0, 0.0]
    assert total.value().double().tolist() == [2500.0 - 2**-4, 0.0]
    assert reals(total.pack()[0][-40]) == [2500 - Fraction(1, 16), 0]
    with pytest.raises(RefusedInput, match="must stay below 4096; use smaller weights"):
        add_many(total, mask.times(64.0))


def add_many(total: ExactSum, x: Exact) -> None:
    for _ in range(40):
        total.add(x)


@pytest.mark.parametrize("name", ["BF16", "F16", "F32"])
@pytest.mark.parametrize("share", [1.0, 0.5, 0.25, -2.0])
def test_base_is_counted_rather_than_subtracted(name: str, share: float) -> None:
    """Ordinary numbers, so that sum and base stay apart until they are settled; any multiple of the base may be
    left."""
    dtype = FORMATS[name][0]
    rng = torch.Generator().manual_seed(1)
    base, *members = (torch.randn(50, generator=rng).to(dtype) for _ in range(5))
    total = ExactSum(50, name)
    want = [Fraction(0)] * 50
    for m in members:
        total.add(difference(m, base))
        want = [w + e - b for w, e, b in zip(want, reals(m), reals(base), strict=True)]
        value = total.value()
        assert any(p.tensor is base for p in value.pieces)
        got = settle(base, value.times(share), dtype)
        exact = [b + Fraction(share) * w for b, w in zip(reals(base), want, strict=True)]
        assert reals(got) == [nearest(name, v) for v in exact]
        other = settle(base.clone(), value.times(share), dtype)
        assert same_bytes(got, other)
    assert total_of(*total.pack(), 50) == want


def test_base_is_told_from_its_equal() -> None:
    """The base is only counted while its tensor is the same one; another tensor of equal values is another."""
    base = torch.tensor([0.1, 0.2, -0.0], dtype=torch.bfloat16)
    experts = [torch.tensor([0.3, 0.1, 0.0], dtype=torch.bfloat16) * k for k in (1, 2, 3)]
    total, copies = ExactSum(3, "BF16"), ExactSum(3, "BF16")
    for e in experts:
        total.add(difference(e, base))
        copies.add(difference(e, base.clone()))
    assert packed(total) == packed(copies)
    shifts = total.value().over(3.0), copies.value().over(3.0)
    assert same_bytes(settle(base, shifts[0], base.dtype), settle(base, shifts[1], base.dtype))


def test_sparse_bins_stay_sparse_for_ordinary_weights() -> None:
    """What the choice of dense bins and of the bits of weighted addends is for."""
    for name, limit in (("BF16", 0.01), ("F16", 0.01), ("F32", 0.01)):
        dtype, count = FORMATS[name][0], 1 << 14
        rng = torch.Generator().manual_seed(0)
        base = (torch.randn(count, generator=rng) * 0.02).to(dtype)
        total = ExactSum(count, name)
        for w in (1.0, 0.3, 1.7):
            expert = (base.double() + torch.randn(count, generator=rng).double() * 1e-3).to(dtype)
            total.add(difference(expert, base).times(w))
        _, sparse = total.pack()
        held = sum(len(index) for index, _ in sparse.values())
        assert held <= limit * count, (name, {k: len(v[0]) for k, v in sparse.items()})
    assert prod(len(dense_bins(n)) for n in NAMES) == 6
