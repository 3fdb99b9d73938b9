"""Bytes of tensors: read, hashed and written in place, also on a disk that fails."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from plait.checkpoint.digest import root_digest, tensor_digests
from plait.checkpoint.format import (
    FileWriter,
    blocks,
    fsync_folder,
    hash_tensor,
    read_bytes,
    read_header,
    same_bytes,
)
from plait.checkpoint.layout import open_checkpoint
from plait.errors import FormatError, PlaitError
from tests.checkpoint.files import file, numbers, sharded

ENTRIES = [
    ("w", "F32", (5, 7)),
    ("empty", "F32", (0, 3)),
    ("s", "F16", ()),
    ("n", "I64", (2,)),
    ("ünï", "U8", (3,)),
]


def arrays() -> dict[str, np.ndarray]:
    return {
        "w": numbers(5, 7),
        "empty": np.zeros((0, 3), "float32"),
        "s": np.array(0.5, "float16"),
        "n": np.array([7, -1]),
        "ünï": np.array([1, 2, 3], "uint8"),
    }


def test_written_in_any_order_and_in_pieces_the_library_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "out.safetensors"
    pieces = [
        (name, first, bytes(value.tobytes()[first : first + 5]))
        for name, value in arrays().items()
        for first in range(0, value.nbytes, 5)
    ]
    random.Random(0).shuffle(pieces)
    with FileWriter(path, ENTRIES, {"format": "pt", "note": "a"}) as writer:
        assert path.stat().st_size == writer.size
        for piece in pieces:
            writer.write(*piece)
    loaded = load_file(path)
    assert {n: (a.tobytes(), a.shape) for n, a in loaded.items()} == {
        n: (a.tobytes(), a.shape) for n, a in arrays().items()
    }
    header = read_header(path)
    assert header.tensors == writer.places
    assert next(iter(header.tensors)) == "w"  # the given order is the order of the bytes
    assert min(ref.start for ref in header.tensors.values()) % 8 == 0
    with safe_open(path, "np") as opened:
        assert opened.metadata() == {"format": "pt", "note": "a"}


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, place: real(fd, bytes(data[:3]), place))
    with FileWriter(tmp_path / "a.safetensors", [("w", "F32", (5, 7))]) as writer:
        writer.write("w", 0, numbers(5, 7).data)
    monkeypatch.undo()
    assert load_file(tmp_path / "a.safetensors")["w"].tobytes() == numbers(5, 7).tobytes()


def test_short_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = read_header(file(tmp_path / "a.safetensors", {"w": numbers(50)})).tensors["w"]
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, views, place: real(fd, [views[0][:7]], place))
    assert read_bytes(ref) == numbers(50).tobytes()


def test_a_range_outside_the_tensor_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with FileWriter(path, ENTRIES) as writer:
        for first, data in ((-1, b"a"), (0, bytes(141)), (140, b"a")):
            with pytest.raises(ValueError, match="of 140"):
                writer.write("w", first, data)
        ref = writer.places["w"]
    for first, count in ((-1, 1), (0, 141), (141, 0), (5, -1)):
        with pytest.raises(ValueError, match="of 140"):
            read_bytes(ref, first, count)
    assert read_bytes(ref, 140) == b""


def test_an_interrupted_file_is_kept_and_any_other_is_emptied(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with FileWriter(path, ENTRIES) as writer:
        writer.write("n", 0, b"ABCDEFGH")
    with FileWriter(path, ENTRIES) as writer:
        assert read_bytes(writer.places["n"], 0, 8) == b"ABCDEFGH"
    path.write_bytes(b"x" * path.stat().st_size)
    with FileWriter(path, [("m", "I64", (2,)), *ENTRIES[:3], ENTRIES[4]]) as writer:
        assert not any(read_bytes(writer.places["m"]))
    assert next(iter(read_header(path).tensors)) == "m"


def test_names_that_cannot_be_written(tmp_path: Path) -> None:
    for entries in (
        [("a", "F32", (1,))] * 2,
        [("", "F32", (1,))],
        [("a\n", "F32", ())],
        [("__metadata__", "F32", ())],
    ):
        with pytest.raises(FormatError, match="output: tensor name"):
            FileWriter(tmp_path / "a.safetensors", entries)


def test_a_read_only_file_that_a_killed_command_left_is_replaced(tmp_path: Path) -> None:
    """In a process without capabilities: the superuser's would open the file all the same."""
    path = tmp_path / "a.safetensors"
    FileWriter(path, [("w", "F32", (4,))]).close()
    path.chmod(0o444)
    drop = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"] if os.geteuid() == 0 else []
    if drop and (shutil.which("setpriv") is None or subprocess.run([*drop, "true"], check=False).returncode):
        pytest.skip("setpriv cannot drop the superuser's capabilities here")
    code = (
        "import sys; from plait.checkpoint.format import FileWriter\n"
        "with FileWriter(sys.argv[1], [('w', 'F32', (4,))]) as writer: writer.write('w', 0, b'new bytes')"
    )
    subprocess.run([*drop, sys.executable, "-c", code, str(path)], check=True)
    assert read_bytes(read_header(path).tensors["w"], 0, 9) == b"new bytes"


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM])
def test_only_a_plain_file_of_this_user_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """The old bytes stay with whoever has the file under another name."""
    path, other = tmp_path / "a.safetensors", tmp_path / "other name"
    real = os.open
    left = 1

    def denied(name: str, flags: int, *rest: int) -> int:
        nonlocal left
        if name == str(path) and flags & os.O_RDWR and left:
            left -= 1
            raise OSError(code, os.strerror(code))
        return real(name, flags, *rest)

    path.write_bytes(b"old")
    os.link(path, other)
    monkeypatch.setattr(os, "open", denied)
    with monkeypatch.context() as foreign:
        foreign.setattr(os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(PlaitError, match="cannot be written"):
            FileWriter(path, ENTRIES)
    assert path.read_bytes() == b"old"
    left = 1
    FileWriter(path, ENTRIES).close()
    assert len(read_header(path).tensors) == len(ENTRIES)
    assert other.read_bytes() == b"old"
    path.unlink()
    path.symlink_to(other)
    left = 1
    with pytest.raises(PlaitError, match="cannot be written"):
        FileWriter(path, ENTRIES)
    assert path.is_symlink()


def test_an_output_is_not_written_through_a_link(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_bytes(b"precious")
    (tmp_path / "a.safetensors").symlink_to(target)
    with pytest.raises(PlaitError, match="cannot be written"):
        FileWriter(tmp_path / "a.safetensors", ENTRIES)
    assert target.read_bytes() == b"precious"


def failing(code: int) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize(
    ("call", "code", "message"),
    [
        ("posix_fallocate", errno.ENOSPC, "No space left on device"),
        ("ftruncate", errno.ENOSPC, "No space left on device"),
        ("pwrite", errno.ENOSPC, "No space left on device"),
        ("pwrite", errno.EIO, "Input/output error"),
        ("fsync", errno.EIO, "Input/output error"),
    ],
)
def test_a_failing_disk_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int, message: str
) -> None:
    path = tmp_path / "a.safetensors"
    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(os, call, failing(code))
    with pytest.raises(PlaitError) as caught, FileWriter(path, ENTRIES):
        pass
    monkeypatch.undo()
    assert str(path) in str(caught.value)
    assert message in str(caught.value)
    assert "free space or check the disk" in str(caught.value)
    assert caught.value.exit_code == 1
    assert os.listdir("/proc/self/fd") == before  # nothing stays open


def test_a_file_system_without_reservation_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", failing(errno.EOPNOTSUPP))
    with FileWriter(tmp_path / "a.safetensors", ENTRIES) as writer:
        size = writer.size
    assert (tmp_path / "a.safetensors").stat().st_size == size
    assert read_header(tmp_path / "a.safetensors").tensors.keys() == arrays().keys()


def test_a_file_size_limit_is_an_error_not_a_signal(tmp_path: Path) -> None:
    """A real limit of the operating system, in a process of its own."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "from plait.checkpoint.format import FileWriter\nfrom plait.errors import PlaitError\n"
        "try: FileWriter(sys.argv[1], [('w', 'F32', (4096,))])\nexcept PlaitError as e: print(e)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.safetensors")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "cannot be written (File too large)" in done.stdout


def test_fsync_of_a_folder_that_is_gone(tmp_path: Path) -> None:
    fsync_folder(tmp_path)
    with pytest.raises(PlaitError, match="cannot be written"):
        fsync_folder(tmp_path / "none")


def test_a_file_that_shrinks_after_its_header_was_read(tmp_path: Path) -> None:
    path = file(tmp_path / "a.safetensors", {"w": numbers(100)})
    ref = read_header(path).tensors["w"]
    os.truncate(path, ref.end - 1)
    with pytest.raises(FormatError, match="became shorter while w was read"):
        read_bytes(ref)


def test_a_digest_covers_dtype_shape_and_bytes_and_nothing_else(tmp_path: Path) -> None:
    value = numbers(4, 6)
    path = file(
        tmp_path / "a.safetensors",
        {"w": value, "z": value, "flat": value.reshape(24), "u": value.view("int32")},
    )
    tensors = read_header(path).tensors
    expected = hashlib.sha256(b"F32 4,6\n" + value.tobytes()).hexdigest()
    assert hash_tensor(tensors["w"]) == hash_tensor(tensors["z"]) == expected
    assert len({hash_tensor(ref) for ref in tensors.values()}) == 3
    scalar = read_header(file(tmp_path / "b.safetensors", {"s": np.array(2.0)})).tensors["s"]
    assert hash_tensor(scalar) == hashlib.sha256(b"F64 \n" + np.float64(2).tobytes()).hexdigest()


def test_digests_do_not_depend_on_blocks_workers_or_sharding(tmp_path: Path) -> None:
    parts = [{"a": numbers(700, 400), "b": numbers(3)}, {"c": numbers(5, 5, dtype="float16")}]
    whole = file(tmp_path / "one.safetensors", parts[0] | parts[1])
    one, many = open_checkpoint(whole), open_checkpoint(sharded(tmp_path / "many", parts))
    assert one.digests(1) == one.digests(4) == {n: many.digests(3)[n] for n in one.tensors}
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(one.digests().items()))
    assert root_digest(many.digests()) == hashlib.sha256(lines.encode()).hexdigest()
    ref = one.tensors["a"]
    assert b"".join(bytes(part) for part in blocks(ref, 1 << 16)) == parts[0]["a"].tobytes()
    assert list(tensor_digests(many.tensors)) == list(many.tensors)


def test_a_root_digest_changes_with_any_name_and_any_byte(tmp_path: Path) -> None:
    value = numbers(9)
    other = value.copy()
    other.view("uint8")[-1] ^= 1
    tables = [
        {"a": value},
        {"b": value},
        {"a": other},
        {"a": value, "b": value},
        {"a": value.astype("float64")},
    ]
    roots = {
        root_digest(open_checkpoint(file(tmp_path / f"{i}.safetensors", t)).digests())
        for i, t in enumerate(tables)
    }
    assert len(roots) == len(tables)


@pytest.mark.parametrize("place", [0, 4095, 4096, (1 << 20) - 1, 1 << 20, 1200 * 1000 * 4 - 1])
def test_same_bytes_sees_one_bit_wherever_it_is(tmp_path: Path, place: int) -> None:
    one = numbers(1200, 1000)
    other = one.copy()
    other.reshape(-1).view("uint8")[place] ^= 1
    refs = read_header(file(tmp_path / "a.safetensors", {"a": one, "b": other, "c": one.copy()})).tensors
    assert same_bytes(refs["a"], refs["c"])
    assert not same_bytes(refs["a"], refs["b"])


def test_importing_the_layer_loads_neither_torch_nor_numpy() -> None:
    code = (
        "import plait.checkpoint, plait.checkpoint.card, plait.checkpoint.extend, plait.checkpoint.pickled, sys; "
        "print(sorted({'torch', 'numpy', 'safetensors'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_memory_does_not_grow_with_the_tensor(tmp_path: Path) -> None:
    """Hash and compare 64 MB with a few MB."""
    import tracemalloc

    big = 1 << 24
    with FileWriter(tmp_path / "a.safetensors", [("a", "F32", (big,)), ("b", "F32", (big,))]) as writer:
        refs = writer.places
        tracemalloc.start()
        assert same_bytes(refs["a"], refs["b"])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 8_000_000
