"""Inner products of task vectors against dense fp64 arithmetic on whole tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from plait.engine import Incoming, Settings
from plait.engine import gram as module
from plait.engine.gram import gram
from plait.tensors import BLOCK
from tests.engine.files import Bench, Tensors, base_tensors, expert_of, save


def dense(
    base: Tensors, experts: list[Tensors]
) -> tuple[torch.Tensor, dict[str, list[float]], dict[str, float]]:
    """The oracle: every task vector as one long fp64 vector."""
    floats = [n for n, t in base.items() if t.is_floating_point() and t.numel()]
    deltas = [{n: e[n].double() - base[n].double() for n in floats} for e in experts]
    long = torch.stack([torch.cat([d[n].flatten() for n in floats]) for d in deltas])
    norms = {n: [float(d[n].square().sum()) for d in deltas] for n in floats}
    return long @ long.T, norms, {n: float(base[n].double().square().sum()) for n in floats}


def close(found: float, want: float) -> bool:
    """Sums of 3e5 products in another order: 1e-12 is 1e4 eps."""
    return abs(found - want) <= 1e-12 * max(abs(want), 1.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_inner_products_and_norms(tmp_path: Path, dtype: torch.dtype) -> None:
    base = base_tensors(dtype)
    experts = [expert_of(base, 0), expert_of(base, 1, leave=("frozen", "long")), expert_of(base, 2)]
    bench = Bench(tmp_path, base, experts)
    inner, norms, squares = dense(base, experts)
    found = gram(bench.base, bench.members, Settings(2, BLOCK))
    assert all(close(float(a), float(b)) for a, b in zip(found.inner.flatten(), inner.flatten(), strict=True))
    assert torch.equal(found.inner, found.inner.T)
    assert found.norms.keys() == norms.keys()
    for name, row in norms.items():
        assert all(close(a, b) for a, b in zip(found.norms[name], row, strict=True)), name
        assert close(found.base[name], squares[name])


def test_threads_do_not_show(tmp_path: Path) -> None:
    base = base_tensors(torch.float32)
    bench = Bench(tmp_path, base, [expert_of(base, i) for i in range(3)])
    one, many = (gram(bench.base, bench.members, Settings(workers, BLOCK)) for workers in (1, 3))
    assert torch.equal(one.inner, many.inner)
    assert one.norms == many.norms


def test_many_members_get_short_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROOM", 3 * 5000)
    base = base_tensors(torch.float32)
    experts = [expert_of(base, i) for i in range(3)]
    bench = Bench(tmp_path, base, experts)
    longest = 0
    piece = module.GramPass._piece

    def watched(self: module.GramPass, where: object, desk: object, sums: object) -> None:
        nonlocal longest
        longest = max(longest, where.count)  # type: ignore[attr-defined]
        piece(self, where, desk, sums)  # type: ignore[arg-type]

    monkeypatch.setattr(module.GramPass, "_piece", watched)
    found = gram(bench.base, bench.members, Settings(1, BLOCK))
    inner = dense(base, experts)[0]
    assert longest == 5000
    assert all(close(float(a), float(b)) for a, b in zip(found.inner.flatten(), inner.flatten(), strict=True))


def test_nan_and_infinity_count_as_unchanged(tmp_path: Path) -> None:
    nan, inf = float("nan"), float("inf")
    base = save(tmp_path / "base", {"w": torch.tensor([1.0, 2.0, nan, inf])})
    expert = save(tmp_path / "expert", {"w": torch.tensor([4.0, nan, 7.0, 1.0])})
    found = gram(base, [Incoming("a", refs=expert)], Settings(1, BLOCK))
    assert found.inner.tolist() == [[9.0]]
    assert found.base == {"w": 5.0}


def test_no_members_and_members_that_change_nothing(tmp_path: Path) -> None:
    base = save(tmp_path / "base", {"w": torch.ones(3)})
    assert gram(base, [], Settings(1, BLOCK)).inner.shape == (0, 0)
    found = gram(base, [Incoming("a"), Incoming("b")], Settings(1, BLOCK))
    assert found.inner.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert found.norms == {"w": [0.0, 0.0]}
