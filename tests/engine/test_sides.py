"""Side tensors of members, and state whose length is not the tensor's: as in memory, in any order, resumed."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from plait import engine
from plait.checkpoint.format import read_header
from plait.engine import Incoming, Settings, size_of
from plait.engine.passes import FoldPass
from plait.engine.state import blank
from plait.errors import NonFinite, RefusedInput, UsageError
from plait.methods.base import (
    AdditiveMethod,
    Facts,
    Grain,
    Outlook,
    Part,
    Slot,
    State,
    TensorMethod,
    Where,
)
from plait.methods.memory import Table, apply
from plait.methods.registry import make
from plait.tensors import BLOCK
from plait.tensors.exact import Exact
from plait.testing import sides_of
from tests.engine.files import Bench, Tensors, all_same, expert_of, save, state_bytes
from tests.engine.toys import ADDITIVE, Walk

WEIGHTS = [1.0, 0.3, 2.0]
METHODS = [
    ("covariance", {}),
    ("covariance", {"ridge": 0, "side": "smaller", "sparsify": "dare"}),
    ("regmean", {"ridge": 0.1}),
    ("fisher", {}),
]


def method(name: str, options: dict[str, Any]) -> TensorMethod:
    made = make(name, options)
    assert isinstance(made, TensorMethod)
    return made


def base_tensors(dtype: torch.dtype) -> Tensors:
    torch.manual_seed(3)
    shapes = {
        "rows": (70, 31),
        "wide": (12, 90),
        "long": (BLOCK + 100,),
        "still.weight": (20, 10),
        "embed": (40, 8),
        "none": (0, 4),
    }
    tensors = {n: (torch.randn(s) / 8).to(dtype) for n, s in shapes.items()}
    tensors["rows"][3, :9] = 0.0
    return tensors


@dataclass
class World:
    bench: Bench
    sides: list[Tensors]

    def memory(self, of: TensorMethod, numbers: list[int]) -> Tensors:
        bench = self.bench
        seeds = [bench.members[n].seed for n in numbers]
        sides = [self.sides[n] for n in numbers]
        chosen = [bench.experts[n] for n in numbers]
        return apply(of, bench.tensors, chosen, [WEIGHTS[n] for n in numbers], seeds=seeds, sides=sides)


def world(folder: Path, of: TensorMethod, dtype: torch.dtype = torch.float32, count: int = 3) -> World:
    base = base_tensors(dtype)
    experts = [expert_of(base, n, leave=("still.weight",)) for n in range(count)]
    experts[min(1, count - 1)]["wide"] = base["wide"]
    bench = Bench(folder, base, experts)
    sides = [sides_of(of, base, e) for e in experts]
    for number, (member, side) in enumerate(zip(bench.members, sides, strict=True)):
        refs = save(folder / f"side-{number}.safetensors", side) if side else {}
        bench.members[number] = replace(member, weight=WEIGHTS[number], side=refs)
    return World(bench, sides)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("case", METHODS, ids=str)
def test_files_give_the_bytes_of_memory(
    case: tuple[str, dict[str, Any]], dtype: torch.dtype, tmp_path: Path
) -> None:
    of = method(*case)
    here = world(tmp_path, of, dtype)
    want = here.memory(of, [0, 1, 2])
    found, _ = here.bench.merge(of, settings=Settings(2, BLOCK))
    assert all_same(found, want)
    found, _ = here.bench.merge(of, new_state=tmp_path / "state", settings=Settings(1))
    assert all_same(found, want)


@pytest.mark.parametrize("case", METHODS, ids=str)
def test_any_road_to_the_same_members_gives_the_same_state(
    case: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    of = method(*case)
    here = world(tmp_path, of)
    bench = here.bench
    state: Path | None = None
    inside: list[int] = []
    draw = random.Random(7)
    fresh: dict[tuple[int, ...], dict[str, bytes]] = {}
    for step in range(7):
        outside = [n for n in range(3) if n not in inside]
        leaving = [draw.choice(inside)] if len(inside) > 1 and (not outside or draw.random() < 0.5) else []
        entering = [] if leaving else [draw.choice(outside)]
        inside = [n for n in inside if n not in leaving] + entering
        new = tmp_path / f"state-{step}"
        found, _ = bench.merge(
            of,
            [replace(bench.members[n], refs={}, side={}) for n in inside],
            enter=[bench.members[n] for n in entering],
            leave=[bench.members[n] for n in leaving],
            state=state,
            new_state=new,
        )
        state = new
        key = tuple(sorted(inside))
        if key not in fresh:
            folder = tmp_path / f"fresh-{step}"
            bench.merge(of, [bench.members[n] for n in key], new_state=folder)
            fresh[key] = state_bytes(folder)
        assert state_bytes(new) == fresh[key]
        assert all_same(found, here.memory(of, list(key)))
    _, folded = bench.merge(
        of, [], enter=[], leave=[bench.members[n] for n in inside], state=state, new_state=tmp_path / "end"
    )
    assert read_header(tmp_path / "end" / "dense.safetensors").tensors == {}
    assert folded.counts["merged"] == 0


@pytest.mark.parametrize("name", ["regmean", "fisher"])
def test_a_tensor_that_a_member_leaves_as_it_is_counts_where_it_has_a_side(name: str, tmp_path: Path) -> None:
    of = method(name, {})
    here = world(tmp_path, of)
    bench = here.bench
    assert "wide" not in bench.members[1].refs
    with_it, _ = bench.merge(of, new_state=tmp_path / "state")
    one = replace(bench.members[1], side={k: v for k, v in bench.members[1].side.items() if "wide" not in k})
    if name == "regmean":
        with pytest.raises(RefusedInput, match=r"wide: members of weight 3 of 3\.3 have second moments"):
            bench.merge(of, [bench.members[0], one, bench.members[2]])
    without, _ = bench.merge(of, [bench.members[0], bench.members[2]])
    assert not torch.equal(with_it["wide"], without["wide"])
    names = {key.split("/", 2)[2] for key in read_header(tmp_path / "state" / "dense.safetensors").tensors}
    assert "still.weight" in names
    assert torch.equal(with_it["still.weight"], bench.tensors["still.weight"])


class Crash(BaseException):
    """Stands for the end of the process."""


class Counter:
    """Counts the jobs of fold passes, and fails before job number `limit`."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(
            "plait.engine.plan.jobs.__defaults__", (BLOCK // 64,)
        )  # more than one job of small tensors
        self.jobs: list[str] = []
        self.limit = 10**9
        real, counter = FoldPass.__call__, self

        def call(self: FoldPass, job: Any, desk: Any) -> Any:
            if len(counter.jobs) >= counter.limit:
                raise Crash
            counter.jobs.append(job.pieces[0].name)
            return real(self, job, desk)

        patch.setattr(FoldPass, "__call__", call)


@pytest.mark.parametrize("name", ["covariance", "regmean", "fisher"])
def test_an_interrupted_merge_goes_on(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = method(name, {})
    bench = world(tmp_path, of, count=2).bench
    monkeypatch.setattr("plait.engine.plan.jobs.__defaults__", (BLOCK // 64,))
    want, _ = bench.merge(of, new_state=tmp_path / "state", settings=Settings(1, BLOCK))
    counter = Counter(monkeypatch)
    bench.merge(of, new_state=tmp_path / "all", settings=Settings(1, BLOCK))
    total = len(counter.jobs)
    for limit in range(1, total):
        journal, state = tmp_path / f"journal-{limit}", tmp_path / f"state-{limit}"
        counter.jobs, counter.limit = [], limit
        out = bench.count + 1
        with pytest.raises(Crash):
            bench.merge(of, new_state=state, settings=Settings(1, BLOCK), journal=journal)
        counter.limit = 10**9
        bench.count = out - 1  # into the same file
        found, _ = bench.merge(of, new_state=state, settings=Settings(1, BLOCK), journal=journal)
        assert total <= len(counter.jobs) <= total + 1
        assert all_same(found, want)
        assert state_bytes(state) == state_bytes(tmp_path / "state")


@pytest.mark.parametrize("identity", ["", "known"])
@pytest.mark.parametrize("change", ["move", "write", "swap"])
def test_an_interrupted_merge_begins_anew_with_other_sides(
    identity: str, change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = method("fisher", {})
    here = world(tmp_path, of, count=2)
    bench = here.bench
    bench.members = [replace(m, side_identity=identity and f"{identity} {m.task}") for m in bench.members]
    counter = Counter(monkeypatch)
    counter.limit = 1
    with pytest.raises(Crash):
        bench.merge(of, settings=Settings(1, BLOCK), journal=tmp_path / "journal")
    done = counter.jobs
    path = tmp_path / "side-0.safetensors"
    if change == "swap":
        bench.members[0] = replace(
            bench.members[0], side=bench.members[1].side, side_identity=identity and "other"
        )
    else:
        target = tmp_path / "moved.safetensors" if change == "move" else path
        data = path.read_bytes()
        path.unlink()
        target.write_bytes(data)
        side = {k: replace(r, file=str(target)) for k, r in bench.members[0].side.items()}
        bench.members[0] = replace(bench.members[0], side=side)
    counter.jobs, counter.limit = [], 10**9
    bench.count -= 1
    found, _ = bench.merge(of, settings=Settings(1, BLOCK), journal=tmp_path / "journal")
    kept = bool(identity) and change != "swap"
    assert (done[0] not in counter.jobs) == kept
    sides = [here.sides[1 if change == "swap" else 0], here.sides[1]]
    want = apply(of, bench.tensors, bench.experts, WEIGHTS[:2], sides=sides)
    assert all_same(found, want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("case", [*METHODS, ("average", {}), ("ties", {}), ("opcm", {})], ids=str)
def test_the_size_of_a_state_is_known_before(
    case: tuple[str, dict[str, Any]], dtype: torch.dtype, tmp_path: Path
) -> None:
    of = method(*case)
    here = world(tmp_path, of, dtype)
    expert = {n: t + t.abs() / 4 for n, t in here.bench.tensors.items()}
    bench = Bench(tmp_path, here.bench.tensors, [expert])
    sides = save(
        tmp_path / "all.safetensors", sides_of(of, here.bench.tensors, expert) or {"x": torch.ones(1)}
    )
    bench.members = [replace(bench.members[0], side={k: r for k, r in sides.items() if k != "x"})]
    bench.merge(of, new_state=tmp_path / "state")
    dense = read_header(tmp_path / "state" / "dense.safetensors").tensors
    assert size_of(of, bench.base) == sum(ref.nbytes for ref in dense.values())


def test_the_size_of_what_a_method_of_whole_models_keeps_is_known_before(tmp_path: Path) -> None:
    base = save(
        tmp_path / "base",
        {"a": torch.ones(3).bfloat16(), "b": torch.ones(2).double(), "n": torch.ones(2).int()},
    )
    assert size_of(Walk(), base) == 3 * 4 + 2 * 8


@dataclass(frozen=True)
class Wrong(TensorMethod):
    """Asks for state of a length of its own where a call sees a part of the tensor."""

    facts: ClassVar[Facts] = ADDITIVE

    def slots(self, shape: tuple[int, ...], dtype: str) -> dict[str, Slot]:
        return {"odd": Slot("exact", 3)}


@dataclass(frozen=True)
class Odd(Wrong):
    """The same, for whole tensors, with plain slots beside exact ones."""

    def grain(self, shape: tuple[int, ...], name: str = "") -> Grain:
        return "matrix"

    def slots(self, shape: tuple[int, ...], dtype: str) -> dict[str, Slot]:
        return {"odd": Slot("exact", 3, "F64"), "few": Slot("narrow", 2), "plain": Slot("float32", 5)}


@dataclass(frozen=True)
class SumOfSides(AdditiveMethod):
    """Adds the sum of a side to every element. The side is longer than the tensor, and its numbers are small."""

    facts: ClassVar[Facts] = ADDITIVE

    def grain(self, shape: tuple[int, ...], name: str = "") -> Grain:
        return "matrix"

    def sides(self, shape: tuple[int, ...], name: str, dtype: str) -> dict[str, tuple[int, ...]]:
        return {"long": (2000,)}

    def slots(self, shape: tuple[int, ...], dtype: str) -> dict[str, Slot]:
        return {"total": Slot("exact", 2000, "F32")}

    def statistic(self, part: Part) -> dict[str, Exact]:
        return {"total": Exact.of(part.side["long"])}

    def merge(self, base: Tensor, state: State, where: Where, outlook: Outlook) -> Exact:
        return Exact.of(state["total"].value().double().sum().repeat(where.count))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_state_longer_than_the_tensor_is_read_again_as_it_was(dtype: torch.dtype, tmp_path: Path) -> None:
    """Numbers beside the dense digits lie at places that the tensor does not have."""
    draw = torch.Generator().manual_seed(0)
    base = {"rows": torch.ones(4, 5).to(dtype)}
    bench = Bench(tmp_path, base, [{"rows": base["rows"] + n} for n in range(1, 4)])
    for number, member in enumerate(bench.members):
        long = (torch.randn(2000, generator=draw).double() * 2.0**-9).pow(11 if number == 1 else 1)
        bench.members[number] = replace(member, side=save(tmp_path / f"s{number}", {"long/rows": long}))
    want, _ = bench.merge(SumOfSides(), new_state=tmp_path / "at-once")
    assert read_header(tmp_path / "at-once" / "sparse.safetensors").tensors
    bench.merge(SumOfSides(), bench.members[:2], new_state=tmp_path / "two")
    found, _ = bench.merge(
        SumOfSides(),
        bench.members,
        enter=bench.members[2:],
        state=tmp_path / "two",
        new_state=tmp_path / "three",
    )
    assert all_same(found, want)
    assert state_bytes(tmp_path / "three") == state_bytes(tmp_path / "at-once")


def test_state_of_a_length_of_its_own_is_for_whole_tensors() -> None:
    with pytest.raises(ValueError, match="w: a slot with a length of its own needs grain matrix"):
        blank(Wrong(), Where("w", (4 * BLOCK,), "F32", BLOCK, BLOCK))
    state = blank(Odd(), Where("w", (7, 9), "BF16", 0, 63))
    assert state["odd"].count == 3
    assert sorted(state["odd"].pack()[0]) == [-120, -80, -40]
    assert state["few"].count == 2
    assert state["plain"].shape == (5,)
    table = Table(Odd(), {"w": torch.ones(7, 9)})
    again = table._blank(table.places["w"])
    assert {k: getattr(v, "count", len(v) if k == "plain" else 0) for k, v in again.items()} == {
        "odd": 3,
        "few": 2,
        "plain": 5,
    }


def fail(here: World, of: TensorMethod, **change: Any) -> None:
    members = [replace(here.bench.members[0], **change), *here.bench.members[1:]]
    here.bench.merge(of, members)


def test_sides_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    of = method("fisher", {})
    here = world(tmp_path, of, count=2)
    side = dict(here.bench.members[0].side)
    less = {k: r for k, r in side.items() if k != "fisher/rows"}
    with pytest.raises(
        RefusedInput, match=r"t0: fisher of tensor rows is missing \(1 of 5 tensors lack it\)"
    ):
        fail(here, of, side=less)
    with pytest.raises(RefusedInput, match=r"t0: fisher of tensor embed is missing \(5 of 5"):
        fail(here, of, side={})
    with pytest.raises(UsageError, match="t0: method fisher asks for no side moment/rows"):
        fail(here, of, side={**side, "moment/rows": side["fisher/rows"]})
    with pytest.raises(
        RefusedInput, match=r"t0: fisher/rows is F64 \(12, 90\), expected F32 or F64 \(70, 31\)"
    ):
        fail(here, of, side={**side, "fisher/rows": side["fisher/wide"]})
    spoiled = load_file(tmp_path / "side-0.safetensors")
    spoiled["fisher/rows"][4, 5] = float("inf")
    with pytest.raises(NonFinite, match=r"t0: fisher: fisher/rows\[4, 5\] is inf"):
        fail(here, of, side=save(tmp_path / "spoiled", spoiled))
    spoiled = load_file(tmp_path / "side-0.safetensors")
    spoiled["fisher/long"][BLOCK + 5] = -1.0
    with pytest.raises(RefusedInput, match=r"t0: long: Fisher information is -1 somewhere"):
        fail(here, of, side=save(tmp_path / "negative", spoiled))


def test_sides_of_a_method_that_wants_none_are_a_mistake(tmp_path: Path) -> None:
    of = method("covariance", {})
    here = world(tmp_path, method("fisher", {}), count=1)
    with pytest.raises(UsageError, match="method covariance asks for no side"):
        here.bench.merge(of)


def test_a_member_names_what_it_takes_part_in(tmp_path: Path) -> None:
    here = world(tmp_path, method("regmean", {}), count=2)
    member = here.bench.members[1]
    assert member.touched == {"rows", "wide", "long", "still.weight", "embed"}
    assert member.nbytes == sum(r.nbytes for r in (*member.refs.values(), *member.side.values()))
    assert member.has("wide", ("moment",))
    assert not member.has("wide", ())
    assert not Incoming("t").touched
    shutil.rmtree(tmp_path)
    assert engine.size_of(method("average", {}), {}) == 0
