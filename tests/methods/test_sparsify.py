"""Sparsifiers: what each keeps, that chunks, order and membership change nothing, and both ends of each option."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from plait.errors import UsageError
from plait.methods.average import Average
from plait.methods.base import Part, Where
from plait.methods.memory import Table, apply
from plait.methods.registry import make
from plait.methods.sparsify import Breadcrumbs, Dare, Della, Sparsifier, sparsifier
from plait.tensors import BLOCK

SHAPE = (40, 250)


def part(first: int = 0, count: int | None = None, name: str = "w", seed: bytes = b"s") -> Part:
    tau = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0), dtype=torch.float64).flatten()
    count = len(tau) if count is None else count
    where = Where(name, SHAPE, "F64", first, count)
    expert = tau[first : first + count]
    return Part(where, torch.zeros(count, dtype=torch.float64), expert, 1.0, {}, seed)


def thinned(kind: Sparsifier, **where: Any) -> Tensor:
    return kind.thin(part(**where), {}).double()


def test_dare_keeps_its_share_and_the_expected_sum() -> None:
    got, tau = thinned(Dare(0.25)), part().expert
    kept = got != 0
    assert torch.equal(got[kept], tau[kept] * 4)
    # 10^4 draws: the standard deviation of the share is 0.0043; five of them.
    assert abs(float(kept.double().mean()) - 0.25) < 0.022


def test_della_keeps_large_magnitudes_more_often_and_divides_by_the_probability() -> None:
    density, spread = 0.4, 0.6
    tau = part().expert.view(SHAPE)
    counts = torch.zeros(SHAPE)
    runs = 400
    for i in range(runs):
        got = thinned(Della(density, spread), seed=str(i).encode()).view(SHAPE)
        kept = got != 0
        counts += kept
    want = torch.empty(SHAPE, dtype=torch.float64)
    for r, row in enumerate(tau.tolist()):
        for rank, c in enumerate(sorted(range(len(row)), key=lambda i: abs(row[i]))):
            want[r, c] = density + spread * ((rank + 0.5) / len(row) - 0.5)
    assert torch.allclose(got[kept], (tau / want)[kept], rtol=1e-12, atol=0)
    # Shares by rank, 40 rows * 400 runs = 16000 draws each: standard deviation below 0.004; five of them.
    by_rank = torch.gather(counts / runs, 1, want.argsort(dim=1)).mean(0)
    assert (by_rank - want.sort(dim=1).values.mean(0)).abs().max() < 0.02


def test_breadcrumbs_drops_both_ends_per_tensor() -> None:
    draw = torch.Generator().manual_seed(3)
    base = {"a": torch.zeros(101), "b": torch.zeros(7)}
    expert = {n: torch.round(torch.randn(t.shape, generator=draw) * 4) for n, t in base.items()}
    method = make(
        "task_arithmetic", {"scale": 1, "sparsify": {"name": "breadcrumbs", "density": 0.5, "gamma": 0.1}}
    )
    got = apply(method, base, [expert])
    for n, tau in ((n, expert[n].tolist()) for n in base):
        order = sorted(range(len(tau)), key=lambda i: (-abs(tau[i]), i))
        top, k = int(0.1 * len(tau)), int(0.5 * len(tau))
        want = [t if i in order[top : top + k] else 0.0 for i, t in enumerate(tau)]
        assert got[n].tolist() == want


@pytest.mark.parametrize("name", ["dare", "della"])
def test_random_numbers_belong_to_places(name: str) -> None:
    kind = sparsifier({"name": name, "density": 0.5})
    assert kind is not None
    whole = thinned(kind)
    assert torch.equal(
        torch.cat([thinned(kind, first=0, count=750), thinned(kind, first=750, count=9250)]), whole
    )
    assert not torch.equal(thinned(kind, name="v"), whole)
    assert not torch.equal(thinned(kind, seed=b"t"), whole)


def test_members_do_not_disturb_each_others_random_numbers() -> None:
    draw = torch.Generator().manual_seed(4)
    base = {"w": torch.randn(BLOCK + 99, generator=draw)}
    experts = [{"w": base["w"] + torch.randn(BLOCK + 99, generator=draw)} for _ in range(3)]
    method = make("average", {"sparsify": "dare"})
    table = Table(method, base)  # type: ignore[arg-type]
    for expert in experts:
        table.enter(expert)
    table.leave(0)
    table.leave(1)
    assert torch.equal(table.merged()["w"], apply(method, base, [experts[1]], chunk=BLOCK)["w"])
    given = apply(method, base, experts[:1], seeds=[b"1"])["w"]
    assert torch.equal(apply(method, base, experts[:1], seeds=[b"1"])["w"], given)
    assert not torch.equal(apply(method, base, experts[:1], seeds=[b"2"])["w"], given)


@pytest.mark.parametrize("name", ["dare", "della", "breadcrumbs"])
@pytest.mark.parametrize("method", ["average", "task_arithmetic", "ties", "model_stock"])
def test_density_0_gives_the_base_and_1_changes_nothing(name: str, method: str) -> None:
    draw = torch.Generator().manual_seed(5)
    base = {"w": torch.randn(30, 20, generator=draw), "v": torch.randn((), generator=draw)}
    experts = [{n: t + torch.randn(t.shape, generator=draw) for n, t in base.items()} for _ in range(2)]
    rest = {"gamma": 0} if name == "breadcrumbs" else {"spread": 0} if name == "della" else {}
    nothing = apply(make(method, {"sparsify": {"name": name, "density": 0, **rest}}), base, experts)
    everything = apply(make(method, {"sparsify": {"name": name, "density": 1, **rest}}), base, experts)
    plain = apply(make(method), base, experts)
    for n in base:
        assert torch.equal(nothing[n], base[n])
        assert torch.equal(everything[n], plain[n])


def test_gamma_1_drops_everything_and_spread_may_reach_its_end() -> None:
    base, expert = {"w": torch.zeros(50)}, {"w": torch.randn(50, generator=torch.Generator().manual_seed(6))}
    none = apply(
        make("average", {"sparsify": {"name": "breadcrumbs", "density": 0, "gamma": 1}}), base, [expert]
    )
    assert torch.equal(none["w"], base["w"])
    assert torch.isfinite(apply(make("average", {"sparsify": Della(0.5, 1.0)}), base, [expert])["w"]).all()


def test_ties_trims_what_the_sparsifier_left() -> None:
    base = {"w": torch.zeros(10)}
    expert = {"w": torch.arange(1.0, 11.0)}
    method = make("ties", {"density": 0.3, "sparsify": {"name": "breadcrumbs", "density": 0.8, "gamma": 0.2}})
    assert apply(method, base, [expert])["w"].tolist() == [0, 0, 0, 0, 0, 6, 7, 8, 0, 0]


def test_one_sparsifier_has_many_spellings() -> None:
    want = Average(sparsify=Dare(0.25))
    for options in (
        {"sparsify": "dare", "sparsify.density": "0.25"},
        {"sparsify": {"name": "dare", "density": 0.25}},
        {"sparsify": {"name": "dare"}, "sparsify.density": 0.25},
        {"sparsify": Dare(0.25)},
        want.options(),
    ):
        assert make("average", options) == want
    assert make("average", {"sparsify": "none"}) == make("average", {"sparsify": None}) == Average()
    assert want.options() == {"sparsify": {"name": "dare", "density": 0.25}}
    assert sparsifier("breadcrumbs") == Breadcrumbs()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sparsify": "prune"}, "sparsify is 'prune', expected one of: none, dare, della, breadcrumbs"),
        ({"sparsify.density": 0.5}, "sparsify.density is given but sparsify is not; name one first"),
        ({"sparsify": "none", "sparsify.density": 0.5}, "sparsify.density is given but sparsify is not"),
        (
            {"sparsify": "dare", "sparsify.gamma": 1},
            "sparsifier dare has no option gamma; its options are: density",
        ),
        (
            {"sparsify": "dare", "sparsify.density": 1.5},
            "sparsify.density is 1.5, expected a number from 0 to 1",
        ),
        ({"sparsify": "dare", "sparsify.density": "half"}, "density is 'half', expected a number"),
        ({"sparsify": Della(0.9, 0.3)}, "sparsify.spread is 0.3, expected 0 to 0.2 at density 0.9"),
        ({"sparsify": Breadcrumbs(0.9, 0.2)}, "add up to more than 1"),
        ({"sparsify": Breadcrumbs(0.9, -0.2)}, "sparsify.gamma is -0.2, expected a number from 0 to 1"),
        ({"sparsify": 3}, "sparsify is 3"),
    ],
)
def test_wrong_sparsifiers_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make("average", options)


@pytest.mark.parametrize("name", ["dare", "della"])
@pytest.mark.parametrize("density", [1e-320, 2.0**-21])
def test_densities_too_small_to_divide_by_are_refused(name: str, density: float) -> None:
    options = {
        "sparsify": name,
        "sparsify.density": density,
        **({"sparsify.spread": 0} if name == "della" else {}),
    }
    with pytest.raises(UsageError, match=r"sparsify.density is .*, expected 0 or a number from 2\^-20 to 1"):
        make("average", options)
    make("average", {**options, "sparsify.density": 2.0**-20})
    make("average", {**options, "sparsify.density": 0})
    make("average", {"sparsify": "breadcrumbs", "sparsify.density": density})
