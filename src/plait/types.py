"""Words shared by all layers. Nothing here imports torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import Any


@dataclass(frozen=True)
class Dtype:
    """An element type of the safetensors format. `name` is the format's own name."""

    name: str
    size: int  # bytes an element
    torch: str  # attribute of the torch module
    kind: str  # "float", "float8", "int", "bool" or "complex"

    @property
    def mergeable(self) -> bool:
        return self.kind == "float"


DTYPES: dict[str, Dtype] = {
    d.name: d
    for d in (
        Dtype("F64", 8, "float64", "float"),
        Dtype("F32", 4, "float32", "float"),
        Dtype("F16", 2, "float16", "float"),
        Dtype("BF16", 2, "bfloat16", "float"),
        Dtype("F8_E4M3", 1, "float8_e4m3fn", "float8"),
        Dtype("F8_E5M2", 1, "float8_e5m2", "float8"),
        Dtype("F8_E8M0", 1, "float8_e8m0fnu", "float8"),
        Dtype("C64", 8, "complex64", "complex"),
        Dtype("I64", 8, "int64", "int"),
        Dtype("I32", 4, "int32", "int"),
        Dtype("I16", 2, "int16", "int"),
        Dtype("I8", 1, "int8", "int"),
        Dtype("U64", 8, "uint64", "int"),
        Dtype("U32", 4, "uint32", "int"),
        Dtype("U16", 2, "uint16", "int"),
        Dtype("U8", 1, "uint8", "int"),
        Dtype("BOOL", 1, "bool", "bool"),
    )
}


TASK_NAME = (
    "letters, digits, '.', '_' or '-', starting with a letter or digit, at most 100, not a number alone and "
    "not 'base'"
)
"""What a task's name is made of, in words: see `is_task_name`."""


def is_task_name(word: str) -> bool:
    """Whether a task may be called so. Its name stands in commands, in the ledger and in names of files."""
    fits = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", word) is not None
    return fits and not word.isdigit() and word != "base"


@dataclass(frozen=True)
class TensorRef:
    """Where the bytes of one tensor lie: a file and a byte range, little-endian, row-major."""

    name: str  # canonical name (wrapper prefixes removed)
    dtype: str  # a key of DTYPES
    shape: tuple[int, ...]
    file: str
    start: int  # first byte, counted from the start of the file
    end: int  # one past the last byte

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.end - self.start

    @property
    def mergeable(self) -> bool:
        return DTYPES[self.dtype].mergeable


Known = dict[str, Any]
"""Scalars that a method found out about a member or a state. Survives JSON; floats are kept exactly."""

Answers = dict[str, list[tuple[int, Any]]]
"""Tensor name -> [(index of the chunk's first element, what `measure` returned), ...], by position."""


@dataclass(frozen=True)
class Where:
    """The place of a chunk: `count` elements of tensor `name`, from flat index `first` (a multiple of BLOCK
    for grain "element", of the row length for "row", 0 for "matrix")."""

    name: str
    shape: tuple[int, ...]  # of the whole tensor
    dtype: str  # safetensors name of the base's dtype
    first: int
    count: int


@dataclass(frozen=True)
class Survey:
    """One pass over a member or a state. `ask` goes to every `measure` / `examine` call.
    With `stride` s only every s-th block of BLOCK elements is read (a sample). With `only` just these tensors
    need be read; answers for others are ignored."""

    ask: Any = None
    stride: int = 1
    only: tuple[str, ...] | None = None
