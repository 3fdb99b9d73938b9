"""What a fold writes: the laws that do not depend on a method, on the smallest methods and on toys."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from plait.engine import Incoming, Settings
from plait.engine.desk import Desk
from plait.engine.passes import SurveyPass
from plait.engine.plan import Job
from plait.errors import NonFinite, VerificationError
from plait.methods.average import Average
from plait.methods.base import TensorMethod
from plait.methods.magmax import MagMax
from plait.methods.task_arithmetic import TaskArithmetic
from plait.methods.ties import Ties
from plait.tensors import BLOCK
from tests.engine import toys
from tests.engine.files import Bench, Tensors, all_same, base_tensors, expert_of, same, save, state_bytes
from tests.engine.toys import First, Normed, Only

fold_file = sys.modules["plait.engine.fold"]  # the package gives the name `fold` to the function

METHODS: list[TensorMethod] = [
    Average(),
    TaskArithmetic(0.7),
    MagMax(),
    Normed(),
    Normed(stride=2, shape="row"),
    Normed(shape="matrix"),
]
MAKE: dict[torch.dtype, str] = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    base = base_tensors()
    return Bench(tmp_path, base, [expert_of(base, n) for n in range(3)])


@pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{type(m).__name__}-{m.grain((2, 2))}")
def test_bytes_do_not_depend_on_threads_or_chunks(bench: Bench, method: TensorMethod, tmp_path: Path) -> None:
    want, _ = bench.merge(method, settings=Settings(1, BLOCK), new_state=tmp_path / "state")
    state = state_bytes(tmp_path / "state")
    assert not all_same(want, bench.tensors)
    for number, (workers, blocks) in enumerate([(2, 3), (4, 1), (2, 1000)]):
        folder = tmp_path / f"state-{number}"
        found, _ = bench.merge(method, settings=Settings(workers, blocks * BLOCK), new_state=folder)
        assert all_same(found, want)
        assert state_bytes(folder) == state
    without, _ = bench.merge(method, settings=Settings(2, 2 * BLOCK))
    assert all_same(without, want)


@pytest.mark.parametrize("dtype", MAKE)
def test_the_average_is_the_rational_average_rounded_once(tmp_path: Path, dtype: torch.dtype) -> None:
    base = {"w": base_tensors(dtype)["rows"][:8].contiguous()}
    experts = [{"w": expert_of(base_tensors(dtype), n)["rows"][:8].contiguous()} for n in range(3)]
    bench = Bench(tmp_path, base, experts)
    found, _ = bench.merge(Average())
    for at in [*range(0, 2408, 37), *range(903, 915)]:
        exact = sum((Fraction(float(e["w"].view(-1)[at])) for e in experts), Fraction(0)) / 3
        got = found["w"].view(-1)[at]
        near = [torch.nextafter(got, torch.tensor(s * 1e30, dtype=dtype)) for s in (1, -1)]
        error = abs(Fraction(float(got)) - exact)
        assert all(error <= abs(Fraction(float(other)) - exact) for other in near), (at, got, float(exact))


def test_one_member_of_weight_one_comes_back_bit_for_bit(tmp_path: Path) -> None:
    for dtype in MAKE:
        folder = tmp_path / MAKE[dtype]
        folder.mkdir()
        base = base_tensors(dtype)
        bench = Bench(folder, base, [expert_of(base, 5)])
        assert bool((torch.signbit(bench.experts[0]["rows"]) & (bench.experts[0]["rows"] == 0)).any())
        for method in (Average(), TaskArithmetic(1.0), MagMax(1.0)):
            found, _ = bench.merge(method, new_state=folder / f"state-{method.name}")
            assert all_same(found, bench.experts[0]), (dtype, method)


@pytest.mark.parametrize("method", [Average(), TaskArithmetic(0.7), Normed()], ids=lambda m: type(m).__name__)
def test_enter_then_leave_is_the_identity_on_every_byte(
    bench: Bench, method: TensorMethod, tmp_path: Path
) -> None:
    a, b, c = (replace(m, weight=w) for m, w in zip(bench.members, (1.0, 0.3, 2.5), strict=True))
    never, first = bench.merge(method, [a, c], new_state=tmp_path / "ac")
    _, second = bench.merge(method, [b, a], new_state=tmp_path / "ba")
    known = first.known | second.known
    a, b, c = (replace(m, known=known[m.task]) for m in (a, b, c))
    with_all, _ = bench.merge(method, [b, a, c], enter=[c], state=tmp_path / "ba", new_state=tmp_path / "bac")
    without, _ = bench.merge(
        method, [a, c], enter=[], leave=[b], state=tmp_path / "bac", new_state=tmp_path / "back"
    )
    assert all_same(without, never)
    assert not all_same(with_all, never)
    assert state_bytes(tmp_path / "back") == state_bytes(tmp_path / "ac")
    assert state_bytes(tmp_path / "bac") != state_bytes(tmp_path / "ac")
    swapped, _ = bench.merge(
        method, [a, b], enter=[b], leave=[c], state=tmp_path / "ac", new_state=tmp_path / "ab"
    )
    assert state_bytes(tmp_path / "ab") == state_bytes(tmp_path / "ba")
    assert not all_same(swapped, never)


def test_tensors_that_only_the_leaver_changed_leave_no_trace(bench: Bench, tmp_path: Path) -> None:
    alone = expert_of(bench.tensors, 9, leave=("long", "frozen"))
    refs = save(tmp_path / "small.safetensors", alone)
    small = Incoming("small", 1.0, {"rows": refs["rows"]})
    want, never = bench.merge(Average(), [small], new_state=tmp_path / "never")
    bench.merge(Average(), [small, bench.members[0]], new_state=tmp_path / "both")
    found, folded = bench.merge(
        Average(),
        [small],
        enter=[],
        leave=[bench.members[0]],
        state=tmp_path / "both",
        new_state=tmp_path / "after",
    )
    assert all_same(found, want)
    assert state_bytes(tmp_path / "after") == state_bytes(tmp_path / "never")
    assert folded.counts == never.counts == {"merged": 1, "copied": 5}


def test_the_last_member_leaves_the_base_and_an_empty_state(bench: Bench, tmp_path: Path) -> None:
    member = bench.members[0]
    bench.merge(Average(), [member], new_state=tmp_path / "one")
    found, folded = bench.merge(
        Average(), [], enter=[], leave=[member], state=tmp_path / "one", new_state=tmp_path / "none"
    )
    assert all_same(found, bench.tensors)
    assert folded.counts == {"merged": 0, "copied": 6}
    bench.merge(Average(), [], new_state=tmp_path / "nothing")
    assert state_bytes(tmp_path / "none") == state_bytes(tmp_path / "nothing")
    wrong = replace(bench.members[1], task=member.task)
    with pytest.raises(VerificationError, match="sums of 4 tensors are not 0, long among them"):
        bench.merge(Average(), [], enter=[], leave=[wrong], state=tmp_path / "one", new_state=tmp_path / "x")


def test_order_does_not_matter_to_an_additive_method(bench: Bench, tmp_path: Path) -> None:
    found, _ = bench.merge(Average(), bench.members[::-1], new_state=tmp_path / "back")
    want, _ = bench.merge(Average(), new_state=tmp_path / "forth")
    assert all_same(found, want)
    assert state_bytes(tmp_path / "back") == state_bytes(tmp_path / "forth")


def test_inputs_are_not_touched(bench: Bench, tmp_path: Path) -> None:
    bench.merge(Average(), bench.members[:1], new_state=tmp_path / "one")
    files = [p for p in tmp_path.rglob("*.safetensors") if p.parent.name == "one" or "out" not in p.name]
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in files}
    assert len(before) == 6
    bench.merge(Normed(), new_state=tmp_path / "state")
    bench.merge(
        Average(),
        bench.members[:2],
        enter=bench.members[1:2],
        state=tmp_path / "one",
        new_state=tmp_path / "two",
    )
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in files} == before


@pytest.mark.parametrize(("dtype", "kind"), [("F32", torch.float32), ("F16", torch.float16)])
def test_the_output_may_have_another_dtype(bench: Bench, dtype: str, kind: torch.dtype) -> None:
    found, _ = bench.merge(Average(), bench.members[:2], dtype=dtype)
    for name, base in bench.tensors.items():
        experts = [e[name].double() for e in bench.experts[:2]]
        want = base.double() + sum(e - base.double() for e in experts) / 2
        # bf16 values: sums of two differences are exact in fp64, so one rounding is left
        assert torch.equal(found[name], want.to(kind)), name


def poisoned(bench: Bench, value: float, row: int, column: int) -> Incoming:
    expert = {n: t.clone() for n, t in bench.experts[1].items()}
    expert["rows"][row, column] = value
    refs = save(bench.folder / "poisoned.safetensors", expert)
    return replace(bench.members[1], refs={n: r for n, r in refs.items() if n != "frozen"})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_nonfinite_inputs_are_refused_by_name_and_index(bench: Bench, value: float) -> None:
    bad = poisoned(bench, value, 699, 17)
    for method in (Average(), MagMax(), Normed()):
        with pytest.raises(NonFinite, match=r"t1: rows\[699, 17\] is -?(nan|inf), finite numbers are needed"):
            bench.merge(method, [bench.members[0], bad])
    with pytest.raises(NonFinite, match=r"t1: rows\[699, 17\]"):
        bench.merge(Only(), [bad])


def test_nonfinite_inputs_may_be_taken_as_the_base(bench: Bench) -> None:
    bad = poisoned(bench, float("nan"), 0, 300)
    fixed = {n: t.clone() for n, t in bench.experts[1].items()}
    fixed["rows"][0, 300] = bench.tensors["rows"][0, 300]
    refs = save(bench.folder / "fixed.safetensors", fixed)
    good = replace(bad, refs={n: refs[n] for n in bad.refs})
    allow = Settings(2, BLOCK, allow_nonfinite=True)
    for method in (Average(), MagMax(), Normed()):
        found, _ = bench.merge(method, [bench.members[0], bad], settings=allow)
        want, _ = bench.merge(method, [bench.members[0], good])
        assert all_same(found, want)
    found, _ = bench.merge(Only(), [bad], settings=allow)
    assert all_same(found, fixed)


def test_a_nonfinite_base_is_refused_or_kept(tmp_path: Path) -> None:
    base = base_tensors(torch.float32)
    base["long"][BLOCK + 5] = float("-inf")
    experts = [expert_of(base, n) for n in range(2)]
    experts[0]["long"][BLOCK + 5] = 3.0
    bench = Bench(tmp_path, base, experts)
    with pytest.raises(NonFinite, match=rf"base: long\[{BLOCK + 5}\] is -inf"):
        bench.merge(Average())
    found, _ = bench.merge(Average(), settings=Settings(2, BLOCK, allow_nonfinite=True))
    assert float(found["long"][BLOCK + 5]) == float("-inf")
    assert bool(torch.isfinite(found["long"]).sum() == base["long"].numel() - 1)
    mean = base["long"].double() + sum(e["long"].double() - base["long"].double() for e in experts) / 2
    away = torch.arange(base["long"].numel()) != BLOCK + 5
    # fp64 rounds the sum of two fp32 differences once before the rounding to fp32: half a unit and a little
    assert torch.allclose(found["long"][away], mean[away].float(), rtol=2**-23, atol=0)


def test_a_fold_steps_with_the_base_once_a_tensor_has_a_state(bench: Bench, tmp_path: Path) -> None:
    first, last = (replace(m, refs={"rows": m.refs["rows"]}) for m in bench.members[1:])
    members = [first, bench.members[0], last]
    found, _ = bench.merge(First(), members)
    assert torch.equal(found["rows"].double(), (bench.experts[1]["rows"].double() + 3).bfloat16().double())
    assert torch.equal(found["small"].double(), (bench.experts[0]["small"].double() + 2).bfloat16().double())
    assert same(found["frozen"], bench.tensors["frozen"])
    # the same from a state: tensors that nobody changed so far begin with the first who does
    bench.merge(First(), members[:1], new_state=tmp_path / "one", output=False)
    again, _ = bench.merge(First(), members, enter=members[1:], state=tmp_path / "one")
    assert all_same(again, found)


def test_the_only_member_is_given_back_in_any_dtype(bench: Bench, tmp_path: Path) -> None:
    one = bench.members[2:]
    found, folded = bench.merge(Only(), one, new_state=tmp_path / "state")
    assert all_same(found, bench.experts[2])
    assert folded.counts == {"merged": 0, "copied": 6}
    assert (tmp_path / "state" / "dense.safetensors").stat().st_size > 8 * BLOCK
    wide, _ = bench.merge(Only(), one, dtype="F32")
    assert all_same(wide, {n: t.float() for n, t in bench.experts[2].items()})
    found, _ = bench.merge(Only(), bench.members[1:])
    assert not all_same(found, bench.experts[2])


def test_the_only_member_left_is_given_back_from_its_refs(bench: Bench, tmp_path: Path) -> None:
    one = bench.members[0]
    want, _ = bench.merge(Only(), [one], new_state=tmp_path / "one")
    assert all_same(want, bench.experts[0])
    again, _ = bench.merge(Only(), [one], enter=[], state=tmp_path / "one", new_state=tmp_path / "two")
    assert all_same(again, want)
    assert state_bytes(tmp_path / "two") == state_bytes(tmp_path / "one")
    bare = replace(one, refs={})
    with pytest.raises(
        ValueError, match=r"t0 is the only member left and .* gives it back: hand in its refs"
    ):
        bench.merge(Only(), [bare], enter=[], state=tmp_path / "one")
    found, _ = bench.merge(Only(), [bare], enter=[one])  # its refs stand among those that enter
    assert all_same(found, want)
    unchanged, _ = bench.merge(Only(), [bare], enter=[bare], new_state=tmp_path / "none")
    assert all_same(unchanged, bench.tensors)
    unchanged, _ = bench.merge(Only(), [bare], enter=[], state=tmp_path / "none")
    assert all_same(unchanged, bench.tensors)


@pytest.mark.parametrize("way", ["direct", "state", "conclude", "give"])
def test_an_output_that_overflows_is_counted(tmp_path: Path, way: str) -> None:
    base = base_tensors(torch.float32)
    base["frozen"][:4] = torch.tensor([1e5, -1e5, float("inf"), 65519.0])  # an infinity of the base's own
    expert = {n: t.clone() for n, t in base.items()}
    expert["long"][3 * BLOCK + 5 : 3 * BLOCK + 8] = torch.tensor([7e4, -7e4, 65519.0])
    expert["rows"][600, 3] = 1e12
    expert["rows"][600, 4] = float("nan")  # taken as the base's
    bench = Bench(tmp_path, base, [expert])
    method = {"conclude": Normed(), "give": Only()}.get(way, TaskArithmetic(1.0))
    settings = Settings(2, BLOCK, allow_nonfinite=True)
    state = tmp_path / "state" if way == "state" else None
    journal = tmp_path / "journal"
    found, folded = bench.merge(method, dtype="F16", settings=settings, new_state=state, journal=journal)
    assert folded.overflowed == {"frozen": 2, "long": 2, "rows": 1}
    assert found["frozen"].isinf().sum() == 3
    _, folded = bench.merge(method, settings=settings, new_state=state)
    assert folded.overflowed == {}


def test_a_base_that_is_not_finite_is_no_overflow(tmp_path: Path) -> None:
    base = base_tensors()
    base["long"][7] = float("inf")
    base["small"][2] = float("nan")
    bench = Bench(tmp_path, base, [expert_of(base, n) for n in range(2)])
    for method in (Average(), Normed(), First()):
        _, folded = bench.merge(method, settings=Settings(2, allow_nonfinite=True))
        assert folded.overflowed == {}


def test_few_members_are_surveyed_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that memory for their answers does not grow with their number."""
    base = base_tensors()
    bench = Bench(tmp_path, base, [expert_of(base, n) for n in range(6)])
    together: list[int] = []
    real = SurveyPass.__call__

    def call(self: SurveyPass, job: Job, desk: Desk) -> Any:
        together.append(len(self.surveys))
        return real(self, job, desk)

    want, _ = bench.merge(Ties())
    monkeypatch.setattr(SurveyPass, "__call__", call)
    found, folded = bench.merge(Ties())
    assert max(together) == fold_file.TOGETHER < 6
    assert len(folded.known) == 6
    assert all_same(found, want)
    monkeypatch.setattr(fold_file, "TOGETHER", 1)
    found, _ = bench.merge(Ties())
    assert all_same(found, want)


def test_several_members_share_one_read_of_the_base(bench: Bench) -> None:
    toys.CALLS.clear()
    _, folded = bench.merge(Normed(rounds=3), bench.members)
    changed = [n for n in bench.tensors if n not in ("frozen", "empty")]
    size = sum(bench.base[n].nbytes for n in changed)
    slots = 2 * 4 * size  # two fp64 arrays beside bf16
    #         3 surveys and the step: base and 3 experts each; examine: state; merge: base and state; copy: the frozen
    frozen = bench.base["frozen"].nbytes
    sparse = folded.bytes_read - (4 * 4 * size + slots + (size + slots) + frozen)
    assert 0 <= sparse < 2000  # a few elements below the quantum
    assert {n for n, *_ in toys.CALLS} == {"measure", "statistic", "examine", "merge"}
    assert {word[3] for word in toys.CALLS if word[0] == "statistic"} == {1}
    assert {word[5] for word in toys.CALLS if word[0] == "measure"} == {b"\0", b"\1", b"\2"}


def test_a_strided_survey_sees_every_other_block(bench: Bench) -> None:
    toys.CALLS.clear()
    bench.merge(Normed(stride=2), bench.members[:1], settings=Settings(2, 3 * BLOCK))
    seen = {(word[1], word[2], word[3]) for word in toys.CALLS if word[0] == "measure"}
    assert {(f, c) for n, f, c in seen if n == "long"} == {(0, BLOCK), (2 * BLOCK, BLOCK)}
    assert {(f, c) for n, f, c in seen if n == "rows"} == {(0, BLOCK), (2 * BLOCK, BLOCK)}
    assert {n for n, _, _ in seen} == {"long", "rows", "small", "scalar"}


def test_nothing_is_left_beside_the_output(bench: Bench) -> None:
    bench.merge(Normed())
    assert sorted(p.name for p in bench.folder.iterdir()) == [
        "base.safetensors",
        "expert-0.safetensors",
        "expert-1.safetensors",
        "expert-2.safetensors",
        "out-1.safetensors",
    ]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda m: replace(m, refs={"rows": m.refs["long"]}), "does not fit the base"),
        (lambda m: replace(m, task="t1"), "two members have one name"),
    ],
)
def test_a_callers_mistake_is_caught(
    bench: Bench, spoil: Callable[[Incoming], Incoming], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        bench.merge(Average(), [spoil(bench.members[0]), bench.members[1]])


def test_many_members_with_few_open_files(tmp_path: Path) -> None:
    base: Tensors = {"rows": torch.randn(7, 9), "long": torch.randn(300)}
    experts = [expert_of(base, n) for n in range(200)]
    bench = Bench(tmp_path, base, experts)
    found, _ = bench.merge(Average())
    for name in base:
        exact = torch.stack([e[name].double() for e in experts]).mean(0)
        # 200 exact fp64 sums of fp32 values: the mean is off by at most one unit of fp32 either way
        assert torch.allclose(found[name].double(), exact, rtol=2**-23, atol=2**-30)
