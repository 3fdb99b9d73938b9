"""OPCM against the paper's recursion: a scale lambda_t a step, dense singular vectors, explicit projectors, fp64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from plait.errors import UsageError
from plait.methods.base import MemberFacts
from plait.methods.memory import Table, apply
from plait.methods.opcm import Opcm
from plait.methods.registry import make

Model = dict[str, Tensor]

SHAPES = {
    "q.weight": (16, 16),
    "up.weight": (30, 11),
    "down.weight": (11, 30),
    "q.bias": (16,),
    "embed.weight": (9, 8),
}


def models(count: int = 4, rank: int | None = None, seed: int = 0) -> tuple[Model, list[Model]]:
    draw = torch.Generator().manual_seed(seed)

    def noise(shape: tuple[int, ...]) -> Tensor:
        if rank is None or len(shape) < 2:
            return torch.randn(shape, generator=draw, dtype=torch.float64)
        left = torch.randn(shape[0], rank, generator=draw, dtype=torch.float64)
        return left @ torch.randn(rank, shape[1], generator=draw, dtype=torch.float64)

    base = {n: torch.randn(s, generator=draw, dtype=torch.float64) for n, s in SHAPES.items()}
    return base, [{n: t + noise(tuple(t.shape)) / 16 for n, t in base.items()} for _ in range(count)]


def projected(previous: Tensor, tau: Tensor, share: float, diagonal: bool) -> Tensor:
    """tau without u_i u_i^T tau v_j v_j^T for all protected pairs (i, j), one projector after the other."""
    u, sigma, vh = torch.linalg.svd(previous, full_matrices=False)
    alive = sigma > 1e-9 * sigma[0] if sigma[0] > 0 else torch.zeros_like(sigma, dtype=torch.bool)
    part = torch.cumsum(sigma, 0) / sigma.sum()
    r = int((alive if share == 1 else (part <= share) & alive).sum()) if alive.any() else 0
    out = tau.clone()
    for i in range(len(sigma)):
        for j in range(len(sigma)):
            if (i < r and j < r) or (diagonal and i == j and alive[i]):
                out -= torch.outer(u[:, i], u[:, i]) @ tau @ torch.outer(vh[j], vh[j])
    return out


def recursion(base: Model, experts: list[Model], share: float, diagonal: bool) -> Model:
    """theta_t = base + (lambda_{t-1} (theta_{t-1} - base) + P(tau_t)) / lambda_t, algorithm 1 of the paper."""
    merged, scale, norms = base, 1.0, []
    for expert in experts:
        tau = {n: expert[n] - base[n] for n in base}
        norms.append(torch.sqrt(sum((t**2).sum() for t in tau.values())))  # type: ignore[arg-type]
        new = {}
        for n in base:
            previous = merged[n] - base[n]
            linear = base[n].ndim == 2 and "embed" not in n
            add = projected(previous, tau[n], share, diagonal) if linear else tau[n]
            new[n] = scale * previous + add
        size = torch.sqrt(sum((t**2).sum() for t in new.values()))  # type: ignore[arg-type]
        scale = float(size / (sum(norms) / len(norms)))
        merged = {n: base[n] + new[n] / scale for n in base}
    return merged


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("variant", ["block", "diagonal"])
def test_one_rescale_is_the_papers_recursion(share: float, variant: str) -> None:
    base, experts = models()
    got = apply(Opcm(share, variant), base, experts)
    want = recursion(base, experts, share, variant == "diagonal")
    for n in base:
        # The Gram matrix loses half the digits of the smallest directions: eps * (sigma_1 / sigma_k)^2 with a ratio
        # below 1e3 in these matrices gives 2e-10.
        assert (got[n] - want[n]).abs().max() <= 1e-9 * (want[n] - base[n]).abs().max(), n


@pytest.mark.parametrize("variant", ["block", "diagonal"])
def test_low_rank_task_vectors_meet_no_empty_direction(variant: str) -> None:
    base, experts = models(rank=2)
    got, want = apply(Opcm(1.0, variant), base, experts), recursion(base, experts, 1.0, variant == "diagonal")
    for n in base:
        assert (got[n] - want[n]).abs().max() <= 1e-8 * (want[n] - base[n]).abs().max(), n


def test_share_0_adds_everything_and_1_protects_everything() -> None:
    base, (first, second, *_) = models()
    total, tau = first["q.weight"] - base["q.weight"], second["q.weight"] - base["q.weight"]
    assert Opcm(0.0).protected(total, tau) is None
    whole = Opcm(1.0).protected(total, tau)
    assert whole is not None
    # `total` has full rank, so its directions span everything and all of tau is protected.
    assert (whole - tau).abs().max() <= 1e-9 * tau.abs().max()


def test_what_is_left_is_orthogonal_to_the_protected_directions() -> None:
    base, (first, second, *_) = models()
    total, tau = first["up.weight"] - base["up.weight"], second["up.weight"] - base["up.weight"]
    inside = Opcm(0.5).protected(total, tau)
    assert inside is not None
    u, sigma, vh = torch.linalg.svd(total, full_matrices=False)
    r = int((torch.cumsum(sigma, 0) <= 0.5 * sigma.sum()).sum())
    assert r > 1
    left = u.T @ (tau - inside) @ vh.T
    assert left[:r, :r].abs().max() <= 1e-12
    assert torch.allclose(left[r:, r:], (u.T @ tau @ vh.T)[r:, r:], atol=1e-12)


def test_weights_multiply_task_vectors() -> None:
    base, experts = models(3)
    weights = [1.0, 2.0, 0.5]
    scaled = [
        {n: base[n] + w * (e[n] - base[n]) for n in base} for w, e in zip(weights, experts, strict=True)
    ]
    got, want = apply(Opcm(), base, experts, weights), apply(Opcm(), base, scaled)
    for n in base:
        assert (got[n] - want[n]).abs().max() <= 1e-9, n


def test_the_norm_of_the_output_is_the_mean_norm_of_the_members() -> None:
    base, experts = models(3)

    def norm(model: Model) -> float:
        return float(torch.sqrt(sum(((model[n] - base[n]) ** 2).sum() for n in base)))  # type: ignore[arg-type]

    assert norm(apply(Opcm(), base, experts)) == pytest.approx(sum(map(norm, experts)) / 3, rel=1e-12)


def test_tables_are_added_as_they_are() -> None:
    base, experts = models(2)
    only = {"embed.weight": base["embed.weight"]}
    both = [{"embed.weight": e["embed.weight"]} for e in experts]
    plain = apply(Opcm(share=0), only, both)["embed.weight"]
    assert torch.equal(apply(Opcm(share=1), only, both)["embed.weight"], plain)
    assert not torch.equal(apply(Opcm(share=1, tables=""), only, both)["embed.weight"], plain)
    assert Opcm().grain((9, 8), "model.embed_tokens.weight") == "element"
    assert Opcm().grain((9, 8), "wte.weight") == "element"
    assert Opcm().grain((9, 8), "mlp.fc1.weight") == Opcm().grain((9, 8)) == "matrix"
    assert Opcm().grain((9,), "mlp.fc1.bias") == Opcm().grain((4, 3, 2, 2)) == "element"


def test_experts_equal_to_the_base_give_the_base() -> None:
    base, _ = models()
    got = apply(Opcm(), base, [base, base])
    assert all(torch.equal(got[n], base[n]) for n in base)


def test_state_of_an_fp32_line_is_fp32_and_stays_close_to_fp64() -> None:
    base, experts = models()
    single = [{n: t.float() for n, t in m.items()} for m in (base, *experts)]
    table = Table(Opcm(), single[0])
    for expert in single[1:]:
        table.enter(expert)
    assert {s["total"].dtype for chunks in table.states().values() for _, s in chunks} == {torch.float32}
    wide = [{n: t.double() for n, t in m.items()} for m in single]
    want = apply(Opcm(), wide[0], wide[1:])
    got = table.merged()
    for n in base:
        # Four roundings of S to fp32 and one of base + shift, |base| < 4: 2^-22 for it, 2^-24 * |S| for the others.
        assert (got[n].double() - want[n]).abs().max() <= 2**-22 + 8 * 2**-24, n


def test_only_one_member_of_weight_1_reduces() -> None:
    assert Opcm().reduces([MemberFacts(1.0, {})])
    assert not Opcm().reduces([MemberFacts(2.0, {})])
    assert not Opcm().reduces([MemberFacts(1.0, {}), MemberFacts(1.0, {})])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": -0.1}, "share is -0.1, expected a number from 0 to 1"),
        ({"share": 1.01}, "share is 1.01, expected a number from 0 to 1"),
        ({"variant": "full"}, "variant is 'full', expected one of: block, diagonal"),
        ({"tables": "("}, r"tables is '\(', expected a regular expression"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make("opcm", options)
