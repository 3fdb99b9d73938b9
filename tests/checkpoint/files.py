"""Small checkpoints for the tests, written by the safetensors library or byte by byte, never by plait."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

Arrays = Mapping[str, NDArray[Any]]


def raw(path: Path, table: object, data: bytes = b"", length: int | None = None) -> Path:
    """A file with this JSON header (an object, or its text) and these bytes after it."""
    text = table if isinstance(table, bytes) else json.dumps(table).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def entry(dtype: str = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def file(path: Path, arrays: Arrays, metadata: dict[str, str] | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: np.asarray(a, order="C") for name, a in arrays.items()}, path, metadata or {"format": "pt"}
    )
    return path


def folder(path: Path, arrays: Arrays, config: dict[str, Any] | None = None, **files: str) -> Path:
    """A Hugging Face folder with one weight file. `files`: further ones, `__` in a name stands for a dot."""
    file(path / "model.safetensors", arrays)
    (path / "config.json").write_text(json.dumps(config if config is not None else {"model_type": "toy"}))
    for name, text in files.items():
        (path / name.replace("__", ".")).write_text(text)
    return path


def sharded(path: Path, parts: Sequence[Arrays], stem: str = "model") -> Path:
    """A folder with one shard for each part, and their index."""
    placed: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        name = f"{stem}-{number:05d}-of-{len(parts):05d}.safetensors"
        file(path / name, part)
        placed |= dict.fromkeys(part, name)
    total = sum(array.nbytes for part in parts for array in part.values())
    index = {"metadata": {"total_size": total}, "weight_map": placed}
    (path / f"{stem}.safetensors.index.json").write_text(json.dumps(index))
    (path / "config.json").write_text('{"model_type": "toy"}')
    return path


def numbers(*shape: int, seed: int = 0, dtype: str = "float32") -> NDArray[Any]:
    """Random numbers, other ones for every seed and shape."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)
