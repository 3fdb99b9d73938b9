"""Merges by methods that see all weights at once. Whole models are in memory here, and networks run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plait.engine.desk import Desk
from plait.engine.drive import Driver
from plait.engine.journal import Sums
from plait.engine.move import CopyPass
from plait.engine.plan import Settings, by_piece
from plait.engine.progress import Gauge
from plait.engine.source import Incoming, Source
from plait.engine.steps import STATE, Steps
from plait.engine.watching import Points, Watching, takes_watch
from plait.engine.weights import load_state, save, whole_base, whole_expert, write
from plait.methods.base import Known, MemberFacts, ModelMethod
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
    points: Points | None = None,
) -> Modelled:
    """Let `enter` step into the state, one after the other, and write the state as the merged model.

    The arguments are those of `fold`; weights are fp32, fp64 where the base is fp64, and lie on `device`. Runs in
    the caller's thread, with its torch threads: bytes are the same for the same thread count, device and library
    versions. steps: what lets the same call go on where an interrupted one was: after its last whole step, and inside
    a step of a method that can be watched. points: models that such a method writes on its way.
    Errors: NonFinite for an input; VerificationError for a state of another base.
    """
    start = time.monotonic()
    desk = Desk()
    driver = Driver(settings, progress)
    try:
        names = sorted(name for name, ref in base.items() if ref.mergeable and ref.numel)
        source = Source(base, settings.allow_nonfinite)
        weights = {name: whole_base(desk, base[name], name).to(device) for name in names}
        found: dict[str, Known] = dict(steps.known) if steps is not None else {}
        before = state if steps is None or steps.folder is None else steps.folder
        now = method.start(weights) if before is None else load_state(before, desk, weights)
        facts = {m.task: MemberFacts(m.weight, found.get(m.task, m.known or {})) for m in members}
        order = [m.task for m in members]
        resumed = len(found)
        for member in enter[resumed:]:
            expert = {name: whole_expert(desk, source, member, name, weights[name]) for name in names}
            so_far = [facts[task] for task in order[: order.index(member.task) + 1]]
            inside = None if steps is None else steps.inside(member.task, len(found))
            watch = _watch(method.step, member.task, desk, inside, points, driver)
            try:
                now, found[member.task] = method.step(now, weights, expert, so_far, problem, **watch)
            finally:
                driver.progress.end()
            facts[member.task] = MemberFacts(member.weight, found[member.task])
            if steps is not None and member is not enter[-1]:
                folder = steps.place(len(found))
                save(folder, desk, now)
                steps.keep(folder, found)
        sums: Sums = {}
        if new_state is not None:
            if steps is None or steps.folder != new_state:
                save(new_state, desk, now)
            size = (new_state / STATE).stat().st_size
            sums = {STATE: [[0, size, desk.checksum(str(new_state / STATE), 0, size)]]}
            if steps is not None and steps.folder != new_state:
                steps.keep(new_state, found)
        merged = {name for name in names if name in out}
        if merged and order:
            inside = None if steps is None else steps.inside(f"finish {order[-1]}", len(found))
            watch = _watch(method.finish, order[-1], desk, inside, None, driver)
            try:
                now, more = method.finish(now, weights, [facts[task] for task in order], problem, **watch)
            finally:
                driver.progress.end()
            if more:
                found[order[-1]] = {**facts[order[-1]].known, **more}
        lost = {name: write(desk, out[name], now[name]) for name in sorted(merged)}
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


def _watch(
    call: Any, task: str, desk: Desk, inside: Any, points: Points | None, driver: Driver
) -> dict[str, Watching]:
    """The argument `watch` of a call that takes one."""
    return {"watch": Watching(task, desk, inside, points, driver.progress)} if takes_watch(call) else {}
