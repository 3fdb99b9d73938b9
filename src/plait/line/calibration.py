"""Merges by methods that see whole models and losses: from a line's members to the engine, and what ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.line.build import Operand, Setting, engine_settings, incoming, mergeable, software
from plait.line.data import need_of
from plait.line.member import Member
from plait.line.points import Points
from plait.line.problem import Absent, problem_of
from plait.methods.base import ModelMethod
from plait.types import TensorRef

if TYPE_CHECKING:
    from plait.engine import Modelled
    from plait.problem.problem import Problem


def step(
    setting: Setting,
    members: Sequence[Member],
    enter: Sequence[Operand],
    state: Path | None,
    new_state: Path,
    out: Mapping[str, TensorRef],
    work: Path,
    state_identity: str,
) -> tuple[Modelled, dict[str, Any]]:
    """Let `enter` step into the state; see `engine.run_model`. Returns also what ran, for the ledger.

    An interrupted run of the same goes on where it was, which it finds in `work`.
    """
    from plait import engine

    method = setting.method
    if not isinstance(method, ModelMethod):
        raise TypeError(f"{method.name} sees tensors one by one; it takes no steps over whole models")
    need = need_of(method)
    with setting.compute.running():
        problem = None
        if need is not None:
            only = None if need.every else [o.member.task for o in enter]
            files = {o.member.task: o.data for o in enter if o.data is not None}
            problem = problem_of(setting, members, need.splits[0], only=only, files=files)
        ran = setting.compute.record(
            [] if problem is None else [o.network for o in problem.values() if not isinstance(o, Absent)]
        )
        asked: list[Any] = [software(), ran, asdict(setting.compute), method.name, method.options()]
        asked += [[m.task, *m.identity] for m in members]
        asked += [[o.member.task for o in enter], setting.base_digest, state_identity, _sets(problem)]
        asked += [] if setting.points is None else [setting.points.plain()]
        done = engine.run_model(
            method,
            mergeable(setting.base, setting.private),
            [incoming(setting, Operand(m, {})) for m in members],
            problem,
            out,
            enter=[incoming(setting, o) for o in enter],
            state=state,
            new_state=new_state,
            settings=engine_settings(setting.workers, setting.chunk, True),
            progress=engine.Progress() if out and not setting.quiet else None,
            device=setting.compute.device,
            steps=engine.Steps(work / f"steps-{len(members)}", asked),
            points=None if setting.points is None else Points(setting, setting.points),
        )
    return _counted(done, problem), ran


def _sets(problem: Problem | None) -> Any:
    return None if problem is None else problem.record()["tasks"]


def _counted(done: Modelled, problem: Problem | None) -> Modelled:
    """With the work that was done, but for the seconds, among the counts."""
    if problem is None:
        return done
    work = {name: count for name, count in problem.record()["work"].items() if name != "seconds"}
    return replace(done, counts={**done.counts, **work})
