"""MDM-OC against Gram-Schmidt on the vectors themselves, and against what the algebra says of removals."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from plait import merge_state_dicts
from plait.errors import RefusedInput, UsageError
from plait.methods.base import MemberFacts
from plait.methods.coefficients import Products
from plait.methods.mdm_oc import MdmOc
from plait.methods.registry import make

Model = dict[str, Tensor]
SHAPES: dict[str, tuple[int, ...]] = {
    "embeddings.word": (30, 8),
    "encoder.layer.0.dense": (16, 16),
    "encoder.layer.0.norm": (16,),
    "encoder.layer.11.dense": (16, 16),
    "head": (5, 16),
}
LAYERS = ["embeddings", "encoder.layer.0", "encoder.layer.0", "encoder.layer.11", "head"]
GROUPS: dict[str, Callable[[str], str]] = {
    "model": lambda name: "all",
    "layer": lambda name: dict(zip(SHAPES, LAYERS, strict=True))[name],
    "tensor": lambda name: name,
}


def correlated(count: int = 5, seed: int = 0) -> tuple[Model, list[Model]]:
    """A base and experts in fp64 whose task vectors have cosines of about 0.5: a common part and one of their own."""
    draw = torch.Generator().manual_seed(seed)

    def normal(scale: float) -> Model:
        return {n: scale * torch.randn(s, generator=draw, dtype=torch.float64) for n, s in SHAPES.items()}

    base, common = normal(1.0), normal(0.02)
    return base, [{n: base[n] + common[n] + t for n, t in normal(0.02).items()} for _ in range(count)]


def vectors(base: Model, experts: Sequence[Model], group: Callable[[str], str]) -> dict[str, list[Tensor]]:
    """Task vectors, each group as one flat vector."""
    out: dict[str, list[Tensor]] = {}
    for g in dict.fromkeys(map(group, base)):
        names = [n for n in base if group(n) == g]
        out[g] = [torch.cat([(e[n] - base[n]).flatten() for n in names]) for e in experts]
    return out


def orthogonal(taus: Sequence[Tensor]) -> list[Tensor]:
    """q_i = tau_i - sum_j <tau_i, q_j> / ||q_j||^2 q_j, as it is written."""
    made: list[Tensor] = []
    for tau in taus:
        made.append(tau - sum((tau @ q / (q @ q) * q for q in made), torch.zeros_like(tau)))
    return made


def shift(merged: Model, base: Model, group: Callable[[str], str]) -> dict[str, Tensor]:
    return {g: rows[0] for g, rows in vectors(base, [merged], group).items()}


def products(taus: Sequence[Tensor]) -> Products:
    rows = torch.stack(list(taus))
    return Products(tuple(f"t{i}" for i in range(len(taus))), {"model": rows @ rows.T})


def facts(*weights: float) -> list[MemberFacts]:
    return [MemberFacts(w, {}) for w in weights]


@pytest.mark.parametrize("granularity", GROUPS)
def test_equals_gram_schmidt_on_the_vectors(granularity: str) -> None:
    base, experts = correlated()
    weights = [1.0, 2.0, 0.3, 1.7, 1.0]
    group = GROUPS[granularity]
    merged = merge_state_dicts(base, experts, "mdm_oc", weights, alpha=0.4, granularity=granularity)
    got = shift(merged, base, group)
    for g, taus in vectors(base, experts, group).items():
        want = sum(0.4 * w * q for w, q in zip(weights, orthogonal(taus), strict=True))
        assert isinstance(want, Tensor)
        # Cosines of 0.5 cost about one digit; the base, of size 1, is added and rounded once.
        assert torch.allclose(got[g], want, rtol=0, atol=100 * 2.0**-53)


def test_order_changes_the_result() -> None:
    base, experts = correlated()
    one = merge_state_dicts(base, experts, "mdm_oc")
    other = merge_state_dicts(base, experts[::-1], "mdm_oc")
    assert not torch.equal(one["head"], other["head"])


def test_orthogonal_task_vectors_give_task_arithmetic() -> None:
    base = {"w": torch.zeros(6, 4)}
    experts = []
    for i in range(4):
        expert = {"w": torch.zeros(6, 4)}
        expert["w"][i] = torch.arange(1.0, 5.0)
        experts.append(expert)
    one = merge_state_dicts(base, experts, "mdm_oc", alpha=0.3)
    other = merge_state_dicts(base, experts, "task_arithmetic", scale=0.3)
    assert torch.equal(one["w"], other["w"])


def test_alpha_0_gives_the_base() -> None:
    base, experts = correlated()
    merged = merge_state_dicts(base, experts, "mdm_oc", alpha=0)
    assert all(torch.equal(merged[n], base[n]) for n in base)


def test_a_repeated_expert_is_refused_by_name() -> None:
    base, experts = correlated(3)
    with pytest.raises(
        RefusedInput, match=r"expert 3 is a combination of those of expert 1,.*dependent=skip"
    ):
        merge_state_dicts(base, [*experts, experts[1]], "mdm_oc")


def test_a_combination_is_refused_and_names_its_parts() -> None:
    base, experts = correlated(3)
    sums = {n: base[n] + 0.5 * (experts[0][n] - base[n]) - 2 * (experts[2][n] - base[n]) for n in base}
    with pytest.raises(RefusedInput, match="of expert 0, expert 2,"):
        merge_state_dicts(base, [*experts, sums], "mdm_oc", granularity="layer")


def test_a_skipped_member_changes_nothing() -> None:
    base, experts = correlated(4)
    want = merge_state_dicts(base, experts, "mdm_oc")
    got = merge_state_dicts(base, [*experts[:2], experts[0], *experts[2:]], "mdm_oc", dependent="skip")
    assert all(torch.equal(got[n], want[n]) for n in base)


def test_a_task_vector_of_zeros_is_no_dependent_one() -> None:
    base, experts = correlated(3)
    want = merge_state_dicts(base, experts, "mdm_oc")
    got = merge_state_dicts(base, [dict(base), *experts[:1], dict(base), *experts[1:]], "mdm_oc")
    assert all(torch.equal(got[n], want[n]) for n in base)


def test_a_tensor_with_fewer_elements_than_members_is_merged_along_its_directions() -> None:
    base, experts = correlated(5)
    small = {**base, "bias": torch.zeros(2, dtype=torch.float64)}
    draw = torch.Generator().manual_seed(9)
    others = [{**e, "bias": torch.randn(2, generator=draw, dtype=torch.float64)} for e in experts]
    merged = merge_state_dicts(small, others, "mdm_oc", granularity="tensor")
    want = sum(0.3 * q for q in orthogonal([e["bias"] for e in others[:2]]))
    assert isinstance(want, Tensor)
    assert torch.allclose(merged["bias"], want, rtol=0, atol=1e-14)


def test_a_weak_direction_of_its_own_is_kept() -> None:
    """An angle of 10^-3 is above the limit, of 10^-5 below."""
    base, experts = correlated(2)
    for angle, kept in ((1e-3, True), (1e-5, False)):
        near = {n: experts[0][n] + angle * (experts[1][n] - base[n]) for n in base}
        if kept:
            merge_state_dicts(base, [experts[0], near], "mdm_oc")
        else:
            with pytest.raises(RefusedInput, match="direction of its own"):
                merge_state_dicts(base, [experts[0], near], "mdm_oc")


# Removal


def removed_copy(taus: Sequence[Tensor], alpha: Sequence[float], k: int) -> Tensor:
    """What stays of task k: - sum_{i>k} alpha_i <tau_i, u_i> u_i, with u_i the unit vector of what is new of tau_k
    beside the other vectors before i."""
    total = torch.zeros_like(taus[0])
    for i in range(k + 1, len(taus)):
        others = orthogonal([t for j, t in enumerate(taus[:i]) if j != k])
        new = orthogonal([*others, taus[k]])[-1]
        unit = new / new.norm()
        total -= alpha[i] * (taus[i] @ unit) * unit
    return total


@pytest.mark.parametrize("k", range(5))
def test_a_negative_copy_stays_after_an_algebraic_removal(k: int) -> None:
    base, experts = correlated()
    weights = [1.0, 2.0, 0.3, 1.7, 1.0]
    taus = vectors(base, experts, GROUPS["model"])["all"]
    method = MdmOc(alpha=0.3)
    left = method.remove(products(taus), facts(*weights), k)
    alpha = [0.3 * w for w in weights]
    others = [i for i in range(5) if i != k]
    exact = sum(alpha[i] * q for i, q in zip(others, orthogonal([taus[i] for i in others]), strict=True))
    whole = sum(a * q for a, q in zip(alpha, orthogonal(taus), strict=True))
    assert isinstance(exact, Tensor)
    assert isinstance(whole, Tensor)
    paper = whole - alpha[k] * orthogonal(taus)[k]
    made = sum(c * t for c, t in zip(left.coefficients["model"], taus, strict=True))
    assert isinstance(made, Tensor)
    scale = float(exact.norm())
    assert float((made - paper).norm()) < 1e-12 * scale
    assert float((made - exact - removed_copy(taus, alpha, k)).norm()) < 1e-12 * scale
    assert left.remaining == {"model": left.coefficients["model"][k]}
    assert left.distance == pytest.approx(float((paper - exact).norm()) / scale, rel=1e-6, abs=1e-7)
    if k == 4:  # the last one leaves nothing behind
        assert abs(left.remaining["model"]) < 1e-12
        assert left.distance < 1e-7
    else:  # what stays is a copy with the other sign
        assert left.remaining["model"] < -0.01
        assert left.distance > 0.05


def test_orthogonal_vectors_leave_nothing_behind() -> None:
    left = MdmOc().remove(products(list(torch.eye(4, dtype=torch.float64))), facts(1, 1, 1, 1), 1)
    assert left.remaining == {"model": 0.0}
    assert left.distance == 0.0


def test_remaining_coefficients_go_by_group() -> None:
    base, experts = correlated(3)
    groups = vectors(base, experts, GROUPS["layer"])
    inner = {g: torch.stack(t) @ torch.stack(t).T for g, t in groups.items()}
    left = MdmOc(granularity="layer").remove(Products(("a", "b", "c"), inner), facts(1, 1, 1), 0)
    assert set(left.remaining) == set(groups)
    for g, taus in groups.items():
        one = MdmOc().remove(products(taus), facts(1, 1, 1), 0)
        assert left.remaining[g] == pytest.approx(one.remaining["model"], rel=1e-9)


# Principal directions


def test_rank_projects_onto_the_leading_singular_vectors() -> None:
    base, experts = correlated()
    taus = torch.stack(vectors(base, experts, GROUPS["model"])["all"])
    merged = merge_state_dicts(base, experts, "mdm_oc", rank=2)
    full = shift(merge_state_dicts(base, experts, "mdm_oc"), base, GROUPS["model"])["all"]
    right = torch.linalg.svd(taus, full_matrices=False).Vh[:2]
    want = right.T @ (right @ full)
    got = shift(merged, base, GROUPS["model"])["all"]
    assert torch.allclose(got, want, rtol=0, atol=1e-13)
    made = MdmOc(rank=2).combine(products(list(taus)), facts(1, 1, 1, 1, 1))
    lost = taus - taus @ right.T @ right
    assert made.found["error"] == pytest.approx(float(lost.norm() / taus.norm()), rel=1e-9)
    assert made.found["error_merged"] == pytest.approx(float((full - want).norm() / full.norm()), rel=1e-6)
    assert re.search(
        r"approximate: 2 principal directions .* 5 task vectors; the error is \d+\.\d\d%", made.notes[0]
    )


def test_rank_of_all_members_changes_nothing() -> None:
    base, experts = correlated(3)
    want = merge_state_dicts(base, experts, "mdm_oc")
    got = merge_state_dicts(base, experts, "mdm_oc", rank=3)
    assert all(torch.equal(got[n], want[n]) for n in base)


@pytest.mark.parametrize(
    "options",
    [{"alpha": float("nan")}, {"granularity": "block"}, {"dependent": "ask"}, {"rank": -1}, {"rank": 1.5}],
)
def test_options_out_of_range_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        make("mdm_oc", options)


def test_fitted_factors_take_the_place_of_alpha() -> None:
    base, experts = correlated(3)
    taus = vectors(base, experts, GROUPS["model"])["all"]
    chosen = {"model": [0.5, -0.2, 0.9]}
    made = MdmOc().combine(products(taus), facts(1, 2, 1), chosen).coefficients["model"]
    got = sum(c * t for c, t in zip(made, taus, strict=True))
    want = sum(a * q for a, q in zip((0.5, -0.4, 0.9), orthogonal(taus), strict=True))
    assert isinstance(got, Tensor)
    assert isinstance(want, Tensor)
    assert torch.allclose(got, want, rtol=0, atol=1e-14)
