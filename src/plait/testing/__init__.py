"""Laws that every merging method must obey, checked in memory. For authors of methods:

    from plait.testing import check

    def test_my_method():
        check(MyMethod(scale=1.0), gives_back=True)

Each law raises `LawBroken` that says which method broke it, where, and what the law wants.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import FrozenInstanceError, fields
from typing import Any

from plait.methods.base import (
    AdditiveMethod,
    Facts,
    MemberFacts,
    Method,
    ModelMethod,
    TensorMethod,
    Weight,
)
from plait.methods.memory import Table, apply
from plait.methods.registry import make, names
from plait.methods.varied import one_for_all
from plait.tensors import BLOCK, Tensor, torch
from plait.testing.broken import LawBroken as LawBroken
from plait.testing.broken import label, same
from plait.testing.examples import Model as Model
from plait.testing.examples import examples as examples
from plait.testing.examples import sides_of as sides_of
from plait.testing.shortcuts import shortcuts_change_nothing as shortcuts_change_nothing

DTYPES = ("bfloat16", "float16", "float32", "float64")
WEIGHTS = (1.0, 2.0, 0.3, 0.5, 1.7)
BY_TENSOR = "head.*:0; blocks.*:0.5..2; *.bias:1; 0.3"
"""A weight that is another for each tensor, for methods that take such."""


def check(method: Method, *, gives_back: bool | None = None, problem: Any = None) -> None:
    """Run every law that applies to `method`.

    Side tensors that the method asks for are made up (`sides_of`).

    gives_back: whether the formula with these options gives the only member of weight 1 back; None asks
        `method.reduces`. problem: handed to a `ModelMethod`.
    """
    facts_are_complete(method)
    options_round_trip(method)
    method = method.over(examples("float32", 0)[0])  # options that differ by depth need to know the layers
    options_round_trip(method)
    if isinstance(method, ModelMethod):
        model_inputs_stay(method, problem)
        return
    if not isinstance(method, TensorMethod):
        raise LawBroken(f"{method!r} is neither a TensorMethod nor a ModelMethod; derive from one of them")
    inputs_stay(method)
    cuts_do_not_matter(method)
    shortcuts_change_nothing(method)
    one_member_comes_back(method, gives_back)
    order_is_as_declared(method)
    leaving_undoes_entering(method)


def _weights(method: TensorMethod) -> tuple[Weight, ...]:
    """Weights that the method takes."""
    return WEIGHTS if one_for_all(method) else (*WEIGHTS, BY_TENSOR)


def _some(method: TensorMethod, count: int) -> int:
    """`count`, or as many members as the method has room for."""
    return count if method.most_members is None else min(count, method.most_members)


def _merged(
    method: TensorMethod,
    base: Model,
    experts: Sequence[Model],
    weights: Sequence[Weight] | None = None,
    **how: Any,
) -> Model:
    """`apply` with made-up sides."""
    return apply(method, base, experts, weights, sides=[sides_of(method, base, e) for e in experts], **how)


# The laws


def facts_are_complete(method: Method) -> None:
    """What a user must know is declared, and the declaration fits the class."""
    facts = getattr(method, "facts", None)
    if not isinstance(facts, Facts):
        raise LawBroken(f"{label(method)} declares no facts; give the class a `facts: ClassVar[Facts]`")
    for f in fields(facts):
        if getattr(facts, f.name) in ("", None):
            raise LawBroken(f"{label(method)}: facts.{f.name} is empty; say it")
    if not (type(method).__doc__ or "").strip() or (type(method).__doc__ or "").startswith(
        f"{type(method).__name__}("
    ):
        raise LawBroken(f"{label(method)} has no docstring; state its formula, options and their ends")
    additive = isinstance(method, AdditiveMethod)
    if additive != (facts.family == "additive") or (
        additive and (facts.order or facts.removal != "subtract")
    ):
        raise LawBroken(
            f"{label(method)}: facts say {facts.family}, order {facts.order}, removal {facts.removal}; an "
            "AdditiveMethod, and no other, is of family additive, without order and removed by subtraction"
        )


def options_round_trip(method: Method) -> None:
    """Options survive JSON and text, give an equal method back, are hashable, and cannot be changed."""
    plain = json.loads(json.dumps(method.options()))
    if plain != method.options():
        raise LawBroken(f"{label(method)}: options {method.options()} do not survive JSON; use plain values")
    if method.name in names():
        if make(method.name, plain) != method:
            raise LawBroken(
                f"{label(method)}: make(name, options) is another method: {make(method.name, plain)}"
            )
        words = {
            key: str(value) for key, value in plain.items() if isinstance(value, (int, float, str, bool))
        }
        rest = {key: value for key, value in plain.items() if key not in words}
        if make(method.name, {**rest, **words}) != method:
            raise LawBroken(f"{label(method)}: options given as text make another method")
    hash(method)
    for f in fields(method):
        try:
            setattr(method, f.name, getattr(method, f.name))
        except FrozenInstanceError:
            continue
        raise LawBroken(f"{label(method)} can be changed; declare it @dataclass(frozen=True)")


def inputs_stay(method: TensorMethod) -> None:
    """Merging writes into no input, hands no input out, and keeps names, order, shapes and dtypes of the base."""
    base, experts = examples("float32", _some(method, 4))
    before = [_copy(m) for m in (base, *experts)]
    merged = _merged(method, base, experts, WEIGHTS[: len(experts)])
    for name, tensor in merged.items():
        tensor.zero_()
        if tensor.shape != base[name].shape or tensor.dtype != base[name].dtype:
            raise LawBroken(f"{label(method)}: {name} came out {tensor.dtype} {tuple(tensor.shape)}")
    if list(merged) != list(base):
        raise LawBroken(f"{label(method)}: names came out as {list(merged)}, the base has {list(base)}")
    for now, then in zip((base, *experts), before, strict=True):
        same(method, now, then, "an input was written to")


def cuts_do_not_matter(method: TensorMethod) -> None:
    """The size of chunks and the number of threads change no byte."""
    threads = torch.get_num_threads()
    for dtype in ("bfloat16", "float32"):
        count = _some(method, 3)
        base, experts = examples(dtype, count, large=True)
        torch.set_num_threads(1)
        try:
            want = _merged(method, base, experts, WEIGHTS[:count], chunk=1024 * BLOCK)
            torch.set_num_threads(4)
            got = _merged(method, base, experts, WEIGHTS[:count], chunk=BLOCK)
        finally:
            torch.set_num_threads(threads)
        same(
            method, got, want, "chunks of a block and 4 threads gave other bytes than one chunk and 1 thread"
        )


def one_member_comes_back(method: TensorMethod, gives_back: bool | None = None) -> None:
    """Where the formula reduces to the only member, that member's bytes come out. Elsewhere they need not, but
    `reduces` must then be False."""
    promised = method.reduces([MemberFacts(1.0, {})])
    if gives_back is False and promised:
        raise LawBroken(
            f"{label(method)}: `reduces` is true, the caller says that the formula does not reduce"
        )
    if not (gives_back or promised):
        return
    for dtype in DTYPES:
        base, experts = examples(dtype, 2)
        for expert in experts:
            same(
                method,
                _merged(method, base, [expert]),
                expert,
                "the only member of weight 1 did not come back",
            )


def order_is_as_declared(method: TensorMethod) -> None:
    """A method that says the order of arrival does not matter gives the same bytes for every order."""
    if method.facts.order:
        return
    draw = random.Random(0)
    for dtype in ("bfloat16", "float32"):
        base, experts = examples(dtype, 5)
        weights = (*WEIGHTS[:4], _weights(method)[-1])
        pairs = list(zip(experts, weights, strict=True))
        want = _merged(method, base, experts, weights)
        draw.shuffle(pairs)
        got = _merged(method, base, [e for e, _ in pairs], [w for _, w in pairs])
        same(method, got, want, "another order of arrival gave other bytes")


def leaving_undoes_entering(method: TensorMethod, steps: int = 9, seed: int = 0) -> None:
    """After any sequence of members entering and leaving, state and model have the bytes of a table that only ever
    saw the members that are left."""
    if method.facts.removal == "never":
        return
    for dtype in ("bfloat16", "float32"):
        base, experts = examples(dtype, 4)
        draw = random.Random(f"{seed}-{dtype}")
        table, inside = Table(method, base), list[tuple[int, Weight]]()
        for step in range(steps):
            outside = [i for i in range(len(experts)) if i not in [j for j, _ in inside]]
            full = len(inside) == _some(method, len(experts))
            if inside and (full or draw.random() < 0.45):
                at = draw.randrange(len(inside))
                table.leave(at)
                del inside[at]
            else:
                which, weight = draw.choice(outside), draw.choice(_weights(method))
                table.enter(experts[which], weight, side=sides_of(method, base, experts[which]))
                inside.append((which, weight))
            if step % 4 == 3 or step == steps - 1:
                _compare(method, table, base, [(experts[i], w) for i, w in inside])


def _compare(method: TensorMethod, table: Table, base: Model, left: Sequence[tuple[Model, Weight]]) -> None:
    fresh = Table(method, base)
    for expert, weight in left:
        fresh.enter(expert, weight, side=sides_of(method, base, expert))
    want = fresh.merged() if left else base
    same(
        method,
        table.merged(),
        want,
        f"with {len(left)} members left the model is not as if the others never were",
    )
    for name, chunks in fresh.states().items():
        for (where, one), (_, other) in zip(chunks, table.states()[name], strict=True):
            for slot in one:
                if _packed(one[slot]) != _packed(other[slot]):
                    raise LawBroken(
                        f"{label(method)}: state {slot} of {name} from element {where.first} on is not as if the "
                        "members that left never were; undo must be the exact inverse of step"
                    )


def model_inputs_stay(method: ModelMethod, problem: Any) -> None:
    """A step of a model method, and its finish, write into no argument, keep the base's names and shapes, and what
    they found survives JSON."""
    base, experts = examples("float32", 2)
    start = {n: t for n, t in base.items() if t.is_floating_point()}
    state: Mapping[str, Tensor] = method.start(start)
    for i, expert in enumerate(experts):
        weights = {n: expert[n] for n in start}
        before = [_copy(m) for m in (state, start, weights)]
        members = tuple(MemberFacts(1.0, {}) for _ in range(i + 1))
        new, known = method.step(state, start, weights, members, problem)
        for now, then in zip((state, start, weights), before, strict=True):
            same(method, now, then, "a step wrote into an argument")
        if json.loads(json.dumps(known)) != known:
            raise LawBroken(f"{label(method)}: what a step found does not survive JSON: {known}")
        if {n: t.shape for n, t in new.items() if n in start} != {n: t.shape for n, t in start.items()}:
            raise LawBroken(
                f"{label(method)}: a step lost a name of the base, or returned it in another shape"
            )
        state = new
        before = [_copy(m) for m in (state, start)]
        made, known = method.finish(state, start, members, problem)
        for now, then in zip((state, start), before, strict=True):
            same(method, now, then, "finish wrote into an argument")
        if json.loads(json.dumps(known)) != known:
            raise LawBroken(f"{label(method)}: what finish found does not survive JSON: {known}")
        if {n: t.shape for n, t in made.items()} != {n: t.shape for n, t in start.items()}:
            raise LawBroken(
                f"{label(method)}: finish lost a name of the base, or returned it in another shape"
            )


LAWS: tuple[Callable[..., None], ...] = (
    facts_are_complete,
    options_round_trip,
    inputs_stay,
    cuts_do_not_matter,
    shortcuts_change_nothing,
    one_member_comes_back,
    order_is_as_declared,
    leaving_undoes_entering,
    model_inputs_stay,
)
"""All laws, for documentation."""


def _copy(model: Mapping[str, Tensor]) -> Model:
    return {name: tensor.clone() for name, tensor in model.items()}


def _packed(slot: Any) -> Any:
    if isinstance(slot, Tensor if isinstance(Tensor, type) else torch.Tensor):
        return slot.view(torch.uint8).numpy().tobytes()
    dense, sparse = slot.pack()
    flat = {key: value.numpy().tobytes() for key, value in dense.items()}
    return flat, {key: tuple(v.numpy().tobytes() for v in pair) for key, pair in sparse.items()}
