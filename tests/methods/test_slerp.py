"""Slerp against mergekit's rules in numpy, and the limit of two members."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from plait import Line, merge_files
from plait.errors import RefusedInput, UsageError
from plait.methods.memory import apply
from plait.methods.pieces import same_bytes
from plait.methods.registry import make
from plait.methods.slerp import Slerp
from plait.tensors import BLOCK
from tests.line.models import base_tensors, differing, expert_tensors, read, write_file

Model = dict[str, Tensor]
Array = npt.NDArray[np.float64]


def models() -> tuple[Model, Model, Model]:
    draw = torch.Generator().manual_seed(0)
    shapes = {"wide": (20, 30), "near": (8, 8), "opposed": (5,), "still": (4, 4), "nothing": (3,), "one": ()}
    base, one, other = (
        {n: torch.randn(s, generator=draw, dtype=torch.float64) for n, s in shapes.items()} for _ in range(3)
    )
    other["near"] = one["near"] * 1.5 + 1e-3 * other["near"]
    other["opposed"] = -one["opposed"]
    one["still"] = base["still"].clone()
    base["nothing"], one["nothing"] = torch.zeros(3).double(), torch.zeros(3).double()
    return base, one, other


def arc(t: float, v0: Array, v1: Array, updates: bool) -> Array:
    lengths = np.linalg.norm(v0), np.linalg.norm(v1)
    u0, u1 = (v / n if n > 1e-8 else v for v, n in zip((v0, v1), lengths, strict=True))
    dot = float(np.clip(np.sum(u0 * u1), -1, 1))
    angle = np.arccos(dot)
    if np.sin(angle) < 1e-8 if updates else abs(dot) > 0.9995:
        return np.asarray((1 - t) * v0 + t * v1)
    return np.asarray((np.sin((1 - t) * angle) * v0 + np.sin(t * angle) * v1) / np.sin(angle))


@pytest.mark.parametrize("t", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("updates", [False, True])
def test_agrees_with_mergekits_rule(t: float, updates: bool) -> None:
    base, one, other = models()
    got = apply(make("slerp", {"t": t, "updates": updates}), base, [one, other], [2.0, 0.3])
    for n in base:
        start = base[n].numpy() if updates else np.zeros(base[n].shape)
        want = start + arc(t, one[n].numpy() - start, other[n].numpy() - start, updates)
        assert np.abs(got[n].numpy() - want).max() <= 1e-12 * max(1.0, np.abs(want).max()), n


def test_ends_give_either_expert_bit_for_bit_and_lengths_lie_between() -> None:
    base, one, other = models()
    for updates in (False, True):
        for t, end in ((0, one), (1, other)):
            got = apply(make("slerp", {"t": t, "updates": updates}), base, [one, other])
            assert all(same_bytes(got[n], end[n]) for n in base)
        alone = apply(make("slerp", {"updates": updates}), base, [one], [0.5])
        assert all(same_bytes(alone[n], one[n]) for n in base)
        twice = apply(make("slerp", {"updates": updates}), base, [one, one])
        assert all((twice[n] - one[n]).abs().max() <= 1e-14 for n in base)
    half = apply(make("slerp"), base, [one, other])["wide"].norm()
    lengths = sorted([float(one["wide"].norm()), float(other["wide"].norm())])
    assert 0.97 * lengths[0] < half < 1.03 * lengths[1]  # a straight line would cut across, to 0.7


def test_bf16_is_rounded_once() -> None:
    base, one, other = ({n: t.bfloat16() for n, t in m.items()} for m in models())
    wide = apply(make("slerp"), *_doubled(base, one, other))
    got = apply(make("slerp"), base, [one, other])
    assert all(same_bytes(got[n], wide[n].bfloat16()) for n in base)


def _doubled(base: Model, *experts: Model) -> tuple[Model, list[Model]]:
    start, *others = ({n: t.double() for n, t in m.items()} for m in (base, *experts))
    return start, others


def test_a_line_holds_two_members_and_refuses_a_third(tmp_path: Path) -> None:
    base = base_tensors()
    write_file(tmp_path / "base.safetensors", base)
    for i, task in enumerate("abc"):
        write_file(tmp_path / f"{task}.safetensors", expert_tensors(base, i))
    line = Line.create(tmp_path / "line", tmp_path / "base.safetensors", "slerp", t=0.3)
    for task in "ab":
        line.merge(tmp_path / f"{task}.safetensors", task)
    before = line.digest
    words = (
        "method slerp merges at most 2 members and would get 3; take one out first, or choose another method"
    )
    with pytest.raises(RefusedInput, match=words):
        line.merge(tmp_path / "c.safetensors", "c")
    assert line.digest == before
    assert line.verify(replay=True)["replay"] == "equal"
    line.unmerge("a")
    assert not differing(read(line.model), read(tmp_path / "b.safetensors"))
    line.merge(tmp_path / "c.safetensors", "c")
    with pytest.raises(RefusedInput, match="at most 2 members"):
        apply(make("slerp"), base, [base, base, base])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"t": 1.5}, "t is 1.5, expected a number from 0 to 1"),
        ({"updates": 3}, "updates is 3, expected true"),
    ],
)
def test_options_are_checked(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make("slerp", options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("updates", [False, True])
def test_files_that_are_written_run_by_run_hold_what_memory_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, updates: bool
) -> None:
    draw = torch.Generator().manual_seed(3)
    shapes = {"long": (3, BLOCK // 2 + 5), "short": (7,), "same": (4, 4)}  # "long": a run, and what is left
    base, one, other = (
        {n: torch.randn(s, generator=draw).to(dtype) for n, s in shapes.items()} for _ in "abc"
    )
    one["same"], other["same"] = base["same"].clone(), base["same"].clone()
    other["short"] = base["short"].clone()
    for name, model in (("base", base), ("one", one), ("other", other)):
        write_file(tmp_path / f"{name}.safetensors", model)
    method = make("slerp", {"t": 0.3, "updates": updates})
    want = apply(method, base, [one, other])
    whole = Slerp.merge

    def merge(self: Any, base: Tensor, state: Any, where: Any, outlook: Any) -> Any:
        assert where.name == "same", "a tensor was made as a whole"
        return whole(self, base, state, where, outlook)

    monkeypatch.setattr(Slerp, "merge", merge)
    merge_files(
        tmp_path / "base.safetensors",
        [tmp_path / "one.safetensors", tmp_path / "other.safetensors"],
        tmp_path / "out.safetensors",
        "slerp",
        t=0.3,
        updates=updates,
    )
    assert not differing(read(tmp_path / "out.safetensors"), want)
