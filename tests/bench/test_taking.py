"""Tasks taken out of small checkpoints: by lines and by subtraction, against weights that are worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from plait.bench.taking import ByLine, BySubtraction, How, drop, norms, weights
from plait.bench.tuning import Stock
from tests.line.models import base_tensors, expert_tensors, write_folder

ORDER = ("c", "a", "b")
TORCH = {"fp32": torch.float32, "bf16": torch.bfloat16}


@pytest.fixture
def stock(tmp_path: Path) -> Stock:
    base = base_tensors()
    folder = write_folder(tmp_path / "base", base)
    experts = {
        t: write_folder(tmp_path / "experts" / t, expert_tensors(base, i)) for i, t in enumerate("abc")
    }
    return Stock(folder, experts, ("a", "b", "c"))


def by_line(stock: Stock, work: Path, name: str, how: How = "exact") -> ByLine:
    work.mkdir()
    return ByLine(name, {}, how, stock, ORDER, work)


def in_a_script(stock: Stock, dtype: torch.dtype, *steps: tuple[str, float]) -> dict[str, Tensor]:
    """theta + scale * (expert - base) for one task after the other, in a dtype."""
    base = load_file(stock.base / "model.safetensors")
    start = {n: t.to(dtype) if t.is_floating_point() else t for n, t in base.items()}
    theta = {n: t.clone() for n, t in start.items()}
    for task, scale in steps:
        expert = load_file(stock.experts[task] / "model.safetensors")
        for name in theta:
            if expert[name].is_floating_point():
                theta[name] += scale * (expert[name].to(dtype) - start[name])
    return theta


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_subtraction_is_that_of_a_script(stock: Stock, tmp_path: Path, dtype: str) -> None:
    way = BySubtraction(dtype, 0.5, stock, ORDER, tmp_path / "work")
    merged = [(task, 0.5) for task in ORDER]
    for index, task in enumerate(ORDER):
        taken, never = way.take(index), way.never(index)
        for held, steps in (
            (way.merged, merged),
            (taken.model, [*merged, (task, -0.5)]),
            (never, [step for step in merged if step[0] != task]),
        ):
            found = load_file(held.folder / "model.safetensors")
            wanted = in_a_script(stock, TORCH[dtype], *steps)
            assert found.keys() == wanted.keys()
            for name, tensor in wanted.items():
                assert found[name].dtype == tensor.dtype
                assert torch.equal(found[name], tensor), name
        assert taken.model.digest != never.digest
        assert taken.members == sum((stock.experts[t] / "model.safetensors").stat().st_size for t in "abc")
        drop(way, index)
    assert sorted(p.name for p in (tmp_path / "work").iterdir()) == ["base", "merged"]


@pytest.mark.parametrize("name", ["mdm_oc", "task_arithmetic", "magmax"])
def test_a_line_takes_out_every_task_exactly_and_stays_as_it_was(
    stock: Stock, tmp_path: Path, name: str
) -> None:
    way = by_line(stock, tmp_path / "work", name)
    before = files(way.line.path)
    for index in range(3):
        taken, never = way.take(index), way.never(index)
        assert taken.receipt["exact"] is True
        assert taken.model.digest == never.digest != way.merged.digest
        assert norms(taken.model.folder, never.folder, way.base)[0] == 0.0
        drop(way, index)
    assert files(way.line.path) == before


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_what_an_algebraic_removal_leaves_is_in_the_weights(stock: Stock, tmp_path: Path) -> None:
    """The distance that the receipt has from inner products is that of the weights on disk."""
    way = by_line(stock, tmp_path / "work", "mdm_oc", "algebraic")
    for index in range(3):
        taken, never = way.take(index), way.never(index)
        apart, moved = norms(taken.model.folder, never.folder, way.base)
        assert taken.receipt["exact"] is False
        # the weights are rounded to fp32: about 1e-9 each, of updates of 1e-3
        assert apart / moved == pytest.approx(taken.receipt["distance"], abs=1e-5)
        assert (apart > 1e-3 * moved) == (index < 2)


def test_norms(tmp_path: Path) -> None:
    one, two, base = (
        write_folder(tmp_path / str(i), {"w": torch.tensor(v), "n": torch.arange(3)})
        for i, v in enumerate(([3.0, 5.0], [0.0, 1.0], [0.0, 13.0]))
    )
    assert norms(one, two, base) == (5.0, 12.0)
    assert weights(one, torch.bfloat16)["w"].dtype == torch.bfloat16
