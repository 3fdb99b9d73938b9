"""TIES of the merged vector and the next one, as other benchmarks run it: by a loop over elements, and in a line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from plait import Line
from plait.bench.specs import parse
from plait.errors import UsageError
from plait.methods.memory import apply
from plait.methods.registry import find, make, names
from tests.line.models import base_tensors, expert_tensors, write_file


def test_it_is_found_by_name_and_listed_nowhere() -> None:
    assert parse("ties_recursive scale=0.3").words()["scale"] == 0.3
    assert "ties_recursive" not in names()
    assert make("ties_recursive").name == "ties_recursive"
    with pytest.raises(UsageError) as told:
        find("nobody")
    assert "ties_recursive" not in str(told.value)


def by_hand(before: list[float], new: list[float], keep: int) -> list[float]:
    trimmed = []
    for row in (before, new):
        least = sorted((abs(x) for x in row), reverse=True)[keep]
        trimmed.append([x if abs(x) >= least else 0.0 for x in row])
    sums = [a + b for a, b in zip(*trimmed, strict=True)]
    majority = sum((s > 0) - (s < 0) for s in sums)
    out = []
    for column, total in zip(zip(*trimmed, strict=True), sums, strict=True):
        up = total > 0 or (total == 0 and majority > 0)
        agree = [x for x in column if (x > 0 if up else x < 0)]
        out.append(sum(agree) / len(agree) if agree else 0.0)
    return out


@pytest.mark.parametrize("density", [0.0, 0.2, 0.5])
def test_agrees_with_the_loop(density: float) -> None:
    draw = torch.Generator().manual_seed(2)
    base = torch.randint(-8, 9, (40,), generator=draw).double()
    experts = [base + torch.randint(-6, 7, (40,), generator=draw).double() for _ in range(3)]
    got = apply(make("ties_recursive", {"density": density}), {"w": base}, [{"w": e} for e in experts])["w"]
    model = (base + 0.5 * (experts[0] - base)).tolist()
    for expert in experts[1:]:
        before = [m - b for m, b in zip(model, base.tolist(), strict=True)]
        move = by_hand(before, (expert - base).tolist(), int(density * 40))
        model = [m + 0.5 * x for m, x in zip(model, move, strict=True)]
    assert torch.allclose(got, torch.tensor(model, dtype=torch.float64), rtol=0, atol=1e-12)


def test_a_line_folds_it_and_takes_members_out(tmp_path: Path) -> None:
    base = base_tensors()
    write_file(tmp_path / "base.safetensors", base)
    for i, task in enumerate("abc"):
        write_file(tmp_path / f"{task}.safetensors", expert_tensors(base, i))

    def line(name: str, tasks: str) -> Line:
        made = Line.create(tmp_path / name, tmp_path / "base.safetensors", "ties_recursive")
        for task in tasks:
            made.merge(tmp_path / f"{task}.safetensors", task)
        return made

    one, never = line("one", "abc"), line("never", "ac")
    one.unmerge("b")
    assert one.digest == never.digest
    assert one.verify(replay=True)["replay"] == "equal"
