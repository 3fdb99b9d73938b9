"""Pieces of tensors in memory: what the streaming engine asks of files, asked of mappings of tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256

from plait.errors import KeyMismatch, RefusedInput
from plait.methods.base import Grain, Where
from plait.tensors import BLOCK, Tensor, torch
from plait.tensors.exact import round_once
from plait.types import DTYPES


def whole(name: str, tensor: Tensor) -> Where:
    """The tensor as one chunk."""
    return Where(name, tuple(tensor.shape), dtype_name(tensor), 0, tensor.numel())


def cut(place: Where, grain: Grain, chunk: int) -> Iterator[Where]:
    """Chunks of a tensor: at multiples of `chunk`, between rows, or none at all, as the grain says."""
    if grain == "element":
        size = chunk
    elif grain == "row":
        row = place.shape[-1] if place.shape else 1
        size = max(chunk // row, 1) * row
    else:
        size = place.count
    for first in range(0, place.count, size):
        yield Where(place.name, place.shape, place.dtype, first, min(size, place.count - first))


def sampled(chunks: Iterator[Where], place: Where, grain: Grain, stride: int) -> Iterator[Where]:
    """Every `stride`-th block of an element-wise tensor, every `stride`-th chunk of another."""
    if stride == 1:
        yield from chunks
    elif grain == "element":
        blocks = list(cut(place, "element", BLOCK))
        yield from blocks[::stride]
    else:
        yield from list(chunks)[::stride]


def piece(tensor: Tensor, where: Where) -> Tensor:
    """The flat elements of a chunk, not copied."""
    return tensor.view(-1)[where.first : where.first + where.count]


def dtype_name(tensor: Tensor) -> str:
    """The safetensors name of a tensor's dtype; RefusedInput where the format has none."""
    found = str(tensor.dtype).removeprefix("torch.")
    for dtype in DTYPES.values():
        if dtype.torch == found:
            return dtype.name
    raise RefusedInput(f"tensor dtype {found} is not known; convert it to one of: {', '.join(DTYPES)}")


def mergeable(tensor: Tensor) -> bool:
    """Whether a tensor is of a float type that is merged."""
    return DTYPES[dtype_name(tensor)].mergeable


def same_bytes(a: Tensor, b: Tensor) -> bool:
    """Equal dtype, shape and bit patterns: -0.0 differs from 0.0."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a.view(-1).view(torch.uint8), b.view(-1).view(torch.uint8))


def content(tensors: Mapping[str, Tensor]) -> bytes:
    """sha256 over names, dtypes, shapes and bytes, in order of name."""
    total = sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        head = f"{name}\0{dtype_name(tensor)}\0{tuple(tensor.shape)}\0{tensor.numel()}\0"
        total.update(head.encode())
        total.update(tensor.view(-1).view(torch.uint8).numpy().data)
    return total.digest()


def check_names(base: Mapping[str, Tensor], expert: Mapping[str, Tensor], owner: str) -> None:
    """KeyMismatch that lists every name and shape that does not fit, RefusedInput for a changed buffer."""
    wrong = [f"{n} is missing" for n in base if n not in expert]
    wrong += [f"{n} {tuple(t.shape)} is not in the base" for n, t in expert.items() if n not in base]
    wrong += [
        f"{n} has shape {tuple(expert[n].shape)}, the base {tuple(t.shape)}"
        for n, t in base.items()
        if n in expert and expert[n].shape != t.shape
    ]
    wrong += [
        f"{n} is {dtype_name(expert[n])}, the base {dtype_name(t)}"
        for n, t in base.items()
        if n in expert and mergeable(t) != mergeable(expert[n])
    ]
    if wrong:
        raise KeyMismatch(f"{owner} does not fit the base: {'; '.join(wrong)}; leave task heads out of both")
    changed = [n for n, t in base.items() if not mergeable(t) and not same_bytes(t, expert[n])]
    if changed:
        raise RefusedInput(
            f"{owner}: {', '.join(changed)} cannot be merged (no float type) and differ from the base's; "
            "expected equal values, leave them out of both"
        )


def rounded(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A new tensor, rounded once to `dtype`."""
    return round_once(tensor.double().flatten(), dtype).view(tensor.shape)


def wide(tensor: Tensor) -> Tensor:
    """fp32, fp64 where the tensor is fp64: what a model method computes in."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
