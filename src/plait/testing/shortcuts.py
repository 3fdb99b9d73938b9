"""The law of the shorter ways."""

from __future__ import annotations

from plait.methods.base import LONG, Answers, Outlook, Quick, Survey, Tally, TensorMethod
from plait.methods.memory import Table, drive
from plait.methods.pieces import same_bytes
from plait.tensors import compiled
from plait.testing.broken import LawBroken, label, same
from plait.testing.examples import Model, examples, sides_of, smooth


def shortcuts_change_nothing(method: TensorMethod) -> None:
    """Where `quick` and `tally` do not give up, they give the bytes of the long way."""
    tallies = type(method).tally is not TensorMethod.tally
    if (method.concludes() and not tallies) or not compiled.works() or method.most_members is not None:
        return
    weights = (1.0, 2.0, 0.5, 0.5)
    for dtype in ("bfloat16", "float16", "float32"):
        for base, experts in (examples(dtype), smooth(dtype)):
            table = Table(method, base)
            for expert, weight in zip(experts, weights, strict=False):
                table.enter(expert, weight, side=sides_of(method, base, expert))
            want, outlook = table.merged(), table.outlook()
            _tallies_agree(method, base, experts, table)
            for name, where in table.places.items():
                if any(same_bytes(base[name], e[name]) for e in experts):
                    continue
                short = method.quick(base[name].flatten(), where, outlook)
                if short is None or not _taken(short, base, experts, name, outlook):
                    continue
                got = short.merged(base[name].dtype)
                if got is not None:
                    found = {name: got.view(base[name].shape)}
                    same(method, found, {name: want[name]}, "the shorter way differs")


def _tallies_agree(method: TensorMethod, base: Model, experts: list[Model], table: Table) -> None:
    """Every answer of `tally` is that of `examine`, whatever `conclude` asks."""
    outlook = table.outlook()

    def ask(survey: Survey) -> Answers:
        answers: Answers = {}
        for name, states in table.states().items():
            if survey.only is not None and name not in survey.only:
                continue
            answers[name] = [(w.first, method.examine(w, state, survey.ask)) for w, state in states]
            where = table.places[name]
            short = method.tally(base[name].flatten(), where)
            if short is None or not _taken(short, base, experts, name, outlook):
                continue
            told = short.answer(survey.ask)
            if len(states) == 1 and told is not LONG and told != answers[name][0][1]:
                raise LawBroken(
                    f"{label(method)}: {name}: `tally` answers {told}, `examine` {answers[name][0][1]}"
                )
        return answers

    if method.concludes():
        drive(method.conclude({n: table.places[n] for n in table.states()}, outlook.members), ask)


def _taken(short: Quick | Tally, base: Model, experts: list[Model], name: str, outlook: Outlook) -> bool:
    """Whether a shorter way takes all members that change a tensor."""
    pairs = zip(experts, outlook.members, strict=True)
    return all(same_bytes(base[name], e[name]) or short.take(e[name].flatten(), m) for e, m in pairs)
