"""Merging in memory: the smallest engine, for notebooks, tests and authors of methods.

It does what the streaming engine does, on mappings of tensors: the same passes and rounding, so the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from plait.errors import NotRemovable, UsageError
from plait.methods.base import (
    AdditiveMethod,
    Answers,
    Known,
    MemberFacts,
    Method,
    ModelMethod,
    Outlook,
    Part,
    Slot,
    State,
    Survey,
    TensorMethod,
    Weight,
    Where,
)
from plait.methods.choosing import Choice, Renew, fit_of_method
from plait.methods.coefficients import CoefficientMethod, Products, told
from plait.methods.finite import filled, require_finite, zeroed
from plait.methods.pieces import (
    check_names,
    content,
    cut,
    dtype_name,
    mergeable,
    piece,
    rounded,
    same_bytes,
    sampled,
    whole,
    wide,
)
from plait.methods.sides import check_sides
from plait.methods.varied import member_weight, weight_at, weighted
from plait.methods.weighing import Run, products
from plait.tensors import BLOCK, Tensor, torch
from plait.tensors.bins import owned
from plait.tensors.exact import ExactSum, settle
from plait.types import DTYPES

CHUNK = 4 * BLOCK
"""Elements of a chunk by default: the intermediates of one chunk stay near the processor."""


def apply(
    method: Method,
    base: Mapping[str, Tensor],
    experts: Sequence[Mapping[str, Tensor]],
    weights: Sequence[Weight] | None = None,
    *,
    problem: Any = None,
    renew: Renew | None = None,
    seeds: Sequence[bytes] | None = None,
    sides: Sequence[Mapping[str, Tensor]] | None = None,
    chunk: int = CHUNK,
    allow_nonfinite: bool = False,
    told: dict[str, Any] | None = None,
) -> dict[str, Tensor]:
    """Merge `experts` into `base` with `method`. The inputs are not written to.

    base, experts: tensor name -> tensor on the CPU; an expert has the base's names and shapes. Float tensors
    are merged; others (integers, truth values, fp8) must equal the base's and are copied.
    weights: one number for each expert, from LEAST_WEIGHT to MOST_WEIGHT, 1 where left out, or its rules (see
    `methods.rules`). problem: what a
    `ModelMethod`, or a method with a `fit`, asks for losses. renew: (model, problem) -> the problem with
    made-up examples, where a fit's `replay` asks for them. seeds: the root of each expert's random numbers; by
    default a hash of its content. sides: one mapping for each expert, "side/tensor" -> tensor in fp32 or fp64, of
    what the method's `sides` asks for. chunk: elements, a multiple of BLOCK. allow_nonfinite: where an expert is NaN
    or infinite it takes the base's value; where the base is, the merged tensor keeps what the base has (a
    `ModelMethod` refuses such a base). told: gets what a fit has chosen, under "fit", and what the steps of a
    `ModelMethod` found, under "known". Returns new tensors in the base's dtypes and order.
    Errors: KeyMismatch, NonFinite, RefusedInput, UsageError.
    """
    given = [1.0] * len(experts) if weights is None else list(weights)
    if len(given) != len(experts):
        raise UsageError(f"{len(given)} weights for {len(experts)} experts; give one for each")
    if seeds is not None and len(seeds) != len(experts):
        raise UsageError(f"{len(seeds)} seeds for {len(experts)} experts; give one for each")
    if sides is not None and len(sides) != len(experts):
        raise UsageError(f"{len(sides)} mappings of sides for {len(experts)} experts; give one for each")
    method = method.over(base)
    given = [member_weight(w, method, base) for w in given]
    method.check()
    if isinstance(method, ModelMethod):
        return _apply_model(
            method, base, experts, given, problem, allow_nonfinite, {} if told is None else told
        )
    if not isinstance(method, TensorMethod):
        raise UsageError(f"{method.name} is neither a TensorMethod nor a ModelMethod")

    def fill(method: TensorMethod, widened: bool = False) -> Table:
        def held(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
            return {n: wide(t) if mergeable(t) else t for n, t in tensors.items()} if widened else tensors

        table = Table(method, held(base), chunk=chunk, allow_nonfinite=allow_nonfinite)
        for i, (expert, weight) in enumerate(zip(experts, given, strict=True)):
            side = None if sides is None else sides[i]
            drawn = content(_at_hand(expert)) if method.draws() else None
            table.enter(held(expert), weight, seed=drawn if seeds is None else seeds[i], side=side)
        return table

    if experts and fit_of_method(method) is not None:
        from plait.methods.memory_fit import fitted

        merged, choice = fitted(method, fill, problem, renew)
        if told is not None:
            told["fit"] = {"alpha": choice.alpha, **choice.record}
        return merged
    return fill(method).merged()


@dataclass
class Entry:
    """A member on the table. `name`: what refusals call it. `changed`: the names of the mergeable tensors in which
    it differs from the base. `side`: by "side/tensor"."""

    name: str
    expert: Mapping[str, Tensor]
    weight: Weight
    seed: bytes
    changed: frozenset[str]
    known: Known
    side: Mapping[str, Tensor]

    @property
    def facts(self) -> MemberFacts:
        return MemberFacts(self.weight, self.known)


class Table:
    """A line in memory: members come in and go out, and `merged` is the model at any time."""

    def __init__(
        self,
        method: TensorMethod,
        base: Mapping[str, Tensor],
        *,
        chunk: int = CHUNK,
        allow_nonfinite: bool = False,
    ) -> None:
        if chunk < 1 or chunk % BLOCK:
            raise UsageError(f"chunk is {chunk}, expected a multiple of {BLOCK} elements")
        self.method = method.over(base)
        self.base = _at_hand(base)
        self.chunk = chunk
        self.allow_nonfinite = allow_nonfinite
        self.members: list[Entry] = []
        self.places = {n: whole(n, t) for n, t in self.base.items() if mergeable(t) and t.numel()}
        self._states: dict[str, list[tuple[Where, State]]] = {}
        self.choice: Choice | None = None  # what a fit has chosen for the members
        self._given = self.base
        self._holes: dict[str, Tensor] = {}
        if allow_nonfinite:
            self.base, self._holes = zeroed(self.base, self.places)
        else:
            require_finite("base", self.base, self.places)

    def enter(
        self,
        expert: Mapping[str, Tensor],
        weight: Weight = 1.0,
        *,
        seed: bytes | None = None,
        side: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Take a member in, at the end of the list."""
        self.method.check_count(len(self.members) + 1)
        weight = member_weight(weight, self.method, self.base)
        self.method = weighted(self.method, [weight])
        held = _at_hand(expert)
        name = f"expert {len(self.members)}"
        check_names(self._given, held, name)
        if not self.allow_nonfinite:
            require_finite(name, held, self.places)
        brought = _at_hand(side or {})
        dressed = {key: (dtype_name(tensor), tensor.shape) for key, tensor in brought.items()}
        check_sides(self.method, name, self.places.values(), dressed)
        require_finite(name, brought, brought)
        if seed is None:
            seed = content(held) if self.method.draws() else b""
        changed = frozenset(n for n in self.places if not same_bytes(self._given[n], held[n]))
        if self.allow_nonfinite:
            held = filled(held, self.base, self.places, self._holes)
        entry = Entry(name, held, weight, seed, changed, {}, brought)
        with one_thread():
            entry.known = self._prepare(entry)  # of all tensors, whatever the weight is
            entry.changed = frozenset(n for n in changed if weight_at(weight, n))
            self.members.append(entry)
            if not isinstance(self.method, CoefficientMethod):  # else only `merged` can know the coefficients
                self._fold(entry, self.method.step)

    def leave(self, index: int) -> None:
        """Take member `index` out: by subtraction where the method is additive, else by folding the others
        again."""
        if self.method.facts.removal == "never":
            raise NotRemovable(f"{self.method.name} keeps nothing of its members, so none can be taken out")
        entry = self.members.pop(index)
        with one_thread():
            if isinstance(self.method, AdditiveMethod):
                self._fold(entry, self.method.undo)
                return
            self._states = {}
            if not isinstance(self.method, CoefficientMethod):
                self._fold_all()

    def merged(self) -> dict[str, Tensor]:
        """The merged model, in new tensors."""
        if isinstance(self.method, CoefficientMethod):
            self._weigh(self.method)
        members = [m.facts for m in self.members]
        only = self.members[0] if len(members) == 1 and self.method.reduces(members) else None
        with one_thread():
            outlook = self.outlook()
            return {n: self._kept(n, self._output(n, t, outlook, only)) for n, t in self.base.items()}

    def outlook(self) -> Outlook:
        """What `merge` may know of the members."""
        members = tuple(m.facts for m in self.members)
        return Outlook(members, self._conclude(members))

    def states(self) -> dict[str, list[tuple[Where, State]]]:
        """Tensor name -> (place, state) of every chunk, for tensors that some member changed."""
        return self._states

    def products(self, method: CoefficientMethod) -> Products:
        """The inner products of the members' task vectors."""
        return products([f"expert {i}" for i in range(len(self.members))], self._runs(method))

    def _weigh(self, method: CoefficientMethod) -> None:
        """Give every member its coefficients, and fold all of them."""
        with one_thread():
            alpha = None if self.choice is None else self.choice.alpha
            facts = [MemberFacts(m.weight, {}) for m in self.members]
            made = method.combine(self.products(method), facts, alpha)
            for i, entry in enumerate(self.members):
                entry.known = told(made.coefficients, i)
            self._states = {}
            self._fold_all()

    def _runs(self, method: CoefficientMethod) -> Iterator[Run]:
        for name, place in self.places.items():
            changed = [(i, m) for i, m in enumerate(self.members) if name in m.changed]
            for where in cut(place, "element", BLOCK) if changed else ():
                start = piece(self.base[name], where).double()
                yield (
                    method.group(name),
                    {i: piece(m.expert[name], where).double() - start for i, m in changed},
                )

    def _fold_all(self) -> None:
        for entry in self.members:
            self._fold(entry, self.method.step)

    def _kept(self, name: str, merged: Tensor) -> Tensor:
        """The merged tensor, with what the base has where it is not finite."""
        hole = self._holes.get(name)
        return merged if hole is None else torch.where(hole, self._given[name], merged)

    def _output(self, name: str, tensor: Tensor, outlook: Outlook, only: Entry | None) -> Tensor:
        if only is not None and name in only.changed:
            return rounded(only.expert[name], tensor.dtype)
        if name not in self._states or not outlook.members:
            return tensor.clone()
        out = torch.empty(tensor.numel(), dtype=tensor.dtype)
        for where, state in self._states[name]:
            chunk = piece(tensor, where)
            shift = self.method.merge(chunk, state, where, outlook)
            out[where.first : where.first + where.count] = settle(chunk, shift, tensor.dtype)
        return out.view(tensor.shape)

    def _cut(self, place: Where) -> Iterator[Where]:
        return cut(place, self.method.grain(place.shape, place.name), self.chunk)

    def _part(self, entry: Entry, where: Where, sides: Iterable[str] = ()) -> Part:
        base, expert = piece(self.base[where.name], where), piece(entry.expert[where.name], where)
        found = {side: entry.side[f"{side}/{where.name}"] for side in sides}
        side = {s: piece(t, where) if t.shape == where.shape else t for s, t in found.items()}
        return Part(where, base, expert, entry.weight, entry.known, entry.seed, side=side)

    def _sides(self, entry: Entry, place: Where) -> list[str]:
        """The names of the sides that a member has for a tensor."""
        asked = self.method.sides(place.shape, place.name, place.dtype)
        here = weight_at(entry.weight, place.name) != 0
        return [side for side in asked if here and f"{side}/{place.name}" in entry.side]

    def _fold(self, entry: Entry, act: Callable[[State, Part], State]) -> None:
        additive = isinstance(self.method, AdditiveMethod)
        for name in self.places:
            # A member that leaves a tensor as it is adds nothing to a sum, but a fold may count it as the later one.
            sides = self._sides(entry, self.places[name])
            if name not in entry.changed and not sides and (additive or name not in self._states):
                continue
            if name not in self._states:
                self._states[name] = [(w, self._blank(w)) for w in self._cut(self.places[name])]
            with owned(entry.name, name):
                self._states[name] = [
                    (w, act(state, self._part(entry, w, sides))) for w, state in self._states[name]
                ]

    def _blank(self, where: Where) -> State:
        slots = self.method.layout(where.shape, where.dtype, where.name)
        return {name: _zeros(slot, where) for name, slot in slots.items()}

    def _prepare(self, entry: Entry) -> Known:
        if not self.method.prepares():
            return {}
        places = {n: p for n, p in self.places.items() if n in entry.changed}

        def ask(survey: Survey) -> Answers:
            return {
                name: [
                    (w.first, self.method.measure(self._part(entry, w), survey.ask))
                    for w in sampled(
                        self._cut(place), place, self.method.grain(place.shape, name), survey.stride
                    )
                ]
                for name, place in places.items()
                if survey.only is None or name in survey.only
            }

        return drive(self.method.prepare(places, sum(p.count for p in self.places.values())), ask)

    def _conclude(self, members: Sequence[MemberFacts]) -> Known:
        if not self.method.concludes() or not members:
            return {}
        places = {n: self.places[n] for n in self.places if n in self._states}

        def ask(survey: Survey) -> Answers:
            return {
                name: [
                    (w.first, self.method.examine(w, state, survey.ask)) for w, state in self._states[name]
                ]
                for name in places
                if survey.only is None or name in survey.only
            }

        return drive(self.method.conclude(places, members), ask)


def drive(passes: Generator[Survey, Answers, Known], ask: Callable[[Survey], Answers]) -> Known:
    """Run the passes of a generator to its end; what it found is handed back as JSON would hand it back."""
    try:
        survey = next(passes)
        while True:
            survey = passes.send(ask(survey))
    except StopIteration as stop:
        found: Known = json.loads(json.dumps(stop.value))
        return found


def _zeros(slot: Slot, where: Where) -> Any:
    count = where.count if slot.length is None else slot.length
    if slot.kind in ("exact", "narrow"):
        return ExactSum(count, slot.digits or where.dtype, narrow=slot.kind == "narrow")
    kind = DTYPES[where.dtype].torch if slot.kind == "base" else slot.kind
    return torch.zeros(count, dtype=getattr(torch, kind))


@contextmanager
def one_thread() -> Iterator[None]:
    """Matrix products in one thread, so that their bytes do not depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _at_hand(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _apply_model(
    method: ModelMethod,
    base: Mapping[str, Tensor],
    experts: Sequence[Mapping[str, Tensor]],
    weights: Sequence[float],
    problem: Any,
    allow_nonfinite: bool,
    told: dict[str, Any],
) -> dict[str, Tensor]:
    held = _at_hand(base)
    places = {n: whole(n, t) for n, t in held.items() if mergeable(t)}
    require_finite("base", held, places)
    start = {n: wide(held[n]) for n in places}
    state = method.start(start)
    members: list[MemberFacts] = []
    for i, (expert, weight) in enumerate(zip(experts, weights, strict=True)):
        there = _at_hand(expert)
        check_names(held, there, f"expert {i}")
        if allow_nonfinite:
            there = filled(there, held, places, {})
        else:
            require_finite(f"expert {i}", there, places)
        members.append(MemberFacts(weight, {}))
        weights_of = {n: there[n].to(start[n].dtype) for n in places}
        state, known = method.step(state, start, weights_of, tuple(members), problem)
        members[-1] = MemberFacts(weight, json.loads(json.dumps(known)))
    made: Mapping[str, Tensor] = state
    if members:
        made, more = method.finish(state, start, tuple(members), problem)
        members[-1] = MemberFacts(members[-1].weight, {**members[-1].known, **json.loads(json.dumps(more))})
    told["known"] = [member.known for member in members]
    return {n: rounded(made[n], t.dtype) if n in places else t.clone() for n, t in held.items()}
