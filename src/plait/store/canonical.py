"""Canonical JSON: one value, one sequence of bytes. And a checksum that a file carries of itself."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from plait.errors import PlaitError, VerificationError


def encode(value: dict[str, Any]) -> bytes:
    """Sorted keys, no spaces, UTF-8, floats by repr, a newline at the end.

    Raises PlaitError for what JSON cannot say: NaN, infinity, keys that are no strings, other types.
    """
    _check_keys(value)
    try:
        text = json.dumps(value, sort_keys=True, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-8") + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise PlaitError(f"a record for the ledger cannot be written as JSON: {error}") from error


def _check_keys(value: object) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise PlaitError(f"a record for the ledger has the key {key!r}, expected a string")
            _check_keys(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_keys(item)


def decode(data: bytes, path: Path) -> dict[str, Any]:
    """The JSON object in these bytes, or VerificationError naming the file."""
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise VerificationError(f"{path}: broken JSON ({error}); restore the file from a backup") from error
    if not isinstance(value, dict):
        raise VerificationError(
            f"{path}: holds a JSON {type(value).__name__}, expected an object; restore the file from a backup"
        )
    return value


def seal(value: dict[str, Any]) -> bytes:
    """The canonical bytes with the field "checksum": the sha256 of its canonical bytes without that field."""
    return encode({**value, "checksum": hashlib.sha256(encode(value)).hexdigest()})


def unseal(data: bytes, path: Path) -> dict[str, Any]:
    """The value that `seal` wrote, "checksum" included, or VerificationError if any byte differs."""
    value = decode(data, path)
    bare = {key: item for key, item in value.items() if key != "checksum"}
    try:
        intact = seal(bare) == data
    except PlaitError:
        intact = False
    if not intact:
        raise VerificationError(
            f"{path}: its bytes are not those that were written (the checksum differs); "
            "restore the file from a backup"
        )
    return value
