"""The strict reader of a safetensors header. A file is hostile until it has passed here.

Source: the safetensors format, https://github.com/huggingface/safetensors#format. This reader is stricter:
it also refuses repeated names, unknown fields, unprintable names and numbers that are not integers.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from typing import Any, NoReturn

from plait.errors import FormatError, PlaitError
from plait.types import DTYPES, TensorRef

HEADER_LIMIT = 100_000_000
"""Bytes that a header may have, as in the format's own library."""

_DIMENSIONS = 64  # more axes than torch or numpy can hold
_LARGEST = 2**63 - 1

_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"PK\x03\x04", "a PyTorch pickle (zip archive); convert it to safetensors or pass --allow-pickle"),
    (b"GGUF", "a GGUF file, whose weights are quantised; use the original safetensors checkpoint"),
    (
        b"version https://git-lfs",
        "a Git LFS pointer, not the file itself; fetch it with `git lfs pull` or a fresh download",
    ),
    (b"\x89HDF", "an HDF5 file (Keras or TensorFlow); convert it to safetensors"),
    (b"\x93NUMPY", "a numpy array; convert it to safetensors"),
    (b"\x1f\x8b", "a gzip archive; unpack it first"),
    (b"<!DOCTYPE", "a web page, probably a failed download; fetch the file again"),
    (b"<html", "a web page, probably a failed download; fetch the file again"),
)


@dataclass(frozen=True)
class Header:
    """What a safetensors file says of itself, checked."""

    path: str
    tensors: dict[str, TensorRef]  # in the order of their bytes in the file
    metadata: dict[str, str]
    size: int  # of the whole file, in bytes


def read_header(path: str | os.PathLike[str]) -> Header:
    """Read and check the header of a safetensors file. Reads no tensor.

    Guarantee: every returned tensor lies inside the file, its length is dtype x shape, and the tensors tile
    the file without overlaps, holes or bytes left over.
    Errors: FormatError, whatever the bytes are.
    """
    path = os.fspath(path)
    descriptor, size = open_regular(path)
    try:
        first = _read(descriptor, path, min(size, 40), 0)
        length = int.from_bytes(first[:8], "little")
        if len(first) < 8 or first[8:9] != b"{" or length > HEADER_LIMIT or 8 + length > size:
            _refuse_start(path, first, length, size)
        text = _read(descriptor, path, length, 8)
    finally:
        os.close(descriptor)
    return parse_header(path, text, size)


def parse_header(path: str, text: bytes, size: int) -> Header:
    """Check the JSON text of a header against the size of its file. See `read_header`."""
    table = parse_json(path, text, "header")
    if not isinstance(table, dict):
        raise FormatError(f"{path}: the header is not a JSON object; the file is damaged, fetch it again")
    metadata = _metadata(path, table.pop("__metadata__", {}))
    data = 8 + len(text)
    refs = [_tensor(path, name, entry, data, size) for name, entry in table.items()]
    refs.sort(key=lambda ref: (ref.start, ref.end))
    place = data
    for ref in refs:
        if ref.start != place:
            fault = "overlaps the tensor before it" if ref.start < place else "leaves a hole before it"
            raise FormatError(
                f"{path}: {show(ref.name)} {fault} (begins at {ref.start - data}, expected {place - data}); "
                "write the file again with a safetensors library"
            )
        place = ref.end
    if place != size:
        raise FormatError(
            f"{path}: {size - place} bytes after the last tensor, expected none; fetch it again"
        )
    return Header(path, {ref.name: ref for ref in refs}, metadata, size)


def open_regular(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Open a regular file for reading: (descriptor, size in bytes).

    Links are followed, as model caches are made of them. A FIFO, device, socket or folder is refused without
    being opened, so nothing can block.
    Errors: FormatError.
    """
    path = os.fspath(path)
    try:
        _regular(path, os.stat(path).st_mode)
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        what = "is a link to a file that is gone" if os.path.islink(path) else "does not exist"
        raise FormatError(f"{path}: {what}; check the path or fetch the checkpoint again") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise FormatError(
            f"{path}: cannot be opened ({reason}); check the path and its permissions"
        ) from None
    try:
        status = os.fstat(descriptor)
        _regular(path, status.st_mode)  # the file may have been exchanged since
    except FormatError:
        os.close(descriptor)
        raise
    return descriptor, status.st_size


def read_small(path: str | os.PathLike[str], limit: int = HEADER_LIMIT) -> bytes:
    """All bytes of a small regular file. Errors: FormatError, also above `limit` bytes."""
    path = os.fspath(path)
    descriptor, size = open_regular(path)
    try:
        if size > limit:
            raise FormatError(
                f"{path}: {size} bytes, expected at most {limit}; this is not a file of its kind"
            )
        return _read(descriptor, path, size, 0)
    finally:
        os.close(descriptor)


def parse_json(path: str, text: bytes, what: str) -> Any:
    """Strict JSON: UTF-8, no repeated key, no NaN, no negative integer, none beyond 20 digits."""
    try:
        return json.loads(
            text.decode("utf-8"),
            object_pairs_hook=lambda pairs: _pairs(path, what, pairs),
            parse_int=lambda digits: _integer(path, what, digits),
            parse_constant=lambda word: _constant(path, what, word),
        )
    except FormatError:
        raise
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"{path}: the {what} is not JSON ({show(str(error))}); the file is damaged, fetch it again"
        ) from None


def check_name(path: str, name: object) -> str:
    """A tensor's name: not empty, printable. Errors: FormatError."""
    if not isinstance(name, str) or not name or not name.isprintable():
        raise FormatError(f"{path}: tensor name {show(name)} is empty or holds control characters; rename it")
    return name


def _pairs(path: str, what: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        seen: set[str] = set()
        double = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise FormatError(f"{path}: the {what} names {show(double)} twice; write the file again")
    return table


def _integer(path: str, what: str, digits: str) -> int:
    if digits.startswith("-") or len(digits) > 20:
        raise FormatError(
            f"{path}: the {what} holds the number {show(digits)}, expected 0 to 2^63-1; the file is damaged"
        )
    return int(digits)


def _constant(path: str, what: str, word: str) -> NoReturn:
    raise FormatError(f"{path}: the {what} holds {word}, which is not JSON; the file is damaged")


def _tensor(path: str, name: str, entry: Any, data: int, size: int) -> TensorRef:
    check_name(path, name)
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise FormatError(
            f"{path}: the entry of {show(name)} is not dtype, shape and data_offsets; write the file again"
        )
    dtype = entry["dtype"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise FormatError(
            f"{path}: {show(name)} has dtype {show(dtype)}, known are {', '.join(DTYPES)}; convert it first"
        )
    shape = _whole_numbers(path, name, "shape", entry["shape"])
    if len(shape) > _DIMENSIONS:
        raise FormatError(f"{path}: {show(name)} has {len(shape)} axes, expected at most {_DIMENSIONS}")
    length = DTYPES[dtype].size
    for axis in shape:
        length *= axis
        if length > _LARGEST:
            raise FormatError(f"{path}: the shape of {show(name)} overflows 2^63 bytes; the file is damaged")
    offsets = _whole_numbers(path, name, "data_offsets", entry["data_offsets"])
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise FormatError(f"{path}: {show(name)} has data_offsets {show(offsets)}, expected [begin, end]")
    begin, end = offsets
    if data + end > size:
        raise FormatError(
            f"{path}: {show(name)} ends at byte {data + end} of a file of {size}; "
            "the file is cut off, fetch it again"
        )
    if end - begin != length:
        raise FormatError(
            f"{path}: {show(name)} has {end - begin} bytes, but {dtype} {shape} needs {length}; save anew"
        )
    return TensorRef(name, dtype, shape, path, data + begin, data + end)


def _whole_numbers(path: str, name: str, what: str, values: Any) -> tuple[int, ...]:
    if not isinstance(values, list) or any(type(v) is not int or v > _LARGEST for v in values):
        raise FormatError(
            f"{path}: the {what} of {show(name)} is {show(values)}, expected whole numbers below 2^63"
        )
    return tuple(values)


def _metadata(path: str, table: Any) -> dict[str, str]:
    if not isinstance(table, dict) or any(not isinstance(v, str) for v in table.values()):
        raise FormatError(f"{path}: __metadata__ is not a table of strings; write the file again")
    try:
        "".join((*table.keys(), *table.values())).encode()
    except UnicodeEncodeError:
        raise FormatError(
            f"{path}: __metadata__ holds text that is not Unicode; write the file again"
        ) from None
    return table


def _refuse_start(path: str, first: bytes, length: int, size: int) -> NoReturn:
    kind = sniff(first)
    if kind is not None:
        raise FormatError(f"{path}: this is {kind}")
    if size < 8:
        raise FormatError(f"{path}: {size} bytes, too short for a safetensors file; fetch it again")
    if length > HEADER_LIMIT:
        raise FormatError(
            f"{path}: claims a header of {length} bytes, at most {HEADER_LIMIT} are read; not safetensors"
        )
    if 8 + length > size:
        raise FormatError(
            f"{path}: claims a header of {length} bytes in a file of {size}; it is cut off, fetch it again"
        )
    raise FormatError(f"{path}: the header does not begin with '{{'; not a safetensors file")


def sniff(first: bytes) -> str | None:
    """What a file that is not safetensors is, by its first bytes, and what to do; None if unknown."""
    for magic, kind in _MAGIC:
        if first.startswith(magic):
            return kind
    if len(first) > 1 and first[0] == 0x80 and 1 <= first[1] <= 5:
        return "a Python pickle; convert it to safetensors or pass --allow-pickle"
    return None


def is_pickle(path: str | os.PathLike[str]) -> bool:
    """Whether a regular file is a pickle by its bytes, whatever its extension. Errors: FormatError."""
    path = os.fspath(path)
    descriptor, size = open_regular(path)
    try:
        first = _read(descriptor, path, min(size, 40), 0)
    finally:
        os.close(descriptor)
    length = int.from_bytes(first[:8], "little")
    if first[8:9] == b"{" and 8 + length <= size:
        return False  # a safetensors header whose length happens to look like a pickle
    kind = sniff(first)
    return kind is not None and "pickle" in kind


def _regular(path: str, mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    kind = kinds.get(stat.S_IFMT(mode), "a special file")
    raise FormatError(
        f"{path}: is {kind}, expected a regular file; replace it with the checkpoint's own file"
    )


def _read(descriptor: int, path: str, count: int, place: int) -> bytes:
    parts: list[bytes] = []
    while count > 0:
        try:
            part = os.pread(descriptor, count, place)
        except OSError as error:
            raise PlaitError(
                f"{path}: cannot be read ({error.strerror}); check the disk, then try again"
            ) from None
        if not part:
            raise FormatError(f"{path}: became shorter while it was read; wait until it is complete")
        parts.append(part)
        place += len(part)
        count -= len(part)
    return b"".join(parts)


def show(value: object, limit: int = 120) -> str:
    """A value of unknown origin on one line, cut to `limit` characters, without control characters."""
    text = value if isinstance(value, str) and value and value.isprintable() else ascii(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
