"""What one job of each pass does, and the generators of a method driven by passes."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from plait.engine.desk import Desk, is_finite, refuse_nonfinite, torch_dtype
from plait.engine.plan import Job
from plait.engine.state import Record, StateReader, StateWriter, blank
from plait.methods.base import Answers, Known, Outlook, Part, State, Survey, TensorMethod, Where
from plait.tensors import BLOCK, Tensor, torch
from plait.tensors.exact import Exact, ExactSum, round_once, settle
from plait.types import TensorRef


@dataclass(frozen=True)
class Incoming:
    """A member as the engine sees it.

    refs: the mergeable tensors in which it differs from the base; others are taken to be the base's. known:
    what the method's `prepare` found, None where it must still be found. seed: root of its random numbers.
    """

    task: str
    weight: float = 1.0
    refs: Mapping[str, TensorRef] = field(default_factory=dict)
    known: Known | None = None
    seed: bytes = b""


@dataclass(frozen=True)
class Source:
    """Reads pieces of the base and of members, checked to be finite."""

    base: Mapping[str, TensorRef]
    allow_nonfinite: bool

    def base_piece(self, desk: Desk, where: Where) -> tuple[Tensor, Tensor | None]:
        """A piece of the base, and where it is NaN or infinite (a bool mask, None if nowhere). There the
        piece is 0, and so are the experts': the merged tensor keeps the base's value."""
        ref = self.base[where.name]
        values = desk.read(ref, where.first, where.count, "base")
        if is_finite(values, ref.dtype):
            return values, None
        if not self.allow_nonfinite:
            refuse_nonfinite(values, ref, where.first, "base")
        hole = torch.isfinite(values).logical_not()
        values.masked_fill_(hole, 0.0)
        return values, hole

    def original(self, desk: Desk, where: Where, dtype: torch.dtype) -> Tensor:
        """A piece of the base as it is in the file, NaN and infinity included. Overwrites what `base_piece`
        gave."""
        return desk.read(self.base[where.name], where.first, where.count, "base").to(dtype)

    def expert_piece(
        self, desk: Desk, where: Where, member: Incoming, base: Tensor, hole: Tensor | None
    ) -> Tensor:
        """A piece of a tensor that the member changes; NaN and infinity, where allowed, are the base's
        values."""
        ref = member.refs[where.name]
        values = desk.read(ref, where.first, where.count, "expert")
        if is_finite(values, ref.dtype):
            missing = hole
        elif not self.allow_nonfinite:
            refuse_nonfinite(values, ref, where.first, member.task)
        else:
            missing = torch.isfinite(values).logical_not()
            missing = missing if hole is None else missing | hole
        if missing is None:
            return values
        return torch.where(missing, base.double(), values.double())


@dataclass(frozen=True)
class SurveyPass:
    """One survey of each of several members, in one read of the base. Answers: a list for each piece, of
    [number of the member, first index, answer]."""

    method: TensorMethod
    source: Source
    members: tuple[Incoming, ...]
    surveys: Mapping[int, Survey]  # by the number of the member

    def __call__(self, job: Job, desk: Desk) -> list[list[tuple[int, int, Any]]]:
        return [self._piece(piece, desk) for piece in job.pieces]

    def _piece(self, piece: Where, desk: Desk) -> list[tuple[int, int, Any]]:
        asked: dict[tuple[int, int], list[int]] = {}
        element = self.method.grain(piece.shape, piece.name) == "element"
        for number, survey in self.surveys.items():
            if piece.name not in self.members[number].refs:
                continue
            stride = survey.stride if element else 1
            for first, count in sampled(piece, stride):
                asked.setdefault((first, count), []).append(number)
        answers: list[tuple[int, int, Any]] = []
        for (first, count), numbers in asked.items():
            where = Where(piece.name, piece.shape, piece.dtype, first, count)
            base, hole = self.source.base_piece(desk, where)
            for number in numbers:
                member = self.members[number]
                expert = self.source.expert_piece(desk, where, member, base, hole)
                part = Part(where, base, expert, member.weight, seed=member.seed)
                answers.append((number, first, self.method.measure(part, self.surveys[number].ask)))
        return answers


def sampled(piece: Where, stride: int) -> list[tuple[int, int]]:
    """(first, count) of the runs of a piece that a survey of that stride sees: the piece itself for stride 1,
    else the blocks of BLOCK elements whose number in the tensor is a multiple of the stride."""
    if stride <= 1:
        return [(piece.first, piece.count)]
    step, end = stride * BLOCK, piece.first + piece.count
    start = -(-piece.first // step) * step
    return [(first, min(BLOCK, end - first)) for first in range(start, end, step)]


@dataclass(frozen=True)
class ExaminePass:
    """One survey of a state. Answers: a list for each piece, of (first index, answer)."""

    method: TensorMethod
    state: StateReader
    survey: Survey

    def __call__(self, job: Job, desk: Desk) -> list[list[tuple[int, Any]]]:
        return [self._piece(piece, desk) for piece in job.pieces]

    def _piece(self, piece: Where, desk: Desk) -> list[tuple[int, Any]]:
        element = self.method.grain(piece.shape, piece.name) == "element"
        answers = []
        for first, count in sampled(piece, self.survey.stride if element else 1):
            where = Where(piece.name, piece.shape, piece.dtype, first, count)
            answers.append((first, self.method.examine(where, self.state.load(desk, where), self.survey.ask)))
        return answers


@dataclass(frozen=True)
class FoldPass:
    """Members into the state, the state into the output: all of a merge, or either half of it.

    enter, leave: members that step in, or are taken out. state: what was before; None or a tensor without
    state: the start. new_state: where the state is kept. outlook: None where no output is written. out:
    places of the output. A job returns what saving each piece told; None where no state is kept.
    """

    method: TensorMethod
    source: Source
    enter: tuple[Incoming, ...]
    leave: tuple[Incoming, ...]
    state: StateReader | None
    new_state: StateWriter | None
    out: Mapping[str, TensorRef]
    outlook: Outlook | None

    def __call__(self, job: Job, desk: Desk) -> list[Record | None]:
        return [self._piece(piece, desk) for piece in job.pieces]

    def _piece(self, where: Where, desk: Desk) -> Record | None:
        base, hole = self.source.base_piece(desk, where)
        begun = self.state is not None and where.name in self.state.names
        state = self.state.load(desk, where) if self.state and begun else blank(self.method, where)
        state = self._fold(where, desk, base, hole, state, begun)
        record = self.new_state.save(desk, where, state) if self.new_state is not None else None
        place = self.out.get(where.name)
        if self.outlook is not None and place is not None:
            shift = self.method.merge(base, state, where, self.outlook)
            flat = shift if isinstance(shift, Exact) else shift.reshape(-1)
            values = settle(base, flat, torch_dtype(place.dtype))
            if hole is not None:
                values = torch.where(hole, self.source.original(desk, where, values.dtype), values)
            desk.write(place, where.first, values)
        return record

    def _fold(
        self, where: Where, desk: Desk, base: Tensor, hole: Tensor | None, state: State, begun: bool
    ) -> State:
        """The state with members taken out and put in. A member that does not change the tensor adds nothing
        to a sum; for another method it takes a step with a task vector of 0, once the tensor has a state."""
        additive = self.method.facts.family == "additive"
        for member in self.leave:
            if where.name in member.refs:
                expert = self.source.expert_piece(desk, where, member, base, hole)
                state = self.method.undo(state, self._part(where, base, expert, member))  # type: ignore[attr-defined]
        for member in self.enter:
            if where.name in member.refs:
                expert = self.source.expert_piece(desk, where, member, base, hole)
            elif additive or not begun:
                continue
            else:
                expert = base
            begun = True
            state = self.method.step(state, self._part(where, base, expert, member))
            for name, value in state.items():
                if not isinstance(value, ExactSum) and desk.owns(value):
                    state[name] = value.clone()
        return state

    @staticmethod
    def _part(where: Where, base: Tensor, expert: Tensor, member: Incoming) -> Part:
        return Part(where, base, expert, member.weight, member.known or {}, member.seed)


@dataclass(frozen=True)
class GivePass:
    """The only member's tensors into the output, unchanged: for a method that gives that member back."""

    source: Source
    member: Incoming
    out: Mapping[str, TensorRef]

    def __call__(self, job: Job, desk: Desk) -> None:
        for where in job.pieces:
            base, hole = self.source.base_piece(desk, where)
            expert = self.source.expert_piece(desk, where, self.member, base, hole)
            place = self.out[where.name]
            dtype = torch_dtype(place.dtype)
            values = expert if expert.dtype == dtype else round_once(expert.double(), dtype)
            if hole is not None:
                values = torch.where(hole, self.source.original(desk, where, dtype), values)
            desk.write(place, where.first, values)


def in_lockstep(
    generators: Mapping[int, Generator[Survey, Answers, Known]],
    ask: Callable[[dict[int, Survey]], dict[int, Answers]],
) -> dict[int, Known]:
    """Run generators side by side: `ask` answers one survey of each that still runs, in one pass. Returns
    their last words, as they come back from JSON, so that a recorded value and a fresh one are the same."""
    known: dict[int, Known] = {}
    surveys: dict[int, Survey] = {}
    answers: dict[int, Answers] = {}
    running = dict(generators)
    while running:
        surveys.clear()
        for number in list(running):
            try:
                surveys[number] = running[number].send(answers.get(number))  # type: ignore[arg-type]
            except StopIteration as stop:
                known[number] = json.loads(json.dumps(stop.value if stop.value is not None else {}))
                del running[number]
        answers = ask(dict(surveys)) if surveys else {}
    return known


def collect(
    places: Sequence[Where], jobs: Sequence[Job], found: Sequence[Sequence[Sequence[tuple[int, Any]]]]
) -> Answers:
    """Answers by tensor, in the order of `places`, each in order of position."""
    answers: Answers = {place.name: [] for place in places}
    for job, of_pieces in zip(jobs, found, strict=True):
        for piece, entries in zip(job.pieces, of_pieces, strict=True):
            answers[piece.name].extend(entries)
    for entries in answers.values():
        entries.sort(key=lambda entry: entry[0])
    return answers
