"""The files beside the weights: configuration, tokenizer, vocabulary. Nothing that can run code is copied."""

from __future__ import annotations

import json
import os
from typing import Any

from plait.checkpoint.format import write_all, write_failed
from plait.checkpoint.header import open_regular, read_small, show
from plait.errors import FormatError
from plait.types import DTYPES

WEIGHTS = (
    ".safetensors",
    ".bin",
    ".pt",
    ".pth",
    ".ckpt",
    ".h5",
    ".msgpack",
    ".onnx",
    ".gguf",
    ".ot",
    ".tflite",
    ".npz",
)
"""Endings of files that hold weights. A sub-folder with one of them is another model, not a sidecar."""

TRAINING = "plait_training.json"
"""The record that `plait finetune` leaves beside weights: how these very weights came to be."""

_CODE = (".py", ".pyc", ".pyd", ".so", ".dll", ".dylib", ".sh", ".pkl", ".pickle", ".joblib")
_INDEXES = (".safetensors.index.json", ".bin.index.json")
_RUNS_CODE = ("auto_map", "custom_pipelines")
_FLOATS = {dtype.torch for dtype in DTYPES.values() if dtype.mergeable}
_LIMIT = 10_000
_DEPTH = 4
_CONFIG_LIMIT = 10_000_000


def list_sidecars(folder: str) -> list[str]:
    """Paths, relative to `folder` and sorted, of the files that an output takes along from the base.

    Left out: weights and their indexes, code and pickles, hidden files, the model card and the record of a training,
    which are about other weights, and sub-folders that hold weights of their own.
    Errors: FormatError for links that leave the folder (other than to a cache's blobs), special files,
    and folders that are too large to be a checkpoint.
    """
    found: list[str] = []
    _walk(os.path.realpath(folder), folder, "", found, 0)
    return sorted(found)


def _walk(root: str, folder: str, inside: str, found: list[str], depth: int) -> None:
    path = os.path.join(folder, inside)
    names = sorted(name for name in os.listdir(path) if not name.startswith("."))
    if depth and any(name.lower().endswith(WEIGHTS) for name in names):
        return
    if depth > _DEPTH:
        raise FormatError(
            f"{path}: is {depth} folders deep, expected at most {_DEPTH}; is this a checkpoint?"
        )
    for name in names:
        place = os.path.join(inside, name)
        file = os.path.join(folder, place)
        if os.path.isdir(file) and not os.path.islink(file):
            _walk(root, folder, place, found, depth + 1)
        elif _taken(name, depth):
            _check(root, file)
            found.append(place)
            if len(found) > _LIMIT:
                raise FormatError(f"{folder}: holds more than {_LIMIT} files; is this a checkpoint?")


def _taken(name: str, depth: int) -> bool:
    lower = name.lower()
    return not (
        lower.endswith(WEIGHTS)
        or lower.endswith(_CODE)
        or lower.endswith(_INDEXES)
        or (not depth and lower in ("readme.md", TRAINING))
    )


def _check(root: str, file: str) -> None:
    if not os.path.basename(file).isprintable():
        raise FormatError(f"{show(file)}: the file's name cannot be printed; rename it")
    target = os.path.realpath(file)
    blobs = os.path.join(os.path.dirname(os.path.dirname(root)), "blobs")
    if not target.startswith((root + os.sep, blobs + os.sep)):
        raise FormatError(
            f"{file}: is a link that leaves the folder, and an output would copy it; put the file here"
        )
    if not os.path.isfile(target):
        raise FormatError(f"{file}: is neither a file nor a folder, expected one of the two; remove it")


def copy_sidecar(source: str, target: str, dtype: str | None, *, untied: bool = False) -> None:
    """Copy one file. In a configuration, `auto_map` (which names code to run) is removed, and the recorded
    dtype becomes `dtype` (a key of DTYPES) unless that is None; with `untied`, it says that the output layer has
    weights of its own. If nothing changes, the bytes stay.

    Errors: FormatError for a configuration that is not JSON; PlaitError if it cannot be written.
    """
    if os.path.basename(source).endswith("config.json"):
        text = read_small(source, _CONFIG_LIMIT)
        try:
            table = json.loads(text)
        except (ValueError, RecursionError):
            raise FormatError(f"{source}: is not JSON; fetch it again or remove it") from None
        cleaned = _clean(table, None if dtype is None else DTYPES[dtype].torch)
        if untied and isinstance(cleaned, dict):
            _untie(cleaned)
        if cleaned != table:
            text = (json.dumps(cleaned, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass")
        write_file(target, text)
        return
    descriptor, _ = open_regular(source)
    with os.fdopen(descriptor, "rb") as reader, _create(target) as writer:
        place = 0
        while part := reader.read(1 << 20):
            write_all(writer.fileno(), part, place, target)
            place += len(part)
        _sync(writer.fileno(), target)


def write_file(path: str, text: bytes) -> None:
    """Write a small file anew and bring it to the disk. Errors: PlaitError."""
    with _create(path) as writer:
        write_all(writer.fileno(), text, 0, path)
        _sync(writer.fileno(), path)


def _create(path: str) -> Any:
    try:
        if os.path.lexists(path):
            os.unlink(path)
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644), "wb", 0)
    except OSError as error:
        write_failed(path, error)


def _sync(descriptor: int, path: str) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        write_failed(path, error)


def _untie(config: dict[str, Any]) -> None:
    config["tie_word_embeddings"] = False
    inner = config.get("text_config")
    if isinstance(inner, dict) and "tie_word_embeddings" in inner:
        inner["tie_word_embeddings"] = False


def _clean(value: Any, dtype: str | None) -> Any:
    if isinstance(value, list):
        return [_clean(item, dtype) for item in value]
    if not isinstance(value, dict):
        return value
    table = {key: _clean(item, dtype) for key, item in value.items() if key not in _RUNS_CODE}
    for key in ("torch_dtype", "dtype"):
        if dtype is not None and isinstance(table.get(key), str) and table[key] in _FLOATS:
            table[key] = dtype
    return table
