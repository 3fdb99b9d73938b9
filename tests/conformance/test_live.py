"""What the recorded cases do not have: methods and recipes that only `make conformance` runs through the peers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from plait.methods.memory import apply
from plait.methods.registry import make
from plait.recipe import read_recipe
from tests.conformance.peers_recipes import recipes
from tests.conformance.test_peers import EPS, FUSION_TIES, ROOT, Model, experts, read, worst

if not (ROOT / "recipes").is_dir():
    pytest.skip("only `make conformance` makes these files", allow_module_level=True)

WUDI = {"steps": 100, "tables": ""}  # FusionBench descends on every 2-D tensor, tables among them
DOP = {"steps": 20}
IN_FP64: list[tuple[str, str, dict[str, Any]]] = [
    ("simple_average", "average", {}),
    ("cavg", "average", {}),
    ("task_arithmetic", "task_arithmetic", {"scale": 0.3}),
    ("cta", "task_arithmetic", {"scale": 0.3}),
    ("ties", "ties", FUSION_TIES),
    ("cties", "ties_recursive", {"scale": 0.5}),
    ("magmax", "magmax", {"scale": 0.5}),
    ("opcm", "opcm", {"variant": "diagonal"}),
    ("opcm_paper", "opcm", {"variant": "block"}),
    ("iso_c", "iso_c", {"tables": ""}),
    ("iso_cts", "iso_cts", {"tables": ""}),
    ("tsvm", "tsv_m", {"tables": ""}),
    ("wudi", "wudi", WUDI),
    ("dop", "dop", DOP),
]


def in_fp64(model: Model) -> Model:
    return {n: t.double() for n, t in model.items()}


def worst_of(names: list[str], got: Model, want: Model) -> float:
    base = read("input/base")
    return max(float((got[n] - want[n]).abs().max() / (want[n] - base[n]).abs().max()) for n in names)


def is_matrix(name: str) -> bool:
    return read("input/base")[name].ndim == 2 and "embed" not in name


@pytest.mark.parametrize(("file", "method", "options"), IN_FP64, ids=[row[0] for row in IN_FP64])
def test_in_fp64_on_both_sides_the_results_are_the_same(
    file: str, method: str, options: dict[str, Any]
) -> None:
    """FusionBench's own program on the same files, read as fp64: no rounding is left to hide a difference of rule.
    Single singular vectors turn by eps times the square of sigma_1 over the gap, which is below 1e4 here."""
    got = apply(make(method, options), in_fp64(read("input/base")), [in_fp64(e) for e in experts()])
    names = [n for n in got if file != "dop" or is_matrix(n)]
    assert worst_of(names, got, read(f"fusionbench64/{file}")) <= 1e-7


@pytest.mark.parametrize(("file", "method", "options"), [("wudi", "wudi", WUDI), ("dop", "dop", DOP)])
def test_steps_of_adam_in_fp32_stay_as_near_as_the_peers(
    file: str, method: str, options: dict[str, Any]
) -> None:
    got = apply(make(method, options), read("input/base"), experts())
    names = [n for n in got if file != "dop" or is_matrix(n)]
    want, judge = read(f"fusionbench/{file}"), read(f"fusionbench64/{file}")
    peer = worst_of(names, want, judge)
    assert worst_of(names, got, judge) <= max(1e-5, peer)
    assert worst_of(names, got, want) <= 1e-5 + 2 * peer


def test_dop_halves_what_is_no_matrix_where_we_average() -> None:
    """See docs/conformance.md: the last member counts for half of FusionBench's model."""
    base, want = read("input/base"), read("fusionbench/dop")
    got, halved = apply(make("dop", {"steps": 0}), base, experts()), {}
    mean = apply(make("average"), base, experts())
    others = [n for n in base if not is_matrix(n)]
    for n in others:
        so_far = experts()[0][n].double()
        for expert in experts()[1:]:
            so_far = (so_far + expert[n].double()) / 2
        halved[n] = so_far
    assert worst_of(others, halved, want) <= 1e-5
    assert all(torch.equal(got[n], mean[n]) for n in others)


def test_dare_differs_by_its_random_numbers_alone() -> None:
    """One expert, half of the elements kept and doubled: where both keep an element, it is the same."""
    base, want = read("input/base"), read("alone/dare_ta")
    sparsify = {"name": "dare", "density": 0.5}
    got = apply(make("task_arithmetic", {"scale": 0.3, "sparsify": sparsify}), base, experts()[:1])
    mine, theirs, count = 0, 0, sum(t.numel() for t in base.values())
    for n, start in base.items():
        both = (got[n] != start) & (want[n] != start)
        unit = float((want[n] - start).abs().max()) or EPS
        assert float(((got[n] - want[n]).abs() * both).max()) <= 1e-5 * unit + 2e-7 * float(
            start.abs().max()
        ), n
        mine, theirs = mine + int((got[n] != start).sum()), theirs + int((want[n] != start).sum())
    for kept in (mine, theirs):  # six standard deviations of so many coins
        assert abs(kept - count / 2) <= 3 * count**0.5


@pytest.mark.parametrize("name", list(recipes(ROOT / "input")))
def test_a_recipe_gives_what_mergekit_makes_of_it(name: str) -> None:
    file = ROOT / "recipes" / f"{name}.yml"
    recipe = read_recipe(file)
    options: dict[str, Any] = recipe.options
    base, want = load_file(recipe.base), read(f"recipes/{name}")
    members = [load_file(member.checkpoint) for member in recipe.members]
    got = apply(make(recipe.method, options), base, members, [m.weight for m in recipe.members])
    assert set(got) == set(want)
    assert worst(got, want) <= 1e-5
