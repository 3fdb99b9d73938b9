"""Fits at merge time: what a line's members and their stored examples choose for a method's numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from plait.checkpoint.format import FileWriter
from plait.line.build import Operand, Setting, incoming, learn, mergeable, software, write_json
from plait.line.member import Member
from plait.methods.base import MemberFacts, ModelMethod, TensorMethod
from plait.methods.choosing import Choice, Renew, choose, choose_scale, fit_of_method, unfitted
from plait.methods.coefficients import CoefficientMethod
from plait.methods.fit import Fit
from plait.types import TensorRef
from plait.words import plural

if TYPE_CHECKING:
    from plait.engine import Folded
    from plait.methods.coefficients import Coefficients, Products
    from plait.methods.span import Weights
    from plait.problem.objective import Objective
    from plait.problem.problem import Problem


@dataclass(frozen=True)
class Asked:
    """A fit that is to be made. members: those after the change. enter: those whose tensors are at hand (all of
    them where task vectors are fitted). work: where what was chosen is kept, for a run that goes on after a kill."""

    setting: Setting
    members: Sequence[Member]
    enter: Sequence[Operand]
    work: Path

    @property
    def fit(self) -> Fit:
        found = fit_of_method(self.setting.method)
        assert found is not None
        return found


@dataclass(frozen=True)
class Chosen:
    """what: "alpha" for a number of every member, by group, or "scale". ran: threads, device and libraries, for the
    ledger."""

    what: str
    choice: Choice
    ran: dict[str, Any]

    def words(self) -> dict[str, Any]:
        """What the ledger says of the fit."""
        alpha: Any = self.choice.alpha
        return {self.what: alpha if self.what == "alpha" else alpha["model"][0], **self.choice.record}

    def note(self) -> str:
        """The fit in a line."""
        record = self.choice.record
        values = sorted(value for row in self.choice.alpha.values() for value in row)
        span = f"{values[0]:.3g}" if len(values) == 1 else f"{values[0]:.3g} to {values[-1]:.3g}"
        examples = plural(sum(record["examples"].values()), "example")
        paid = plural(record["evaluations"], "loss", "losses")
        return (
            f"{self.what} {span}, fitted by {record['fit']} on {examples}: loss {record['start']:.4g} -> "
            f"{record['loss']:.4g}, for {paid}"
        )


class Fold(Protocol):
    """A call of the engine; see `_Making._fold`."""

    def __call__(
        self,
        method: TensorMethod,
        members: Sequence[Member],
        enter: Sequence[Operand],
        leave: Sequence[Operand],
        state: Path | None,
        folder: Path | None,
        out: Mapping[str, TensorRef],
        *,
        part: str = "",
        alpha: Coefficients | None = None,
    ) -> Folded: ...


def fold_fitted(
    asked: Asked,
    method: TensorMethod | ModelMethod,
    leave: Sequence[Operand],
    state: Path | None,
    folder: Path,
    out: Mapping[str, TensorRef],
    fold: Fold,
) -> tuple[Folded, Chosen]:
    """A fold whose numbers are fitted: what they are fitted to is made first, then the numbers, then the model."""
    if isinstance(method, CoefficientMethod):
        return _of_vectors(asked, method, state, folder, out, fold)
    assert isinstance(method, TensorMethod)
    return _of_scale(asked, method, leave, state, folder, out, fold)


def _of_vectors(
    asked: Asked,
    method: CoefficientMethod,
    state: Path | None,
    folder: Path,
    out: Mapping[str, TensorRef],
    fold: Fold,
) -> tuple[Folded, Chosen]:
    from plait.engine.coefficients import chosen_for, remember

    members, enter = asked.members, asked.enter
    inner = asked.work / "inner"
    fold(method, members, enter, (), state, inner, {}, part="-inner")
    seen = [incoming(asked.setting, o) for o in enter]
    products, _ = remember(inner, seen)
    before = chosen_for(state, seen[:-1]) if state is not None else None
    chosen = alphas(asked, method, products, before)
    return fold(method, members, enter, (), inner, folder, out, alpha=chosen.choice.alpha), chosen


def _of_scale(
    asked: Asked,
    method: TensorMethod,
    leave: Sequence[Operand],
    state: Path | None,
    folder: Path,
    out: Mapping[str, TensorRef],
    fold: Fold,
) -> tuple[Folded, Chosen]:
    """The state does not depend on the scale: it is made with a model at scale 1, and the model is made of it."""
    setting = asked.setting
    base = mergeable(setting.base, setting.private)
    entries = [(n, "F64" if base[n].dtype == "F64" else "F32", base[n].shape) for n in out]
    with FileWriter(asked.work / "at-one.safetensors", entries, {"format": "plait scratch"}) as writer:
        writer.close(sync=False)
    made = fold(
        _at(method, 1.0), asked.members, asked.enter, leave, state, folder, writer.places, part="-one"
    )
    chosen = scale(asked, writer.places)
    known = learn(setting, asked.members, made.known, asked.work)
    last = fold(_at(method, chosen.choice.alpha["model"][0]), known, (), (), folder, None, out)
    read, written = made.bytes_read + last.bytes_read, made.bytes_written + last.bytes_written
    whole = replace(last, known=made.known, sums=made.sums, bytes_read=read, bytes_written=written)
    return whole, chosen


def _at(method: TensorMethod, scale: float) -> TensorMethod:
    made = unfitted(method, scale=scale)
    assert isinstance(made, TensorMethod)
    return made


def alphas(
    asked: Asked, method: CoefficientMethod, products: Products, before: Coefficients | None = None
) -> Chosen:
    """What a fit chooses for every member's task vector. before: the same of all members but the last."""

    def run(problem: Problem, base: Weights) -> Choice:
        device = asked.setting.compute.device
        vectors = [_vector(base, o.refs, device) for o in asked.enter]
        facts = [MemberFacts(o.member.weight, {}) for o in asked.enter]
        return choose(method, products, facts, base, vectors, problem, before, renew=renewing(asked.fit))

    return _made(asked, "alpha", before, run)


def scale(asked: Asked, merged: Mapping[str, TensorRef]) -> Chosen:
    """What a fit chooses for the scale of the method. merged: the model at scale 1, in fp32, or fp64 where the base
    is fp64."""

    def run(problem: Problem, base: Weights) -> Choice:
        shift = _vector(base, merged, asked.setting.compute.device)
        return choose_scale(asked.setting.method, base, shift, problem, renew=renewing(asked.fit))

    return _made(asked, "scale", None, run)


def _made(
    asked: Asked, what: str, before: Coefficients | None, run: Callable[[Problem, Weights], Choice]
) -> Chosen:
    """The choice of an earlier, interrupted run of the same, else that of `run`."""
    from plait.line.problem import problem_of

    setting = asked.setting
    with setting.compute.running():
        files = {o.member.task: o.data for o in asked.enter if o.data is not None}
        problem = problem_of(setting, asked.members, "validation", files=files)
        ran = setting.compute.record([objective.network for objective in problem.values()])
        words: list[Any] = [
            software(),
            ran,
            asdict(setting.compute),
            setting.method.name,
            setting.method.options(),
        ]
        words += [[m.task, *m.identity] for m in asked.members]
        words += [setting.base_digest, before, {task: o.digest for task, o in problem.items()}]
        key = sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()
        file = asked.work / f"fit-{what}.json"
        known = _read(file)
        if known.get("key") == key:
            return Chosen(what, Choice(known["alpha"], known["record"]), ran)
        base = _load(mergeable(setting.base, setting.private), setting.compute.device)
        choice = run(problem, base)
        record = {**choice.record, "examples": {task: len(o) for task, o in problem.items()}}
        write_json(file, {"key": key, "alpha": choice.alpha, "record": record})
        return Chosen(what, replace(choice, record=record), ran)


def _read(file: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def _load(refs: Mapping[str, TensorRef], device: str) -> dict[str, Any]:
    """Tensors in memory in fp32, those in fp64 as they are."""
    from plait.line.subjects import load
    from plait.methods.pieces import wide

    found = load({name: ref for name, ref in refs.items() if ref.numel}, device, None)
    for name in found:
        found[name] = wide(found[name])
    return found


def _vector(base: Weights, refs: Mapping[str, TensorRef], device: str) -> dict[str, Any]:
    """What a checkpoint adds to the base, by tensor; NaN and infinity count as unchanged."""
    from plait.tensors import torch

    found = _load(refs, device)
    for name, values in found.items():
        shift = values.to(base[name].dtype) - base[name]
        found[name] = torch.nan_to_num(shift, nan=0.0, posinf=0.0, neginf=0.0)
    return found


def renewing(fit: Fit) -> Renew | None:
    """Puts made-up examples in the place of members' own, as the fit's option `replay` says; None where it says
    none."""
    if fit.replay == "none":
        return None

    def renew(weights: Weights, tasks: Problem) -> Problem:
        from plait.problem.problem import Problem

        kept = () if fit.replay == "all" else (tasks.last,)
        return Problem({t: o if t in kept else _made_up(t, o, weights, fit) for t, o in tasks.items()})

    return renew


def _made_up(task: str, objective: Objective, weights: Weights, fit: Fit) -> Objective:
    """The objective of a task on inputs that the model at `weights` makes for the classes of its head."""
    from plait.problem.synthetic import Recipe, synthesise

    inputs = objective.feed.examples.inputs
    images = hasattr(inputs, "shape")
    return synthesise(
        task,
        objective.network,
        objective.head,
        _classes(objective, weights),
        weights,
        Recipe(seed=fit.seed),
        like=inputs[0] if images else None,
        batch=objective.batch,
        fixed=objective.fixed,
    )


def _classes(objective: Objective, weights: Weights) -> int:
    """How many classes the head tells apart."""
    from plait.tensors import torch

    with torch.no_grad():
        piece, live = next(objective.run(weights, (), 1))
        return int(objective.logits(live, piece).shape[-1])
