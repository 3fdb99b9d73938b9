"""Groups of tensors that share a coefficient, by their names."""

from __future__ import annotations

import re

GRANULARITIES = ("model", "layer", "tensor")


def group_of(name: str, granularity: str) -> str:
    """The group of a tensor: `model` for all, its layer, or the tensor itself."""
    if granularity == "model":
        return "model"
    return layer_of(name) if granularity == "layer" else name


def layer_of(name: str) -> str:
    """The layer of a tensor: its name up to the first number (`encoder.layer.3`), else without its last part
    (`embeddings.word`); a name of one part is a layer of its own."""
    numbered = re.match(r"(?:[^.]+\.)*?\d+(?=\.|$)", name)
    if numbered:
        return numbered[0]
    head, _, _ = name.rpartition(".")
    return head or name
