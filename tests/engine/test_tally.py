"""What a method concludes, found from the members themselves: the bytes of the long way."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from plait.engine import Settings
from plait.methods.model_stock import ModelStock
from plait.tensors import BLOCK
from tests.engine.files import Bench, all_same, base_tensors, expert_of

fold_file = sys.modules["plait.engine.fold"]  # the package gives the name `fold` to the function

SHORT, LONG = Settings(2, 2 * BLOCK, compiled=True), Settings(2, 2 * BLOCK, compiled=False)


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ways that merges have gone."""
    gone: list[str] = []
    tallied, concluded = fold_file._tallied, fold_file._conclude

    def short(*args: Any) -> bool:
        found: bool = tallied(*args)
        gone.extend(["short"] * found)
        return found

    def long(*args: Any) -> Any:
        gone.append("long")
        return concluded(*args)

    monkeypatch.setattr(fold_file, "_tallied", short)
    monkeypatch.setattr(fold_file, "_conclude", long)
    return gone


def bench_of(folder: Path, dtype: torch.dtype) -> Bench:
    base = base_tensors(dtype)
    return Bench(folder, base, [expert_of(base, n, leave=("frozen", "small")[: n + 1]) for n in range(3)])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("clamp", [True, False])
@pytest.mark.parametrize(
    "weights", [(1.0, 1.0, 1.0), (0.3, 2.0, 1.0), (1.0, 2.0**-12, 1.0), (1e-6, 1e-6, 1e-6)]
)
def test_the_short_way_gives_the_bytes_of_the_long_one(
    tmp_path: Path, dtype: torch.dtype, clamp: bool, weights: tuple[float, ...], ways: list[str]
) -> None:
    bench, method = bench_of(tmp_path, dtype), ModelStock(clamp=clamp)
    members = [replace(m, weight=w) for m, w in zip(bench.members, weights, strict=True)]
    short, quickly = bench.merge(method, members, settings=SHORT)
    long, slowly = bench.merge(method, members, settings=LONG)
    assert ways == ["short", "long"]
    assert all_same(short, long)
    assert quickly.concluded == slowly.concluded
    assert not all_same(short, bench.tensors)
    kept, _ = bench.merge(method, members, settings=SHORT, new_state=tmp_path / "state")
    assert ways[2:] == ["long"]  # a state that is kept is made, so it may as well be asked
    assert all_same(kept, long)


@pytest.mark.parametrize("weights", [(1.0, 600.0), (8.0, 2.0**-12)], ids=["too heavy", "too far apart"])
def test_weights_for_which_directions_would_round_go_the_long_way(
    tmp_path: Path, weights: tuple[float, float], ways: list[str]
) -> None:
    bench, method = bench_of(tmp_path, torch.float32), ModelStock()
    members = [replace(m, weight=w) for m, w in zip(bench.members, weights, strict=False)]
    found, _ = bench.merge(method, members, settings=SHORT)
    assert ways == ["long"]
    assert all_same(found, bench.merge(method, members, settings=LONG)[0])


def test_what_is_not_finite_goes_the_long_way(tmp_path: Path, ways: list[str]) -> None:
    base = base_tensors(torch.float32)
    experts = [expert_of(base, n) for n in range(2)]
    experts[1]["rows"][7, 7] = float("nan")
    bench, method = Bench(tmp_path, base, experts), ModelStock()
    found, _ = bench.merge(method, settings=replace(SHORT, allow_nonfinite=True))
    assert ways == ["long"]
    assert bool(found["rows"].isfinite().all())
    assert all_same(found, bench.merge(method, settings=replace(LONG, allow_nonfinite=True))[0])


def test_opposed_members_give_the_base_either_way(tmp_path: Path, ways: list[str]) -> None:
    base = {"w": torch.full((300, 300), 0.5)}
    moved = torch.randn(300, 300, generator=torch.Generator().manual_seed(1)).mul(64).round().div(1024)
    bench = Bench(tmp_path, base, [{"w": 0.5 + moved}, {"w": 0.5 - moved}])
    for settings in (SHORT, LONG):
        assert all_same(bench.merge(ModelStock(), settings=settings)[0], base)
    assert ways == ["short", "long"]
