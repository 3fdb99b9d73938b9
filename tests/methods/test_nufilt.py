"""NUFILT against the paper's equations in numpy: dense projectors, Adam written out."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
import numpy.typing as npt
import pytest
import torch

from plait.errors import UsageError
from plait.methods.base import Part, Where
from plait.methods.memory import apply
from plait.methods.nufilt import Nufilt
from plait.methods.pieces import same_bytes
from plait.methods.registry import make
from plait.tensors.random import normal
from tests.methods.matrices import MATRICES, SHAPES, Model, drawn

Array = npt.NDArray[np.float64]


def models(count: int = 4, rank: int | None = None, seed: int = 0) -> tuple[Model, list[Model]]:
    return drawn(count, rank, seed)


def leading(matrix: Array, count: int) -> Array:
    _, s, vh = np.linalg.svd(matrix, full_matrices=False)
    return np.asarray(vh[: min(count, int((s > 1e-9 * s[0]).sum()))].T)


def correction(total: Array, tau: Array, v: Array, a: Array) -> Array:
    """tau B A after 50 steps of Adam of size 1e-3 from B = 0 and this A, on the two terms of the loss."""
    own = leading(tau, 8)
    inputs = tau.shape[1]
    outside = np.eye(inputs) - v @ v.T
    x = {"a": a.copy(), "b": np.zeros((inputs, 64))}
    m = {k: np.zeros_like(t) for k, t in x.items()}
    s = {k: np.zeros_like(t) for k, t in x.items()}
    for t in range(1, 51):
        change = total + tau @ (outside + x["b"] @ x["a"])
        # The loss is ||(change - total) V||^2 + ||(change - tau) V_tau||^2; its slope by `change`:
        slope = 2 * (change - total) @ v @ v.T + 2 * (change - tau) @ own @ own.T
        g = {"b": tau.T @ slope @ x["a"].T, "a": x["b"].T @ tau.T @ slope}
        for k in x:
            m[k] = 0.9 * m[k] + 0.1 * g[k]
            s[k] = 0.999 * s[k] + 0.001 * g[k] ** 2
            x[k] -= 1e-3 * (m[k] / (1 - 0.9**t)) / (np.sqrt(s[k] / (1 - 0.999**t)) + 1e-8)
    return np.asarray(tau @ x["b"] @ x["a"])


def fold(base: Model, experts: list[Model], rank: int, starts: dict[str, list[Array]] | None = None) -> Model:
    out = {}
    for n, start in base.items():
        taus = [(e[n] - start).numpy() for e in experts]
        if n not in MATRICES:
            out[n] = start + torch.from_numpy(np.mean(taus, axis=0))
            continue
        total = taus[0]
        for k, tau in enumerate(taus[1:], 1):
            v = leading(total, min(rank, tau.shape[1] // 3))
            kept = tau @ (np.eye(tau.shape[1]) - v @ v.T)
            total = total + kept + (0 if starts is None else correction(total, tau, v, starts[n][k]))
        out[n] = start + torch.from_numpy(total)
    return out


def close(got: Model, want: Model, base: Model, tolerance: float) -> None:
    for n in base:
        assert (got[n] - want[n]).abs().max() <= tolerance * (want[n] - base[n]).abs().max(), n


@pytest.mark.parametrize("rank", [0, 1, 2, 128])
def test_agrees_with_the_paper(rank: int) -> None:
    base, experts = models()
    got, want = apply(make("nufilt", {"rank": rank}), base, experts), fold(base, experts, rank)
    # The Gram matrix loses half the digits of the smallest directions: see test_opcm.
    close(got, want, base, 1e-9)


def test_low_rank_task_vectors_meet_no_empty_direction() -> None:
    base, experts = models(2, rank=2)
    close(apply(make("nufilt"), base, experts), fold(base, experts, 128), base, 1e-8)


def starts_of(shape: tuple[int, ...], name: str, seed: bytes) -> Array:
    where = Where(name, shape, "F64", 0, shape[0] * shape[1])
    nothing = torch.zeros(0)
    part = Part(where, nothing, nothing, seed=seed)
    return np.asarray(0.02 * normal(part.seed, part.where.name, 64 * shape[1]).view(64, shape[1]).numpy())


def test_recovery_agrees_with_adam_written_out() -> None:
    base, experts = models(3)
    seeds = [sha256(bytes([i])).digest() for i in range(3)]
    starts = {n: [starts_of(SHAPES[n], n, seed) for seed in seeds] for n in MATRICES}
    got = apply(Nufilt(recover=True), base, experts, seeds=seeds)
    # Adam divides by the size of a slope: a slope that is nothing but rounding moves as far as any. None is here.
    close(got, fold(base, experts, 128, starts), base, 1e-8)
    plain = apply(Nufilt(), base, experts)
    assert all((got[n] - plain[n]).abs().max() > 1e-4 for n in ("q.weight", "up.weight", "down.weight"))


def test_the_start_of_a_recovery_is_normal_and_belongs_to_member_and_tensor() -> None:
    one, other = starts_of((3, 500), "w", b"a"), starts_of((3, 500), "w", b"b")
    assert abs(one.std() - 0.02) < 1e-3
    assert abs(one.mean()) < 1e-3
    assert abs(float((one**4).mean()) / 0.02**4 - 3) < 0.3
    assert not np.array_equal(one, other)
    assert not np.array_equal(one, starts_of((3, 500), "x", b"a"))
    base, experts = models(2)
    both = [
        apply(Nufilt(recover=True), base, experts, seeds=s)
        for s in ([b"1", b"2"], [b"1", b"2"], [b"1", b"3"])
    ]
    assert all(same_bytes(both[0][n], both[1][n]) for n in base)
    assert not same_bytes(both[0]["q.weight"], both[2]["q.weight"])


def test_recovery_lessens_what_it_is_meant_to_lessen() -> None:
    base, experts = models(2)
    n = "up.weight"
    total, tau = ((e[n] - base[n]).numpy() for e in experts)
    v, own = leading(total, 3), leading(tau, 8)

    def loss(model: Model) -> float:
        change = (model[n] - base[n]).numpy()
        return float((((change - total) @ v) ** 2).sum() + (((change - tau) @ own) ** 2).sum())

    assert loss(apply(Nufilt(recover=True), base, experts)) < loss(apply(Nufilt(), base, experts))


@pytest.mark.parametrize("recover", [False, True])
def test_end_points(recover: bool) -> None:
    method = Nufilt(recover=recover)
    base, (first, second, *_) = models()
    assert all(same_bytes(t, first[n]) for n, t in apply(method, base, [first]).items())
    assert all(same_bytes(t, base[n]) for n, t in apply(method, base, [base, base]).items())
    # Members that change nothing leave no trace in matrices, and count in averages.
    got, want = apply(method, base, [base, first, base, second]), apply(method, base, [first, second])
    assert all(same_bytes(got[n], want[n]) for n in MATRICES)
    assert torch.allclose(got["q.bias"], (first["q.bias"] + second["q.bias"]) / 2 / 2 + base["q.bias"] / 2)


def test_the_same_expert_twice_adds_what_lies_beside_its_leading_inputs() -> None:
    base, (first, *_) = models()
    got = apply(make("nufilt"), base, [first, first])
    for n in ("q.weight", "up.weight", "down.weight"):
        u, s, vh = np.linalg.svd((first[n] - base[n]).numpy(), full_matrices=False)
        s[SHAPES[n][1] // 3 :] *= 2
        assert np.abs((got[n] - base[n]).numpy() - (u * s) @ vh).max() <= 1e-9 * s[0], n


def test_weights_multiply_task_vectors_of_matrices() -> None:
    base, experts = models(2)
    scaled = [
        {n: base[n] + w * (e[n] - base[n]) for n in base} for w, e in zip((2.0, 0.5), experts, strict=True)
    ]
    got, want = apply(make("nufilt"), base, experts, [2.0, 0.5]), apply(make("nufilt"), base, scaled)
    for n in MATRICES:
        assert torch.allclose(got[n], want[n], atol=1e-12), n


def test_matrices_that_are_stored_inputs_first_are_transposed() -> None:
    base, experts = models(2)

    def turned(model: Model) -> Model:
        return {n: t.T.contiguous() if n in MATRICES else t for n, t in model.items()}

    for recover in (False, True):
        seeds = [b"1", b"2"]
        want = turned(apply(Nufilt(recover=recover), base, experts, seeds=seeds))
        first = Nufilt(recover=recover, inputs_first=r"\.weight$")
        got = apply(first, turned(base), [turned(e) for e in experts], seeds=seeds)
        close(got, want, turned(base), 1e-10)


def test_state_of_16_bit_lines_is_fp32() -> None:
    base, experts = models(3)
    short = {n: t.bfloat16() for n, t in base.items()}
    tight = [{n: t.bfloat16() for n, t in e.items()} for e in experts]
    wide = apply(
        Nufilt(),
        {n: t.double() for n, t in short.items()},
        [{n: t.double() for n, t in e.items()} for e in tight],
    )
    for n, tensor in apply(Nufilt(), short, tight).items():
        assert tensor.dtype == torch.bfloat16
        # half a unit of bf16 and what fp32 leaves of the state
        assert (tensor.double() - wide[n]).abs().max() <= (2**-8 + 2**-20) * wide[n].abs().max(), n


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rank": -1}, "rank is -1, expected 0 or more"),
        ({"recover": "maybe"}, "recover is 'maybe', expected true or false"),
    ],
)
def test_options_are_checked(options: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make("nufilt", options)
