"""mergekit's recipes: what each becomes, and what is refused with which words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from plait.errors import RefusedInput
from plait.methods.registry import make
from plait.recipe import Recipe, parse_recipe, read_recipe
from tests.cli.conftest import Plait

CASES = Path(__file__).parents[3] / "shared" / "cases" / "conformance"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a base and two models: mergekit's paths start here."""
    for name in ("base", "a", "b"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def recipe(method: str, rest: str = "", *, a: str = "weight: 1.0", b: str = "weight: 0.5") -> str:
    return (
        f"merge_method: {method}\nbase_model: base\n"
        f"models:\n  - model: a\n    parameters: {{{a}}}\n  - model: b\n    parameters: {{{b}}}\n{rest}"
    )


def read(text: str) -> Recipe:
    made = parse_recipe(text, "r.yaml", Path("/nowhere"))
    make(made.method, made.options)  # the method takes these options
    return made


TIES = {"density": 1.0, "trim": "tensor", "scale": 1.0}
BECOMES: list[tuple[str, str, str, str, dict[str, Any]]] = [
    ("linear", "", "", "average", {}),
    ("linear", "parameters: {normalize: 1}", "", "average", {}),
    ("task_arithmetic", "", "", "task_arithmetic", {"scale": 1.0}),
    ("task_arithmetic", "parameters: {lambda: 0.3}", "", "task_arithmetic", {"scale": 0.3}),
    ("task_arithmetic", "parameters: {normalize: true}", "", "average", {}),
    ("task_arithmetic", "parameters: {normalize: true, lambda: 3}", "", "task_arithmetic", {"scale": 2.0}),
    ("ties", "", "", "ties", {**TIES, "disjoint": "mean"}),
    (
        "ties",
        "parameters: {density: 2e-1, lambda: 0.7}",
        "",
        "ties",
        {**TIES, "disjoint": "mean", "density": 0.2, "scale": 0.7},
    ),
    (
        "ties",
        "parameters: {normalize: false}",
        ", density: 0.5",
        "ties",
        {**TIES, "disjoint": "sum", "density": 0.5},
    ),
    ("ties", "parameters: {int8_mask: true, rescale: false}", "", "ties", {**TIES, "disjoint": "mean"}),
    (
        "dare_linear",
        "",
        ", density: 0.5",
        "task_arithmetic",
        {"scale": 1.0, "sparsify": {"name": "dare", "density": 0.5}},
    ),
    ("dare_linear", "", "", "task_arithmetic", {"scale": 1.0}),
    (
        "dare_ties",
        "parameters: {rescale: true}",
        ", density: 0.5",
        "ties",
        {**TIES, "disjoint": "sum", "sparsify": {"name": "dare", "density": 0.5}},
    ),
    (
        "della",
        "",
        ", density: 0.5, epsilon: 0.1",
        "ties",
        {**TIES, "disjoint": "mean", "sparsify": {"name": "della", "density": 0.5, "spread": 0.2}},
    ),
    (
        "della_linear",
        "",
        ", density: 0.5",
        "task_arithmetic",
        {"scale": 1.0, "sparsify": {"name": "della", "density": 0.5, "spread": 0.3}},
    ),
    (
        "breadcrumbs",
        "",
        ", density: 0.9, gamma: 0.02",
        "task_arithmetic",
        {"scale": 1.0, "sparsify": {"name": "breadcrumbs", "density": 0.9, "gamma": 0.02}},
    ),
    (
        "breadcrumbs_ties",
        "parameters: {density: 0.5}",
        "",
        "ties",
        {**TIES, "disjoint": "sum", "sparsify": {"name": "breadcrumbs", "density": 0.5, "gamma": 0.01}},
    ),
]


@pytest.mark.parametrize(("method", "rest", "each", "name", "options"), BECOMES, ids=lambda v: str(v)[:30])
@pytest.mark.usefixtures("here")
def test_what_each_method_becomes(
    method: str, rest: str, each: str, name: str, options: dict[str, Any]
) -> None:
    made = read(recipe(method, rest, a=f"weight: 1.0{each}", b=f"weight: 0.5{each}"))
    assert (made.method, made.options) == (name, options)
    assert [tuple(member) for member in made.members] == [("a", "a", 1.0), ("b", "b", 0.5)]
    assert made.base == "base"


@pytest.mark.usefixtures("here")
def test_model_stock() -> None:
    made = read(recipe("model_stock", a="", b=""))
    assert (made.method, made.options) == ("model_stock", {})
    assert "between 0 and 1" in made.notes[0]


@pytest.mark.usefixtures("here")
def test_a_models_own_parameter_wins_over_the_one_for_all() -> None:
    made = read(recipe("task_arithmetic", "parameters: {weight: 0.25}", a="weight: 2", b=""))
    assert [member.weight for member in made.members] == [2.0, 0.25]


@pytest.mark.usefixtures("here")
def test_what_is_not_plain_from_the_recipe_is_noted() -> None:
    made = read(
        recipe(
            "dare_ties", "dtype: float32\nout_dtype: bfloat16", a="density: 0.5", b="weight: 1, density: 0.5"
        )
    )
    assert made.dtype == "BF16"
    assert made.notes == (
        "dtype is not needed: sums are exact and rounded once, to out_dtype",
        "no weight is given for models[0]: 1 is taken (mergekit asks for one)",
        "dare drops elements at random, with other random numbers than mergekit's, and divides what is kept by "
        "density as in its paper; mergekit restores the sum of magnitudes of each tensor",
    )
    assert read(recipe("ties", "dtype: float16")).dtype == "F16"
    assert read(recipe("ties")).notes == ()


@pytest.mark.usefixtures("here")
def test_the_base_among_the_models_adds_nothing() -> None:
    text = recipe("ties").replace("models:\n", "models:\n  - model: ./base\n")
    made = read(text)
    assert [member.task for member in made.members] == ["a", "b"]
    assert made.notes == ("models[0] is the base: it adds nothing to itself, as in mergekit",)
    mean = read(text.replace("ties", "linear"))
    assert [member.task for member in mean.members] == ["base", "a", "b"]


@pytest.mark.usefixtures("here")
def test_linear_without_a_base_takes_the_first_model_for_it() -> None:
    made = read(recipe("linear").replace("base_model: base\n", ""))
    assert (made.base, len(made.members)) == ("a", 2)
    assert "the first model stands for it" in made.notes[0]


@pytest.mark.usefixtures("here")
def test_one_value_without_a_filter_is_a_constant() -> None:
    made = read(recipe("ties", a="weight: [{value: 0.3}]"))
    assert made.members[0].weight == 0.3


REFUSED: list[tuple[str, str]] = [
    (
        recipe("nearswap"),
        "merge_method 'nearswap' cannot be done here; expected linear, task_arithmetic, ties,",
    ),
    (recipe("passthrough"), "merge_method 'passthrough' cannot be done here"),
    (recipe("[ties]"), "merge_method ['ties'] cannot be done here"),
    (
        recipe("ties", "slices: [{sources: []}]"),
        "slices (merging layer ranges) cannot be done here; list whole",
    ),
    (recipe("ties", "modules: {text: {}}"), "modules cannot be done here"),
    (recipe("ties", "tokenizer_source: union"), "tokenizer_source 'union' cannot be honoured, plait keeps"),
    (recipe("ties", "tokenizer: {source: base}"), "tokenizer settings cannot be honoured"),
    (recipe("ties", "chat_template: auto"), "chat_template cannot be honoured"),
    (
        recipe("ties", "frobnicate: 1"),
        "'frobnicate' is not known; expected merge_method, base_model, models,",
    ),
    (recipe("ties", "dtype: int8"), "dtype is 'int8', expected float32, bfloat16, float16"),
    (recipe("ties", "out_dtype: float64"), "out_dtype is 'float64', expected float32"),
    (
        recipe("ties", "parameters: {rescale: true}"),
        "rescale true cannot be honoured for this method; remove it",
    ),
    (recipe("dare_ties", "parameters: {rescale: false}"), "rescale false cannot be honoured"),
    (recipe("ties", "parameters: {t: 0.5}"), "parameters.'t' is not known; expected normalize, lambda"),
    (recipe("ties", "parameters: [1]"), "parameters is [1], expected names and values"),
    (
        recipe("ties", "parameters: {normalize: maybe}"),
        "parameters.normalize is 'maybe', expected true or false",
    ),
    (recipe("ties", "parameters: {lambda: [0, x]}"), "parameters.lambda is 'x', expected a finite number"),
    (recipe("ties", "parameters: {lambda: []}"), "parameters.lambda is [], expected a number, numbers over"),
    (recipe("ties", "parameters: {lambda: [[1]]}"), "parameters.lambda[0] is [1], expected a value, and a"),
    (
        recipe("ties", "parameters: {lambda: {filter: mlp}}"),
        "parameters.lambda[0] is {'filter': 'mlp'}, expected a value, and",
    ),
    (
        recipe("ties", "parameters: {lambda: {filter: 'a;b', value: 1}}"),
        "lambda[0].filter is 'a;b', expected",
    ),
    (recipe("ties", a="weight: [0, -1]"), "models[0].parameters.weight is 0..-1, expected numbers from 0 to"),
    (
        recipe("ties", a="weight: [{filter: mlp, value: 0}, {value: 0}]"),
        "one of them above 0; only members of",
    ),
    (
        recipe("task_arithmetic", "parameters: {normalize: true, lambda: 2}", a="weight: [1, 2]"),
        "normalize is true, lambda is 2, and the weights differ from tensor to tensor",
    ),
    (
        recipe("linear", "parameters: {normalize: false}", a="weight: [1, 2]"),
        "normalize is false and the weights differ from tensor to tensor",
    ),
    (
        recipe("ties", a="weight: 1, gamma: 2"),
        "models[0].parameters.'gamma' is not known; expected weight, density",
    ),
    (
        recipe("ties", a="weight: 0"),
        "weight is 0, expected a number above 0 and at most 2^20; leave the model out",
    ),
    (
        recipe("ties", a="weight: -1"),
        "weight is -1, expected a number above 0 and at most 2^20; only members of",
    ),
    (recipe("ties", a="weight: heavy"), "models[0].parameters.weight is 'heavy', expected a finite number"),
    (recipe("ties", a="weight: 1, density: 0.5"), "density differs between models: 0.5 (models[0].par"),
    (recipe("ties", "parameters: {density: 0}"), "density is 0, expected a number above 0 and at most 1"),
    (
        recipe("task_arithmetic", "parameters: {density: 0.5}"),
        "density 0.5 has no meaning for task_arithmetic",
    ),
    (recipe("della", "parameters: {density: 0.9}"), "epsilon is 0.15: density 0.9 ± epsilon must lie"),
    (
        recipe("della", "parameters: {density: 0.5, epsilon: wide}"),
        "parameters.epsilon is 'wide', expected a finite number",
    ),
    (
        recipe("linear", "parameters: {density: 0.5}"),
        "parameters.'density' is not known; expected normalize, weight",
    ),
    (
        recipe("linear", "parameters: {normalize: false}"),
        "normalize is false and the weights sum to 1.5: the model",
    ),
    (recipe("model_stock"), "models[0].parameters.'weight' is not known"),
    (recipe("model_stock", "parameters: {filter_wise: true}", a="", b=""), "filter_wise is true"),
    (
        recipe("ties").replace("base_model: base\n", ""),
        "base_model is missing; ties merges differences from a base",
    ),
    (recipe("ties").replace("model: a", "model: org/name"), "models[0].model: 'org/name' is not here; plait"),
    (recipe("ties").replace("model: a", "model: a+lora"), "models[0].model: 'a+lora' adds an adapter to"),
    (
        recipe("ties").replace("model: a", "model: {path: a, revision: x}"),
        "models[0].model: revision cannot be",
    ),
    (
        recipe("ties").replace("model: a", "model: {model: {path: a}, lora: {path: b}}"),
        "lora cannot be honoured",
    ),
    (
        recipe("ties").replace("model: a", "model: a\n    layer_range: [0, 1]"),
        "models[0].'layer_range' is not known",
    ),
    ("merge_method: ties\nbase_model: base\nmodels: [{model: base}]", "models lists only the base"),
    ("merge_method: ties\nbase_model: base", "models is missing, expected a list of at least one model"),
    (recipe("ties", "members: []"), "'members' is not known"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=lambda v: v[-40:])
@pytest.mark.usefixtures("here")
def test_what_cannot_be_honoured_is_refused(text: str, message: str) -> None:
    with pytest.raises(RefusedInput) as caught:
        parse_recipe(text, "r.yaml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


ONE_FAULT = {
    "parameters.density is 'x', expected a finite number": recipe("ties", "parameters: {density: [0.1, x]}"),
    "parameters.epsilon is 'wide', expected a finite number": recipe(
        "della", "parameters: {density: 0.5, epsilon: wide}"
    ),
    "parameters.t is [], expected a number, numbers over the layers, or values with filters": (
        "merge_method: slerp\nbase_model: a\nmodels: [{model: b}]\nparameters: {t: []}"
    ),
}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("message", ONE_FAULT)
def test_one_value_for_all_is_refused_once(message: str) -> None:
    with pytest.raises(RefusedInput) as caught:
        parse_recipe(ONE_FAULT[message], "r.yaml")
    assert str(caught.value) == f"r.yaml: {message}"


BY_TENSOR: list[tuple[str, str, str, dict[str, Any]]] = [
    ("task_arithmetic", "lambda: [0, 0.5, 1]", "", {"scale": "0..0.5..1"}),
    ("task_arithmetic", "lambda: {filter: 'a*', value: 2}", "", {"scale": "*a[*]*:2; 1"}),
    ("task_arithmetic", "lambda: [{filter: '*', value: 2}, {value: 3}]", "", {"scale": 2.0}),
    ("task_arithmetic", "normalize: true, lambda: [3, 6]", "", {"scale": "2..4"}),
    (
        "breadcrumbs",
        "density: [{filter: mlp, value: 1}, {value: 0.75}], gamma: 0.5",
        "",
        {
            "scale": 1.0,
            "sparsify": {"name": "breadcrumbs", "density": "*mlp*:1; 0.75", "gamma": "*mlp*:0; 0.25"},
        },
    ),
    (
        "della_linear",
        "density: 0.5, epsilon: [0.1, 0.2]",
        "",
        {"scale": 1.0, "sparsify": {"name": "della", "density": 0.5, "spread": "0.2..0.4"}},
    ),
    (
        "ties",
        "density: [{value: 0.5}]",
        ", density: [{filter: mlp, value: [0.1, 0.2]}]",
        {**TIES, "disjoint": "mean", "density": "*mlp*:0.1..0.2; 0.5"},
    ),
]


@pytest.mark.parametrize(("method", "rest", "each", "options"), BY_TENSOR, ids=lambda v: str(v)[:40])
@pytest.mark.usefixtures("here")
def test_filters_and_depths_become_rules(method: str, rest: str, each: str, options: dict[str, Any]) -> None:
    made = read(recipe(method, f"parameters: {{{rest}}}", a=f"weight: 1.0{each}", b=f"weight: 0.5{each}"))
    assert made.options == options


@pytest.mark.usefixtures("here")
def test_weights_differ_by_filter_and_depth() -> None:
    text = recipe(
        "ties",
        "parameters: {weight: [{filter: bias, value: 0}]}",
        a="weight: [{filter: mlp, value: [0, 1]}]",
        b="weight: [1, 2]",
    )
    made = read(text)
    assert [member.weight for member in made.members] == ["*mlp*:0..1; *bias*:0; 1", "1..2"]
    assert made.notes == (
        "no weight is given for models[0] in tensors that no filter names: 1 is taken (mergekit asks for one)",
    )


@pytest.mark.usefixtures("here")
def test_other_spellings_of_a_model_and_keys_that_say_nothing() -> None:
    text = recipe("ties", "tokenizer_source: base\nchat_template: null").replace(
        "- model: a", "- model: {path: a}"
    )
    assert (
        read(text.replace("- model: b", "- model: {model: {path: b}}")).members
        == read(recipe("ties")).members
    )


# Numbers: the formula of each method in mergekit 0.1.5, written out here on whole tensors.

MERGED: dict[str, tuple[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    "linear": ("", lambda d, w: (d * w).sum(0) / w.sum()),
    "task_arithmetic": ("parameters: {lambda: 0.5}", lambda d, w: 0.5 * (d * w).sum(0)),
    "ties": ("parameters: {density: 0.3}", lambda d, w: elected(trimmed(d, 0.3) * w, w, mean=True)),
    "breadcrumbs": (
        "parameters: {density: 0.3, gamma: 0.1}",
        lambda d, w: (outliers(d, 0.3, 0.1) * w).sum(0),
    ),
    "breadcrumbs_ties": (
        "parameters: {density: 0.3, gamma: 0.1, lambda: 2}",
        lambda d, w: 2 * elected(outliers(d, 0.3, 0.1) * w, w, mean=False),
    ),
    "dare_ties": ("", lambda d, w: elected(d * w, w, mean=False)),  # density 1 keeps everything
}


def trimmed(deltas: torch.Tensor, density: float) -> torch.Tensor:
    kept = torch.zeros_like(deltas)
    for row, out in zip(deltas, kept, strict=True):
        index = row.abs().argsort(descending=True)[: int(density * row.numel())]
        out[index] = row[index]
    return kept


def outliers(deltas: torch.Tensor, density: float, gamma: float) -> torch.Tensor:
    kept = torch.zeros_like(deltas)
    for row, out in zip(deltas, kept, strict=True):
        top, count = int(gamma * row.numel()), int(density * row.numel())
        index = row.abs().argsort(descending=True)[top : top + count]
        out[index] = row[index]
    return kept


def elected(weighted: torch.Tensor, weights: torch.Tensor, *, mean: bool) -> torch.Tensor:
    agree = weighted.sign() == torch.where(weighted.sum(0) >= 0, 1.0, -1.0)
    total = (weighted * agree).sum(0)
    divisor = (weights * agree).sum(0)
    return total / torch.where(divisor == 0, 1.0, divisor) if mean else total


@pytest.mark.parametrize("method", MERGED)
def test_numbers_are_mergekits(
    plait: Plait, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.chdir(tmp_path)
    g = torch.Generator().manual_seed(5)
    base = torch.randn(400, generator=g, dtype=torch.float64)
    deltas = 0.1 * torch.randn(2, 400, generator=g, dtype=torch.float64)
    save_file({"w": base}, "base")
    for name, delta in zip("ab", deltas, strict=True):
        save_file({"w": base + delta}, name)
    for name in ("base", "a", "b"):
        Path(name).rename(f"{name}.safetensors")
    rest, formula = MERGED[method]
    text = recipe(method, rest)
    for name in ("base", "a", "b"):
        text = text.replace(f"model: {name}\n", f"model: {name}.safetensors\n")
    Path("r.yaml").write_text(text)
    done = plait("once", "r.yaml", "out.safetensors", "--quiet", "--json")
    assert done.code == 0, done.err
    weights = torch.tensor([[1.0], [0.5]], dtype=torch.float64)
    wanted = base + formula(deltas, weights)
    got = load_file("out.safetensors")["w"]
    # Both round a handful of times at magnitude up to 4: 8 units in the last place of fp64 there are 8e-15.
    assert (got - wanted).abs().max() < 8e-15


@pytest.mark.skipif(not CASES.exists(), reason="the recorded results are not beside this repository")
@pytest.mark.parametrize(
    ("file", "method", "rest"),
    [
        ("mergekit_linear", "linear", ""),
        ("mergekit_task_arithmetic_0.3", "task_arithmetic", "parameters: {lambda: 0.3}"),
        ("mergekit_ties_density0.2", "ties", "parameters: {density: 0.2}"),
    ],
)
def test_recorded_results_of_mergekit(
    plait: Plait, tmp_path: Path, file: str, method: str, rest: str
) -> None:
    rows = "".join(
        f"  - {{model: {CASES}/input/task_{i}.safetensors, parameters: {{weight: 1}}}}\n" for i in range(4)
    )
    text = f"merge_method: {method}\nbase_model: {CASES}/input/base.safetensors\nmodels:\n{rows}{rest}\n"
    (tmp_path / "r.yaml").write_text(text)
    assert read_recipe(tmp_path / "r.yaml").members[3].task == "task_3"
    done = plait("once", tmp_path / "r.yaml", tmp_path / "out.safetensors", "--json", "--quiet")
    assert done.code == 0, done.err
    got, want = (
        load_file(tmp_path / "out.safetensors"),
        load_file(CASES / "peft_mergekit" / f"{file}.safetensors"),
    )
    base = load_file(CASES / "input" / "base.safetensors")
    assert got.keys() == want.keys()
    for name in want:
        shift = (want[name] - base[name]).abs().max()
        assert (got[name] - want[name]).abs().max() <= 1e-5 * shift + 2e-7 * base[name].abs().max(), name
