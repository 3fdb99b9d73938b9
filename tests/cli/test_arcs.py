"""mergekit's `slerp` and `nuslerp`: which two models, which point, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plait.errors import RefusedInput
from plait.methods.registry import make
from plait.recipe import Recipe, parse_recipe


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("base", "a", "b"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)


def read(text: str) -> Recipe:
    made = parse_recipe(text, "r.yaml")
    make(made.method, made.options)
    return made


def tasks(recipe: Recipe) -> list[str]:
    return [member.task for member in recipe.members]


@pytest.mark.parametrize("listed", ["{model: a}", "{model: a}, {model: base}", "{model: base}, {model: a}"])
def test_slerp_goes_from_the_base_to_the_other_model_however_they_are_listed(listed: str) -> None:
    made = read(f"merge_method: slerp\nbase_model: base\nmodels: [{listed}]\nparameters: {{t: 0.3}}")
    assert (made.method, made.options) == ("slerp", {"t": 0.3, "updates": False})
    assert tasks(made) == ["base", "a"]


def test_t_of_slerp_may_differ_by_tensor() -> None:
    t = "[{filter: mlp, value: 0.2}, {value: 0.7}]"
    made = read(f"merge_method: slerp\nbase_model: a\nmodels: [{{model: b}}]\nparameters: {{t: {t}}}")
    assert "0.2" in made.options["t"] and "0.7" in made.options["t"]  # noqa: PT018


ROW = "{model: %s, parameters: {weight: %%s}}"
NUSLERP = f"merge_method: nuslerp\nmodels: [{ROW % 'a'}, {ROW % 'b'}]"


@pytest.mark.parametrize(
    ("weights", "t"), [((1, 3), 0.75), ((2, 2), 0.5), ((1, 0), 0.0), ((0, 5), 1.0), ((0, 0), 0.5)]
)
def test_nuslerp_takes_the_share_of_the_second_weight(weights: tuple[int, int], t: float) -> None:
    made = read(NUSLERP % weights + "\nbase_model: base")
    assert (made.method, made.options) == ("slerp", {"t": t, "updates": True})
    assert tasks(made) == ["a", "b"]
    assert all(member.weight == 1 for member in made.members)


def test_nuslerp_without_a_base_goes_from_model_to_model_and_says_where_it_differs() -> None:
    made = read(NUSLERP % (1, 3))
    assert made.options == {"t": 0.75, "updates": False}
    assert any("beyond 0.9995" in note for note in made.notes)


ONE = "merge_method: slerp\nbase_model: base\nmodels: [{model: a}]\n"
REFUSED: list[tuple[str, Any]] = [
    (ONE, "parameters.t is missing; slerp needs it"),
    (ONE + "parameters: {t: 1.5}", "parameters.t is 1.5, expected 0 to 1"),
    (ONE.replace("{model: a}", "{model: a}, {model: b}") + "parameters: {t: 0.5}", "slerp joins two models"),
    (ONE.replace("base_model: base\n", "") + "parameters: {t: 0.5}", "base_model is missing"),
    (NUSLERP % (1, 3) + "\nparameters: {nuslerp_flatten: false}", "nuslerp_flatten is false"),
    (NUSLERP % (-1, 3), "the weights give t = 1.5, expected 0 to 1"),
    (NUSLERP.replace("parameters: {weight: %s}", "parameters: {}"), "weight is missing; nuslerp needs it"),
    (NUSLERP % (1, "[1, 2]"), "values that differ by layer or by name cannot be honoured"),
    ("merge_method: nuslerp\nmodels: [{model: a, parameters: {weight: 1}}]", "nuslerp joins two models"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=lambda v: v[-40:])
def test_what_cannot_be_honoured_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(RefusedInput) as caught:
        parse_recipe(text, "r.yaml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
