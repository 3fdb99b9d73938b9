"""What a method is: a frozen dataclass whose fields are its options, and pure functions on chunks of tensors.

The engine owns files, threads, progress and seeds; a method sees tensors and hands tensors back. Nothing is
kept on `self` between calls. What must be computed from a member's data comes as side tensors (`sides`). There
are two scopes:

* `TensorMethod` sees one chunk of one tensor at a time, of the base and of one member.
* `ModelMethod` sees all weights at once and a `Problem` that gives losses and gradients.

A tensor method runs in this order; every part but `step` and `merge` may be left out:

    prepare   passes over an incoming member that gather scalars (norms, k-th magnitudes)  -> known (JSON)
    step      state of a chunk, chunk of the member -> state of the chunk                  (undo: the inverse)
    conclude  passes over the state that gather scalars                                     -> known (JSON)
    merge     chunk of the base, state of the chunk -> merged chunk

`prepare` and `conclude` are generators: each `yield Survey(...)` is one pass; the engine calls `measure`
(`examine` for a state) on every chunk and sends back all answers, in a fixed order. The last word is the
generator's return value, a mapping that survives JSON.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, Literal, Protocol

from plait.errors import RefusedInput, UsageError
from plait.tensors import Tensor, torch
from plait.tensors.compiled import LONG as LONG
from plait.tensors.exact import Exact, ExactSum, Scan, difference
from plait.types import Answers as Answers
from plait.types import Known as Known
from plait.types import Survey as Survey
from plait.types import Where as Where

Grain = Literal["element", "row", "matrix"]
Wants = Literal["", "moments", "fisher", "problem"]

LEAST_WEIGHT = 2.0**-20
MOST_WEIGHT = 2.0**11
"""The weights that methods are made for. From the one to the other, TIES counts weights on a grid of 2^-40, which
moves none by more than 2^-21 of it, and the weights behind an element may add up to just below 2^12; Model Stock
rounds a member's direction to a step of at most 2^-30 of its weight. Sums of w * tau have no such grid."""


Weight = Any
"""The weight of a member: a float, or the text of rules by which it differs from tensor to tensor (`methods.rules`).
A method only ever sees the float of the tensor at hand."""


def check_weight(weight: Any) -> float:
    """The weight of a member as a float. UsageError unless it is a number in the range above."""
    if isinstance(weight, (bool, str, bytes)):
        raise UsageError(f"weight is {weight!r}, expected a number from 2^-20 to 2^11")
    try:
        number = float(weight)
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not LEAST_WEIGHT <= number <= MOST_WEIGHT:
        raise UsageError(f"weight is {weight}, expected a number from 2^-20 to 2^11")
    return number


@dataclass(frozen=True)
class Facts:
    """What a user must know to choose a method; shown by `plait methods`."""

    summary: str
    family: Literal["additive", "fold", "coefficients", "rebuild", "calibrated", "storage-free"]
    removal: Literal["subtract", "refold", "recompute", "never"]
    data: Literal["none", "unlabelled", "labelled new", "labelled all"]
    order: bool  # does the order of arrival change the result
    memory: str  # state kept per element of the model
    cost: str
    paper: str


@dataclass
class Part:
    """One chunk of one member. `base` and `expert` are flat, in their own dtypes; reshape by `where.shape`
    where the grain is "matrix" and by the row length where it is "row". Never write into them."""

    where: Where
    base: Tensor
    expert: Tensor
    weight: float = 1.0
    known: Known = field(default_factory=dict)  # what this method's `prepare` returned for the member
    seed: bytes = b""  # sha256 of (line seed, checkpoint digest): the root of every random number
    scans: tuple[Scan, Scan] | None = None  # `scan` of expert and base, where the engine has them already
    side: Mapping[str, Tensor] = field(default_factory=dict)
    """What `TensorMethod.sides` asks for, as far as the member has it, by the side's name: the chunk's elements,
    flat, of a side of the tensor's own shape, else the whole side in its shape. In `step` and `undo` only. Never
    write into it."""
    _delta: Exact | None = None

    @property
    def delta(self) -> Exact:
        """The task vector of this chunk, exact: expert - base as real numbers."""
        if self._delta is None:
            self._delta = difference(self.expert, self.base, self.scans)
        return self._delta


@dataclass(frozen=True)
class MemberFacts:
    """What is known of a member without its tensors."""

    weight: float
    known: Known


@dataclass(frozen=True)
class Outlook:
    """What `merge` may know beside the chunk: the members in order and what `conclude` returned."""

    members: tuple[MemberFacts, ...]
    known: Known = field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(self.members)

    @property
    def weight(self) -> float:
        """Sum of the members' weights, rounded once, so that it does not depend on their order."""
        from math import fsum

        return fsum(m.weight for m in self.members)


@dataclass(frozen=True)
class Slot:
    """One array of a method's state, zeros before the first member. `kind` "exact": an ExactSum per element
    (order-free, invertible); "narrow": an ExactSum of multiples of 2^-40 below 2^12, such as counts and
    weights; else a torch dtype name ("float32", "base" for the base's own dtype): a plain tensor of the
    chunk's length.

    length: numbers of the array, where that is not the tensor's own number of elements; only for tensors of grain
    "matrix". digits: the safetensors name of the dtype whose digits an "exact" slot keeps densely (one for BF16 and
    F16, two for F32, three for F64); "" for the base's own.
    """

    kind: str
    length: int | None = None
    digits: str = ""


State = dict[str, Any]
"""Slot name -> ExactSum or Tensor, for one chunk."""


@dataclass(frozen=True)
class Method:
    """Common ground of all methods. Options are the dataclass fields."""

    facts: ClassVar[Facts]
    wants: ClassVar[Wants] = ""
    """What is computed from a member's data when it arrives: "moments" (second moments of what goes into each linear
    layer) or "fisher" (the diagonal of the Fisher information), which come back as sides; "problem": losses and
    gradients; "": nothing."""

    @property
    def name(self) -> str:
        from plait.methods.registry import name_of

        return name_of(type(self))

    def options(self) -> dict[str, Any]:
        """The options as plain JSON values, complete (defaults included). A method has one form only: 1 for an
        option that is a float is 1.0 here."""
        return _options(self)

    def check(self) -> None:
        """Raise UsageError where an option is out of its range. Called once, before any tensor is read."""

    def resolved(self) -> Method:
        """The method that these options ask for: of another class where they change the family. Called by
        `registry.make` after `check`."""
        return self

    def across(self) -> str:
        """Why its options must be the same for all tensors, in words that follow its name; "" where every tensor is
        merged by itself, so that they need not be (see `methods.varied`)."""
        return "sees all tensors at once"

    def over(self, names: Iterable[str]) -> Method:
        """The method for a base of these tensors. UsageError where it does not fit them."""
        return self

    def idle(self, shapes: Mapping[str, Sequence[int]]) -> list[str]:
        """Notes on options that count for no tensor of a base, and on tensors that an option leaves out. shapes: of
        its tensors, by name."""
        return []


def _options(holder: Any) -> dict[str, Any]:
    from plait.methods.registry import plain_option

    return {f.name: _plain(plain_option(f, getattr(holder, f.name))) for f in fields(holder)}


def _plain(value: Any) -> Any:
    if not is_dataclass(value):
        return value
    # An option that has options of its own, such as a sparsifier.
    return {"name": getattr(value, "name", "")} | _options(value)


class Quick(Protocol):
    """A faster way to the bytes that `step` and `merge` lead to, for one chunk whose members all enter at
    once and of which no state is kept. It may give up at any time; the engine then goes the long way."""

    def take(self, expert: Tensor, member: MemberFacts) -> bool:
        """Take a member in; its tensor may be overwritten afterwards. False: give up."""

    def merged(self, dtype: torch.dtype) -> Tensor | None:
        """The merged chunk, rounded once, all elements finite. None: give up, also for anything that the long way
        would refuse."""


class Tally(Protocol):
    """A faster way to what `examine` answers, for one chunk whose members all enter at once and of which no state is
    kept."""

    def take(self, expert: Tensor, member: MemberFacts) -> bool:
        """Take a member in; its tensor may be overwritten afterwards. False: give up."""

    def answer(self, ask: Any) -> Any:
        """What `examine` answers of the state that these members lead to. LONG: give up."""


@dataclass(frozen=True)
class TensorMethod(Method):
    """A method that sees one chunk at a time."""

    def grain(self, shape: tuple[int, ...], name: str = "") -> Grain:
        """What one call must see: any run of elements, whole rows (last axis), or the whole tensor.
        The answer without a name must serve every tensor of that shape."""
        return "element"

    def slots(self, shape: tuple[int, ...], dtype: str) -> dict[str, Slot]:
        """The state that is kept for a tensor."""
        raise NotImplementedError

    def layout(self, shape: tuple[int, ...], dtype: str, name: str) -> dict[str, Slot]:
        """The state that is kept for the tensor `name`: the engine asks here. For methods whose state depends on
        names, as their grain may."""
        return self.slots(shape, dtype)

    def sides(self, shape: tuple[int, ...], name: str, dtype: str) -> dict[str, tuple[int, ...]]:
        """Tensors that a member brings beside tensor `name`: name of the side -> its shape. A side of another shape
        than the tensor's own is for grain "matrix" only. A member takes part in a tensor that it leaves as it is,
        with a task vector of 0, where it has a side for it."""
        return {}

    def over(self, names: Iterable[str]) -> TensorMethod:
        return self

    def across(self) -> str:
        """See `Method.across`. A method with surveys says so itself where these keep tensors apart."""
        return "gathers numbers over all tensors" if self.prepares() or self.concludes() else ""

    most_members: ClassVar[int | None] = None
    """How many members the formula has room for; a merge of more is refused. None: any number."""

    sides_needed: ClassVar[bool] = False
    """Whether a member that lacks a side for some tensor is refused. Else `Part.side` lacks it too."""

    def check_count(self, count: int) -> None:
        """Raise RefusedInput where `count` members are too many."""
        if self.most_members is not None and count > self.most_members:
            raise RefusedInput(
                f"method {self.name} merges at most {self.most_members} members and would get {count}; take one out "
                "first, or choose another method"
            )

    def draws(self) -> bool:
        """Whether random numbers are drawn, so that `part.seed` must be set."""
        return False

    # passes over one incoming member
    def prepare(self, places: Mapping[str, Where], size: int) -> Generator[Survey, Answers, Known]:
        """`places`: every mergeable tensor that the member changes, as one chunk each. `size`: elements of
        all mergeable tensors, those that the member leaves alone included."""
        return {}
        yield Survey()

    def measure(self, part: Part, ask: Any) -> Any:
        """Answer `ask` for one chunk of the member. The answer must not depend on how tensors are cut."""
        raise NotImplementedError

    # the fold
    def step(self, state: State, part: Part) -> State:
        """Take the member in. May work in place on `state` and return it."""
        raise NotImplementedError

    # passes over the state, before the output is written
    def conclude(
        self, places: Mapping[str, Where], members: Sequence[MemberFacts]
    ) -> Generator[Survey, Answers, Known]:
        return {}
        yield Survey()

    def examine(self, where: Where, state: State, ask: Any) -> Any:
        raise NotImplementedError

    def concludes(self) -> bool:
        """Whether `conclude` yields at all: if not, state and output are made in one pass."""
        return type(self).conclude is not TensorMethod.conclude

    def prepares(self) -> bool:
        return type(self).prepare is not TensorMethod.prepare

    # the output
    def merge(self, base: Tensor, state: State, where: Where, outlook: Outlook) -> Exact | Tensor:
        """The merged chunk: an Exact *shift* to be added to the base, or the merged values in fp64.
        The engine rounds once, to the base's dtype."""
        raise NotImplementedError

    def runs(self, base: Tensor, state: State, where: Where, outlook: Outlook) -> Iterator[Tensor] | None:
        """The merged values that `merge` would give, in fp64 and in order, run by run: for a method of whole matrices
        whose output is made in pieces, so that nobody need hold all of it. Each run is used before the next is asked
        for. None: `merge` is asked."""
        return None

    def quick(self, base: Tensor, where: Where, outlook: Outlook) -> Quick | None:
        """A faster way for a chunk, None where there is none. Asked of a method that concludes where `tally` alone
        found what it concludes. `base` stays as it is meanwhile. Asked only where `compiled.works()`."""
        return None

    def tally(self, base: Tensor, where: Where) -> Tally | None:
        """A faster way to the answers of `examine`, None where there is none. All chunks have it, or the engine goes
        the long way. `base` stays as it is meanwhile. Asked only where `compiled.works()`."""
        return None

    def glance(self, base: Tensor, expert: Tensor, where: Where, ask: Any) -> Any:
        """A faster way to what `measure` answers for a chunk; LONG where there is none, and for tensors that are not
        finite. Asked only where `compiled.works()`."""
        return LONG

    def reduces(self, members: Sequence[MemberFacts]) -> bool:
        """True where the formula gives the only member back; the engine then copies that member's bytes.
        Additive methods need not say so: their sums are exact."""
        return False


@dataclass(frozen=True)
class AdditiveMethod(TensorMethod):
    """A method whose state is a set of sums over members. Adding and removing are exact inverses, so order
    never matters and any member can be taken out by subtraction, bit for bit."""

    def statistic(self, part: Part) -> dict[str, Exact]:
        """The member's addend for every slot, weight included."""
        raise NotImplementedError

    def step(self, state: State, part: Part) -> State:
        for slot, addend in self.statistic(part).items():
            total: ExactSum = state[slot]
            total.add(addend)
        return state

    def undo(self, state: State, part: Part) -> State:
        """Take a member out that is in: the inverse of `step`, bit for bit."""
        for slot, addend in self.statistic(part).items():
            total: ExactSum = state[slot]
            total.subtract(addend)
        return state


@dataclass(frozen=True)
class ModelMethod(Method):
    """A method that sees all weights at once. Weights are mappings from names to tensors (fp32, or fp64 where
    the base is fp64); they are the mergeable tensors only. `problem` gives losses and gradients.

    `step` may take one argument more, `watch` (see `methods.watch`): the engine then shows its progress, and lets it
    go on after a stop. So may `finish`, for the progress."""

    @property
    def follows_path(self) -> bool:
        """Whether `step` goes from the model so far, t = 0, towards t = 1, and hands points on the way to its
        `watch`."""
        return False

    def start(self, base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The state before the first member: by default, the base itself."""
        return dict(base)

    def step(
        self,
        state: Mapping[str, Tensor],
        base: Mapping[str, Tensor],
        expert: Mapping[str, Tensor],
        members: Sequence[MemberFacts],
        problem: Any,
    ) -> tuple[dict[str, Tensor], Known]:
        """Take in the last of `members`, whose weights are `expert`. Returns the new state, and what was found on the
        way (a trace for the report). The state has the base's names and shapes; it may hold more, fp32 or fp64, under
        other names. Writes into no argument."""
        raise NotImplementedError

    def finish(
        self,
        state: Mapping[str, Tensor],
        base: Mapping[str, Tensor],
        members: Sequence[MemberFacts],
        problem: Any,
    ) -> tuple[dict[str, Tensor], Known]:
        """The merged model of a state, and what was found in making it, which is added to what is known of the last
        member. By default the state's tensors of the base's names. What is done here is done for the model that is
        deployed alone: the next member steps into the state. Writes into no argument."""
        return {name: state[name] for name in base}, {}
