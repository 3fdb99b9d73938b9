"""Whole models in memory: read from files, written to files, and kept as a state."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from plait.checkpoint.format import FileWriter, fsync_folder, read_header
from plait.engine.desk import Desk, overflowed, torch_dtype
from plait.engine.plan import whole
from plait.engine.source import Incoming, Source
from plait.engine.steps import STATE
from plait.errors import VerificationError
from plait.tensors import Tensor, torch
from plait.tensors.exact import round_once
from plait.types import TensorRef


def write(desk: Desk, place: TensorRef, values: Tensor) -> int:
    """Write a tensor, rounded once; the number of elements that are not finite then."""
    rounded = round_once(values.detach().cpu().double().flatten(), torch_dtype(place.dtype))
    desk.write(place, 0, rounded)
    return overflowed(rounded, place.dtype)


def _wide(dtype: str) -> torch.dtype:
    return torch.float64 if dtype == "F64" else torch.float32


def whole_base(desk: Desk, ref: TensorRef, name: str) -> Tensor:
    """A tensor of the base, fp32, or fp64 where it is fp64."""
    values = Source({name: ref}, False).load(desk, whole(ref, name)).values
    return values.to(_wide(ref.dtype), copy=True).view(ref.shape)


def whole_expert(desk: Desk, source: Source, member: Incoming, name: str, base: Tensor) -> Tensor:
    """The same tensor of a member: the base's own where the member leaves it alone."""
    if name not in member.refs:
        return base
    piece = source.load(desk, whole(source.base[name], name))
    values = source.part(desk, piece, member).expert
    return values.to(base.device, base.dtype, copy=True).view(base.shape)


def load_state(folder: Path, desk: Desk, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state: the merged tensors, and what the method keeps beside them. weights: the base's."""
    held = read_header(folder / STATE).tensors
    for name, weight in weights.items():
        if name not in held or held[name].shape != tuple(weight.shape):
            raise VerificationError(
                f"{folder / STATE}: tensor {name} is missing or of another shape; the state belongs to another "
                "base, rebuild it from the members"
            )
    device = next(iter(weights.values())).device if weights else torch.device("cpu")
    return {name: tensor.to(device) for name, tensor in load(folder, desk).items()}


def load(folder: Path, desk: Desk) -> dict[str, Tensor]:
    """What `save` has written, on the CPU."""
    held = read_header(folder / STATE).tensors
    return {
        name: desk.read(ref, 0, ref.numel, "state").to("cpu", copy=True).view(ref.shape)
        for name, ref in held.items()
    }


def save(folder: Path, desk: Desk, weights: Mapping[str, Tensor]) -> int:
    """Write a state; returns the bytes of its file."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = [
        (n, "F64" if w.dtype == torch.float64 else "F32", tuple(w.shape)) for n, w in sorted(weights.items())
    ]
    with FileWriter(folder / STATE, entries, {"format": "plait model state 1"}) as writer:
        for name, weight in weights.items():
            desk.write(writer.places[name], 0, weight.detach().cpu().flatten())
    fsync_folder(folder)
    return writer.size
