"""Positional reads and writes, and telling NaN from the bits."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plait.engine.desk import OPEN, Desk, is_finite, place_of
from plait.errors import FormatError, PlaitError
from tests.engine.files import places, same, save

BITS = {
    "BF16": (torch.int16, torch.bfloat16),
    "F16": (torch.int16, torch.float16),
    "F32": (torch.int32, torch.float32),
}


def test_reads_and_writes_ranges(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(1000.0), "b": torch.arange(7).bfloat16(), "i": torch.arange(9)}
    refs = save(tmp_path / "in", tensors)
    out = places(tmp_path / "out", refs)
    desk = Desk()
    assert same(desk.read(refs["a"], 10, 5, "x"), tensors["a"][10:15])
    assert same(desk.read(refs["b"], 0, 7, "x"), tensors["b"])
    assert same(desk.read(refs["i"], 8, 1, "x"), tensors["i"][8:])
    held = desk.read(refs["a"], 0, 1000, "y")
    assert desk.owns(held[3:5])
    assert not desk.owns(held.clone())
    desk.write(out["a"], 990, torch.ones(10))
    desk.write(out["a"], 999, torch.ones(1, 3)[:, 0])
    assert torch.equal(desk.read(out["a"], 980, 20, "x"), torch.tensor([0.0] * 10 + [1.0] * 10))
    assert desk.written_bytes == 44
    desk.close()


def test_ranges_and_dtypes_are_checked(tmp_path: Path) -> None:
    refs = save(tmp_path / "in", {"a": torch.zeros(10), "b": torch.zeros(10)})
    desk = Desk()
    with pytest.raises(ValueError, match=r"bytes 36\.\.44 of 40"):
        desk.read(refs["a"], 9, 2, "x")
    with pytest.raises(ValueError, match=r"bytes 36\.\.44 of 40"):
        desk.write(refs["a"], 9, torch.zeros(2))
    with pytest.raises(TypeError, match=r"values are torch.float64, the place is F32"):
        desk.write(refs["a"], 0, torch.zeros(2, dtype=torch.float64))
    desk.close()


def test_errors_say_which_file_and_what_to_do(tmp_path: Path) -> None:
    refs = save(tmp_path / "in", {"a": torch.zeros(10)})
    desk = Desk()
    with pytest.raises(PlaitError, match=r"gone: cannot be opened to read \(No such file.*check path"):
        desk.read(replace(refs["a"], file=str(tmp_path / "gone")), 0, 1, "x")
    os.truncate(tmp_path / "in", refs["a"].start + 20)
    with pytest.raises(FormatError, match=r"in: ends inside a, expected \d+ bytes; fetch it again"):
        desk.read(refs["a"], 0, 10, "x")
    desk.close()


def test_few_files_stay_open(tmp_path: Path) -> None:
    desk = Desk()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        for number in range(OPEN + 20):
            path = tmp_path / str(number)
            ref = save(path, {"a": torch.ones(3)})["a"]
            assert float(desk.read(ref, 2, 1, "x")) == 1.0
    assert len(os.listdir("/proc/self/fd")) - before <= OPEN
    desk.close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("dtype", BITS)
@given(data=st.data())
def test_is_finite_agrees_with_torch(dtype: str, data: st.DataObject) -> None:
    whole, kind = BITS[dtype]
    info = torch.iinfo(whole)
    special = [info.min, info.max, 0, -1, 0x7F80, 0x7F7F, -0x80, -0x81, 0x7C00, 0x7BFF, -0x400, -0x401]
    if dtype == "F32":
        special += [0x7F800000, 0x7F7FFFFF, -0x800000, -0x800001]
    bits = data.draw(st.lists(st.sampled_from(special) | st.integers(info.min, info.max), max_size=6))
    values = torch.tensor(bits, dtype=whole).view(kind)
    assert is_finite(values, dtype) == bool(torch.isfinite(values).all())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), -float("nan")])
def test_is_finite_in_fp64(bad: float) -> None:
    values = torch.tensor([0.0, -1e308, 1e308, 5e-324], dtype=torch.float64)
    assert is_finite(values, "F64")
    values[2] = bad
    assert not is_finite(values, "F64")


@given(st.lists(st.integers(1, 5), max_size=4), st.integers(0, 10**6))
def test_place_of_is_the_row_major_index(shape: list[int], flat: int) -> None:
    count = 1
    for axis in shape:
        count *= axis
    flat %= count
    tensor = torch.arange(count).view(shape)
    assert int(tensor[place_of(tuple(shape), flat)]) == flat
