"""The k-th largest magnitude against sorting everything, with chunks as the engine hands them out."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from plait.methods.base import Answers, Survey, Where
from plait.tensors import BLOCK as TRUE_BLOCK
from plait.tensors import select
from plait.tensors.exact import Exact, difference
from plait.tensors.select import Cut, answer, keys, largest

Tensors = Mapping[str, Tensor]
BLOCK = 1 << 10  # instead of 2^16, so that sorting everything is quick; one test takes the true one
SIZES = {"b": BLOCK * 3 + 17, "a": BLOCK + 1, "c": 5, "d": 1, "e": 0}
NAMES = {torch.float32: "F32", torch.float64: "F64", torch.bfloat16: "BF16"}


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "BLOCK", BLOCK)


def place(name: str, t: Tensor, first: int = 0, count: int | None = None) -> Where:
    return Where(name, (len(t),), NAMES[t.dtype], first, len(t) if count is None else count)


def found(t: Tensor) -> Tensor:
    return keys(difference(t, torch.zeros_like(t)))


def drive(
    search: Generator[Survey, Answers, dict[str, Cut]], tensors: Tensors, chunk: int
) -> tuple[dict[str, Cut], int, int]:
    """Answer as the engine does. Returns the cuts, the number of passes, and the bytes of the largest one."""
    passes = most = 0
    try:
        survey = next(search)
        while True:
            passes += 1
            answers: Answers = {}
            for name, t in tensors.items():
                if survey.only is not None and name not in survey.only:
                    continue
                size = select.BLOCK if survey.stride > 1 else chunk
                starts = [
                    a for a in range(0, len(t), size) if survey.stride == 1 or a // size % survey.stride == 0
                ]
                answers[name] = [
                    (a, answer(found(t[a : a + size]), place(name, t, a, len(t[a : a + size])), survey.ask))
                    for a in starts
                ]
            most = max(most, weight(list(answers.values())))
            survey = search.send(answers)
    except StopIteration as end:
        cuts: dict[str, Cut] = end.value
        return cuts, passes, most


def weight(x: Any) -> int:
    if isinstance(x, (list, tuple)):
        return sum(weight(v) for v in x)
    return x.nbytes if isinstance(x, np.ndarray) else 8


def masks(cut: Cut, t: Tensor, name: str, chunk: int) -> Tensor:
    parts = [
        cut.keep(found(t[a : a + chunk]), place(name, t, a, len(t[a : a + chunk])))
        for a in range(0, len(t), chunk)
    ]
    return torch.cat([torch.zeros(0, dtype=torch.bool), *parts])


def sorted_out(tensors: Tensors, k: int) -> dict[str, Tensor]:
    """The masks by definition: sort all magnitudes, in the order of names and places where they are equal."""
    names = sorted(tensors)
    whole = torch.cat([tensors[n].double().abs() for n in names])
    order = torch.sort(whole, descending=True, stable=True).indices
    mask = torch.zeros(len(whole), dtype=torch.bool)
    mask[order[: max(k, 0)]] = True
    return dict(zip(names, torch.split(mask, [len(tensors[n]) for n in names]), strict=True))


def check(
    tensors: Tensors, share: float, scope: Mapping[str, str], chunk: int, block: int = BLOCK
) -> tuple[dict[str, Cut], int, int]:
    groups: dict[str, dict[str, Tensor]] = {}
    for name, t in tensors.items():
        groups.setdefault(scope[name], {})[name] = t
    kept = {s: int(share * sum(map(len, g.values()))) for s, g in groups.items()}
    places = {name: place(name, t) for name, t in tensors.items()}
    cuts, passes, most = drive(largest(places, scope, kept), tensors, chunk)
    for s, group in groups.items():
        cut = Cut.from_json(cuts[s].to_json())
        assert cut == cuts[s]
        want = sorted_out(group, kept[s])
        for name, t in group.items():
            assert torch.equal(masks(cut, t, name, chunk), want[name])
            if chunk % block == 0:
                assert torch.equal(masks(cut, t, name, 4 * block), want[name])
    return cuts, passes, most


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


KINDS: dict[str, Callable[[int], Tensor]] = {
    "normal": lambda n: torch.randn(n, generator=rng(n)),
    "zero": torch.zeros,
    "equal": lambda n: torch.full((n,), -0.25),
    "two values": lambda n: torch.randint(0, 2, (n,), generator=rng(n)) - 0.5 * torch.ones(n),
    "three values": lambda n: torch.randint(0, 3, (n,), generator=rng(n)).float(),
    "mostly zero": lambda n: torch.randn(n, generator=rng(n)) * (torch.rand(n, generator=rng(1)) < 0.1),
    "bf16": lambda n: (torch.randn(n, generator=rng(n)) * 0.02).bfloat16(),
    "fp64": lambda n: torch.randn(n, generator=rng(n), dtype=torch.float64) * 1e-200,
    "rising": lambda n: torch.arange(n).float(),
    "falling": lambda n: -torch.arange(n, 0, -1).float(),
    "all magnitudes": lambda n: (
        torch.exp(40 * torch.randn(n, generator=rng(n), dtype=torch.float64)).float().clamp(max=1e30)
    ),
}


@pytest.mark.parametrize("share", [0.0, 1e-3, 0.2, 0.7, 1.0])
@pytest.mark.parametrize("kind", list(KINDS))
def test_keeps_what_sorting_keeps(kind: str, share: float) -> None:
    tensors = {name: KINDS[kind](size) for name, size in SIZES.items()}
    for scope in ({n: n for n in tensors}, dict.fromkeys(tensors, "model")):
        first, passes, _ = check(tensors, share, scope, BLOCK)
        assert passes <= 4
        if share in (0.0, 1.0):
            assert passes <= 2
        second, _, _ = check(tensors, share, scope, 2 * BLOCK)
        assert first == second


@pytest.mark.parametrize("kind", ["normal", "three values", "bf16"])
@pytest.mark.parametrize("row", [77, BLOCK + 100])
def test_chunks_of_whole_rows(kind: str, row: int) -> None:
    """Rows do not start at multiples of BLOCK: a further pass finds the place of the last equal element."""
    tensors = {"x": KINDS[kind](row * 90 if row < BLOCK else row * 3)}
    chunk = row * 30 if row < BLOCK else row
    for share in (0.2, 0.5):
        cuts, _, _ = check(tensors, share, {"x": "x"}, chunk)
        other = masks(cuts["x"], tensors["x"], "x", row * 7 if row < BLOCK else 2 * row)
        assert torch.equal(other, sorted_out(tensors, int(share * len(tensors["x"])))["x"])


@pytest.mark.parametrize("kind", ["normal", "bf16"])
def test_true_blocks(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "BLOCK", TRUE_BLOCK)
    t = KINDS[kind](TRUE_BLOCK * 3 + 5)
    search = largest({"x": place("x", t)}, {"x": "x"}, {"x": len(t) // 5})
    cuts, _, _ = drive(search, {"x": t}, TRUE_BLOCK)
    assert torch.equal(masks(cuts["x"], t, "x", 2 * TRUE_BLOCK), sorted_out({"x": t}, len(t) // 5)["x"])


def test_dtypes_mix_in_one_scope() -> None:
    """Keys of fp32 and of fp64 are compared as numbers. Equal ones: by name."""
    tensors = {"b": torch.tensor([1.0, 3.0, 1e-30]), "a": torch.tensor([2.0, 1.0, -3.0], dtype=torch.float64)}
    for k in range(7):
        check(tensors, (k + 0.5) / 6 if k < 6 else 1.0, dict.fromkeys(tensors, "model"), BLOCK)


def test_a_sample_that_misleads_costs_passes_but_not_exactness(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only blocks 0, 2, 4, ... are sampled; all that is large lies in the others."""
    t = torch.randn(BLOCK * 13, generator=rng()).view(13, BLOCK)
    monkeypatch.setattr(select, "SAMPLED", 6)
    t[1::2] *= 1000
    whole = {"x": t.reshape(-1), "y": torch.randn(100, generator=rng())}
    for scope in ({"x": "x", "y": "y"}, dict.fromkeys(whole, "model")):
        _, passes, _ = check(whole, 0.3, scope, BLOCK)
        assert 2 < passes <= 8


@pytest.mark.parametrize("kind", ["normal", "bf16", "mostly zero"])
def test_answers_stay_small(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model a hundred times as large as the budget: lists and histograms stay within small multiples of it."""
    tensors = {"x": KINDS[kind](BLOCK * 400), "y": KINDS[kind](BLOCK * 120)}
    monkeypatch.setattr(select, "SAMPLE", 1 << 10)
    monkeypatch.setattr(select, "LISTED", 1 << 10)
    for scope in ({n: n for n in tensors}, dict.fromkeys(tensors, "model")):
        _, passes, most = check(tensors, 0.2, scope, BLOCK)
        assert passes <= 5
        # 4 bytes a key, up to four times the expected keys in a block, 256 keys or a histogram a block at least
        assert most < 4 * (1 << 10) * 4 + 520 * (256 * 4 + 100)


@given(data=st.data())
@settings(max_examples=200, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
def test_any_numbers_in_any_blocks(data: st.DataObject) -> None:
    """Blocks of 2 to 8 elements, few distinct values, any k; tiny budgets, so that every route is taken."""
    numbers = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, 1 + 2**-23, 1e-40, 3e38, -7.5])
    tensors = {
        name: torch.tensor(data.draw(st.lists(numbers, max_size=40)))
        for name in data.draw(st.permutations(["a", "b", "c"]))
    }
    scope = data.draw(
        st.sampled_from(
            [{n: n for n in tensors}, dict.fromkeys(tensors, "model"), {"a": "1", "b": "2", "c": "1"}]
        )
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(select, "BLOCK", block := data.draw(st.integers(2, 8)))
        patch.setattr(select, "SAMPLED", data.draw(st.integers(1, 4)))
        patch.setattr(select, "SAMPLE", 4)
        patch.setattr(select, "LEAST", data.draw(st.sampled_from([0, 256])))
        check(tensors, data.draw(st.floats(0, 1)), scope, block * data.draw(st.integers(1, 3)), block)


def test_surveys_name_only_the_tensors_still_searched() -> None:
    tensors = {"x": KINDS["normal"](BLOCK * 3), "y": torch.zeros(10)}
    places = {name: place(name, t) for name, t in tensors.items()}
    search = largest(places, {"x": "x", "y": "y"}, {"x": 1000, "y": 0})
    survey = next(search)
    assert survey.only == ("x",)
    assert answer(found(tensors["y"]), places["y"], survey.ask) is None


def test_keys_grow_with_the_magnitude_and_are_those_of_fp32() -> None:
    base = torch.tensor([1.0, -0.0, 0.0, 1e-30, 1.0], dtype=torch.bfloat16)
    expert = torch.tensor([3.0, 0.0, -1e-40, 1.0, 1.0], dtype=torch.bfloat16)
    for delta in (difference(expert, base), -difference(-expert, -base)):
        want = (expert.float() - base.float()).abs()
        assert torch.equal(keys(delta).view(torch.float32), want)
    assert keys(difference(expert.double(), base.double())).dtype == torch.int64


def test_keys_round_once() -> None:
    """1 + 2^-24 + 2^-80: half way in fp64, above it in truth."""
    base = torch.tensor([-(2.0**-80), 2.0**-80], dtype=torch.float32)
    expert = torch.tensor([1 + 2.0**-24, 1 + 2.0**-24], dtype=torch.float64)
    delta = Exact.of(expert) + Exact.of(-base)
    assert delta.tail is not None
    got = keys(Exact(delta.main, delta.tail, bits=40)).view(torch.float32)
    assert got.tolist() == [1 + 2.0**-23, 1.0]
