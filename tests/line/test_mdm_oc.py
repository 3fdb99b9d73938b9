"""A line that makes task vectors orthogonal: what it keeps, what is computed again, and removal by algebra."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import plait.engine.inner
from plait import Line, merge_files
from plait.engine.call import INNER
from plait.errors import NotRemovable, RefusedInput, UsageError
from plait.line import subjects
from tests.line.models import SHAPES, base_tensors, differing, read, write_file

TASKS = "abcde"


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A base and experts whose task vectors have cosines of about 0.5."""
    base = base_tensors()
    write_file(tmp_path / "base.safetensors", base)
    draw = torch.Generator().manual_seed(5)

    def normal() -> dict[str, Tensor]:
        return {n: 4e-3 * torch.randn(s, generator=draw) for n, s in SHAPES.items()}

    common = normal()
    for task in TASKS:
        own = normal()
        expert = {n: t + common[n] + own[n] if n in SHAPES else t.clone() for n, t in base.items()}
        write_file(tmp_path / f"{task}.safetensors", expert)
    return tmp_path


def make(world: Path, name: str, tasks: str, **options: Any) -> Line:
    line = Line.create(world / name, world / "base.safetensors", "mdm_oc", **options)
    for task in tasks:
        line.merge(world / f"{task}.safetensors", task)
    return line


def state(line: Line) -> dict[str, bytes]:
    return {name: line.store.objects.get(digest) for name, digest in line._head()["state"].items()}


def vector(path: Path, base: Path) -> Tensor:
    one, other = read(path), read(base)
    return torch.cat([(one[n].double() - other[n].double()).flatten() for n in SHAPES])


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """How many members were new, at each pass for inner products, and of how many."""
    asked: list[list[int]] = []
    measure: Callable[..., Any] = plait.engine.inner.measure

    def spy(merge: Any, method: Any, members: Any, fresh: Any) -> Any:
        asked.append([len(fresh), len(members)])
        return measure(merge, method, members, fresh)

    monkeypatch.setattr("plait.engine.coefficients.measure", spy)
    return asked


@pytest.mark.parametrize("granularity", ["model", "layer", "tensor"])
def test_what_is_kept_is_what_would_be_found_anew_to_the_bit(world: Path, granularity: str) -> None:
    options = {"granularity": granularity, "dependent": "skip"}
    line = make(world, "line", "abcd", **options)
    line.unmerge("b")
    line.merge(world / "e.safetensors", "e", weight=0.3)
    line.unmerge("a")
    line.merge(world / "b.safetensors", "b")
    line.reweight("c", 2.0)
    line.replace("d", world / "a.safetensors")
    fresh = make(world, "fresh", "", **options)
    for task, source, weight in (("c", "c", 2.0), ("d", "a", 1.0), ("e", "e", 0.3), ("b", "b", 1.0)):
        fresh.merge(world / f"{source}.safetensors", task, weight=weight)
    assert state(line) == state(fresh)
    assert line.digest == fresh.digest
    assert line.verify(replay=True)["replay"] == "equal"  # all inner products in one pass


def test_inner_products_are_those_of_the_vectors(world: Path) -> None:
    line = make(world, "line", "abc")
    kept = json.loads(state(line)[INNER])
    rows = torch.stack([vector(world / f"{t}.safetensors", world / "base.safetensors") for t in "abc"])
    want = rows @ rows.T
    for j, row in enumerate(kept["inner"]["model"]):
        for i, value in enumerate(row):
            assert value == pytest.approx(float(want[i, j]), rel=1e-12)


def test_a_merge_finds_the_products_of_the_new_member_only(world: Path, measured: list[list[int]]) -> None:
    line = make(world, "line", "abc")
    assert measured == [[1, 1], [1, 2], [1, 3]]
    measured.clear()
    line.unmerge("a")
    line.reweight("b", 0.5)
    assert measured == []
    line.replace("b", world / "d.safetensors")
    assert measured == [[1, 2]]


def test_equal_checkpoints_are_members_of_their_own(world: Path) -> None:
    line = make(world, "line", "ab", dependent="skip")
    before = line.digest
    row = line.merge(world / "a.safetensors", "again")
    assert line.digest == before
    assert any("no direction of its own" in note and "again" in note for note in row["notes"])
    line.unmerge("a")  # now it is the only one
    other = make(world, "other", "b", dependent="skip")
    other.merge(world / "a.safetensors", "again")
    assert line.digest == other.digest
    assert state(line) == state(other)


def test_a_dependent_member_is_refused_and_the_line_stays(world: Path) -> None:
    line = make(world, "line", "ab")
    before = line.digest, line.log()
    with pytest.raises(RefusedInput, match="the task vector of again is a combination of those of a,"):
        line.merge(world / "a.safetensors", "again")
    assert (line.digest, line.log()) == before
    line.merge(world / "c.safetensors", "c")
    assert line.verify(replay=True)["replay"] == "equal"


def test_files_and_lines_give_the_same_bytes(world: Path) -> None:
    line = make(world, "line", "abc", granularity="layer")
    done = merge_files(
        world / "base.safetensors",
        [world / f"{t}.safetensors" for t in "abc"],
        world / "out.safetensors",
        "mdm_oc",
        granularity="layer",
        workers=1,
    )
    assert done["version"] == line.digest


@pytest.mark.parametrize("retention", ["statistics", "none"])
def test_a_line_that_keeps_no_members_is_refused(world: Path, retention: Any) -> None:
    with pytest.raises(UsageError, match=f"retention is {retention}, and mdm_oc makes the model from all"):
        Line.create(world / "line", world / "base.safetensors", "mdm_oc", retention=retention)
    assert not (world / "line").exists()


def test_snapshots_are_refused(world: Path) -> None:
    with pytest.raises(UsageError, match="snapshots is 2, and mdm_oc has no state"):
        Line.create(world / "line", world / "base.safetensors", "mdm_oc", snapshots=2)


def test_rank_tells_its_error(world: Path) -> None:
    line = make(world, "line", "ab", rank=2)
    row = line.merge(world / "c.safetensors", "c")
    assert any(note.startswith("approximate: 2 principal directions are kept of 3") for note in row["notes"])
    combined = json.loads(state(line)["combination.json"])
    assert 0 < combined["error"] < 1
    assert line.unmerge("a")["receipt"]["exact"] is True


# Removal by algebra


def test_algebra_subtracts_the_direction(world: Path) -> None:
    line = make(world, "line", "abcde")
    exact = make(world, "exact", "acde")
    base = world / "base.safetensors"
    taus = [vector(world / f"{t}.safetensors", base) for t in TASKS]
    made: list[Tensor] = []
    for tau in taus:
        made.append(tau - sum((tau @ q / (q @ q) * q for q in made), torch.zeros_like(tau)))
    want = sum(0.3 * q for i, q in enumerate(made) if i != 1)
    row = line.unmerge("b", how="algebraic")
    got = vector(line.model / "base.safetensors", base)
    assert isinstance(want, Tensor)
    assert torch.allclose(got, want, rtol=0, atol=2.0**-24)  # weights up to 1, rounded once to fp32
    receipt = row["receipt"]
    assert (receipt["how"], receipt["exact"], receipt["never_merged"]) == ("algebraic", False, None)
    assert receipt["remaining"]["model"] < -0.01
    never = vector(exact.model / "base.safetensors", base)
    assert receipt["distance"] == pytest.approx(float((got - never).norm() / never.norm()), rel=1e-3)
    assert "not exact: algebraic removal of b" in receipt["note"]
    assert [m.task for m in line.members] == list("acde")


def test_a_version_made_by_algebra_is_never_called_exact_and_can_be_made_again(world: Path) -> None:
    line = make(world, "line", "abcd")
    done = line.unmerge("b", how="algebraic")
    version, note = line.digest, line.status()["note"]
    assert note.startswith("not exact: algebraic removal of b")
    assert line.verify(replay=True) == {**line.verify(), "replay": "equal"}
    exported = line.export(world / "out")
    assert line.status()["note"] == note
    assert "b" in line.log()[-1]["receipt"]["tasks"]
    assert exported["version"] == version
    assert line.verify(replay=True)["replay"] == "equal"
    assert done["notes"] == []


def test_a_version_that_is_gone_is_built_again_for_measuring(world: Path) -> None:
    line = make(world, "line", "abcd")
    line.unmerge("b", how="algebraic")
    head = line._head()
    setting = line._setting()
    want = read(line.model)
    line.store.versions.delete(line.digest)
    with subjects.tensors(setting, subjects.Subject("version", line.digest, head)) as refs:
        from plait.engine.desk import Desk

        desk = Desk()
        found = {n: desk.read(r, 0, r.numel, "w").clone().view(r.shape) for n, r in refs.items()}
        desk.close()
    assert not differing(found, want)


@pytest.mark.parametrize("change", ["merge", "unmerge", "reweight", "algebraic"])
def test_the_next_change_is_exact_again(world: Path, change: str) -> None:
    line = make(world, "line", "abcd")
    line.unmerge("b", how="algebraic")
    other = make(world, "other", "acd")
    for each in (line, other):
        if change == "merge":
            each.merge(world / "e.safetensors", "e")
        elif change == "unmerge":
            each.unmerge("c")
        elif change == "algebraic":
            each.unmerge("c", how="algebraic")
        else:
            each.reweight("c", 1.0)
    assert line.digest == other.digest
    assert state(line) == state(other)
    note = line.status()["note"]
    assert note == other.status()["note"]
    assert (note is None) == (change != "algebraic")
    assert line.verify(replay=True)["replay"] == "equal"


def test_what_was_removed_by_algebra_can_be_purged(world: Path) -> None:
    line = make(world, "line", "abcd", keep=5)
    mine = line._head()["members"][1]["object"]
    held = line.digest
    line.unmerge("b", how="algebraic")
    assert line.store.objects.has(mine)
    row = line.purge("b")
    assert "still holds part of it" in row["receipt"]["note"]
    assert not line.store.objects.has(mine)
    assert not line.store.versions.has(held)
    report = line.verify(replay=True)
    assert report["problems"] == []
    assert report["replay"].startswith("not comparable: not exact: algebraic removal of b")
    assert line.status()["note"]
    left = line.digest
    line.merge(world / "e.safetensors", "e")
    assert line.digest == make(world, "other", "acde").digest
    line.purge("b")  # the version that held part of it goes too
    assert not line.store.versions.has(left)


def test_an_expert_trained_from_such_a_version_carries_what_it_holds(world: Path) -> None:
    line = make(world, "line", "abc")
    line.unmerge("b", how="algebraic")
    line.merge(world / "e.safetensors", "e", descends_from=line.digest)
    assert line.members[-1].descends is not None
    assert "b" in line.members[-1].descends["tasks"]


def test_of_a_single_member_nothing_is_left(world: Path) -> None:
    line = make(world, "line", "a")
    row = line.unmerge("a", how="algebraic")
    assert line.digest == line.status()["base"]["digest"]
    assert row["receipt"]["exact"] is True


def test_other_methods_refuse_it(world: Path) -> None:
    line = Line.create(world / "line", world / "base.safetensors", "average")
    line.merge(world / "a.safetensors", "a")
    with pytest.raises(NotRemovable, match="method average has no algebraic removal"):
        line.unmerge("a", how="algebraic")
    with pytest.raises(UsageError, match="how is 'by hand'"):
        line.unmerge("a", how="by hand")  # type: ignore[arg-type]
    assert [m.task for m in line.members] == ["a"]
