"""mergekit's `slerp` and `nuslerp` in plait's words: both are a point on the arc between two models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.recipe.settings import NOTHING, ONE

if TYPE_CHECKING:
    from plait.recipe.mergekit import _Model, _Reader

ARCS = ("slerp", "nuslerp")


def arc(reader: _Reader, method: str, models: list[_Model], base: str) -> tuple[str, dict[str, Any]]:
    """`slerp` and its options. models: put into the order from t = 0 to t = 1, with weights that count for nothing.
    base: "" where the recipe names none."""
    return _slerp(reader, models, base) if method == "slerp" else _nuslerp(reader, models, based=bool(base))


def _slerp(reader: _Reader, models: list[_Model], base: str) -> tuple[str, dict[str, Any]]:
    """From the base, t = 0, to the one other model. The base may be listed or not, as in mergekit."""
    from plait.recipe.mergekit import _Model

    reader.known(models, (), ("t",))
    listed = [m for m in models if _same(m.path, base)]
    first = listed[:1] or [_Model("base_model", base, {})]
    models[:] = [*first, *(m for m in models if m not in listed)]
    _two(reader, "slerp", models, "one model beside base_model")
    faults = len(reader.findings.wrong)
    where, t = reader.setting("t", None, NOTHING)
    if len(reader.findings.wrong) > faults:
        t = NOTHING  # what was found wrong with it is enough
    elif t.rules.otherwise is None:
        reader.findings.refuse(f"{where} is missing; slerp needs it: 0 gives base_model, 1 the other model")
    elif not all(0 <= number <= 1 for number in t.numbers):
        reader.findings.refuse(f"{where} is {t.rules.text}, expected 0 to 1")
    return "slerp", {"t": t.then(ONE).option, "updates": False}


def _nuslerp(reader: _Reader, models: list[_Model], *, based: bool) -> tuple[str, dict[str, Any]]:
    """Between two models, or their task vectors where there is a base, at the share of the second one's weight."""
    reader.known(models, ("weight",), ("nuslerp_flatten", "nuslerp_row_wise"))
    _two(reader, "nuslerp", models, "two models beside base_model")
    if not reader.flag("nuslerp_flatten", True):
        reader.findings.refuse(
            "nuslerp_flatten is false: an arc for each row or column cannot be made here; remove it"
        )
    if reader.flag("nuslerp_row_wise", False):  # counts only where nuslerp_flatten is false
        reader.findings.note("nuslerp_row_wise says nothing where nuslerp_flatten is true, as in mergekit")
    weights = [_weight(reader, model) for model in models]
    total = sum(weights)
    t = 0.5 if abs(total) < 1e-6 or len(weights) < 2 else weights[1] / total
    if not 0 <= t <= 1:
        reader.findings.refuse(
            f"the weights give t = {t:g}, expected 0 to 1; let no weight of nuslerp be negative"
        )
    if not based:
        reader.findings.note(
            "nuslerp without base_model: where two tensors have a cosine beyond 0.9995 the point lies on the "
            "straight line, as in slerp; mergekit stays on the arc"
        )
    return "slerp", {"t": t, "updates": based}


def _weight(reader: _Reader, model: _Model) -> float:
    own = "weight" in model.parameters
    if not own and "weight" not in reader.shared:
        reader.findings.refuse(f"{model.where}.parameters.weight is missing; nuslerp needs it")
        return 1.0
    where = f"{model.where}.parameters.weight" if own else "parameters.weight"
    value = reader.constant(where, (model.parameters if own else reader.shared)["weight"])
    return 1.0 if value is None else reader.findings.number(where, value, 1.0)


def _two(reader: _Reader, method: str, models: list[_Model], words: str) -> None:
    if len(models) != 2:
        reader.findings.refuse(f"{method} joins two models: expected {words}")


def _same(one: str, two: str) -> bool:
    return bool(one and two) and Path(one).resolve() == Path(two).resolve()
