"""Coefficients in the streaming engine: inner products to the bit, one way for all cuts and threads, no state."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from plait import engine, merge_state_dicts
from plait.engine.call import INNER
from plait.engine.coefficients import remember, shorten
from plait.errors import RefusedInput, VerificationError
from plait.methods.base import Facts, MemberFacts, Outlook, Part, Slot, State, TensorMethod, Where
from plait.methods.coefficients import CoefficientMethod, Coefficients, Combination, Products
from plait.methods.mdm_oc import MdmOc
from plait.tensors import BLOCK, compiled
from plait.tensors.inner import LEAF, block_products, expansion, leaf_products
from tests.engine.files import Bench, Tensors, base_tensors, expert_of, places, same


@pytest.fixture(params=["bfloat16", "float32"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    return made(tmp_path, getattr(torch, request.param))


def made(folder: Path, dtype: torch.dtype = torch.bfloat16, count: int = 4) -> Bench:
    base = base_tensors(dtype)
    found = Bench(folder, base, [expert_of(base, i) for i in range(count)])
    found.members = [replace(m, identity=f"expert {i}") for i, m in enumerate(found.members)]
    return found


def inner(folder: Path) -> bytes:
    return (folder / INNER).read_bytes()


# The kernel


def test_products_are_sums_of_the_rows_alone() -> None:
    """One row, or many, at any place in memory: the same bits."""
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(7, BLOCK + LEAF + 77, generator=draw, dtype=torch.float64)
    other = torch.randn(rows.shape[1] + 3, generator=draw, dtype=torch.float64)[3:]
    together = block_products(leaf_products(rows, other))
    for i, row in enumerate(rows):
        alone = block_products(leaf_products(row.clone()[None], other.clone()))
        assert torch.equal(alone[0], together[i])
        turned = block_products(leaf_products(other.clone()[None], row))
        assert torch.equal(turned[0], together[i])
    cut = torch.cat(
        [leaf_products(rows[:, :BLOCK], other[:BLOCK]), leaf_products(rows[:, BLOCK:], other[BLOCK:])], 1
    )
    assert torch.equal(block_products(cut), together)
    want = rows.double() @ other
    assert torch.allclose(together.sum(1), want, rtol=1e-12)


def test_expansions_add_up_exactly_in_any_grouping() -> None:
    draw = random.Random(0)
    values = [draw.uniform(-1, 1) * 2.0 ** draw.randint(-300, 300) for _ in range(200)]
    exact = sum(map(Fraction, values))
    assert sum(map(Fraction, expansion(values))) == exact
    parts: list[float] = []
    for start in range(0, 200, 7):
        parts = expansion([*parts, *values[start : start + 7]])
    assert parts[0] == float(exact)
    assert expansion([1.0, -1.0]) == []


# Merges


def test_cuts_threads_and_compiled_loops_change_no_bit(bench: Bench, tmp_path: Path) -> None:
    want, state = None, b""
    for number, settings in enumerate(
        [
            engine.Settings(workers=1, chunk=BLOCK, compiled=False),
            engine.Settings(workers=3, chunk=4 * BLOCK, compiled=True),
            engine.Settings(workers=2),
        ]
    ):
        folder = tmp_path / f"state-{number}"
        merged, _ = bench.merge(MdmOc(granularity="tensor"), new_state=folder, settings=settings)
        if want is None:
            want, state = merged, inner(folder)
        assert all(same(merged[n], want[n]) for n in want)
        assert inner(folder) == state


def test_short_runs_for_many_members_give_the_same_bits(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.merge(MdmOc(), new_state=tmp_path / "one", output=False)
    monkeypatch.setattr("plait.engine.inner.ROOM", 8 * LEAF)
    monkeypatch.setattr("plait.engine.inner.JOBS", 1)
    bench.merge(MdmOc(), new_state=tmp_path / "two", output=False)
    assert inner(tmp_path / "one") == inner(tmp_path / "two")


def test_inner_products_do_not_tell_which_road_led_to_them(bench: Bench, tmp_path: Path) -> None:
    members, method = bench.members, MdmOc(granularity="layer")
    _, _ = bench.merge(method, members, new_state=tmp_path / "once", output=False)
    state: Path | None = None
    for number, some in enumerate(
        ([0], [0, 1], [0, 1, 3], [1, 3], [1, 3, 2], [3, 2], [3, 2, 0, 1], [0, 1, 2, 3])
    ):
        listed = [members[i] for i in some]
        folder = tmp_path / f"road-{number}"
        bench.merge(method, listed, state=state, new_state=folder, output=False)
        state = folder
    assert state is not None
    assert inner(state) == inner(tmp_path / "once")


def test_a_shortened_state_is_that_of_a_merge_without_the_member(bench: Bench, tmp_path: Path) -> None:
    method, (a, b, c, d) = MdmOc(), bench.members
    bench.merge(method, [a, b, c, d], new_state=tmp_path / "all", output=False)
    sums = shorten(method, [a, b, c, d], 1, tmp_path / "all", tmp_path / "short")
    _, folded = bench.merge(method, [a, c, d], new_state=tmp_path / "fresh", output=False)
    assert sums == folded.sums
    for name in sums:
        assert (tmp_path / "short" / name).read_bytes() == (tmp_path / "fresh" / name).read_bytes()
    products, alpha = remember(tmp_path / "short", [a, c, d])
    assert products.tasks == ("t0", "t2", "t3")
    assert alpha is None
    with pytest.raises(VerificationError, match="inner products of t1 are not kept"):
        remember(tmp_path / "short", [a, b])


def test_what_is_not_finite_counts_as_unchanged(tmp_path: Path) -> None:
    base = base_tensors(torch.float32)
    experts = [expert_of(base, i) for i in range(2)]
    experts[0]["rows"][5, 5] = float("nan")
    clean = [{n: t.clone() for n, t in e.items()} for e in experts]
    clean[0]["rows"][5, 5] = base["rows"][5, 5]
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    settings = engine.Settings(workers=2, allow_nonfinite=True)
    got, _ = Bench(tmp_path / "one", base, experts).merge(MdmOc(), settings=settings)
    want, _ = Bench(tmp_path / "two", base, clean).merge(MdmOc(), settings=settings)
    assert all(same(got[n], want[n]) for n in want)


def test_products_that_overflow_are_refused(tmp_path: Path) -> None:
    base = {"w": torch.zeros(4, dtype=torch.float64)}
    far = {"w": torch.full((4,), 1e200, dtype=torch.float64)}
    with pytest.raises(RefusedInput, match="of t0 and t0 is too large for fp64"):
        Bench(tmp_path, base, [far]).merge(MdmOc())
    with pytest.raises(RefusedInput, match="of expert 0 and expert 0 is too large for fp64"):
        merge_state_dicts(base, [far], "mdm_oc")


def test_given_factors_and_coefficients_are_used(bench: Bench, tmp_path: Path) -> None:
    members, method = bench.members, MdmOc()
    out = {n: r for n, r in bench.base.items() if r.mergeable}

    def fold(name: str, **words: Any) -> tuple[Tensors, engine.Folded]:
        place = places(tmp_path / name, bench.base)
        told = engine.fold(
            method,
            bench.base,
            members,
            enter=members,
            state=None,
            new_state=None,
            out={n: place[n] for n in out},
            settings=engine.Settings(workers=2),
            **words,
        )
        return load_file(tmp_path / name), told

    chosen = {"model": [0.3, 0.3, 0.3, 0.3]}
    plain, told = fold("plain")
    fitted, _ = fold("fitted", alpha=chosen)
    assert all(same(plain[n], fitted[n]) for n in out)
    other, _ = fold("other", alpha={"model": [0.3, 0.2, 0.3, 0.3]})
    assert not same(plain["rows"], other["rows"])
    again, _ = fold("again", coefficients=told.concluded["coefficients"])
    assert all(same(plain[n], again[n]) for n in out)


def test_members_that_do_not_all_enter_are_a_mistake(bench: Bench) -> None:
    for enter in (bench.members[:2], bench.members[::-1]):
        with pytest.raises(ValueError, match="let all members enter, in order"):
            bench.merge(MdmOc(), enter=enter)


def test_a_finished_pass_is_not_run_again(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped while it is written, the merge goes on without another look at inner products."""
    want, _ = bench.merge(MdmOc())
    journal = tmp_path / "journal"

    class Stop(Exception):
        pass

    def stop(self: object, job: object, desk: object) -> None:
        raise Stop

    count = bench.count
    with monkeypatch.context() as patch:
        patch.setattr("plait.engine.passes.FoldPass.__call__", stop)
        with pytest.raises(Stop):
            bench.merge(MdmOc(), journal=journal)
    with monkeypatch.context() as patch:
        patch.setattr("plait.engine.inner.InnerPass.__call__", stop)
        bench.count = count  # the same output file, so the same merge
        got, _ = bench.merge(MdmOc(), journal=journal)
    assert all(same(got[n], want[n]) for n in want)


@dataclass(frozen=True)
class Fixed(CoefficientMethod):
    """Coefficients by the place of the member, whatever the task vectors."""

    facts: ClassVar[Facts] = Facts("toy", "coefficients", "recompute", "none", True, "-", "-", "-")

    def group(self, name: str) -> str:
        return "small" if name == "small" else "others"

    def combine(self, products: Products, members: Any, alpha: Coefficients | None = None) -> Combination:
        return Combination({"small": [0.0, 1.0, 0.0, 0.0], "others": [-0.7, 0.0, 1.3, -0.25]})


@pytest.mark.parametrize("use_loops", [False, True])
def test_negative_and_zero_coefficients(bench: Bench, use_loops: bool) -> None:
    if use_loops and not compiled.works():
        pytest.skip("numba is not here")
    merged, _ = bench.merge(Fixed(), settings=engine.Settings(workers=1, compiled=use_loops))
    base, experts = bench.tensors, bench.experts
    assert same(merged["small"], experts[1]["small"])
    for name in ("long", "rows", "scalar"):
        taus = [e[name].double() - base[name].double() for e in experts]
        want = base[name].double() - 0.7 * taus[0] + 1.3 * taus[2] - 0.25 * taus[3]
        step = 2.0 ** -(7 if base[name].dtype == torch.bfloat16 else 22)
        assert torch.allclose(merged[name].double(), want, rtol=step, atol=step * 2e-3)


def test_the_short_way_is_taken_for_negative_coefficients() -> None:
    if not compiled.works():
        pytest.skip("numba is not here")
    base = torch.full((8,), 1.0)
    where = Where("w", (8,), "F32", 0, 8)
    method = MdmOc()
    quick = method.quick(base, where, Outlook((MemberFacts(1.0, {}), MemberFacts(1.0, {}))))
    assert quick is not None
    for factor in (-0.5, -0.7):
        assert quick.take(torch.full((8,), 1.5), MemberFacts(1.0, {"coefficients": {"model": factor}}))
    merged = quick.merged(torch.float32)
    assert merged is not None
    assert torch.allclose(merged, torch.full((8,), 1.0 - 0.5 * 1.2))


def test_what_a_compiled_sum_loses_still_decides_a_tie() -> None:
    """1 + 2^-24 lies between two numbers of fp32; 2^-80 more than that is nearer to the upper one."""
    if not compiled.works():
        pytest.skip("numba is not here")
    base, expert = torch.ones(4), torch.full((4,), 1 + 2.0**-23)
    for factors, want in (((0.5,), 1.0), ((0.5, 2.0**-57), 1 + 2.0**-23), ((0.5, -(2.0**-57)), 1.0)):
        chunk = compiled.Combined(base)
        assert all(chunk.take(expert, factor) for factor in factors)
        merged = chunk.merged(torch.float32)
        assert merged is not None
        assert merged.tolist() == [want] * 4


def test_a_journal_of_other_coefficients_is_not_gone_on_with(bench: Bench, tmp_path: Path) -> None:
    place = places(tmp_path / "out", {n: r for n, r in bench.base.items() if r.mergeable})
    for factor in (0.5, 0.25):
        engine.fold(
            MdmOc(),
            bench.base,
            bench.members,
            enter=bench.members,
            state=None,
            new_state=None,
            out=place,
            settings=engine.Settings(workers=1),
            journal=tmp_path / "journal",
            coefficients={"model": [factor, 0.0, 0.0, 0.0]},
        )
        merged = load_file(tmp_path / "out")["small"].double()
        start = bench.tensors["small"].double()
        want = start + factor * (bench.experts[0]["small"].double() - start)
        assert torch.allclose(merged, want, rtol=2.0**-8)


# The family "rebuild": functions of all task vectors


@dataclass(frozen=True)
class Median(TensorMethod):
    """The element-wise median of the experts: no sum and no step gives it."""

    facts: ClassVar[Facts] = Facts("toy", "rebuild", "recompute", "none", False, "-", "-", "-")

    def slots(self, shape: tuple[int, ...], dtype: str) -> dict[str, Slot]:
        return {}

    def step(self, state: State, part: Part) -> State:
        return {**state, f"{len(state)}": part.expert}

    def merge(self, base: Tensor, state: State, where: Where, outlook: Outlook) -> Tensor:
        return torch.stack(list(state.values())).double().median(0).values


def test_a_method_of_all_task_vectors_needs_no_state(bench: Bench, tmp_path: Path) -> None:
    some = bench.members[:3]
    merged, _ = bench.merge(Median(), some, new_state=tmp_path / "state")
    assert not (tmp_path / "state").exists()
    for name in ("long", "rows", "small"):
        stacked = torch.stack([e[name] for e in bench.experts[:3]])
        assert same(merged[name], stacked.median(0).values)


def test_a_damaged_state_is_told(bench: Bench, tmp_path: Path) -> None:
    bench.merge(MdmOc(), new_state=tmp_path / "state", output=False)
    for damage in (b"{", b"[]", b'{"members": []}'):
        (tmp_path / "state" / INNER).write_bytes(damage)
        with pytest.raises(VerificationError, match=r"inner\.json: .* rebuild the line from its members"):
            bench.merge(MdmOc(), state=tmp_path / "state")


def test_state_is_plain_json(bench: Bench, tmp_path: Path) -> None:
    bench.merge(MdmOc(), new_state=tmp_path / "state", output=False)
    value = json.loads(inner(tmp_path / "state"))
    assert [len(row) for row in value["inner"]["model"]] == [1, 2, 3, 4]
    assert len(value["members"]) == 4
