"""Holes that were found once and must stay closed: snapshots at the end, interrupted commits, traces, names."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import torch

import plait.line.commit
from plait import Line, merge_files
from plait.errors import LockedError, NonFinite, RefusedInput, UsageError
from tests.line.models import base_tensors, differing, expert_tensors, read, write_file, write_folder


@pytest.fixture
def world(tmp_path: Path) -> Path:
    base = base_tensors()
    write_folder(tmp_path / "base", base, shards=2)
    for i, name in enumerate("abc"):
        write_folder(tmp_path / name, expert_tensors(base, i))
    return tmp_path


def make(world: Path, name: str, tasks: str, method: str, **options: Any) -> Line:
    line = Line.create(world / name, world / "base", method, **options)
    for task in tasks:
        line.merge(world / task)
    return line


@pytest.mark.parametrize("method", ["opcm", "magmax"])
@pytest.mark.parametrize("snapshots", [1, 2])
@pytest.mark.parametrize("tasks", ["ab", "abc"])
def test_every_position_can_go_whatever_the_snapshots(
    world: Path, method: str, snapshots: int, tasks: str
) -> None:
    for gone in tasks:
        line = make(world, f"line-{gone}", tasks, method, snapshots=snapshots)
        line.unmerge(gone)
        rest = tasks.replace(gone, "")
        never = make(world, f"never-{gone}", rest, method)
        assert line.digest == never.digest
        line.merge(world / gone)
        never.merge(world / gone)
        assert line.digest == never.digest
        assert line.verify(replay=True)["replay"] == "equal"


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("opcm", {}),
        ("magmax", {"scale": 1.0}),
        ("model_stock", {}),
        ("ties", {"zero": "majority"}),
        ("average", {}),
    ],
)
@pytest.mark.parametrize("tasks", ["ab", "abc"])
@pytest.mark.parametrize("where", ["publish", "state", "append"])
def test_a_commit_that_stops_half_way_is_made_whole_by_the_next_run(
    world: Path, monkeypatch: pytest.MonkeyPatch, method: str, options: dict[str, Any], tasks: str, where: str
) -> None:
    line = make(world, "line", tasks, method, **options)
    before = line.digest

    class Stop(BaseException):
        pass

    def stop(*args: object, **words: object) -> None:
        raise Stop

    with monkeypatch.context() as patch:
        if where == "publish":
            patch.setattr("plait.store.versions.Versions.publish", stop)
        elif where == "append":
            patch.setattr("plait.store.ledger.Ledger.append", stop)
        else:
            real = plait.line.commit._put_state

            def half(*args: Any) -> Any:
                real(*args)
                raise Stop

            patch.setattr("plait.line.commit._put_state", half)
        with pytest.raises(Stop):
            line.unmerge("b")
    assert line.digest == before
    line = Line.open(world / "line")
    line.unmerge("b")
    never = make(world, "never", tasks.replace("b", ""), method, **options)
    assert line.digest == never.digest
    line.merge(world / "b")
    never.merge(world / "b")
    assert line.digest == never.digest
    assert line.verify(replay=True)["replay"] == "equal"


@pytest.mark.parametrize("retention", ["vectors", "statistics"])
def test_an_interrupted_merge_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retention: Literal["vectors", "statistics"]
) -> None:
    """The second run finds what the first had finished and computes only the rest."""
    from plait.engine.passes import FoldPass

    base = {f"w{i}": torch.randn(1200, 1000).bfloat16() * 0.02 for i in range(3)}
    write_file(tmp_path / "base.safetensors", base)
    for i in range(2):
        expert = {n: t + 1e-3 * torch.randn(t.shape).bfloat16() for n, t in base.items()}
        write_file(tmp_path / f"e{i}.safetensors", expert)
    line = Line.create(tmp_path / "line", tmp_path / "base.safetensors", "ties", retention=retention)
    line.workers = 1
    done: list[str] = []
    limit = 1
    real = FoldPass.__call__

    def count(self: FoldPass, job: Any, desk: Any) -> Any:
        if len(done) >= limit:
            raise KeyboardInterrupt
        result = real(self, job, desk)
        done.append(job.pieces[0].name)
        return result

    monkeypatch.setattr(FoldPass, "__call__", count)
    with pytest.raises(KeyboardInterrupt):
        line.merge(tmp_path / "e0.safetensors")
    first, limit = len(done), 99
    done.clear()
    line.merge(tmp_path / "e0.safetensors")
    again = len(done)
    done.clear()
    other = Line.create(tmp_path / "other", tmp_path / "base.safetensors", "ties", retention=retention)
    other.workers = 1
    other.merge(tmp_path / "e0.safetensors")
    assert line.digest == other.digest
    assert len(done) == first + again


def test_names_that_look_like_ours(tmp_path: Path) -> None:
    base = {f"{p}w": torch.randn(8, 8) * 0.05 for p in ("", "private/", "merged/", "private/merged/")}
    write_file(tmp_path / "base.safetensors", base)
    for i in range(2):
        expert = {n: t + 1e-3 * (i + 1) for n, t in base.items()}
        write_file(tmp_path / f"e{i}.safetensors", {**expert, "head[0].weight": torch.ones(2)})
    line = Line.create(
        tmp_path / "line", tmp_path / "base.safetensors", retention="statistics", private="head*"
    )
    assert line.status()["private"] == ["head*"]
    line.merge(tmp_path / "e0.safetensors")
    one = line.digest
    row = line.merge(tmp_path / "e1.safetensors")
    assert row["accounting"]["merged"] == 4
    line.unmerge("e1", checkpoint=tmp_path / "e1.safetensors")
    assert line.digest == one
    own = Line.create(tmp_path / "own", tmp_path / "base.safetensors", retention="statistics")
    own.merge(tmp_path / "e0.safetensors", private="head*")
    own.unmerge("e0", checkpoint=tmp_path / "e0.safetensors")
    assert own.digest == own.status()["base"]["digest"]


def test_purge_leaves_no_trace_of_what_was_never_committed(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = make(world, "line", "a", "average")

    def stop(*args: object, **words: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("plait.store.ledger.Ledger.append", stop)
        with pytest.raises(KeyboardInterrupt):
            line.merge(world / "b")
    objects, versions = set(line.store.objects.all()), set(line.store.versions.all())
    assert len(versions) == 3
    with pytest.raises(RefusedInput, match="was never a member"):
        line.purge("b")
    assert len(line.store.versions.all()) == 2
    assert set(line.store.objects.all()) < objects
    assert not list((line.path / "tmp").iterdir())


def test_purge_and_exports_know_descent(world: Path) -> None:
    line = make(world, "line", "a", "average")
    line.merge(world / "b", descends_from="1")
    line.unmerge("a")
    line.export(world / "out")
    row = line.purge("a")
    assert row["receipt"]["descends"] == ["b"]
    assert "unmerge it too" in row["receipt"]["note"]
    assert [e["out"] for e in row["receipt"]["exports"]] == [str(world / "out")]


def test_a_locked_line_exports_nothing(world: Path) -> None:
    line = make(world, "line", "a", "average")
    with line.store.lock("test"), pytest.raises(LockedError):
        line.export(world / "out")
    assert sorted(p.name for p in world.iterdir()) == ["a", "b", "base", "c", "line"]


def test_an_export_on_disk_is_on_record(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = make(world, "line", "a", "average")

    def stop(*args: object, **words: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("plait.line.exporting.put_in_place", stop)
        with pytest.raises(KeyboardInterrupt):
            line.export(world / "out")
    assert line.log()[-1]["verb"] == "export"
    assert not (world / "out").exists()
    line.export(world / "out")
    line.merge(world / "b")
    line.export(world / "out", force=True)
    assert not differing(read(world / "out"), read(line.model))
    assert sorted(p.name for p in world.iterdir()) == ["a", "b", "base", "c", "line", "out"]


@pytest.mark.parametrize(
    ("weight", "fine"),
    [(2.0**-20, True), (2.0**11, True), (2.0**-21, False), (2049.0, False), ("2", False), (True, False)],
)
def test_weights_have_a_range(world: Path, weight: Any, fine: bool) -> None:
    line = make(world, "line", "b", "model_stock")
    if fine:
        line.merge(world / "a", weight=weight)
        line.unmerge("a")
        assert line.digest == make(world, "never", "b", "model_stock").digest
    else:
        with pytest.raises(UsageError, match="weight is"):
            line.merge(world / "a", weight=weight)


@pytest.mark.parametrize(
    "words",
    [{"seed": 1.5}, {"seed": True}, {"keep": 2.5}, {"keep": 0}, {"snapshots": -1}, {"snapshots": "1"}],
)
def test_settings_are_checked_by_type(world: Path, words: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="expected a whole number"):
        Line.create(world / "line", world / "base", **words)
    assert not (world / "line").exists()


def test_a_base_with_nan_is_refused_unless_asked(world: Path) -> None:
    base = base_tensors()
    base["layer.0.dense.weight"][1, 2] = float("inf")
    write_folder(world / "bad", base)
    with pytest.raises(NonFinite, match=r"the base: layer.0.dense.weight\[1, 2\] is NaN or infinite"):
        Line.create(world / "line", world / "bad")
    assert not (world / "line").exists()
    line = Line.create(world / "line", world / "bad", allow_nonfinite=True)
    line.merge(world / "a")
    assert read(line.model)["layer.0.dense.weight"][1, 2] == float("inf")


def test_a_pickle_needs_leave_on_the_way_out_too(tmp_path: Path) -> None:
    base = base_tensors()
    write_file(tmp_path / "base.safetensors", base)
    torch.save(expert_tensors(base, 1), tmp_path / "a.bin")
    line = Line.create(tmp_path / "line", tmp_path / "base.safetensors", retention="statistics")
    line.merge(tmp_path / "a.bin", allow_pickle=True)
    with pytest.raises(RefusedInput, match="pickle"):
        line.unmerge("a", checkpoint=tmp_path / "a.bin")
    line.unmerge("a", checkpoint=tmp_path / "a.bin", allow_pickle=True)


def test_infinite_results_are_told(tmp_path: Path) -> None:
    base = base_tensors(torch.float16)
    write_file(tmp_path / "base.safetensors", base)
    write_file(tmp_path / "a.safetensors", expert_tensors(base, 1))
    line = Line.create(tmp_path / "line", tmp_path / "base.safetensors", "task_arithmetic", scale=1e8)
    row = line.merge(tmp_path / "a.safetensors")
    assert any("are infinite in its dtype" in note for note in row["notes"])
    done = merge_files(
        tmp_path / "base.safetensors", [tmp_path / "a.safetensors"], tmp_path / "o.safetensors",
        "task_arithmetic", scale=1e8,
    )  # fmt: skip
    assert done["notes"]


def test_a_replay_on_a_damaged_base_reports(world: Path) -> None:
    line = make(world, "line", "a", "average")
    base = line.store.versions.path(line.status()["base"]["digest"])
    file = next(base.glob("*.safetensors"))
    file.chmod(0o644)
    file.write_bytes(file.read_bytes()[:100])
    report = line.verify(replay=True)
    assert not report["ok"]
    assert report["problems"]


def test_other_software_is_not_comparable(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = make(world, "line", "ab", "opcm")
    monkeypatch.setattr("plait.line.build.software", lambda *_: {"torch": "9", "cpu": "Z"})
    line.merge(world / "c")
    row = line.unmerge("a")
    assert row["receipt"]["exact"] is True  # folded from the start, by one stack
    line2 = make(world, "line2", "ab", "opcm", snapshots=1)
    monkeypatch.setattr("plait.line.build.software", lambda *_: {"torch": "10", "cpu": "Z"})
    row = line2.unmerge("b")
    assert row["receipt"]["exact"] is False
    assert "2 stacks" in row["receipt"]["note"]


def test_force_replaces_nothing_but_models_of_plait(world: Path) -> None:
    line = make(world, "line", "ab", "average")
    tree = sorted(p.relative_to(world) for p in world.rglob("*"))
    (world / "mine").mkdir()
    (world / "mine" / "thesis.txt").write_text("years of work")
    for out in (
        world,
        world / "line",
        world / "line" / "inside",
        world / "mine",
        world / "base",
        world / "a",
    ):
        with pytest.raises(RefusedInput, match=r"give another place|not replaced, even with --force"):
            line.export(out, force=True)
    for out in (world, world / "base", world / "a", world / "base" / "inside", world / "mine", world / "b"):
        with pytest.raises(RefusedInput, match=r"give another place|not replaced, even with --force"):
            merge_files(world / "base", [world / "a"], out, force=True)
    assert (world / "mine" / "thesis.txt").read_text() == "years of work"
    assert sorted(p.relative_to(world) for p in world.rglob("*") if "mine" not in p.parts) == tree
    line.export(world / "out")
    (world / "out" / "notes.txt").write_text("mine")
    with pytest.raises(RefusedInput, match=r"it holds notes\.txt"):
        line.export(world / "out", force=True)
    (world / "out" / "notes.txt").unlink()
    line.export(world / "out", force=True)
    merge_files(world / "base", [world / "a"], world / "out", force=True)


def test_force_replaces_a_file_of_tensors_only(tmp_path: Path) -> None:
    base = base_tensors()
    write_file(tmp_path / "base.safetensors", base)
    write_file(tmp_path / "a.safetensors", expert_tensors(base, 1))
    words = (tmp_path / "base.safetensors", [tmp_path / "a.safetensors"])
    (tmp_path / "x.txt").write_text("mine")
    with pytest.raises(RefusedInput):
        merge_files(*words, tmp_path / "x.txt", force=True)
    with pytest.raises(RefusedInput, match="which is needed"):
        merge_files(*words, tmp_path / "a.safetensors", force=True)
    assert (tmp_path / "x.txt").read_text() == "mine"
    merge_files(*words, tmp_path / "o.safetensors")
    merge_files(*words, tmp_path / "o.safetensors", force=True)


@pytest.mark.parametrize("method", ["average", "ties", "model_stock", "opcm", "magmax"])
def test_members_may_leave_different_tensors_alone(world: Path, method: str) -> None:
    base = base_tensors()
    for name, changed in (("x", "embeddings.weight"), ("y", "layer.1.dense.weight")):
        moved = expert_tensors(base, 30)
        write_folder(
            world / name, {n: moved[n] if n in (changed, "pooler.scale") else t for n, t in base.items()}
        )
    line = make(world, "line", "xya", method)
    assert line.verify(replay=True)["replay"] == "equal"
    line.unmerge("y")
    assert line.digest == make(world, "never", "xa", method).digest


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    "options", [{"trim": "model", "density": 0.6}, {"trim": "model", "density": 1.0}, {}]
)
def test_trims_do_not_depend_on_what_nobody_changed(
    tmp_path: Path, dtype: torch.dtype, options: dict[str, Any]
) -> None:
    """Zeros of either sign, and tiny task vectors: a line leaves unchanged tensors out, files do not."""
    values = torch.tensor([-0.0, 0.0, 1.0, -1.0, 1e-7, -0.0, 0.5, 0.0], dtype=dtype)
    base = {"A": torch.ones(64, dtype=dtype), "a": values, "b": values.flip(0)}
    write_file(tmp_path / "base.safetensors", base)
    paths = []
    for i in range(3):
        moved = torch.tensor([0.0, -0.0, 1.0, -1.5, -1e-7, 0.0, 0.5, -0.0][i:] + [0.25] * i, dtype=dtype)
        expert = {**base, ("a" if i < 2 else "b"): moved}
        paths.append(write_file(tmp_path / f"e{i}.safetensors", expert))
    line = Line.create(tmp_path / "line", tmp_path / "base.safetensors", "ties", **options)
    for path in paths:
        line.merge(path)
    row = merge_files(tmp_path / "base.safetensors", paths, tmp_path / "o.safetensors", "ties", **options)
    assert not differing(read(line.model), read(tmp_path / "o.safetensors"))
    assert row["version"] == line.digest
