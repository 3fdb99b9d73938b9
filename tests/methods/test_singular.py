"""TSV-M, Iso-C and Iso-CTS against the papers' algorithms in numpy: full singular value decompositions, fp64."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from plait.errors import UsageError
from plait.methods.memory import apply
from plait.methods.registry import make
from tests.methods.matrices import Model, drawn

Array = npt.NDArray[np.float64]

SHAPES = {
    "q.weight": (12, 12),
    "up.weight": (30, 11),
    "down.weight": (11, 30),
    "row.weight": (1, 7),
    "column.weight": (9, 1),
    "q.bias": (12,),
    "conv.weight": (4, 3, 2),
    "embed.weight": (9, 8),
}
MATRICES = [n for n, s in SHAPES.items() if len(s) == 2 and n != "embed.weight"]
NAMES = ("tsv_m", "iso_c", "iso_cts")


def models(count: int = 3, rank: int | None = None, seed: int = 0) -> tuple[Model, list[Model]]:
    return drawn(count, rank, seed, SHAPES)


# The oracles: see the algorithms' numbers in the methods' docstrings.


def triplets(a: Array) -> tuple[Array, Array, Array]:
    u, s, vh = np.linalg.svd(a, full_matrices=False)
    alive = s > 1e-9 * s[0]
    return u[:, alive], s[alive], vh[alive]


def nearest(a: Array) -> Array:
    u, _, vh = triplets(a)
    made: Array = u @ vh
    return made


def tsv_m(taus: list[Array], weight: float | None = None) -> Array:
    k = min(taus[0].shape) // len(taus)
    if k == 0:
        return np.asarray(np.sum(taus, axis=0) / (weight or len(taus)))
    found = [triplets(tau) for tau in taus]
    u = np.concatenate([f[0][:, :k] for f in found], axis=1)
    s = np.concatenate([f[1][:k] for f in found])
    vh = np.concatenate([f[2][:k] for f in found])
    made: Array = nearest(u) @ np.diag(s) @ nearest(vh)
    return made


def iso_c(taus: list[Array]) -> Array:
    u, s, vh = triplets(np.sum(taus, axis=0))
    made: Array = u @ vh * s.mean()
    return made


def iso_cts(taus: list[Array], common: float = 0.8) -> Array:
    size, count = min(taus[0].shape), len(taus)
    own = min(round((size - int(size * common)) / count), size // count)  # no more than there are
    index = size - own * count
    u, s, vh = triplets(np.sum(taus, axis=0))
    us, ss, vs = [u[:, :index]], [s[:index]], [vh[:index]]
    for tau in taus:
        rest = tau - us[0] @ us[0].T @ tau
        u, s, vh = np.linalg.svd(rest, full_matrices=False)
        alive = min(own, int((s > 1e-9 * np.linalg.norm(tau)).sum()))
        us.append(u[:, :alive])
        ss.append(s[:alive])
        vs.append(vh[:alive])
    level = np.concatenate(ss).mean()
    made: Array = level * nearest(np.concatenate(us, axis=1)) @ nearest(np.concatenate(vs))
    return made


ORACLES: dict[str, Any] = {"tsv_m": tsv_m, "iso_c": iso_c, "iso_cts": iso_cts}


def judge(name: str, base: Model, experts: list[Model], weights: list[float], scale: float = 1.0) -> Model:
    out = {}
    for n, start in base.items():
        taus = [w * (e[n] - start).numpy() for w, e in zip(weights, experts, strict=True)]
        oracle = partial(tsv_m, weight=sum(weights)) if name == "tsv_m" else ORACLES[name]
        update = oracle(taus) if n in MATRICES else np.sum(taus, axis=0) / sum(weights)
        out[n] = start + scale * torch.from_numpy(update)
    return out


def close(got: Model, want: Model, base: Model, tolerance: float) -> None:
    for n in base:
        assert (got[n] - want[n]).abs().max() <= tolerance * (want[n] - base[n]).abs().max(), n


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_agrees_with_the_paper(name: str, count: int) -> None:
    base, experts = models(count)
    weights = [1.0, 0.5, 2.0, 1.0, 0.25][:count]
    # Rows and columns are shorter than the number of members: TSV-M averages them, without weights in the divisor.
    got = apply(make(name, {"scale": 0.7}), base, experts, weights)
    want = judge(name, base, experts, weights, 0.7)
    # The Gram matrix loses half the digits of the smallest directions: see test_opcm.
    close(got, want, base, 1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_low_rank_task_vectors(name: str) -> None:
    base, experts = models(rank=2)
    want = judge(name, base, experts, [1.0] * 3)
    close(apply(make(name), base, experts), want, base, 1e-7)


@pytest.mark.parametrize("common", [0.0, 0.5, 1.0])
def test_common_share_of_iso_cts(common: float) -> None:
    base, experts = models(2)
    got = apply(make("iso_cts", {"common": common}), base, experts)
    for n in ("q.weight", "up.weight", "down.weight"):
        want = iso_cts([(e[n] - base[n]).numpy() for e in experts], common)
        assert np.abs((got[n] - base[n]).numpy() - want).max() <= 1e-8 * np.abs(want).max(), n
    if common == 1:
        close(got, apply(make("iso_c"), base, experts), base, 1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_scale_0_and_experts_that_change_nothing_give_the_base(name: str) -> None:
    base, experts = models()
    for n, tensor in apply(make(name, {"scale": 0}), base, experts).items():
        assert torch.equal(tensor, base[n]), n
    for n, tensor in apply(make(name), base, [base, base]).items():
        assert torch.equal(tensor, base[n]), n


@pytest.mark.parametrize("name", ["iso_c", "iso_cts"])
def test_opposed_task_vectors_cancel(name: str) -> None:
    base, (first, *_) = models()
    # Whole eighths, so that the two differences are opposed to the last bit.
    first = {n: torch.round(t * 8) / 8 for n, t in first.items()}
    start = {n: torch.round(t * 8) / 8 for n, t in base.items()}
    opposed = {n: 2 * start[n] - first[n] for n in first}
    common = {"common": 1} if name == "iso_cts" else {}
    for n, tensor in apply(make(name, common), start, [first, opposed]).items():
        assert torch.equal(tensor, start[n]), n


def test_one_member_comes_back_from_tsv_m_and_two_equal_ones_give_its_leading_half() -> None:
    base, (first, *_) = models()
    assert all(torch.equal(t, first[n]) for n, t in apply(make("tsv_m"), base, [first]).items())
    got = apply(make("tsv_m"), base, [first, first])
    for n in ("q.weight", "up.weight", "down.weight"):
        u, s, vh = np.linalg.svd((first[n] - base[n]).numpy(), full_matrices=False)
        k = len(s) // 2
        want = (u[:, :k] * s[:k]) @ vh[:k]
        assert np.abs((got[n] - base[n]).numpy() - want).max() <= 1e-8 * np.abs(want).max(), n
    assert torch.allclose(got["q.bias"], first["q.bias"], atol=1e-15)


def test_all_singular_values_of_iso_are_alike() -> None:
    base, experts = models()
    for name in ("iso_c", "iso_cts"):
        got = apply(make(name), base, experts)
        for n in ("q.weight", "up.weight", "down.weight"):
            s = np.linalg.svd((got[n] - base[n]).numpy(), compute_uv=False)
            assert s.max() - s.min() <= 1e-7 * s.max(), (name, n)


@pytest.mark.parametrize("name", NAMES)
def test_a_member_that_leaves_a_matrix_alone_counts_and_adds_nothing(name: str) -> None:
    base, experts = models()
    still = {**experts[2], "up.weight": base["up.weight"].clone()}
    taus = [(e["up.weight"] - base["up.weight"]).numpy() for e in experts[:2]]
    if name == "tsv_m":
        k = 11 // 3
        found = [triplets(tau) for tau in taus]
        u, vh = (
            np.concatenate([f[i][:, :k] if i == 0 else f[i][:k] for f in found], 1 - i // 2) for i in (0, 2)
        )
        want = nearest(u) @ np.diag(np.concatenate([f[1][:k] for f in found])) @ nearest(vh)
    else:
        # A third of the directions beyond the common ones is left to the one that has none.
        want = ORACLES[name]([*taus, np.zeros_like(taus[0])])
    for order in ((0, 1, 2), (2, 0, 1)):
        members = [experts[0], experts[1], still]
        got = apply(make(name), base, [members[i] for i in order])["up.weight"] - base["up.weight"]
        assert np.abs(got.numpy() - want).max() <= 1e-8 * np.abs(want).max()


def test_matrices_that_are_stored_inputs_first_are_transposed() -> None:
    base, experts = models()

    def turned(model: Model) -> Model:
        return {n: t.T.contiguous() if n in MATRICES else t for n, t in model.items()}

    want = turned(apply(make("iso_cts"), base, experts))
    got = apply(make("iso_cts", {"inputs_first": r"\.weight$"}), turned(base), [turned(e) for e in experts])
    plain = apply(make("iso_cts"), turned(base), [turned(e) for e in experts])
    close(got, want, turned(base), 1e-12)
    assert (plain["up.weight"] - want["up.weight"]).abs().max() > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_every_order_gives_the_same_bytes(name: str) -> None:
    base, experts = models()
    want = apply(make(name), base, experts, [1.0, 0.3, 2.0])
    for order in ((1, 2, 0), (2, 1, 0)):
        got = apply(make(name), base, [experts[i] for i in order], [(1.0, 0.3, 2.0)[i] for i in order])
        assert all(torch.equal(got[n], want[n]) for n in base)


@pytest.mark.parametrize("name", NAMES)
def test_bf16_members_are_rounded_once(name: str) -> None:
    base, experts = models()
    short = {n: t.bfloat16() for n, t in base.items()}
    tight = [{n: t.bfloat16() for n, t in e.items()} for e in experts]
    wide = apply(
        make(name),
        {n: t.double() for n, t in short.items()},
        [{n: t.double() for n, t in e.items()} for e in tight],
    )
    for n, tensor in apply(make(name), short, tight).items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, wide[n].bfloat16()), n


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("tsv_m", {"scale": "inf"}, "scale is inf, expected a finite number"),
        ("iso_c", {"tables": "("}, "tables is '\\(', expected a regular expression"),
        ("iso_cts", {"common": 1.5}, "common is 1.5, expected a number from 0 to 1"),
        ("iso_cts", {"inputs_first": "["}, "inputs_first is '\\[', expected a regular expression"),
    ],
)
def test_options_are_checked(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make(name, options)
