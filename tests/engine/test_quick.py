"""The shorter way of linear merges: the bytes of the long way, or nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from plait.engine import Settings
from plait.engine.state import blank
from plait.errors import NonFinite, RefusedInput
from plait.methods.average import Average
from plait.methods.base import MemberFacts, Outlook, Part, State, TensorMethod, Where
from plait.methods.magmax import MagMax
from plait.methods.task_arithmetic import TaskArithmetic
from plait.tensors import BLOCK, flags
from plait.tensors.exact import settle
from plait.tensors.farthest import Farthest
from plait.tensors.linear import Linear
from tests.engine.files import Bench, all_same, base_tensors, expert_of, same

METHODS: list[TensorMethod] = [
    Average(),
    TaskArithmetic(1.0),
    TaskArithmetic(0.3),
    TaskArithmetic(-0.5),
    TaskArithmetic(-1.0),
    MagMax(),
    MagMax(1.0),
    MagMax(-0.3),
]
DTYPES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}


def long_way(
    method: TensorMethod, base: Tensor, experts: list[Tensor], weights: list[float], dtype: torch.dtype
) -> Tensor:
    name = DTYPES[base.dtype]
    where = Where("w", tuple(base.shape), name, 0, base.numel())
    state: State = blank(method, where)
    for expert, weight in zip(experts, weights, strict=True):
        state = method.step(state, Part(where, base, expert, weight))
    outlook = Outlook(tuple(MemberFacts(w, {}) for w in weights))
    return settle(base, method.merge(base, state, where, outlook), dtype)


def short_way(
    method: TensorMethod, base: Tensor, experts: list[Tensor], weights: list[float], dtype: torch.dtype
) -> Tensor | None:
    quick = method.quick(base, Outlook(tuple(MemberFacts(w, {}) for w in weights)))
    if quick is None:
        return None
    buffer = torch.empty_like(base)
    for expert, weight in zip(experts, weights, strict=True):
        if not quick.take(buffer.copy_(expert), weight):
            return None
        buffer.fill_(float("nan"))  # a buffer may be used again
    return quick.merged(dtype)


def test_the_flag_tells_exact_from_rounded() -> None:
    assert flags.works()
    one, tiny = torch.ones(1000), torch.zeros(1000)
    for at in (0, 1, 7, 8, 500, 999):
        tiny.zero_()[at] = 2.0**-24
        flags.lower()
        _ = one + one
        assert not flags.raised()
        _ = one + tiny
        assert flags.raised()


def test_the_flag_is_not_trusted_where_torch_may_use_threads() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert flags.usable(1 << 15)
        assert not flags.usable(1 << 16)
        assert not Linear.fits(torch.zeros(1 << 16))
        torch.set_num_threads(1)
        assert flags.usable(1 << 16)
    finally:
        torch.set_num_threads(before)


SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    2**-24,
    -(2**-60),
    2**-133,
    -(2**-140),
    3e38,
    -3e38,
    float("nan"),
    float("inf"),
]
ELEMENT = st.sampled_from(SPECIAL) | st.floats(-0.125, 0.125, width=16) | st.floats(width=32, allow_nan=False)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(list(DTYPES)),
    st.sampled_from(METHODS),
    st.lists(st.tuples(ELEMENT, ELEMENT, ELEMENT), min_size=1, max_size=3),
    st.lists(st.sampled_from([1.0, 1.0, 1.0, 0.5, 2.0, -1.0, 0.3]), min_size=1, max_size=2),
    st.sampled_from(list(DTYPES)),
)
def test_the_short_way_never_differs(
    dtype: torch.dtype,
    method: TensorMethod,
    rows: list[tuple[float, float, float]],
    weights: list[float],
    out: torch.dtype,
) -> None:
    base, *experts = (
        torch.tensor(column, dtype=torch.float64).to(dtype) for column in zip(*rows, strict=True)
    )
    experts = experts[: len(weights)]
    found = short_way(method, base, experts, weights, out)
    if found is None:
        return
    try:
        want = long_way(method, base, experts, weights, out)
    except RefusedInput:  # on the way a sum was too large, or would have been but for what came later
        assert any(float(t.double().abs().max()) >= 2.0**48 for t in (base, *experts))
        return
    assert same(found, want)


NAN, TINY = float("nan"), 2.0**-60


@pytest.mark.parametrize(
    ("method", "base", "experts", "weights", "want"),
    [
        (TaskArithmetic(1.0), 0.0, [1.0, TINY, -1.0], [1.0, 1.0, 1.0], TINY),  # lost where a sum is rounded
        (TaskArithmetic(1.0), 1.0, [1.0, TINY], [0.5, 0.5], 0.5),
        (TaskArithmetic(-1.0), 0.0, [0.0, 0.0], [1.0, -2.0], 0.0),  # not -0.0
        (TaskArithmetic(1.0), 1.0, [-0.0], [1.0], -0.0),
        (Average(), 0.0, [-0.0, 0.0], [1.0, 1.0], -0.0),
        (Average(), NAN, [1.0, 2.0], [1.0, 1.0], NonFinite),
        (Average(), 1.0, [NAN, 2.0], [1.0, 1.0], NonFinite),
        (TaskArithmetic(0.3), 1.0, [NAN], [1.0], NonFinite),
        (MagMax(), NAN, [1.0], [1.0], NonFinite),
        (MagMax(), 1.0, [NAN, 2.0], [1.0, 1.0], NonFinite),
        (MagMax(1.0), 2.0**-30, [-1.0, 1.0], [1.0, 1.0], -1.0),  # the farther by 2^-29
        (MagMax(1.0), 0.0, [-1.0, 1.0], [1.0, 1.0], 1.0),  # a tie: the later
        (MagMax(1.0), 0.0, [-0.0], [1.0], -0.0),
    ],
)
def test_awkward_elements(
    method: TensorMethod,
    base: float,
    experts: list[float],
    weights: list[float],
    want: float | type[NonFinite],
) -> None:
    start = torch.tensor([0.5, base, 0.5]).bfloat16()
    others = [torch.tensor([0.5, e, 0.5]).bfloat16() for e in experts]
    found = short_way(method, start, others, weights, torch.bfloat16)
    if isinstance(want, type):
        assert found is None  # the engine's long way refuses by name
        return
    expected = torch.tensor(want).bfloat16()
    assert same(long_way(method, start, others, weights, torch.bfloat16)[1], expected)
    assert found is None or same(found[1], expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_ordinary_chunks_take_the_short_way(method: TensorMethod, dtype: torch.dtype, count: int) -> None:
    torch.manual_seed(count)
    base = (0.02 * torch.randn(4000)).to(dtype)
    base = torch.where(base.abs() < 1e-4, torch.tensor(1e-4, dtype=dtype), base)
    experts = [(base + 0.001 * torch.randn(4000)).to(dtype) for _ in range(count)]
    experts = [torch.where(e.abs() < 1e-4, base, e) for e in experts]
    for out in DTYPES:
        found = short_way(method, base, experts, [1.0] * count, out)
        if found is None:
            assert dtype == torch.float32
            assert isinstance(method, MagMax)  # compared in fp32 for shorter dtypes only
            continue
        assert same(found, long_way(method, base, experts, [1.0] * count, out))


def test_the_engine_takes_it_and_falls_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = base_tensors()
    bench = Bench(tmp_path, base, [expert_of(base, n) for n in range(3)])
    taken: list[bool] = []
    real, real_farthest = Linear.merged, Farthest.merged

    def merged(self: Linear, dtype: torch.dtype) -> Tensor | None:
        found = real(self, dtype)
        taken.append(found is not None)
        return found

    def farthest(self: Farthest, dtype: torch.dtype) -> Tensor | None:
        found = real_farthest(self, dtype)
        taken.append(found is not None)
        return found

    monkeypatch.setattr(Linear, "merged", merged)
    monkeypatch.setattr(Farthest, "merged", farthest)
    for method in (Average(), TaskArithmetic(0.3), MagMax()):
        found, _ = bench.merge(method, settings=Settings(1, BLOCK))
        assert True in taken
        by_state, _ = bench.merge(method, settings=Settings(1, BLOCK), new_state=tmp_path / method.name)
        assert all_same(found, by_state)
        taken.clear()
        odd = [replace(m, weight=0.3) for m in bench.members]
        found, _ = bench.merge(method, odd)
        by_state, _ = bench.merge(method, odd, new_state=tmp_path / f"{method.name}-odd")
        assert taken == []
        assert all_same(found, by_state)
