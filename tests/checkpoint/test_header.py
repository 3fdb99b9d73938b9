"""The header parser: every forbidden file is refused by name, and what passes is what the format's library reads."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from plait.checkpoint.format import header_bytes, read_bytes, read_header
from plait.checkpoint.header import HEADER_LIMIT, is_pickle
from plait.errors import FormatError
from plait.types import DTYPES
from tests.checkpoint.files import entry, file, numbers, raw

EIGHT = bytes(8)


HOSTILE: list[tuple[str, object, bytes, str]] = [
    ("overlap", {"a": entry(), "b": entry(offsets=(4, 12))}, bytes(12), "overlaps the tensor before it"),
    ("hole", {"a": entry(), "b": entry(offsets=(12, 20))}, bytes(20), "leaves a hole before it"),
    ("hole first", {"a": entry(offsets=(4, 12))}, bytes(12), "leaves a hole before it"),
    ("outside", {"a": entry(shape=(4,), offsets=(0, 16))}, EIGHT, "is cut off"),
    ("far outside", {"a": entry(offsets=(2**62, 2**62 + 8))}, EIGHT, "is cut off"),
    ("descending", {"a": entry(offsets=(8, 0))}, EIGHT, "expected [begin, end]"),
    ("one offset", {"a": entry(offsets=(0,))}, EIGHT, "expected [begin, end]"),
    ("three offsets", {"a": entry(offsets=(0, 4, 8))}, EIGHT, "expected [begin, end]"),
    ("negative offset", {"a": entry(offsets=(-8, 0))}, EIGHT, "expected 0 to 2^63-1"),
    ("trailing", {"a": entry()}, bytes(9), "1 bytes after the last tensor"),
    ("length", {"a": entry(shape=(3,))}, EIGHT, "has 8 bytes, but F32 (3,) needs 12"),
    ("length, too long", {"a": entry(shape=(1,))}, EIGHT, "has 8 bytes, but F32 (1,) needs 4"),
    ("overflow", {"a": entry(shape=(2**62, 2**62), offsets=(0, 0))}, b"", "overflows 2^63 bytes"),
    ("overflow to 0", {"a": entry(shape=(2**32, 2**32, 0), offsets=(0, 0))}, b"", "overflows 2^63 bytes"),
    ("wrap to 8", {"a": entry(shape=(2**62 + 1, 2))}, EIGHT, "overflows 2^63 bytes"),
    ("negative axis", {"a": entry(shape=(-1, -2))}, EIGHT, "expected 0 to 2^63-1"),
    ("bool axis", {"a": entry(shape=(True, 2))}, EIGHT, "expected whole numbers"),
    ("float axis", {"a": entry(shape=(2.0,))}, EIGHT, "expected whole numbers"),
    ("huge axis", {"a": entry(shape=(2**64, 0), offsets=(0, 0))}, b"", "expected whole numbers"),
    ("digits", b'{"a":{"dtype":"F32","shape":[' + b"1" * 5000 + b'],"data_offsets":[0,8]}}', EIGHT, "2^63-1"),
    ("axes", {"a": entry(shape=(1,) * 65, offsets=(0, 4))}, bytes(4), "has 65 axes"),
    ("shape no list", {"a": entry(shape=2)}, EIGHT, "expected whole numbers"),
    ("dtype", {"a": entry(dtype="F31")}, EIGHT, "has dtype F31, known are F64"),
    ("dtype no text", {"a": entry(dtype=["F32"])}, EIGHT, "has dtype ['F32']"),  # type: ignore[arg-type]
    ("field missing", {"a": {"dtype": "F32", "shape": [2]}}, EIGHT, "is not dtype, shape and data_offsets"),
    ("field extra", {"a": {**entry(), "x": 1}}, EIGHT, "is not dtype, shape and data_offsets"),
    ("entry no table", {"a": [0, 8]}, EIGHT, "is not dtype, shape and data_offsets"),
    ("empty name", {"": entry()}, EIGHT, "is empty or holds control characters"),
    ("newline in name", {"a\nb": entry()}, EIGHT, "is empty or holds control characters"),
    ("escape in name", {"\x1b[2J": entry()}, EIGHT, "is empty or holds control characters"),
    ("surrogate in name", {"\ud800": entry()}, EIGHT, "is empty or holds control characters"),
    ("right to left", {"a\u202eb": entry()}, EIGHT, "is empty or holds control characters"),
    ("metadata number", {"__metadata__": {"a": 1}}, b"", "__metadata__ is not a table of strings"),
    ("metadata list", {"__metadata__": ["a"]}, b"", "__metadata__ is not a table of strings"),
    ("metadata null", {"__metadata__": None}, b"", "__metadata__ is not a table of strings"),
    ("metadata surrogate", {"__metadata__": {"a": "\udfff"}}, b"", "that is not Unicode"),
    ("not JSON", b"{not json}", b"", "the header is not JSON"),
    ("two values", b"{}{}", b"", "the header is not JSON"),
    ("not UTF-8", b'{"\xff": 1}', b"", "the header is not JSON"),
    ("list", b"[]", b"", "does not begin with '{'"),
    ("space first", b" {}", b"", "does not begin with '{'"),
    ("zero padding", b"{}\0\0", b"", "the header is not JSON"),
    ("NaN", b'{"a": NaN}', b"", "holds NaN, which is not JSON"),
    ("deep", b'{"a":' + b"[" * 200_000, b"", "the header is not JSON"),
    ("duplicate tensor", b'{"a":{},"a":{}}', b"", "names a twice"),
    ("duplicate field", b'{"a":{"dtype":"F32","dtype":"F32"}}', b"", "names dtype twice"),
    ("duplicate metadata", b'{"__metadata__":{},"__metadata__":{}}', b"", "names __metadata__ twice"),
]


@pytest.mark.parametrize(("table", "data", "message"), [h[1:] for h in HOSTILE], ids=[h[0] for h in HOSTILE])
def test_hostile_headers_are_refused_with_a_reason(
    tmp_path: Path, table: object, data: bytes, message: str
) -> None:
    path = raw(tmp_path / "model.safetensors", table, data)
    with pytest.raises(FormatError) as caught:
        read_header(path)
    text = str(caught.value)
    assert message in text
    assert str(path) in text
    assert text.isprintable()  # one line, and nothing of the file can drive a terminal
    assert len(text) < 500 + len(str(path))


@pytest.mark.parametrize(
    ("length", "message"),
    [
        (2**63, "claims a header of 9223372036854775808 bytes, at most 100000000 are read"),
        (HEADER_LIMIT + 1, "claims a header of 100000001 bytes"),
        (1000, "claims a header of 1000 bytes in a file of 10"),
        (3, "claims a header of 3 bytes in a file of 10; it is cut off"),
    ],
)
def test_header_length_is_checked_before_it_is_believed(tmp_path: Path, length: int, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_header(raw(tmp_path / "a.safetensors", b"{}", length=length))


@pytest.mark.parametrize("count", range(8))
def test_files_too_short_for_a_length(tmp_path: Path, count: int) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(bytes(count))
    with pytest.raises(FormatError, match=f"{count} bytes, too short"):
        read_header(path)


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (b"PK\x03\x04\x00\x00\x08\x08" + bytes(40), "a PyTorch pickle .* --allow-pickle"),
        (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "a Python pickle; .* --allow-pickle"),
        (b"\x80\x05" + bytes(50), "a Python pickle; .* --allow-pickle"),
        (b"GGUF\x03\0\0\0" + bytes(40), "a GGUF file, whose weights are quantised"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b"<!DOCTYPE html><html></html>", "a failed download"),
        (b"\x89HDF\r\n\x1a\n" + bytes(8), "an HDF5 file"),
    ],
)
def test_other_kinds_of_files_are_named(tmp_path: Path, first: bytes, message: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(first)
    with pytest.raises(FormatError, match=message):
        read_header(path)


def test_a_header_whose_length_looks_like_a_pickle_is_still_safetensors(tmp_path: Path) -> None:
    """0x0280 bytes: the file then begins as a pickle of protocol 2 does."""
    path = tmp_path / "a.safetensors"
    raw(path, b"{}" + b" " * (0x0280 - 2))
    assert path.read_bytes()[:2] == b"\x80\x02"
    assert read_header(path).tensors == {}
    assert not is_pickle(path)


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo.safetensors"
    os.mkfifo(fifo)
    link = tmp_path / "link.safetensors"
    link.symlink_to(fifo)
    gone = tmp_path / "gone.safetensors"
    gone.symlink_to(tmp_path / "nothing")
    loop = tmp_path / "loop.safetensors"
    loop.symlink_to(loop)
    cases: list[tuple[Path | str, str]] = [
        (fifo, "is a FIFO"),
        (link, "is a FIFO"),
        (tmp_path, "is a folder"),
        ("/dev/zero", "is a device"),
        (gone, "is a link to a file that is gone"),
        (loop, "cannot be opened"),
        (tmp_path / "none", "does not exist"),
        (tmp_path / "a\0b", "cannot be opened"),
    ]
    for path, message in cases:
        with pytest.raises(FormatError, match=message):
            read_header(path)


def test_a_file_that_becomes_a_fifo_at_the_last_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo, plain = tmp_path / "fifo", file(tmp_path / "plain", {"a": numbers(3)})
    os.mkfifo(fifo)
    real = os.stat
    monkeypatch.setattr(os, "stat", lambda path, **rest: real(plain if path == str(fifo) else path, **rest))
    with pytest.raises(FormatError, match="is a FIFO"):
        read_header(fifo)


def test_a_link_to_a_regular_file_is_read(tmp_path: Path) -> None:
    blob = file(tmp_path / "blobs" / "abc", {"a": numbers(3)})
    link = tmp_path / "model.safetensors"
    link.symlink_to(blob)
    assert read_bytes(read_header(link).tensors["a"]) == numbers(3).tobytes()


def test_every_dtype_that_the_library_writes_is_read_with_equal_bytes(tmp_path: Path) -> None:
    tensors: dict[str, torch.Tensor] = {}
    for name, dtype in DTYPES.items():
        kind = getattr(torch, dtype.torch, None)
        if kind is not None and name != "F8_E8M0":
            tensors[name] = torch.arange(6).to(torch.uint8).repeat(dtype.size).view(kind).reshape(2, 3)
    tensors["scalar"] = torch.tensor(1.5)
    tensors["nothing"] = torch.zeros(0, 4)
    tensors["name with spaces, ünï¢ode and 模型"] = torch.ones(1)
    path = tmp_path / "a.safetensors"
    save_file(tensors, path, {"format": "pt", "note": "two\nlines"})
    header = read_header(path)
    assert header.metadata == {"format": "pt", "note": "two\nlines"}
    assert header.size == path.stat().st_size
    assert header.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        ref = header.tensors[name]
        assert ref.shape == tuple(tensor.shape)
        assert getattr(torch, DTYPES[ref.dtype].torch) == tensor.dtype
        assert read_bytes(ref) == tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    assert [r.start for r in header.tensors.values()] == sorted(r.start for r in header.tensors.values())


NOTHING = b'{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
VALID = header_bytes([("a", "F32", (2, 2)), ("bc", "BF16", (3,)), ("n", "I64", ())], {"format": "pt"})
VALID += np.arange(30, dtype=np.uint8).tobytes()


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_damaged_files_are_refused_or_read_as_the_library_reads_them(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(VALID)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1)) if content else 0
        kind = data.draw(st.sampled_from(["flip", "cut", "insert", "delete", "digit"]))
        if kind == "cut":
            del content[place:]
        elif kind == "delete":
            del content[place : place + 1]
        elif kind == "insert":
            content[place:place] = data.draw(st.binary(min_size=1, max_size=4))
        elif content:
            content[place] = data.draw(
                st.sampled_from(b'0123456789-.eE"{}[],: \\u' if kind == "digit" else range(256))
            )
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    path.write_bytes(content)
    agree(path)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80))
@example(b"{}")
@example(b'{"a":{"dtype":"U8","shape":[-0],"data_offsets":[0,0]}}')
@example(b'{"a":{"dtype":"U8","shape":[01],"data_offsets":[0,0]}}')
@example(b'{"a":{"dtype":"U8","shape":[0e0],"data_offsets":[0,0]}}')
@example(b'{"\\ud83d\\ude00":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}')
@example(b'{"\\u0061":' + NOTHING + b',"a":' + NOTHING + b"}")
@example(b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}\t\n\r ')
@example(b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}\x0c')
@example(b'{"__metadata__":{"a":"\\ud800"}}')
def test_any_header_text_is_refused_or_read_as_the_library_reads_it(
    tmp_path_factory: pytest.TempPathFactory, text: bytes
) -> None:
    agree(raw(tmp_path_factory.getbasetemp() / "text.safetensors", text))


def agree(path: Path) -> None:
    """FormatError, or the same tensors with the same bytes as the safetensors library. Nothing else."""
    try:
        header = read_header(path)
    except FormatError:
        return
    loaded = load_file(path)
    assert loaded.keys() == header.tensors.keys()
    for name, tensor in loaded.items():
        ref = header.tensors[name]
        assert tuple(tensor.shape) == ref.shape
        assert tensor.dtype == getattr(torch, DTYPES[ref.dtype].torch)
        assert read_bytes(ref) == tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    with safe_open(path, "pt") as opened:
        assert (opened.metadata() or {}) == header.metadata


def test_the_fuzz_can_pass_the_parser(tmp_path: Path) -> None:
    """The undamaged file is accepted; without this the fuzz might only ever see refusals."""
    path = tmp_path / "a.safetensors"
    path.write_bytes(VALID)
    assert [r.dtype for r in read_header(path).tensors.values()] == ["F32", "BF16", "I64"]
    agree(path)


def test_two_thousand_tensors_are_read_in_less_than_50_ms(tmp_path: Path) -> None:
    from time import process_time

    table = {
        f"model.layers.{i}.self_attn.q_proj.weight": entry(offsets=(8 * i, 8 * i + 8)) for i in range(2000)
    }
    path = raw(tmp_path / "a.safetensors", json.dumps(table).encode(), bytes(16000))
    times = []
    for _ in range(5):
        began = process_time()
        assert len(read_header(path).tensors) == 2000
        times.append(process_time() - began)
    assert min(times) < 0.05
