"""TRM against dense formulas, a grid, finite differences and its own promises."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
import torch
from torch import Tensor

from plait.errors import PlaitError, RefusedInput, UsageError
from plait.methods.base import Known, MemberFacts
from plait.methods.registry import make
from plait.methods.trm import Trm
from plait.methods.trm_parts import mix as mixing
from plait.methods.trm_parts.layers import depths, layers_of
from plait.methods.trm_parts.mix import Mix
from plait.methods.trm_parts.terms import Terms
from plait.methods.watch import Blind
from plait.problem.base import Examples
from plait.problem.network import module_network
from plait.problem.objective import Objective
from plait.problem.probes import drift
from plait.problem.problem import Problem
from plait.tensors.random import uniform
from plait.testing import check
from tests.methods.ode_toys import toys

EPS = 2.0**-52
SHAPES = {"0.weight": (6, 3), "0.bias": (6,), "2.weight": (3, 6), "2.bias": (3,)}
Model = dict[str, Tensor]


def model(seed: int, size: float = 0.6, kind: torch.dtype = torch.float64) -> Model:
    draw = torch.Generator().manual_seed(seed)
    return {
        name: size * torch.randn(shape, generator=draw, dtype=torch.float64).to(kind)
        for name, shape in SHAPES.items()
    }


POINTS = torch.randn(24, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
LABELS = torch.randint(3, (24,), generator=torch.Generator().manual_seed(1))


def objective(kind: torch.dtype = torch.float64, points: Tensor = POINTS) -> Objective:
    layers = torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
    network = module_network(layers, dtype=kind)
    return Objective(network, None, Examples(points, LABELS, "toy"), batch=9, micro=7)


def problem(kind: torch.dtype = torch.float64) -> Problem:
    return Problem({"a": objective(kind), "b": objective(kind), "c": objective(kind)})


def step(
    method: Trm, parts: list[Model], told: Problem | None, watch: Any = None, count: int = 2
) -> tuple[Model, Known]:
    """A step from the model so far to an expert; parts: base, old, expert."""
    members = [MemberFacts(1.0, {})] * count
    return method.step(parts[1], parts[0], parts[2], members, told, watch)


def flat(weights: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([weights[name].double().reshape(-1) for name in sorted(weights)])


PARTS = [model(10), model(11), model(12)]


def mixed(granularity: str, seed: bytes, rho: float) -> Mix:
    return Mix(PARTS[0], PARTS[1], PARTS[2], granularity, seed, rho)


# A second writing of the equations, with dense vectors


def forward(weights: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    hidden = POINTS @ weights["0.weight"].T + weights["0.bias"]
    return hidden, hidden.tanh() @ weights["2.weight"].T + weights["2.bias"]


def split(vector: Tensor) -> Model:
    made, first = {}, 0
    for name in sorted(SHAPES):
        count = torch.Size(SHAPES[name]).numel()
        made[name] = vector[first : first + count].view(SHAPES[name])
        first += count
    return made


def terms(vector: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """align, pre and ||gradient of align||^2 at a model as one vector."""
    if not vector.requires_grad:
        vector = vector.clone().requires_grad_()
    hidden, logits = forward(split(vector))
    align: Tensor = -(logits - logits.logsumexp(1, keepdim=True))[torch.arange(24), LABELS].mean()
    slope = torch.autograd.grad(align, vector, create_graph=True)[0]
    one, other = forward(PARTS[1]), forward(PARTS[2])
    apart = [now - (a + b) / 2 for now, a, b in zip((hidden, logits), one, other, strict=True)]
    pre: Tensor = apart[0].square().mean() / 3 + apart[1].square().mean() * 2 / 3
    return align, pre, slope.square().sum()


def dense_aside(root: bytes, rho: float) -> Tensor:
    """P over the whole model, by a QR decomposition."""
    base, old, new = map(flat, PARTS)
    noise = torch.cat([2 * uniform(root, name, 0, PARTS[0][name].numel()) - 1 for name in sorted(PARTS[0])])
    plane, _ = torch.linalg.qr(torch.stack([old - base, new - base], 1))
    rest: Tensor = noise - plane @ (plane.T @ noise)
    made: Tensor = rho * (new - old).norm() * rest / rest.norm()
    return made


def test_the_optimum_of_alpha_and_beta_is_that_of_a_grid() -> None:
    method = Trm(granularity="model", batch=0, steps=250, rate=0.02, rho=0.4, res=0.05, pre=0.4)
    merged, known = step(method, PARTS, problem())
    (alpha,), (beta,) = known["alpha"].values(), known["beta"].values()

    _, old, new = map(flat, PARTS)
    aside = dense_aside(sha256(b"trm 0 2").digest(), 0.4)
    scale = terms((old + new) / 2)[2].item()

    def total(a: float, b: float) -> float:
        align, pre, steep = terms(old + a * (new - old) + b * aside)
        return (align + 0.4 * pre - 0.05 * steep / scale).item()

    grid = {(a / 20, b / 10): total(a / 20, b / 10) for a in range(21) for b in range(-10, 11)}
    best = min(grid, key=lambda at: grid[at])
    assert 0 < best[0] < 1
    assert 0 < abs(best[1]) < 1
    assert alpha == pytest.approx(best[0], abs=0.05)
    assert beta == pytest.approx(best[1], abs=0.1)
    assert total(alpha, beta) <= grid[best]
    assert torch.allclose(flat(merged), old + alpha * (new - old) + beta * aside, rtol=0, atol=30 * EPS)


@pytest.mark.parametrize("granularity", ["model", "layer", "tensor"])
@pytest.mark.parametrize("factors", [(0.0, 0.0), (0.7, 0.0), (0.0, 0.3), (0.7, 0.3)])
def test_slopes_are_finite_differences(granularity: str, factors: tuple[float, float]) -> None:
    pre, res = factors
    mix = mixed(granularity, b"seed", 0.5)
    draw = torch.Generator().manual_seed(3)
    x = torch.rand(2, len(mix.groups), generator=draw, dtype=torch.float64)
    told = objective()
    held = Terms((PARTS[2], PARTS[1]), pre, res, depths(told, PARTS[2]))
    scale = 0.37
    found, gradient = held.at(told, mix.at(x), scale, "here")

    def total(x: Tensor) -> float:
        align, apart, steep = terms(flat(mix.at(x)))
        return (align + pre * apart - res * steep / scale).item()

    # Rounding of mean terms near 1, a hundred operations deep.
    assert found.total == pytest.approx(total(x), abs=200 * EPS)
    slopes = mix.slope(gradient)
    h = 1e-5
    for at in range(x.numel()):
        step = torch.zeros(x.numel(), dtype=torch.float64)
        step[at] = h
        wanted = (total(x + step.view_as(x)) - total(x - step.view_as(x))) / (2 * h)
        # h^2 times a third derivative of some units, and rounding over h.
        assert float(slopes.view(-1)[at]) == pytest.approx(wanted, abs=1e-8)


def test_a_step_is_one_of_adam_on_the_three_terms() -> None:
    method = Trm(batch=0, steps=3, begin=0.4, rate=0.05)
    _, known = step(method, PARTS, problem())
    mix = mixed("tensor", sha256(b"trm 0 2").digest(), 0.1)
    x = torch.tensor([[0.4] * 4, [0.0] * 4], dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([x], lr=0.05)
    scale, seen = None, []
    for _ in range(3):
        vector = flat(mix.at(x.detach())).requires_grad_()
        align, pre, steep = terms(vector)
        scale = steep.item() if scale is None else scale
        loss = align + pre - 0.01 * steep / scale
        seen.append((align.item(), pre.item(), -steep.item() / scale))
        x.grad = mix.slope(split(torch.autograd.grad(loss, vector)[0]))
        adam.step()
        with torch.no_grad():
            x[0].clamp_(0, 1)
            x[1].clamp_(-1, 1)
    got = torch.tensor([list(known["alpha"].values()), list(known["beta"].values())], dtype=torch.float64)
    assert torch.allclose(got, x.detach(), rtol=0, atol=1e-9)
    traced = list(zip(*(known["path"]["terms"][word] for word in ("align", "pre", "res")), strict=True))
    assert torch.allclose(torch.tensor(traced), torch.tensor(seen), rtol=0, atol=1e-9)
    assert known["path"]["scale"] == pytest.approx(scale)
    assert traced[0][2] == -1


# P


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("granularity", ["model", "layer", "tensor"])
@pytest.mark.parametrize("case", ["far", "near", "parallel", "first"])
def test_the_random_direction_is_orthogonal_to_both_task_vectors(
    kind: torch.dtype, granularity: str, case: str
) -> None:
    base = model(0, kind=kind)
    old = model(1, kind=kind)
    new = model(2, kind=kind)
    if case == "near":  # task vectors an angle of 1e-4 apart, and a large model
        new = {n: old[n] + 1e-4 * new[n] for n in old}
    if case == "parallel":
        new = {n: base[n] + 3 * (old[n] - base[n]) for n in old}
    if case == "first":
        old = base
    mix = Mix(base, old, new, granularity, b"seed", 0.25)
    aside, there = mix.aside(), dict(zip(mix.groups, mix.movable.tolist(), strict=True))
    assert all(there.values())
    for group in mix.groups:
        names = [n for n in SHAPES if group == "model" or n.startswith(group)]
        p, t, s = (
            torch.cat([parts[n].double().reshape(-1) for n in names])
            for parts in (
                aside,
                {n: new[n].double() - base[n].double() for n in names},
                {n: old[n].double() - base[n].double() for n in names},
            )
        )
        assert p.norm() == pytest.approx(0.25 * float((t - s).norm()), rel=1e-9)
        for task in (t, s):
            assert abs(float(p @ task)) <= 1e-6 * float(p.norm() * task.norm())
    assert torch.equal(flat(Mix(base, old, new, granularity, b"seed", 0.25).aside()), flat(aside))
    assert not torch.equal(flat(Mix(base, old, new, granularity, b"other", 0.25).aside()), flat(aside))


def test_where_there_is_no_direction() -> None:
    parts = [
        {"a": torch.randn(2), "b": torch.randn(7), "c": torch.randn(1), "d": torch.randn(9)} for _ in "123"
    ]
    parts[2]["d"] = parts[1]["d"]
    mix = Mix(parts[0], parts[1], parts[2], "tensor", b"", 0.5)
    assert mix.groups == ("a", "b", "c", "d")
    assert mix.movable.tolist() == [False, True, False, False]
    aside = mix.aside()
    assert not any(aside[name].any() for name in "acd")
    x = torch.tensor([[0.0] * 4, [1.0] * 4], dtype=torch.float64)
    made = mix.at(x)
    assert all(torch.equal(made[name], parts[1][name]) for name in "acd")
    assert not torch.equal(made["b"], parts[1]["b"])
    assert (
        mix.slope({name: torch.ones_like(t) for name, t in parts[0].items()})[1, [0, 2, 3]].tolist()
        == [0] * 3
    )


def test_pieces_do_not_change_the_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = mixed("model", b"s", 1.0)
    monkeypatch.setattr(mixing, "PIECE", 5)
    cut = mixed("model", b"s", 1.0)
    assert torch.allclose(flat(whole.aside()), flat(cut.aside()), rtol=0, atol=1e-13)
    x = torch.tensor([[0.3], [0.7]], dtype=torch.float64)
    assert torch.allclose(flat(whole.at(x)), flat(cut.at(x)), rtol=0, atol=1e-13)


# ends


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("granularity", ["model", "tensor"])
def test_the_ends_of_alpha_are_the_two_models_bit_for_bit(kind: torch.dtype, granularity: str) -> None:
    parts = [model(seed, size, kind) for seed, size in ((0, 1.0), (1, 3.0), (2, 0.01))]
    for alpha, end in ((0.0, parts[1]), (1.0, parts[2])):
        fixed, known = step(Trm(alpha=alpha), parts, None)
        begun, _ = step(Trm(begin=alpha, steps=0, granularity=granularity), parts, problem(kind))
        for made in (fixed, begun):
            assert all(torch.equal(made[name], end[name]) for name in SHAPES)
            assert all(made[name].data_ptr() != end[name].data_ptr() for name in SHAPES)
        assert known == {"alpha": {"model": alpha}, "beta": {"model": 0.0}}


def test_a_constant_alpha_is_a_running_mean_of_the_two_and_needs_no_data() -> None:
    method = make("trm", {"alpha": "0.7"})
    assert isinstance(method, Trm)
    made, _ = step(method, PARTS, None)
    assert torch.allclose(flat(made), 0.7 * flat(PARTS[2]) + 0.3 * flat(PARTS[1]), rtol=0, atol=8 * EPS)
    assert method.facts.data == "none"
    assert Trm().facts.data == "labelled new"


def test_the_first_member_comes_back_bit_for_bit_and_needs_no_loss() -> None:
    for method in (Trm(), Trm(alpha=0.2), Trm(begin=0.5)):
        made, _ = method.step(method.start(PARTS[0]), PARTS[0], PARTS[2], [MemberFacts(0.3, {})], None)
        assert all(torch.equal(made[name], PARTS[2][name]) for name in SHAPES)


def test_the_start_crosses_the_two_models_over() -> None:
    kinds = set()
    for seed in range(4):
        made, known = step(Trm(steps=0, seed=seed), PARTS, problem())
        shares = known["alpha"]
        assert set(shares.values()) <= {0.0, 1.0}
        assert all(torch.equal(made[n], PARTS[1 + int(shares[n])][n]) for n in SHAPES)
        kinds.add(tuple(shares.values()))
    assert len(kinds) > 1
    _, known = step(Trm(steps=0, granularity="model"), PARTS, problem())
    assert known["alpha"] == {"model": 0.5}


def test_bounds_hold() -> None:
    method = Trm(rate=5.0, steps=6, alpha_least=0.25, alpha_most=0.75, beta_most=0.125)
    _, known = step(method, PARTS, problem())
    path = known["path"]
    assert (min(path["alpha"]["least"]), max(path["alpha"]["most"])) == (0.25, 0.75)
    assert (min(path["beta"]["least"]), max(path["beta"]["most"])) == (-0.125, 0.125)
    for other in (replace(method, rho=0.0), replace(method, beta_most=0.0)):
        _, known = step(other, PARTS, problem())
        assert set(known["beta"].values()) == {0.0}
        assert known["still"] == 4


# the same again


def test_one_seed_gives_one_model() -> None:
    method = Trm(steps=4, batch=5)
    made, known = step(method, PARTS, problem())
    again, other = step(method, PARTS, problem())
    assert torch.equal(flat(made), flat(again))
    assert known == other
    assert not torch.equal(flat(step(replace(method, seed=1), PARTS, problem())[0]), flat(made))
    assert not torch.equal(flat(step(method, PARTS, problem(), count=3)[0]), flat(made))


class Kept(Blind):
    """Keeps what it is told after every step."""

    def __init__(self, note: Known | None = None) -> None:
        self.note = note
        self.notes: list[Known] = []
        self.told: list[tuple[int, int, float]] = []

    def kept(self) -> tuple[Known, Mapping[str, Tensor]] | None:
        return None if self.note is None else (self.note, {})

    def due(self) -> bool:
        return True

    def keep(self, note: Known, weights: Mapping[str, Tensor]) -> None:
        self.notes.append(json.loads(json.dumps(note)))
        assert not weights  # the note says all

    def tell(self, done: int, steps: int, loss: float) -> None:
        self.told.append((done, steps, loss))


def test_an_interrupted_step_goes_on() -> None:
    method = Trm(steps=5, batch=6)
    watch = Kept()
    made, known = step(method, PARTS, problem(), watch)
    assert [told[:2] for told in watch.told] == [(i, 5) for i in range(1, 6)]
    values = known["path"]["terms"]
    assert watch.told[2][2] == pytest.approx(
        values["align"][2] + values["pre"][2] + 0.01 * values["res"][2], abs=8 * EPS
    )
    assert len(watch.notes) == 5
    for note in watch.notes:
        again, other = step(method, PARTS, problem(), Kept(note))
        assert torch.equal(flat(made), flat(again))
        assert other == known


def test_only_the_new_task_is_looked_at_in_batches_that_are_drawn_anew() -> None:
    told = problem()
    seen = []
    own = Objective.sample

    def sample(self: Objective, n: int, seed: int) -> Objective:
        made = own(self, n, seed)
        seen.append((n, made.rows))
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Objective, "sample", sample)
        _, known = step(Trm(steps=3, batch=5, samples=12), PARTS, told)
    assert told["a"].work.samples == told["c"].work.samples == 0
    assert [n for n, _ in seen] == [12, 5, 5, 5]
    assert all(set(rows) < set(seen[0][1]) for _, rows in seen[1:])
    assert len({rows for _, rows in seen[1:]}) > 1
    # By step a gradient each for align and pre, and a product; four losses of all 12 examples at the end.
    assert known["work"] == {"losses": 4, "gradients": 6, "products": 3, "samples": 3 * 3 * 5 + 4 * 12}
    _, known = step(Trm(steps=3, batch=0, pre=0, res=0), PARTS, told)
    assert known["work"] == {"losses": 4, "gradients": 3, "samples": (3 + 4) * 24}
    assert known["path"]["terms"]["pre"] == known["path"]["terms"]["res"] == [0.0] * 3


def test_losses_are_those_of_the_models() -> None:
    told = problem()
    made, known = step(Trm(steps=2, granularity="model"), PARTS, told)
    middle = {name: (PARTS[1][name] + PARTS[2][name]) / 2 for name in SHAPES}
    for word, weights in {"old": PARTS[1], "expert": PARTS[2], "start": middle, "merged": made}.items():
        assert known["losses"][word] == pytest.approx(terms(flat(weights))[0].item())


# L_pre


class Blocks(torch.nn.Module):
    """Layers with an axis of tokens, one of which never runs, and one that puts out several tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Linear(2, 4)
        self.spare = torch.nn.ModuleList([torch.nn.Linear(4, 4)])
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])
        self.head = torch.nn.Linear(4, 3)

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        hidden = self.words(batch["x"])
        for block in self.blocks:
            hidden = block(hidden.tanh())
        own = batch["attention_mask"].to(hidden.dtype)[..., None]
        made: Tensor = self.head((hidden * own).sum(1) / own.sum(1))
        return made


def padded() -> tuple[Objective, list[Model]]:
    def collate(encoded: Any) -> dict[str, Tensor]:
        longest = max(len(one) for one in encoded)
        rows = [torch.nn.functional.pad(one, (0, 0, 0, longest - len(one)), value=7.0) for one in encoded]
        own = [[1] * len(one) + [0] * (longest - len(one)) for one in encoded]
        return {"x": torch.stack(rows), "attention_mask": torch.tensor(own)}

    draw = torch.Generator().manual_seed(5)
    texts = [torch.randn(1 + i % 4, 2, generator=draw, dtype=torch.float64) for i in range(10)]
    module = Blocks()
    shapes = {name: tensor.shape for name, tensor in module.state_dict().items()}
    models = [
        {n: torch.randn(s, generator=draw, dtype=torch.float64) for n, s in shapes.items()} for _ in "123"
    ]
    network = module_network(module, collate=collate, size=len, dtype=torch.float64)
    return Objective(network, None, Examples(texts, torch.arange(10) % 3, "padded"), micro=4), models


def test_layers_that_run_weigh_by_their_depth() -> None:
    told, (weights, *targets) = padded()
    assert layers_of(told.network.module) == ("spare.0", "blocks.0", "blocks.1", "blocks.2")
    wanted = {f"blocks.{i}": pytest.approx((i + 1) / 6) for i in range(3)}
    assert depths(told, weights) == depths(told, weights, r"^blocks\.\d") == wanted
    assert depths(told, weights, r"[02]$", 0.0) == {"blocks.0": 0.5, "blocks.2": 0.5}
    steep = depths(told, weights, r"head|blocks.0", 2.0)
    assert list(steep) == ["blocks.0", "head"]
    assert list(steep.values()) == pytest.approx([0.2, 0.8])
    by_terms = Terms(targets, 0.5, 0.0, depths(told, weights)).at(told, weights, None, "here")[0]
    assert by_terms.pre == pytest.approx(drift(told, weights, targets, depths(told, weights))[0], rel=1e-12)
    assert by_terms.pre > 0
    with pytest.raises(RefusedInput, match=r"none of 1 layers was run by the network, spare\.0 first"):
        depths(told, weights, "spare.0")
    with pytest.raises(RefusedInput, match="layers 'tail' finds none of the network's 8 modules"):
        depths(told, weights, "tail")


def test_layers_of_a_network_without_numbers() -> None:
    module = torch.nn.Module()
    module.first, module.second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    assert layers_of(module) == ("first", "second")


# what is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"granularity": "head"}, "granularity is 'head'"),
        ({"steps": -1}, "steps is -1"),
        ({"samples": 0}, "samples is 0"),
        ({"batch": -1}, "batch is -1"),
        ({"seed": -1}, "seed is -1"),
        ({"rate": -0.1}, "rate is -0.1"),
        ({"rho": float("inf")}, "rho is inf"),
        ({"pre": -1}, "pre is -1"),
        ({"res": "nan"}, "res is nan"),
        ({"depth": -1}, "depth is -1"),
        ({"beta_most": -1}, "beta_most is -1"),
        ({"normalise": "perhaps"}, "normalise is 'perhaps'"),
        ({"layers": "("}, "layers is '\\('"),
        ({"alpha_least": 0.7, "alpha_most": 0.3}, "alpha_least is 0.7 and alpha_most 0.3"),
        ({"begin": 1.5}, "begin is 1.5, expected a number between alpha_least and alpha_most, 0.0 and 1.0"),
        ({"alpha": 1.5}, "alpha is 1.5"),
        ({"alpha": 0.5, "steps": 10}, "steps is 10 and alpha 0.5, with which nothing is fitted"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make("trm", options)


def test_what_has_no_losses_or_endless_ones_is_refused() -> None:
    with pytest.raises(UsageError, match="trm follows losses and was given none"):
        step(Trm(), PARTS, None)
    broken = Problem({"a": objective(), "b": objective(points=POINTS * float("nan"))})
    with pytest.raises(
        PlaitError, match=r"the terms of trm are align nan, .* in step 1, expected finite numbers"
    ):
        step(Trm(), PARTS, broken)


def test_a_plain_square_is_an_option() -> None:
    _, known = step(Trm(batch=0, steps=1, begin=1.0, normalise=False), PARTS, problem())
    assert known["path"]["terms"]["res"] == [pytest.approx(-terms(flat(PARTS[2]))[2].item())]
    assert known["path"]["scale"] == 1


def test_it_obeys_the_laws() -> None:
    told = toys(lambda x: (x.double() ** 2).sum(), lambda x: (x.double() ** 2).sum() / 2)
    for options in (
        {"pre": 0, "res": 0},
        {"alpha": 0.5},
        {"pre": 0, "res": 0, "granularity": "layer", "steps": 2},
    ):
        check(make("trm", options), problem=told)
