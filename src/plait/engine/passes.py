"""What one job of each pass does, and the generators of a method driven by passes."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plait.engine.desk import Desk, overflowed, torch_dtype
from plait.engine.plan import Job
from plait.engine.source import Incoming, Loaded, Source
from plait.engine.state import Record, StateReader, StateWriter, blank
from plait.methods.base import (
    LONG,
    Answers,
    Known,
    MemberFacts,
    Outlook,
    Quick,
    State,
    Survey,
    Tally,
    TensorMethod,
    Where,
)
from plait.tensors import BLOCK, Tensor
from plait.tensors.bins import owned
from plait.tensors.exact import Exact, ExactSum, round_once, settle
from plait.types import TensorRef


@dataclass(frozen=True)
class SurveyPass:
    """One survey of each of several members, in one read of the base. Answers: a list for each piece, of
    [number of the member, first index, answer]."""

    method: TensorMethod
    source: Source
    members: tuple[Incoming, ...]
    surveys: Mapping[int, Survey]  # by the number of the member
    compiled: bool = False

    def __call__(self, job: Job, desk: Desk) -> list[list[tuple[int, int, Any]]]:
        return [self._piece(piece, desk) for piece in job.pieces]

    def _piece(self, piece: Where, desk: Desk) -> list[tuple[int, int, Any]]:
        asked: dict[tuple[int, int], list[int]] = {}
        element = self.method.grain(piece.shape, piece.name) == "element"
        for number, survey in self.surveys.items():
            if piece.name not in self.members[number].refs or not wanted(survey, piece.name):
                continue
            stride = survey.stride if element else 1
            for first, count in sampled(piece, stride):
                asked.setdefault((first, count), []).append(number)
        answers: list[tuple[int, int, Any]] = []
        for (first, count), numbers in asked.items():
            where = Where(piece.name, piece.shape, piece.dtype, first, count)
            base = self.source.load(desk, where)
            for number in numbers:
                answers.append((number, first, self._answer(base, number, desk)))
        return answers

    def _answer(self, base: Loaded, number: int, desk: Desk) -> Any:
        member, ask = self.members[number], self.surveys[number].ask
        glances = type(self.method).glance is not TensorMethod.glance
        if self.compiled and glances and base.hole is None:
            where = base.where
            expert = desk.read(member.refs[where.name], where.first, where.count, "expert")
            answer = self.method.glance(base.values, expert, where, ask)
            if answer is not LONG:
                return answer
        return self.method.measure(self.source.part(desk, base, member), ask)


def wanted(survey: Survey, name: str) -> bool:
    """Whether a survey asks for a tensor."""
    return survey.only is None or name in survey.only


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
        return [(where.first, self._answer(where, desk)) for where in _seen(self.method, self.survey, piece)]

    def _answer(self, where: Where, desk: Desk) -> Any:
        return self.method.examine(where, self.state.load(desk, where), self.survey.ask)


def _seen(method: TensorMethod, survey: Survey, piece: Where) -> Iterator[Where]:
    """The runs of a piece that a survey sees."""
    element = method.grain(piece.shape, piece.name) == "element"
    for first, count in sampled(piece, survey.stride if element else 1):
        yield Where(piece.name, piece.shape, piece.dtype, first, count)


@dataclass(frozen=True)
class TallyPass:
    """One survey of the state that members would lead to, by the method's shorter way. Answers as those of
    `ExaminePass`, with LONG among them where it does not hold."""

    method: TensorMethod
    source: Source
    enter: tuple[Incoming, ...]
    survey: Survey

    def __call__(self, job: Job, desk: Desk) -> list[list[tuple[int, Any]]]:
        return [self._piece(piece, desk) for piece in job.pieces]

    def _piece(self, piece: Where, desk: Desk) -> list[tuple[int, Any]]:
        return [(where.first, self._answer(where, desk)) for where in _seen(self.method, self.survey, piece)]

    def _answer(self, where: Where, desk: Desk) -> Any:
        base = desk.read(self.source.base[where.name], where.first, where.count, "base")
        tally = self.method.tally(base, where)
        if tally is None or not _taken(tally, self.method, where, base, self.enter, desk):
            return LONG
        return tally.answer(self.survey.ask)


def _taken(
    way: Quick | Tally,
    method: TensorMethod,
    where: Where,
    base: Tensor,
    enter: Sequence[Incoming],
    desk: Desk,
) -> bool:
    """Whether a shorter way takes all members in; those that do not change the tensor as in `FoldPass`."""
    begun = False
    for member in enter:
        theirs = member.refs.get(where.name)
        if theirs is None and (not begun or method.facts.family == "additive"):
            continue
        begun = True
        expert = base if theirs is None else desk.read(theirs, where.first, where.count, "expert")
        if not way.take(expert, MemberFacts(member.weight, member.known or {})):
            return False
    return True


@dataclass(frozen=True)
class FoldPass:
    """Members into the state, the state into the output: all of a merge, or either half of it.

    enter, leave: members that step in, or are taken out. state: what was before; None or a tensor without
    state: the start. new_state: where the state is kept. outlook: None where no output is written. out:
    places of the output. A job returns for each piece what saving it told, None where no state is kept, and
    the number of elements that became infinite.
    """

    method: TensorMethod
    source: Source
    enter: tuple[Incoming, ...]
    leave: tuple[Incoming, ...]
    state: StateReader | None
    new_state: StateWriter | None
    out: Mapping[str, TensorRef]
    outlook: Outlook | None
    compiled: bool = False

    def __call__(self, job: Job, desk: Desk) -> list[tuple[Record | None, int]]:
        return [self._piece(piece, desk) for piece in job.pieces]

    def _piece(self, where: Where, desk: Desk) -> tuple[Record | None, int]:
        if self._short and desk.luck.worth_trying():
            values = self._quick(where, desk)
            desk.luck.note(values is not None)
            if values is not None:
                desk.write(self.out[where.name], where.first, values)
                return None, 0
        base = self.source.load(desk, where)
        begun = self.state is not None and where.name in self.state.names
        state = self.state.load(desk, where) if self.state and begun else blank(self.method, where)
        state = self._fold(desk, base, state, begun)
        with owned(where.name):
            record = self.new_state.save(desk, where, state) if self.new_state is not None else None
        place, lost = self.out.get(where.name), 0
        if self.outlook is not None and place is not None:
            with owned(where.name):
                runs = (
                    self.method.runs(base.values, state, where, self.outlook) if base.hole is None else None
                )
                if runs is not None:
                    return record, self._write(desk, place, where.first, runs)
                shift = self.method.merge(base.values, state, where, self.outlook)
                flat = shift if isinstance(shift, Exact) else shift.reshape(-1)
                values = settle(base.values, flat, torch_dtype(place.dtype))
            lost = overflowed(values, place.dtype, base.hole)
            desk.write(place, where.first, self.source.keep(desk, base, values))
        return record, lost

    @staticmethod
    def _write(desk: Desk, place: TensorRef, first: int, runs: Iterator[Tensor]) -> int:
        """Runs of merged fp64 values, rounded once, from element `first` on; returns how many became infinite."""
        lost = 0
        for run in runs:
            values = round_once(run, torch_dtype(place.dtype))
            lost += overflowed(values, place.dtype)
            desk.write(place, first, values)
            first += len(run)
        return lost

    @property
    def _short(self) -> bool:
        """Whether members only pass through, on their way to the output."""
        return self.compiled and self.outlook is not None and not (self.state or self.new_state or self.leave)

    def _quick(self, where: Where, desk: Desk) -> Tensor | None:
        """The merged piece by the method's shorter way, where it has one that holds."""
        place = self.out.get(where.name)
        if place is None or self.outlook is None:
            return None
        ref = self.source.base[where.name]
        base = desk.read(ref, where.first, where.count, "base")
        quick = self.method.quick(base, where, self.outlook)
        if quick is None or not _taken(quick, self.method, where, base, self.enter, desk):
            return None
        return quick.merged(torch_dtype(place.dtype))

    def _fold(self, desk: Desk, base: Loaded, state: State, begun: bool) -> State:
        """The state with members taken out and put in. A member that does not change the tensor adds nothing
        to a sum; for another method it takes a step with a task vector of 0, once the tensor has a state."""
        additive = self.method.facts.family == "additive"
        where = base.where
        name, sides = where.name, self.method.sides(where.shape, where.name, where.dtype)
        for member in self.leave:
            if member.has(name, sides):
                part = self.source.part(desk, base, member, sides)
                state = self.method.undo(state, part)  # type: ignore[attr-defined]
        last = len(self.enter) - 1
        for number, member in enumerate(self.enter):
            if not member.has(name, sides) and (additive or not begun):
                continue
            begun = True
            part = self.source.part(desk, base, member, sides)
            with owned(member.task, name):
                state = self.method.step(state, part)
            for slot, value in state.items():
                # the base's buffer holds this piece to its end, another one until the next member is read
                if number < last and not isinstance(value, ExactSum) and desk.owns(value, but="base"):
                    state[slot] = value.clone()
        return state


@dataclass(frozen=True)
class GivePass:
    """The only member's tensors into the output, unchanged: for a method that gives that member back. A job
    returns for each piece the number of elements that became infinite."""

    source: Source
    member: Incoming
    out: Mapping[str, TensorRef]

    def __call__(self, job: Job, desk: Desk) -> list[int]:
        return [self._piece(piece, desk) for piece in job.pieces]

    def _piece(self, where: Where, desk: Desk) -> int:
        base = self.source.load(desk, where)
        expert = self.source.part(desk, base, self.member).expert
        place = self.out[where.name]
        dtype = torch_dtype(place.dtype)
        values = expert if expert.dtype == dtype else round_once(expert.double(), dtype)
        lost = overflowed(values, place.dtype, base.hole)
        desk.write(place, where.first, self.source.keep(desk, base, values))
        return lost


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
                # Answers may be large: nobody holds them while the next pass runs.
                surveys[number] = running[number].send(answers.pop(number, None))  # type: ignore[arg-type]
            except StopIteration as stop:
                known[number] = json.loads(json.dumps(stop.value if stop.value is not None else {}))
                del running[number]
        answers = ask(dict(surveys)) if surveys else {}
    return known


def collect(
    places: Sequence[Where], jobs: Sequence[Job], found: Sequence[Sequence[Sequence[tuple[int, Any]]]]
) -> Answers:
    """Answers by tensor, in the order of `places`; each in order of position, as the jobs are."""
    answers: Answers = {place.name: [] for place in places}
    for job, of_pieces in zip(jobs, found, strict=True):
        for piece, entries in zip(job.pieces, of_pieces, strict=True):
            if entries:  # a member answers for its own tensors only
                answers[piece.name].extend(entries)
    return answers
