"""The compiled loops: the bytes of the long way, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from plait.engine import Settings
from plait.errors import NonFinite, RefusedInput
from plait.methods.average import Average
from plait.methods.base import LONG, MemberFacts, Outlook, Part, Survey, TensorMethod, Where
from plait.methods.magmax import MagMax
from plait.methods.memory import Table
from plait.methods.task_arithmetic import TaskArithmetic
from plait.methods.ties import Agreeing, Ties
from plait.tensors import BLOCK, compiled
from plait.tensors.compiled import ScaledSum, Winner
from tests.engine.files import Bench, all_same, base_tensors, expert_of, same

METHODS: list[TensorMethod] = [
    Average(),
    TaskArithmetic(1.0),
    TaskArithmetic(0.3),
    TaskArithmetic(-0.5),
    TaskArithmetic(0.0),
    MagMax(),
    MagMax(1.0),
    MagMax(0.0),
    MagMax(-0.3),
    Ties(density=0.5),
    Ties(density=1.0, scale=0.7),
    Ties(density=0.0),
    Ties(density=0.3, disjoint="sum", scale=-1.0, trim="model"),
]
DTYPES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}


def test_the_loops_are_there() -> None:
    assert compiled.works()


def long_way(
    method: TensorMethod, base: Tensor, experts: list[Tensor], weights: list[float]
) -> tuple[Tensor, list[MemberFacts]]:
    """The merged tensor, and what is known of the members."""
    table = Table(method, {"w": base})
    for expert, weight in zip(experts, weights, strict=True):
        table.enter({"w": expert}, weight)
    return table.merged()["w"], [m.facts for m in table.members]


def short_way(
    method: TensorMethod, base: Tensor, experts: list[Tensor], facts: list[MemberFacts]
) -> Tensor | None:
    where = Where("w", tuple(base.shape), DTYPES[base.dtype], 0, base.numel())
    quick = method.quick(base, where, Outlook(tuple(facts)))
    if quick is None:
        return None
    buffer = torch.empty_like(base)
    begun = False
    for expert, member in zip(experts, facts, strict=True):
        if same(expert, base) and (method.facts.family == "additive" or not begun):
            continue  # as the engine does it
        begun = True
        if not quick.take(buffer.copy_(expert), member):
            return None
        buffer.fill_(float("nan"))  # a buffer may be used again
    return quick.merged(base.dtype)


SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    2**-24,
    -(2**-60),
    2**-133,
    -(2**-140),
    65504.0,
    3e38,
    -3e38,
    float("nan"),
    float("inf"),
]
ELEMENT = st.sampled_from(SPECIAL) | st.floats(-0.125, 0.125, width=16) | st.floats(width=32, allow_nan=False)
SMALL = st.sampled_from([0.0, 0.5, -0.5, 0.125, -0.125, 2**-14, 2**-24, -(2**-26)]) | st.floats(
    -0.125, 0.125, width=16
)


@settings(max_examples=600, deadline=None)
@given(
    st.sampled_from(list(DTYPES)),
    st.sampled_from(METHODS),
    st.lists(st.tuples(ELEMENT, ELEMENT, ELEMENT), min_size=1, max_size=3)
    | st.lists(st.tuples(SMALL, SMALL, SMALL), min_size=1, max_size=12),
    st.lists(st.sampled_from([1.0, 1.0, 1.0, 0.5, 2.0, 0.3]), min_size=1, max_size=2),
)
def test_the_short_way_never_differs(
    dtype: torch.dtype, method: TensorMethod, rows: list[tuple[float, float, float]], weights: list[float]
) -> None:
    base, *experts = (
        torch.tensor(column, dtype=torch.float64).to(dtype) for column in zip(*rows, strict=True)
    )
    experts = experts[: len(weights)]
    try:
        want, facts = long_way(method, base, experts, weights)
    except (NonFinite, RefusedInput):  # a sum may be too large on the way, and not at its end
        facts = [MemberFacts(w, {"cuts": {"w": "all"}}) for w in weights]
        found = short_way(method, base, experts, facts)
        assert found is None or not any(t.double().abs().max() < 2.0**48 for t in (base, *experts))
        return
    found = short_way(method, base, experts, facts)
    assert found is None or same(found, want)


NAN, TINY = float("nan"), 2.0**-60


@pytest.mark.parametrize(
    ("method", "base", "experts", "weights", "want"),
    [
        (TaskArithmetic(1.0), 0.0, [1.0, TINY, -1.0], [1.0, 1.0, 1.0], TINY),  # lost where a sum is rounded
        (TaskArithmetic(1.0), 1.0, [1.0, TINY], [0.5, 0.5], 0.5),
        (TaskArithmetic(1.0), 1.0, [-0.0], [1.0], -0.0),
        (TaskArithmetic(-1.0), 1.0, [2.0], [1.0], 0.0),
        (Average(), 0.0, [-0.0, 0.0], [1.0, 1.0], -0.0),
        (Average(), NAN, [1.0, 2.0], [1.0, 1.0], NonFinite),
        (Average(), 1.0, [NAN, 2.0], [1.0, 1.0], NonFinite),
        (TaskArithmetic(0.3), 1.0, [NAN], [1.0], NonFinite),
        (MagMax(), NAN, [1.0], [1.0], NonFinite),
        (MagMax(), 1.0, [NAN, 2.0], [1.0, 1.0], NonFinite),
        (MagMax(1.0), 2.0**-30, [-1.0, 1.0], [1.0, 1.0], -1.0),  # the farther by 2^-29
        (MagMax(1.0), 0.0, [-1.0, 1.0], [1.0, 1.0], 1.0),  # a tie: the later
        (MagMax(1.0), 0.0, [-0.0, -0.0], [1.0, 1.0], -0.0),
        (Ties(density=1.0), 0.0, [1.0, TINY], [1.0, 1.0], 0.5),
        (Ties(density=1.0), 0.0, [1.0, -1.0], [1.0, 1.0], 0.0),
        (Ties(density=1.0), 1.0, [NAN, 1.0], [1.0, 1.0], NonFinite),
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
    facts = [MemberFacts(w, {"cuts": {"w": "all"}}) for w in weights]
    found = short_way(method, start, others, facts)
    if isinstance(want, type):
        assert found is None  # the engine's long way refuses by name
        with pytest.raises(want):
            long_way(method, start, others, weights)
        return
    expected = torch.tensor(want).bfloat16()
    assert same(long_way(method, start, others, weights)[0][1], expected)
    assert found is None or same(found[1], expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("weights", [[1.0], [1.0, 1.0, 1.0], [0.5, 2.0, 0.25], [0.3, 0.7, 1.1]])
def test_ordinary_chunks_take_the_short_way(
    method: TensorMethod, dtype: torch.dtype, weights: list[float]
) -> None:
    torch.manual_seed(len(weights))
    base = (0.02 * torch.randn(4000)).to(dtype)
    base[base == 0] = 0.01
    experts = [(base + 0.001 * torch.randn(4000)).to(dtype) for _ in weights]
    for expert in experts:
        expert[expert == 0] = 0.01
    want, facts = long_way(method, base, experts, weights)
    found = short_way(method, base, experts, facts)
    if method == Ties(density=0.0):
        assert found is None
    elif dtype == torch.float32 and 0.3 in weights and method.facts.family == "additive":
        assert found is None or same(found, want)  # products of 40 bits: fp64 holds few of their sums
    else:
        assert found is not None
        assert same(found, want)


def test_what_could_become_infinite_is_left_to_the_long_way() -> None:
    base, expert = torch.tensor([1.0, 60000.0]).half(), torch.tensor([1.0, 65504.0]).half()
    for method in (TaskArithmetic(1.0), MagMax(1.0), Ties(density=1.0, disjoint="sum")):
        facts = [MemberFacts(2.0, {"cuts": {"w": "all"}})]
        assert short_way(method, base, [expert], facts) is None
        assert bool(long_way(method, base, [expert], [2.0])[0][1].isinf())


def test_other_dtypes_are_left_alone() -> None:
    base = torch.ones(4, dtype=torch.float64)
    where = Where("w", (4,), "F64", 0, 4)
    for method in METHODS:
        assert method.quick(base, where, Outlook((MemberFacts(1.0, {}),))) is None
    single = base.float()
    for method in METHODS:
        quick = method.quick(single, where, Outlook((MemberFacts(1.0, {}),)))
        assert quick is not None
        assert not quick.take(base, MemberFacts(1.0, {"cuts": {"w": "all"}}))
        quick = method.quick(single, where, Outlook((MemberFacts(1.0, {}),)))
        assert quick is not None
        assert quick.take(single + 1, MemberFacts(1.0, {"cuts": {"w": "all"}}))
        assert quick.merged(torch.bfloat16) is None


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([*DTYPES, torch.float64]),
    st.sampled_from([Ties(density=0.3), Ties(density=0.01, trim="model"), Ties(density=0.999)]),
    st.integers(0, 10),
    st.integers(0, 2**32 - 1),
)
def test_a_glance_tells_what_is_measured(dtype: torch.dtype, method: Ties, steps: int, seed: int) -> None:
    """Task vectors of few different magnitudes, so that thresholds are shared, and of many."""
    draw = torch.Generator().manual_seed(seed)
    count = BLOCK + 900
    base = torch.randn(count, generator=draw).to(dtype)
    moves = torch.randn(count, generator=draw) * 0.01
    if steps:
        moves = (moves * 100 * steps).round() / 64
    expert = (base.double() + moves).to(dtype)
    name = {**DTYPES, torch.float64: "F64"}[dtype]
    wheres = [Where("w", (count,), name, f, min(BLOCK, count - f)) for f in (0, BLOCK)]
    glances = 0
    passes = method.prepare({"w": Where("w", (count,), name, 0, count)}, count)
    try:
        survey: Survey = next(passes)
        while True:
            answers = []
            for where in wheres:
                part = slice(where.first, where.first + where.count)
                want = method.measure(Part(where, base[part], expert[part]), survey.ask)
                found = method.glance(base[part], expert[part], where, survey.ask)
                if found is not LONG:
                    glances += 1
                    assert _plain(found) == _plain(want)
                answers.append((where.first, want))
            survey = passes.send({"w": answers})
    except StopIteration:
        pass
    assert glances >= 4 or dtype == torch.float64


def _plain(answer: Any) -> Any:
    if isinstance(answer, np.ndarray):
        return answer.dtype.str, answer.tolist()
    return [_plain(a) for a in answer] if isinstance(answer, (list, tuple)) else answer


def test_a_glance_at_what_is_not_finite() -> None:
    base, where = torch.ones(5), Where("w", (5,), "F32", 0, 5)
    expert = torch.tensor([1.0, 2.0, float("inf"), 3.0, float("nan")])
    survey = next(Ties().prepare({"w": where}, 5))
    assert Ties().glance(base, expert, where, survey.ask) is LONG


def counted(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each chunk that was tried held."""
    taken: list[bool] = []

    def wrap(
        real: Callable[[Any, torch.dtype], Tensor | None],
    ) -> Callable[[Any, torch.dtype], Tensor | None]:
        def merged(self: Any, dtype: torch.dtype) -> Tensor | None:
            found = real(self, dtype)
            taken.append(found is not None)
            return found

        return merged

    for kind in (ScaledSum, Winner, Agreeing):
        monkeypatch.setattr(kind, "merged", wrap(kind.merged))
    return taken


@pytest.mark.parametrize("weight", [1.0, 0.3])
@pytest.mark.parametrize(
    "method", [Average(), TaskArithmetic(0.3), MagMax(), Ties(), Ties(trim="model", density=0.4)], ids=str
)
def test_the_engine_takes_it_and_falls_back(
    method: TensorMethod, weight: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = base_tensors()
    bench = Bench(tmp_path, base, [expert_of(base, n) for n in range(3)])
    members = [replace(m, weight=weight) for m in bench.members]
    taken = counted(monkeypatch)
    found, _ = bench.merge(method, members, settings=Settings(1, BLOCK, compiled=True))
    assert True in taken
    taken.clear()
    by_torch, _ = bench.merge(method, members, settings=Settings(1, BLOCK, compiled=False))
    by_state, _ = bench.merge(
        method, members, settings=Settings(1, BLOCK, compiled=True), new_state=tmp_path / "state"
    )
    by_default, _ = bench.merge(method, members)  # a small model: numba is not loaded for it
    assert not taken
    assert all_same(found, by_torch)
    assert all_same(found, by_state)
    assert all_same(found, by_default)


@pytest.mark.parametrize("trim", ["tensor", "model"])
def test_equal_magnitudes_on_both_sides_of_a_cut(
    trim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one that is kept lies inside a chunk, and others of its magnitude before and after it."""
    torch.manual_seed(3)
    base = {n: torch.randn(3 * BLOCK + 77).bfloat16() for n in ("a", "b", "c")}
    experts = [
        {n: (t + torch.randint(-3, 4, t.shape) / 16).bfloat16() for n, t in base.items()} for _ in range(2)
    ]
    bench = Bench(tmp_path, base, experts)
    taken = counted(monkeypatch)
    method = Ties(density=0.4, trim=trim)
    found, _ = bench.merge(method, settings=Settings(2, BLOCK, compiled=True))
    assert taken
    assert all(taken)
    want, _ = bench.merge(method, settings=Settings(2, BLOCK, compiled=False))
    assert all_same(found, want)


def test_without_numba_everything_goes_the_long_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ImportError("no numba here")

    base = base_tensors()
    bench = Bench(tmp_path, base, [expert_of(base, n) for n in range(2)])
    want, _ = bench.merge(Ties(), settings=Settings(1, BLOCK, compiled=True))
    compiled.works.cache_clear()
    monkeypatch.setattr(compiled, "loops", missing)
    try:
        taken = counted(monkeypatch)
        found, _ = bench.merge(Ties(), settings=Settings(1, BLOCK, compiled=True))
        assert not taken
        assert all_same(found, want)
    finally:
        compiled.works.cache_clear()
