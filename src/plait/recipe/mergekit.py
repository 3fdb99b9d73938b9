"""mergekit's YAML in plait's words. What plait would do differently is refused or noted, never skipped.

Semantics checked against mergekit 0.1.5: the defaults of `normalize`, `rescale`, `density`, `gamma`,
`epsilon`, `lambda`, that a per-model parameter wins over the one for all, and what filters and anchors over the
layers give to each tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.errors import shown
from plait.recipe.arcs import ARCS, arc
from plait.recipe.findings import Findings
from plait.recipe.merge import Recipe, named
from plait.recipe.settings import NOTHING, ONE, Setting, first, setting


@dataclass(frozen=True)
class _Kind:
    """What a mergekit method is made of."""

    elects: bool = False  # elects signs, as TIES does
    sparsify: str = ""  # plait's sparsifier
    normalize: bool = False  # mergekit's defaults
    rescale: bool = False


_KINDS = {
    "task_arithmetic": _Kind(),
    "ties": _Kind(elects=True, normalize=True),
    "dare_linear": _Kind(sparsify="dare", rescale=True),
    "dare_ties": _Kind(elects=True, sparsify="dare", rescale=True),
    "della_linear": _Kind(sparsify="della", rescale=True),
    "della": _Kind(elects=True, sparsify="della", normalize=True, rescale=True),
    "breadcrumbs": _Kind(sparsify="breadcrumbs"),
    "breadcrumbs_ties": _Kind(elects=True, sparsify="breadcrumbs"),
}
METHODS = ("linear", *_KINDS, "model_stock", *ARCS)

_TOP = ("merge_method", "base_model", "models", "parameters", "dtype", "out_dtype", "tokenizer_source")
_EXTRA = {"breadcrumbs": "gamma", "della": "epsilon"}

_REFUSED = {
    "slices": "slices (merging layer ranges) cannot be done here; list whole models under `models`",
    "modules": "modules cannot be done here; merge each component as a recipe of its own with `models`",
    "tokenizer": "tokenizer settings cannot be honoured, plait keeps the base's; remove `tokenizer`",
    "chat_template": "chat_template cannot be honoured, plait keeps the base's; remove it, or set it in OUT",
}


def translate(data: dict[str, Any], findings: Findings, folder: Path) -> Recipe | None:
    """The Recipe that does what mergekit would do with `data`; None where findings say why not.

    folder: where relative paths start; mergekit takes the working directory.
    """
    method = data["merge_method"]
    if method not in METHODS:
        findings.refuse(f"merge_method {shown(method)} cannot be done here; expected {', '.join(METHODS)}")
        return None
    for key, words in _REFUSED.items():
        if data.get(key) is not None:
            findings.refuse(words)
    findings.keys("", {key: None for key in data if key not in _REFUSED}, _TOP)
    _tokenizer(data, findings)
    shared = findings.mapping("parameters", data.get("parameters"))
    reader = _Reader(findings, shared, folder)
    models = reader.models(data) if "models" in data or "slices" not in data else []
    base = reader.base(data, method, models)
    dtype = _dtype(data, findings)
    if method == "linear":
        made = _linear(reader, models)
    elif method == "model_stock":
        made = _model_stock(reader, models)
    elif method in ARCS:
        made = arc(reader, method, models, base if data.get("base_model") else "")
    else:
        made = _arithmetic(reader, _KINDS[method], models)
    if findings.wrong or made is None:
        return None
    name, options = made
    members = named([(m.path, None, m.weight.option) for m in models], findings)
    return Recipe(base, name, options, members, dtype, notes=tuple(findings.notes))


@dataclass
class _Model:
    """One row of `models`, its path checked and its parameters still to be read."""

    where: str
    path: str
    parameters: dict[str, Any]
    weight: Setting = ONE


class _Reader:
    """Reads parameters as mergekit does: a model's own first, then the one for all."""

    def __init__(self, findings: Findings, shared: dict[str, Any], folder: Path) -> None:
        self.findings, self.shared, self.folder = findings, shared, folder

    def models(self, data: dict[str, Any]) -> list[_Model]:
        found = []
        for where, row in self.findings.rows("models", data.get("models"), "model"):
            self.findings.keys(f"{where}.", row, ("model", "parameters"))
            path = self.reference(f"{where}.model", row.get("model"))
            found.append(
                _Model(where, path, self.findings.mapping(f"{where}.parameters", row.get("parameters")))
            )
        return found

    def reference(self, where: str, value: Any) -> str:
        """A model: a local path. Adapters, revisions and other architectures are refused."""
        if isinstance(value, dict):
            inner = value.get("model", value)
            extra = sorted(k for k in value if k not in ("model", "path") and value[k] is not None)
            if isinstance(inner, dict):
                extra += sorted(
                    k for k in inner if k != "path" and inner is not value and inner[k] is not None
                )
                inner = inner.get("path")
            for key in extra:
                self.findings.refuse(
                    f"{where}: {key} cannot be honoured; give a local folder that holds the model"
                )
            value = inner
        if isinstance(value, str) and "+" in value and not (self.folder / value).exists():
            self.findings.refuse(
                f"{where}: {shown(value)} adds an adapter to a model; merge the adapter into its model first "
                "and give that folder"
            )
            return ""
        return self.findings.path(where, value, self.folder)

    def base(self, data: dict[str, Any], method: str, models: list[_Model]) -> str:
        """The base; a base that is also listed as a model is taken off the list, as in mergekit."""
        if data.get("base_model") is None:
            if method not in ("linear", "nuslerp"):
                self.findings.refuse(
                    f"base_model is missing; {method} merges differences from a base: name it"
                )
                return ""
            if models and method == "linear":
                self.findings.note(
                    "no base_model is named: the first model stands for it; a mean is the same from any base"
                )
            return models[0].path if models else ""
        base = self.reference("base_model", data["base_model"])
        if method not in ("linear", "slerp") and base:
            for model in [m for m in models if m.path and _same(m.path, base)]:
                models.remove(model)
                self.findings.note(f"{model.where} is the base: it adds nothing to itself, as in mergekit")
            if not models and not self.findings.wrong:
                self.findings.refuse("models lists only the base; name at least one other model")
        return base

    def constant(self, where: str, value: Any) -> Any:
        """One value for all tensors, where there can be no other; anchors and filters are refused."""
        if (
            isinstance(value, list)
            and len(value) == 1
            and isinstance(value[0], dict)
            and set(value[0]) == {"value"}
        ):
            value = value[0]["value"]
        if isinstance(value, (list, dict)):
            self.findings.refuse(
                f"{where} is {shown(value)}: values that differ by layer or by name cannot be honoured; "
                "give one number"
            )
            return None
        return value

    def setting(self, key: str, model: _Model | None, default: Setting) -> tuple[str, Setting]:
        """Where a parameter stands, and what it says: a model's own, then the one for all, then the default."""
        places = [] if model is None else [(f"{model.where}.parameters.{key}", model.parameters)]
        places.append((f"parameters.{key}", self.shared))
        given = [(where, held[key]) for where, held in places if key in held]
        found = first([*(setting(self.findings, where, value) for where, value in given), default])
        return (given or places[-1:])[0][0], found

    def weights(self, models: list[_Model]) -> None:
        missing = []
        for model in models:
            where, found = self.setting("weight", model, NOTHING)
            if found.rules.otherwise is None:
                some = " in tensors that no filter names" if found.rules.pairs else ""
                missing.append(model.where + some)
                found = found.then(ONE)
            model.weight = found
            if found.constant is not None:
                self.findings.weight(where, found.constant)
            elif not all(0 <= number <= 2**20 for number in found.numbers) or not any(found.numbers):
                self.findings.refuse(
                    f"{where} is {found.rules.text}, expected numbers from 0 to 2^20, one of them above 0; only "
                    "members of positive weight can be merged"
                )
        if missing:
            self.findings.note(
                f"no weight is given for {', '.join(missing)}: 1 is taken (mergekit asks for one)"
            )

    def common(self, key: str, models: list[_Model], default: float) -> Setting:
        """A parameter that must be the same for all models."""
        found: dict[Setting, str] = {}
        for model in models:
            where, one = self.setting(key, model, Setting.of(default))
            found.setdefault(one, where)
        if len(found) > 1:
            each = ", ".join(f"{one.rules.text} ({where})" for one, where in found.items())
            self.findings.refuse(f"{key} differs between models: {each}; one {key} for all is needed")
        return next(iter(found), Setting.of(default))

    def flag(self, key: str, default: bool) -> bool:
        if key not in self.shared:
            return default
        return self.findings.truth(f"parameters.{key}", self.shared[key], default)

    def known(self, models: list[_Model], each: tuple[str, ...], shared: tuple[str, ...]) -> None:
        """Parameters that the method has no use for are findings."""
        self.findings.keys("parameters.", self.shared, (*shared, *each))
        for model in models:
            self.findings.keys(f"{model.where}.parameters.", model.parameters, each)


def _same(one: str, two: str) -> bool:
    return Path(one).resolve() == Path(two).resolve()


def _linear(reader: _Reader, models: list[_Model]) -> tuple[str, dict[str, Any]]:
    """sum w_i theta_i / sum w_i, which is `average`."""
    reader.known(models, ("weight",), ("normalize",))
    reader.weights(models)
    if not reader.flag("normalize", True) and models:
        total = _total(models)
        if total != 1:
            sums = "differ from tensor to tensor" if total is None else f"sum to {total:g}"
            reader.findings.refuse(
                f"normalize is false and the weights {sums}: the model itself would be scaled, "
                "which cannot be done here; let the weights sum to 1 or set normalize to true"
            )
    return "average", {}


def _total(models: list[_Model]) -> float | None:
    """The sum of the weights; None where they differ from tensor to tensor."""
    from math import fsum

    constants = [model.weight.constant for model in models]
    numbers = [number for number in constants if number is not None]
    return fsum(numbers) if len(numbers) == len(constants) else None


def _model_stock(reader: _Reader, models: list[_Model]) -> tuple[str, dict[str, Any]]:
    """Per tensor, with the mean of the pairwise cosines, as in mergekit with filter_wise false."""
    reader.known(models, (), ("filter_wise",))
    if reader.flag("filter_wise", False):
        reader.findings.refuse("filter_wise is true: one ratio for each row cannot be honoured; remove it")
    if len(models) == 1:
        reader.findings.refuse("model_stock needs at least two models beside the base; add one")
    reader.findings.note(
        "model_stock keeps its ratio between 0 and 1; mergekit lets negative cosines take it outside"
    )
    return "model_stock", {}


def _arithmetic(reader: _Reader, kind: _Kind, models: list[_Model]) -> tuple[str, dict[str, Any]]:
    """mergekit's family of base + lambda * sum w_i sparsify(tau_i), with or without elected signs."""
    findings = reader.findings
    extra = _EXTRA.get(kind.sparsify, "")
    each = ("weight", "density", *([extra] if extra else []))
    reader.known(models, each, ("normalize", "lambda", "int8_mask", "rescale"))
    reader.weights(models)
    _, scale = reader.setting("lambda", None, ONE)
    normalize = reader.flag("normalize", kind.normalize)
    if reader.flag("int8_mask", False):
        findings.note("int8_mask saves mergekit memory; plait keeps no mask, the numbers are the same")
    if reader.flag("rescale", kind.rescale) != kind.rescale:
        given = str(not kind.rescale).lower()
        findings.refuse(f"rescale {given} cannot be honoured for this method; remove it")
    density = reader.common("density", models, 1.0)
    if not all(0 < number <= 1 for number in density.numbers):
        findings.refuse(f"density is {density.rules.text}, expected a number above 0 and at most 1")
    options: dict[str, Any] = {"scale": scale.option}
    thinned = density.constant != 1
    if kind.sparsify and thinned:
        options["sparsify"] = _sparsifier(reader, kind, models, density, extra)
    elif extra:
        reader.common(
            extra, models, 0.0
        )  # read only to find what is wrong with it: density 1 keeps everything
    if kind.elects:
        trimmed = density.option if not kind.sparsify else 1.0
        disjoint = "mean" if normalize else "sum"
        return "ties", {**options, "density": trimmed, "trim": "tensor", "disjoint": disjoint}
    if not kind.sparsify and thinned:
        findings.refuse(
            f"density {density.rules.text} has no meaning for task_arithmetic; remove it, or use ties"
        )
    return _summed(findings, options, scale, normalize, models)


def _summed(
    findings: Findings, options: dict[str, Any], scale: Setting, normalize: bool, models: list[_Model]
) -> tuple[str, dict[str, Any]]:
    """Without elected signs: a plain sum, or a mean where mergekit is told to normalize."""
    if not normalize:
        return "task_arithmetic", options
    if scale.constant == 1:
        findings.note("normalize is true: this is the weighted average")
        return "average", {key: value for key, value in options.items() if key != "scale"}
    total, words = _total(models), scale.rules.text
    if total is None:
        findings.refuse(
            f"normalize is true, lambda is {words}, and the weights differ from tensor to tensor, which cannot be "
            "done here together; set lambda to 1, or normalize to false"
        )
        return "average", {}
    findings.note(f"normalize is true: lambda {words} is divided by the sum of the weights, {total:g}")
    return "task_arithmetic", {**options, "scale": scale.each(lambda v: v / total if total else v).option}


def _sparsifier(
    reader: _Reader, kind: _Kind, models: list[_Model], density: Setting, extra: str
) -> dict[str, Any]:
    """plait's sparsifier of the same kind, with a note where its numbers differ by nature."""
    made: dict[str, Any] = {"name": kind.sparsify, "density": density.option}
    if extra == "gamma":
        gamma = reader.common("gamma", models, 0.01)
        made["gamma"] = _beside(density, gamma, lambda d, g: min(g, max(0.0, 1 - d))).option
    if extra == "epsilon":
        faults = len(reader.findings.wrong)
        epsilon = reader.common("epsilon", models, 0.15)
        e, d = epsilon.constant, density.constant
        fits = e is None or d is None or (e >= 0 and d + e < 1 and d - e > 0)
        if not fits and len(reader.findings.wrong) == faults:
            reader.findings.refuse(
                f"epsilon is {e:g}: density {d:g} ± epsilon must lie between 0 and 1; lower epsilon, or move density"
            )
        made["spread"] = _beside(density, epsilon, lambda d, e: 2 * e if d < 1 else 0.0).option
    if kind.sparsify in ("dare", "della"):
        kept = "density" if kind.sparsify == "dare" else "its own probability"
        reader.findings.note(
            f"{kind.sparsify} drops elements at random, with other random numbers than mergekit's, "
            f"and divides what is kept by {kept} as in its paper; mergekit restores the "
            "sum of magnitudes of each tensor"
        )
    return made


def _beside(density: Setting, extra: Setting, combine: Callable[[float, float], float]) -> Setting:
    """`combine` of the density and another parameter, tensor by tensor; a density of 1 keeps everything, whatever the
    other says. Where both differ from tensor to tensor, the other stays as it is: the sparsifier refuses what does
    not fit."""
    one, d = extra.constant, density.constant
    if one is not None:
        return density.each(lambda d: combine(d, one))
    return extra.each(lambda e: combine(0.0 if d is None else d, e))


def _tokenizer(data: dict[str, Any], findings: Findings) -> None:
    """Only the base's tokenizer can be kept."""
    source = data.get("tokenizer_source")
    if source not in (None, "base"):
        findings.refuse(
            f"tokenizer_source {shown(source)} cannot be honoured, plait keeps the base's tokenizer; "
            "set it to base or remove it"
        )


def _dtype(data: dict[str, Any], findings: Findings) -> str | None:
    """mergekit's `dtype` is what it computes in, and its output's too unless `out_dtype` is given."""
    computed = findings.dtype("dtype", data.get("dtype"))
    output = findings.dtype("out_dtype", data.get("out_dtype"))
    if computed is not None:
        findings.note(
            "dtype is that of the output: sums are exact and rounded once, inputs are not rounded first"
            if output is None
            else "dtype is not needed: sums are exact and rounded once, to out_dtype"
        )
    return output or computed
