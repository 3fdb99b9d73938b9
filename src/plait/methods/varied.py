"""A method whose options, or whose members' weights, differ from tensor to tensor.

To each tensor it is the plain method with the numbers of that tensor, so no method knows of it. The surveys of all
these plain methods run side by side, in as many passes as the longest of them takes.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

from plait.errors import UsageError
from plait.methods.base import (
    LONG,
    AdditiveMethod,
    Answers,
    Grain,
    Known,
    MemberFacts,
    Method,
    Outlook,
    Part,
    Quick,
    Slot,
    State,
    Survey,
    TensorMethod,
    Weight,
    Where,
    check_weight,
)
from plait.methods.registry import make
from plait.methods.rules import Rules, completed, parsed, read
from plait.tensors import Tensor, torch
from plait.tensors.exact import Exact

Path = tuple[str, ...]
"""Where an option stands: its name, or the name of an option and that of an option of it."""

_GROUPS = "by"  # in what is known of a member: by the numbers of its tensors, what each plain method found


@dataclass(frozen=True)
class Varied(TensorMethod):
    """`plain` with the numbers of `rules` in each tensor. Without rules it is `plain` itself, for members whose
    weights differ from tensor to tensor."""

    plain: TensorMethod
    rules: tuple[tuple[Path, Rules], ...] = ()

    def __post_init__(self) -> None:
        for name in ("facts", "wants", "most_members", "sides_needed"):  # of the class elsewhere
            object.__setattr__(self, name, getattr(self.plain, name))

    @property
    def name(self) -> str:
        return self.plain.name

    def options(self) -> dict[str, Any]:
        return _put(self.plain.options(), [(path, rules.text) for path, rules in self.rules])

    def check(self) -> None:
        self.plain.check()

    def across(self) -> str:
        return ""

    def over(self, names: Iterable[str]) -> Varied:
        known = list(names)
        rules = tuple((path, one.over(known, ".".join(path))) for path, one in self.rules)
        bound = replace(self, rules=rules)
        for name in known:
            try:
                bound.at(name)
            except UsageError as error:
                given = "; ".join(f"{'.'.join(path)} {one.text}" for path, one in rules)
                raise UsageError(f"{error}: that is what {name} gets from {given}") from None
        return bound

    def idle(self, shapes: Mapping[str, Sequence[int]]) -> list[str]:
        left = [
            f"{'.'.join(path)}: no tensor is left for pattern {pattern}"
            for path, rules in self.rules
            for pattern in rules.idle(shapes)
        ]
        # The plain method has the last number of every rule, which says nothing of which matrices are too wide.
        return left if ("widest",) in dict(self.rules) else [*left, *self.plain.idle(shapes)]

    def at(self, name: str) -> TensorMethod:
        """The plain method of a tensor. UsageError where its numbers are out of their ranges."""
        return _plain_at(self, self._numbers(name)) if self.rules else self.plain

    def _numbers(self, name: str) -> tuple[float, ...]:
        return tuple(rules.at(name) for _, rules in self.rules)

    def _key(self, name: str) -> str:
        return json.dumps(self._numbers(name))

    def _known(self, known: Known, name: str) -> Known:
        """What the plain method of a tensor knows of a member."""
        if not self.rules or _GROUPS not in known:
            return known
        found: Known | None = known[_GROUPS].get(self._key(name))
        return _known_of_nothing(self.at(name)) if found is None else found

    def _facts(self, member: MemberFacts, name: str) -> MemberFacts:
        return MemberFacts(weight_at(member.weight, name), self._known(member.known, name))

    def _part(self, part: Part) -> Part:
        name = part.where.name
        return replace(part, weight=weight_at(part.weight, name), known=self._known(part.known, name))

    def _outlook(self, outlook: Outlook, name: str) -> Outlook:
        members = tuple(self._there(outlook.members, name))
        known = outlook.known.get(_GROUPS, {}).get(self._group(outlook.members, name), {})
        return Outlook(members, known)

    def _there(self, members: Sequence[MemberFacts], name: str) -> list[MemberFacts]:
        """The members that take part in a tensor: those whose weight there is not 0."""
        found = [self._facts(member, name) for member in members]
        return [member for member in found if member.weight]

    def _group(self, members: Sequence[MemberFacts], name: str) -> str:
        return json.dumps([self._numbers(name), [weight_at(m.weight, name) for m in members]])

    # what the engine asks

    def grain(self, shape: tuple[int, ...], name: str = "") -> Grain:
        return (self.at(name) if name else self.plain).grain(shape, name)

    def slots(self, shape: tuple[int, ...], dtype: str) -> dict[str, Slot]:
        return self.plain.slots(shape, dtype)

    def layout(self, shape: tuple[int, ...], dtype: str, name: str) -> dict[str, Slot]:
        return self.at(name).layout(shape, dtype, name)

    def sides(self, shape: tuple[int, ...], name: str, dtype: str) -> dict[str, tuple[int, ...]]:
        return self.at(name).sides(shape, name, dtype)

    def draws(self) -> bool:
        return self.plain.draws()

    def prepares(self) -> bool:
        return self.plain.prepares()

    def prepare(self, places: Mapping[str, Where], size: int) -> Generator[Survey, Answers, Known]:
        if not self.rules:
            return (yield from self.plain.prepare(places, size))
        if not self.prepares():
            return {}
        groups = _grouped(places, self._key)
        runs = {key: self.at(next(iter(mine))).prepare(mine, size) for key, mine in groups.items()}
        return {_GROUPS: (yield from _side_by_side(groups, runs))}

    def measure(self, part: Part, ask: Any) -> Any:
        name = part.where.name
        return self.at(name).measure(self._part(part), self._own(ask, name))

    def glance(self, base: Tensor, expert: Tensor, where: Where, ask: Any) -> Any:
        plain = self.at(where.name)
        if type(plain).glance is TensorMethod.glance:
            return LONG
        return plain.glance(base, expert, where, self._own(ask, where.name))

    def _own(self, ask: Any, name: str) -> Any:
        """What the plain method of a tensor asks, of a survey of `prepare`."""
        return ask["ask"][ask["of"][name]] if self.rules else ask

    def step(self, state: State, part: Part) -> State:
        plain, own = self.at(part.where.name), self._part(part)
        out = not own.weight and not isinstance(plain, AdditiveMethod)  # what adds up adds nothing
        return state if out else plain.step(state, own)

    def concludes(self) -> bool:
        return self.plain.concludes()

    def conclude(
        self, places: Mapping[str, Where], members: Sequence[MemberFacts]
    ) -> Generator[Survey, Answers, Known]:
        if not self.concludes():
            return {}
        groups = _grouped(places, lambda name: self._group(members, name))
        runs = {}
        for key, mine in groups.items():
            first = next(iter(mine))
            facts = self._there(members, first)
            runs[key] = self.at(first).conclude(mine, facts)
        found = yield from _side_by_side(groups, runs)
        notes = [note for one in found.values() for note in one.get("notes", ())]
        return {_GROUPS: found, "notes": list(dict.fromkeys(notes))}

    def examine(self, where: Where, state: State, ask: Any) -> Any:
        return self.at(where.name).examine(where, state, ask["ask"][ask["of"][where.name]])

    def merge(self, base: Tensor, state: State, where: Where, outlook: Outlook) -> Exact | Tensor:
        own = self._outlook(outlook, where.name)
        if not own.members:  # nobody takes part: the state is that of no member
            return Exact.of(torch.zeros(where.count, dtype=torch.float64))
        return self.at(where.name).merge(base, state, where, own)

    def runs(self, base: Tensor, state: State, where: Where, outlook: Outlook) -> Iterator[Tensor] | None:
        own = self._outlook(outlook, where.name)
        return self.at(where.name).runs(base, state, where, own) if own.members else None

    def quick(self, base: Tensor, where: Where, outlook: Outlook) -> Quick | None:
        own = self._outlook(outlook, where.name)
        found = self.at(where.name).quick(base, where, own) if own.members else None
        return None if found is None else _QuickAt(self, where.name, found)

    def reduces(self, members: Sequence[MemberFacts]) -> bool:
        plain = not self.rules and not any(isinstance(m.weight, str) for m in members)
        return plain and self.plain.reduces(members)


@dataclass(frozen=True)
class VariedSums(Varied, AdditiveMethod):
    """The same for an additive method: what a member adds to a tensor is still a function of that member alone, so it
    is taken out by subtraction."""

    def statistic(self, part: Part) -> dict[str, Exact]:
        plain = self.at(part.where.name)
        assert isinstance(plain, AdditiveMethod)
        return plain.statistic(self._part(part))

    def undo(self, state: State, part: Part) -> State:
        plain = self.at(part.where.name)
        assert isinstance(plain, AdditiveMethod)
        return plain.undo(state, self._part(part))


@dataclass(frozen=True)
class _QuickAt:
    """The faster way of the plain method of one tensor."""

    method: Varied
    name: str
    plain: Quick

    def take(self, expert: Tensor, member: MemberFacts) -> bool:
        return self.plain.take(expert, self.method._facts(member, self.name))

    def merged(self, dtype: torch.dtype) -> Tensor | None:
        return self.plain.merged(dtype)


def varied(name: str, kind: type[Method], given: Mapping[str, Any]) -> Method | None:
    """The method `name` where options are rules; None where none is. UsageError where they cannot be, or where the
    method looks at several tensors at once."""
    found = _rules_in(name, kind, given)
    if not found:
        return None
    plainly = [(path, rules.rest.anchors[0]) for path, rules in found if rules.constant]
    if plainly:
        return make(name, _put(given, plainly))
    outside = [(path, rules.rest.anchors[0]) for path, rules in found]
    plain = make(name, _put(given, outside))
    by_tensor(plain, ".".join(found[0][0]))
    return _dress(plain, tuple(found))


def weighted(method: TensorMethod, weights: Iterable[Weight]) -> TensorMethod:
    """`method` as one that takes these weights."""
    if isinstance(method, Varied) or not any(isinstance(weight, str) for weight in weights):
        return method
    return _dress(method, ())


def member_weight(weight: Any, method: Method, names: Iterable[str]) -> Weight:
    """The weight of a member: a number, or the text of rules for tensors of these names, where each is 0 or a weight.
    UsageError where it is no such thing, or where the method cannot have rules."""
    rules = read("weight", weight, 1.0)
    if rules is None:
        return check_weight(weight)
    if rules.constant:
        if not rules.rest.anchors[0]:
            raise UsageError("weight is 0 for every tensor; leave the member out")
        return check_weight(rules.rest.anchors[0])
    by_tensor(method, "weight")
    known = list(names)
    rules = rules.over(known, "weight")
    numbers = {rules.at(name) for name in known}
    for number in numbers - {0.0}:
        check_weight(number)
    if numbers <= {0.0}:
        raise UsageError(f"weight is {rules.text}, which is 0 for every tensor; leave the member out")
    return rules.text


def idle_weight(weight: Weight, names: Iterable[str]) -> list[str]:
    """Remarks on the patterns of a weight that no tensor is left for."""
    found = parsed(weight).idle(names) if isinstance(weight, str) else []
    return [f"weight: no tensor is left for pattern {pattern}" for pattern in found]


def weight_at(weight: Weight, name: str) -> float:
    """The weight of a member in a tensor."""
    return parsed(weight).at(name) if isinstance(weight, str) else weight


def by_tensor(method: Method, label: str) -> None:
    """UsageError where nothing of this method may differ from tensor to tensor."""
    why = one_for_all(method)
    if why:
        raise UsageError(
            f"{label} differs from tensor to tensor, and method {method.name} {why}; give one number, or choose a "
            "method that merges each tensor by itself"
        )


def one_for_all(method: Method) -> str:
    """Why nothing of a method may differ from tensor to tensor, in words that follow its name; "" where it may."""
    return (
        "with a fit has one number for all" if getattr(method, "fit", None) is not None else method.across()
    )


def rule_options(kind: type[Method]) -> list[str]:
    """The options of a method, as it comes, that may differ from tensor to tensor."""
    return [] if kind().across() else [f.name for f in fields(kind) if _numeric(f.type)]


def _dress(plain: Method, rules: tuple[tuple[Path, Rules], ...]) -> TensorMethod:
    assert isinstance(plain, TensorMethod)
    return (VariedSums if isinstance(plain, AdditiveMethod) else Varied)(plain, rules)


def _rules_in(name: str, kind: type[Method], given: Mapping[str, Any]) -> list[tuple[Path, Rules]]:
    found: list[tuple[Path, Rules]] = []
    defaults = kind()
    for item in fields(kind):
        value = given.get(item.name)
        if isinstance(value, Mapping) and "name" in value:
            found += _rules_of_part(name, item.name, value)
        elif _numeric(item.type):
            rules = read(item.name, value)
            if rules is not None:
                found.append(((item.name,), completed(rules, getattr(defaults, item.name), item.name)))
    return found


def _rules_of_part(name: str, option: str, value: Mapping[str, Any]) -> list[tuple[Path, Rules]]:
    """Rules of the options of an option, such as a sparsifier."""
    own = {
        key: one
        for key, one in value.items()
        if isinstance(one, (str, list, tuple, Mapping)) and key != "name"
    }
    if not own:
        return []
    defaults = make(name, {option: {"name": value["name"]}}).options().get(option) or {}
    found: list[tuple[Path, Rules]] = []
    for key, one in own.items():
        default = defaults.get(key)
        if isinstance(default, (int, float)) and not isinstance(default, bool):
            rules = read(f"{option}.{key}", one)
            if rules is not None:
                found.append(((option, key), completed(rules, default, f"{option}.{key}")))
    return found


def _numeric(declared: Any) -> bool:
    words = {word.strip() for word in str(getattr(declared, "__name__", declared)).split("|")}
    return bool(words) and words <= {"int", "float", "None"} and words != {"None"}


def _put(options: Mapping[str, Any], values: Iterable[tuple[Path, Any]]) -> dict[str, Any]:
    """The options with these values in their places."""
    made = dict(options)
    for path, value in values:
        made[path[0]] = value if len(path) == 1 else {**made[path[0]], path[1]: value}
    return made


@lru_cache(maxsize=4096)
def _plain_at(method: Varied, numbers: tuple[float, ...]) -> TensorMethod:
    values = [(path, number) for (path, _), number in zip(method.rules, numbers, strict=True)]
    made = make(method.name, _put(method.plain.options(), values))
    assert isinstance(made, TensorMethod)
    return made


def _known_of_nothing(method: TensorMethod) -> Known:
    """What is known of a member that changes no tensor."""
    try:
        next(method.prepare({}, 0))
    except StopIteration as stop:
        return stop.value or {}
    return {}


def _grouped(places: Mapping[str, Where], key: Any) -> dict[str, dict[str, Where]]:
    groups: dict[str, dict[str, Where]] = {}
    for name, place in places.items():
        groups.setdefault(key(name), {})[name] = place
    return groups


def _side_by_side(
    groups: Mapping[str, Mapping[str, Where]], runs: Mapping[str, Generator[Survey, Answers, Known]]
) -> Generator[Survey, Answers, dict[str, Known]]:
    """Run the passes of plain methods, each over its own tensors, as few passes together. Returns the last words."""
    of = {name: key for key, names in groups.items() for name in names}
    known: dict[str, Known] = {}
    asked: dict[str, Survey] = {}
    answers: dict[str, Any] = dict.fromkeys(runs)
    while answers:
        for key, answer in answers.items():
            try:
                asked[key] = runs[key].send(answer)
            except StopIteration as stop:
                known[key] = stop.value or {}
        answers = {}
        for stride, surveys in _by_stride(asked):
            names = [n for key, s in surveys.items() for n in groups[key] if s.only is None or n in s.only]
            ask = {"of": {n: of[n] for n in names}, "ask": {key: s.ask for key, s in surveys.items()}}
            found = yield Survey(ask, stride, tuple(sorted(names)))
            for key in surveys:
                answers[key] = {n: found[n] for n in groups[key] if n in found}
        asked = {}
    return known


def _by_stride(surveys: Mapping[str, Survey]) -> Iterator[tuple[int, dict[str, Survey]]]:
    for stride in sorted({survey.stride for survey in surveys.values()}):
        yield stride, {key: survey for key, survey in surveys.items() if survey.stride == stride}
