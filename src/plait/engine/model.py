"""Merges by methods that see all weights at once. Whole models are in memory here, and networks run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plait.checkpoint.format import FileWriter, fsync_folder, read_header
from plait.engine.desk import Desk, overflowed, torch_dtype
from plait.engine.drive import Driver
from plait.engine.journal import Sums
from plait.engine.move import CopyPass
from plait.engine.plan import Settings, by_piece, whole
from plait.engine.progress import Gauge
from plait.engine.source import Incoming, Source
from plait.engine.steps import STATE, Steps
from plait.errors import VerificationError
from plait.methods.base import Known, MemberFacts, ModelMethod
from plait.tensors import Tensor, torch
from plait.tensors.exact import round_once
from plait.types import TensorRef


@dataclass(frozen=True)
class Modelled:
    """known: by task, what each step found. counts: tensors "merged" and "copied". overflowed: elements of
    the output that are NaN or infinite, by tensor, where there are any: steps ran away, or the values are too
    large for the output's dtype. sums: of the new state's file, which tell it again. resumed: steps that an
    interrupted run had made."""

    known: dict[str, Known]
    counts: dict[str, int]
    seconds: float
    overflowed: dict[str, int] = field(default_factory=dict)
    sums: Sums = field(default_factory=dict)
    bytes_read: int = 0
    bytes_written: int = 0
    resumed: int = 0


def run_model(
    method: ModelMethod,
    base: Mapping[str, TensorRef],
    members: Sequence[Incoming],
    problem: Any,
    out: Mapping[str, TensorRef],
    *,
    enter: Sequence[Incoming],
    state: Path | None,
    new_state: Path | None,
    settings: Settings,
    progress: Gauge | None = None,
    device: str = "cpu",
    steps: Steps | None = None,
) -> Modelled:
    """Let `enter` step into the state, one after the other, and write the state as the merged model.

    The arguments are those of `fold`; weights are fp32, fp64 where the base is fp64, and lie on `device`. Runs in
    the caller's thread, with its torch threads: bytes are the same for the same thread count, device and library
    versions. steps: what lets the same call go on after the last whole step of an interrupted one.
    Errors: NonFinite for an input; VerificationError for a state of another base.
    """
    start = time.monotonic()
    desk = Desk()
    driver = Driver(settings, progress)
    try:
        names = sorted(name for name, ref in base.items() if ref.mergeable and ref.numel)
        source = Source(base, settings.allow_nonfinite)
        weights = {name: _whole_base(desk, base[name], name).to(device) for name in names}
        found: dict[str, Known] = dict(steps.known) if steps is not None else {}
        before = state if steps is None or steps.folder is None else steps.folder
        now = method.start(weights) if before is None else _load(before, desk, weights)
        facts = {m.task: MemberFacts(m.weight, found.get(m.task, m.known or {})) for m in members}
        order = [m.task for m in members]
        resumed = len(found)
        for member in enter[resumed:]:
            expert = {name: _whole_expert(desk, source, member, name, weights[name]) for name in names}
            so_far = [facts[task] for task in order[: order.index(member.task) + 1]]
            now, found[member.task] = method.step(now, weights, expert, so_far, problem)
            facts[member.task] = MemberFacts(member.weight, found[member.task])
            if steps is not None and member is not enter[-1]:
                folder = steps.place(len(found))
                _save(folder, desk, now)
                steps.keep(folder, found)
        sums: Sums = {}
        if new_state is not None:
            size = _save(new_state, desk, now)
            sums = {STATE: [[0, size, desk.checksum(str(new_state / STATE), 0, size)]]}
            if steps is not None:
                steps.keep(new_state, found)
        merged = {name for name in names if name in out}
        lost = {name: _write(desk, out[name], now[name]) for name in sorted(merged)}
        rest = sorted(set(out) - merged)
        copies = CopyPass(tuple((base[n], out[n]) for n in rest))
        plan = copies.plan()
        for piece, count in by_piece(plan, driver.write("copy", plan, copies, copies.total)):
            name = rest[int(piece.name)]
            lost[name] = lost.get(name, 0) + count
    finally:
        desk.close()
    return Modelled(
        found,
        {"merged": len(merged), "copied": len(out) - len(merged)},
        time.monotonic() - start,
        {n: count for n, count in lost.items() if count},
        sums,
        desk.read_bytes + driver.traffic.read,
        desk.written_bytes + driver.traffic.written,
        resumed,
    )


def _write(desk: Desk, place: TensorRef, values: Tensor) -> int:
    """Write a tensor, rounded once; the number of elements that are not finite then."""
    rounded = round_once(values.detach().cpu().double().flatten(), torch_dtype(place.dtype))
    desk.write(place, 0, rounded)
    return overflowed(rounded, place.dtype)


def _wide(dtype: str) -> torch.dtype:
    return torch.float64 if dtype == "F64" else torch.float32


def _whole_base(desk: Desk, ref: TensorRef, name: str) -> Tensor:
    values = Source({name: ref}, False).load(desk, whole(ref, name)).values
    return values.to(_wide(ref.dtype), copy=True).view(ref.shape)


def _whole_expert(desk: Desk, source: Source, member: Incoming, name: str, base: Tensor) -> Tensor:
    if name not in member.refs:
        return base
    piece = source.load(desk, whole(source.base[name], name))
    values = source.part(desk, piece, member).expert
    return values.to(base.device, base.dtype, copy=True).view(base.shape)


def _load(folder: Path, desk: Desk, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state: the merged tensors, and what the method keeps beside them."""
    held = read_header(folder / STATE).tensors
    for name, weight in weights.items():
        if name not in held or held[name].shape != tuple(weight.shape):
            raise VerificationError(
                f"{folder / STATE}: tensor {name} is missing or of another shape; the state belongs to another "
                "base, rebuild it from the members"
            )
    device = next(iter(weights.values())).device if weights else torch.device("cpu")
    return {
        name: desk.read(ref, 0, ref.numel, "state").to(device, copy=True).view(ref.shape)
        for name, ref in held.items()
    }


def _save(folder: Path, desk: Desk, weights: Mapping[str, Tensor]) -> int:
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
