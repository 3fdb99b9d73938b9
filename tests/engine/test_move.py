"""Copies, and the look at an expert before it is taken in."""

from __future__ import annotations

from math import sqrt
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from plait.engine import Settings, copy, intake
from plait.errors import PlaitError
from plait.tensors import BLOCK
from tests.engine.files import all_same, base_tensors, expert_of, places, save

SETTINGS = Settings(2, BLOCK)


def test_copies_every_dtype_byte_for_byte(tmp_path: Path) -> None:
    tensors = {
        **base_tensors(),
        "int": torch.arange(100_000).view(100, 1000),
        "bool": torch.tensor([True, False]),
        "fp8": torch.randn(33).to(torch.float8_e4m3fn),
        "nan": torch.tensor([float("nan"), -0.0, float("inf")]),
    }
    refs = save(tmp_path / "in", tensors)
    out = places(tmp_path / "out", refs)
    written = copy([(ref, out[name]) for name, ref in refs.items()], SETTINGS)
    assert written == sum(ref.nbytes for ref in refs.values())
    assert (tmp_path / "in").read_bytes()[-written:] == (tmp_path / "out").read_bytes()[-written:]


def test_converts_floats_rounding_once(tmp_path: Path) -> None:
    # 1 + 2^-8 + 2^-30 rounds up to 1 + 2^-7; by way of fp32 it would be a tie, which goes down to 1
    values = torch.tensor([1 + 2**-8 + 2**-30, -0.0, 1e300], dtype=torch.float64)
    refs = save(tmp_path / "in", {"w": values})
    copy([(refs["w"], places(tmp_path / "out", refs, "BF16")["w"])], SETTINGS)
    found = load_file(tmp_path / "out")["w"]
    assert found.tolist() == [1 + 2**-7, -0.0, float("inf")]
    assert bool(torch.signbit(found[1]))


def test_refuses_to_convert_integers(tmp_path: Path) -> None:
    refs = save(tmp_path / "in", {"i": torch.arange(3), "f": torch.zeros(3)})
    out = places(tmp_path / "out", {"f": refs["f"]})
    with pytest.raises(PlaitError, match="tensor i is I64 and cannot be written as F32; only F64, F32, F16"):
        copy([(refs["i"], out["f"])], SETTINGS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_intake_tells_what_changed_and_how_far(tmp_path: Path, dtype: torch.dtype) -> None:
    base = {**base_tensors(dtype), "int": torch.arange(9), "zero": torch.zeros(4, dtype=dtype)}
    expert = expert_of(base, 0, leave=("frozen", "zero"))
    expert["zero"] = -base["zero"]
    refs = save(tmp_path / "base", base), save(tmp_path / "expert", expert)
    want = {"long", "rows", "small", "scalar", "zero"}
    for workers in (1, 3):
        found = intake(*refs, Settings(workers, BLOCK))
        assert found.changed == want
        assert found.nonfinite == []
        floats = [n for n, t in base.items() if t.dtype == dtype and t.dim() > 1]
        delta = sqrt(sum(float((expert[n].double() - base[n].double()).square().sum()) for n in floats))
        norm = sqrt(sum(float(base[n].double().square().sum()) for n in floats))
        # fp64 sums of 400 thousand squares in two orders
        assert found.distance == pytest.approx(delta, rel=1e-12)
        assert found.norm == pytest.approx(norm, rel=1e-12)
    same = intake(refs[0], refs[0], SETTINGS)
    assert (same.changed, same.distance) == (set(), 0.0)
    assert not all_same(base, expert)


def test_intake_compares_values_across_dtypes(tmp_path: Path) -> None:
    base = {
        "same": torch.randn(50).bfloat16(),
        "finer": torch.ones(50).bfloat16(),
        "minus": torch.zeros(3).bfloat16(),
    }
    expert = {
        "same": base["same"].float(),
        "finer": torch.ones(50) + 1e-6,
        "minus": torch.tensor([0.0, -0.0, 0.0]),
    }
    found = intake(save(tmp_path / "base", base), save(tmp_path / "expert", expert), SETTINGS)
    assert found.changed == {"finer", "minus"}


def test_intake_names_the_first_nonfinite_element_of_each_tensor(tmp_path: Path) -> None:
    base = base_tensors(torch.float32)
    expert = expert_of(base, 0)
    expert["rows"][600, 3] = float("nan")
    expert["rows"][699, 0] = float("inf")
    expert["scalar"] = torch.tensor(float("-inf"))
    found = intake(save(tmp_path / "base", base), save(tmp_path / "expert", expert), SETTINGS)
    assert found.nonfinite == [("rows", (600, 3)), ("scalar", ())]
    assert found.elements_nonfinite == 3
    assert found.base_nonfinite == []
    assert 0 < found.distance < 100


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_intake_tells_of_a_base_that_is_not_finite(tmp_path: Path, dtype: torch.dtype) -> None:
    base = base_tensors(dtype)
    base["long"][2 * BLOCK + 7] = float("nan")
    base["long"][3 * BLOCK + 8] = float("inf")
    base["frozen"][99] = float("-inf")
    base["small"][1] = 1e200 if dtype == torch.float64 else 1e30  # finite, but the square of 1e200 is not
    expert = expert_of(base, 0)
    expert["long"][:5] = float("nan")
    found = intake(save(tmp_path / "base", base), save(tmp_path / "expert", expert), SETTINGS)
    assert found.base_nonfinite == [("frozen", (99,)), ("long", (2 * BLOCK + 7,))]
    want = {n: int(t.isfinite().logical_not().sum()) for n, t in expert.items()}
    assert want["long"] >= 5
    assert want["frozen"] == 1
    assert found.elements_nonfinite == sum(want.values())
    assert found.nonfinite == [("frozen", (99,)), ("long", (0,))]


def test_intake_sees_a_changed_buffer(tmp_path: Path) -> None:
    base = {"i": torch.arange(300_000), "j": torch.arange(3)}
    expert = {"i": base["i"].clone(), "j": base["j"].to(torch.int32)}
    expert["i"][299_999] += 1
    found = intake(save(tmp_path / "base", base), save(tmp_path / "expert", expert), SETTINGS)
    assert found.changed == {"i", "j"}
