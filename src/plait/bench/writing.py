"""Tensors to a file, and results to a file: complete, or as it was before."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.store.files import failing, temporary

if TYPE_CHECKING:
    from torch import Tensor


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors of floating-point dtypes as a safetensors file, in the order of the mapping."""
    import torch

    from plait.checkpoint.format import FileWriter
    from plait.methods.pieces import dtype_name

    writer = FileWriter(file, [(name, dtype_name(t), tuple(t.shape)) for name, t in tensors.items()])
    for name, tensor in tensors.items():
        raw: Any = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()
        writer.write(name, 0, raw)
    writer.close(sync=False)


def write_json(file: Path, value: Mapping[str, Any]) -> None:
    """Give the file these values in one step. Floats that JSON lacks are a bug: ValueError."""
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    fresh = temporary(file.parent, file.name)
    with failing("writing", file):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            fresh.write_text(text, encoding="utf-8")
            os.replace(fresh, file)
        finally:
            fresh.unlink(missing_ok=True)
