"""The main job: merge a stream, take one out, verify, export, with real files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from plait import Line, merge_files, merge_state_dicts
from plait.errors import NotRemovable, PlaitError, RefusedInput, UsageError
from tests.line.models import (
    SHAPES,
    base_tensors,
    differing,
    expert_tensors,
    read,
    write_file,
    write_folder,
)

METHODS: dict[str, dict[str, Any]] = {
    "average": {},
    "task_arithmetic": {"scale": 0.7},
    "ties": {"density": 0.3},
    "magmax": {},
    "model_stock": {},
    "opcm": {},
    "mdm_oc": {},
    "nufilt": {"recover": True},
    "dop": {"steps": 4},
    "tsv_m": {},
    "iso_c": {},
    "iso_cts": {},
    "wudi": {"steps": 4},
}


@pytest.fixture
def world(tmp_path: Path) -> Path:
    base = base_tensors()
    write_folder(tmp_path / "base", base, shards=2)
    for i, name in enumerate("abcd"):
        write_folder(tmp_path / name, expert_tensors(base, i))
    return tmp_path


def make(world: Path, name: str, tasks: str, method: str = "average", **options: Any) -> Line:
    line = Line.create(world / name, world / "base", method, **options)
    for task in tasks:
        line.merge(world / task)
    return line


@pytest.mark.parametrize("method", METHODS)
def test_unmerge_gives_the_bytes_of_never_having_merged(world: Path, method: str) -> None:
    line = make(world, "line", "abcd", method, **METHODS[method])
    never = make(world, "never", "acd", method, **METHODS[method])
    assert line.digest != never.digest
    row = line.unmerge("b")
    assert row["receipt"]["exact"] is True
    assert row["receipt"]["never_merged"] == never.digest
    assert line.digest == never.digest
    assert not differing(read(line.model), read(never.model))
    report = line.verify(replay=True)
    assert report["ok"], report
    assert report["replay"] == "equal"


@pytest.mark.parametrize("method", [m for m in METHODS if not m.startswith("iso")])
def test_one_member_comes_back_bit_for_bit(world: Path, method: str) -> None:
    exact = {"task_arithmetic": "scale", "ties": "density", "magmax": "scale", "mdm_oc": "alpha"}
    line = make(world, "line", "a", method, **{exact[method]: 1.0} if method in exact else {})
    differ = differing(read(line.model), read(world / "a"))
    assert not differ


def test_removing_the_last_member_gives_the_base_back(world: Path) -> None:
    line = make(world, "line", "a")
    line.unmerge("a")
    assert not differing(read(line.model), read(world / "base"))
    assert line.status()["members"] == []


@pytest.mark.parametrize("method", METHODS)
def test_reweight_and_replace_are_as_if_it_had_been_so_from_the_start(world: Path, method: str) -> None:
    line = make(world, "line", "abc", method, **METHODS[method])
    line.reweight("a", 2.5)
    line.replace("b", world / "d")
    line.reweight("a", 0.3)
    other = Line.create(world / "other", world / "base", method, **METHODS[method])
    other.merge(world / "a", weight=0.3)
    other.merge(world / "d", "b")
    other.merge(world / "c")
    assert line.digest == other.digest
    assert line.verify(replay=True)["replay"] == "equal"


def test_retention_statistics_takes_the_checkpoint_again(world: Path) -> None:
    line = make(world, "line", "abc", "average", retention="statistics")
    never = make(world, "never", "ac", "average", retention="statistics")
    assert all(m.object is None for m in line.members)
    with pytest.raises(UsageError, match=r"hand in the checkpoint of b .* with --checkpoint"):
        line.unmerge("b")
    with pytest.raises(RefusedInput, match="hand in that very checkpoint"):
        line.unmerge("b", checkpoint=world / "c")
    line.unmerge("b", checkpoint=world / "b")
    assert line.digest == never.digest
    report = line.verify(replay=True)
    assert not report["ok"]
    assert report["problems"] == []
    assert report["replay"].startswith("not comparable")


def test_retention_none_refuses_in_words(world: Path) -> None:
    line = make(world, "line", "ab", "opcm", retention="none")
    with pytest.raises(NotRemovable, match="keeps nothing of its members"):
        line.unmerge("a")
    stored = {p.name for p in (world / "line" / "objects").rglob("*") if p.is_file()}
    needed = set(line._head()["state"].values()) | {line._head()["tensors"]}
    assert needed <= stored
    assert all(m.object is None for m in line.members)


@pytest.mark.parametrize("snapshots", [1, 2])
def test_snapshots_change_cost_not_bytes(world: Path, snapshots: int) -> None:
    line = make(world, "line", "abcd", "opcm", snapshots=snapshots)
    plain = make(world, "plain", "abcd", "opcm")
    assert line.digest == plain.digest
    assert set(line._head()["snapshots"]) == {str(k) for k in range(snapshots, 5, snapshots)}
    line.unmerge("c")
    plain.unmerge("c")
    assert line.digest == plain.digest
    assert line.verify(replay=True)["ok"]
    line.unmerge("a")
    plain.unmerge("a")
    assert line.digest == plain.digest
    assert line.verify(replay=True)["ok"]


def test_export_is_an_ordinary_checkpoint_with_a_card(world: Path) -> None:
    line = make(world, "line", "ab")
    line.unmerge("a")
    row = line.export(world / "out")
    assert row["version"] == line.digest
    files = {p.name for p in (world / "out").iterdir()}
    assert "modeling_toy.py" not in files
    assert {"config.json", "tokenizer.json", "README.md", "model.safetensors.index.json"} <= files
    assert {p.name for p in (world / "base").glob("*.safetensors")} <= files
    assert "auto_map" not in json.loads((world / "out" / "config.json").read_text())
    card = (world / "out" / "README.md").read_text()
    assert "base_model_relation: merge" in card
    assert "b" in card
    assert line.members[0].digest in card
    assert not [row for row in card.splitlines() if "| a " in row]
    assert not differing(read(world / "out"), read(line.model))
    with pytest.raises(RefusedInput, match="exists"):
        line.export(world / "out")
    line.export(world / "out", force=True)


def test_private_heads_stay_with_their_task(world: Path) -> None:
    base = base_tensors()
    for i, (name, labels) in enumerate((("x", 3), ("y", 5))):
        tensors = expert_tensors(base, 10 + i)
        tensors["classifier.weight"] = torch.full((labels, 12), float(i))
        write_folder(world / name, tensors)
    line = make(world, "line", "", "average", private=["classifier.*"])
    for name in "xy":
        row = line.merge(world / name)
        assert row["accounting"]["private"] == 1
    line.export(world / "plain")
    assert "classifier.weight" not in read(world / "plain")
    line.export(world / "for-y", task="y")
    made = read(world / "for-y")
    assert torch.equal(made["classifier.weight"], torch.full((5, 12), 1.0))
    line.merge(world / "a")
    with pytest.raises(RefusedInput, match="no private tensors"):
        line.export(world / "for-a", task="a")


def test_descent_is_told(world: Path) -> None:
    line = make(world, "line", "ab")
    line.merge(world / "c", descends_from=line.digest[:12])
    row = line.unmerge("a")
    assert row["receipt"]["exact"] is False
    assert row["receipt"]["descends"] == ["c"]
    assert "not exact: c descends from a version that held a" in row["receipt"]["note"]


def test_purge_removes_every_trace_but_the_ledger(world: Path) -> None:
    line = make(world, "line", "abc")
    line.export(world / "out")
    gone = line.members[1]
    with pytest.raises(RefusedInput, match="still a member"):
        line.purge("b")
    line.unmerge("b")
    before = line.digest
    row = line.purge("b")
    assert row["receipt"]["exports"][0]["out"] == str(world / "out")
    assert gone.object is not None
    assert not line.store.objects.has(gone.object)
    assert set(line.store.versions.all()) == {before, line.status()["base"]["digest"]}
    assert line.digest == before
    assert line.verify(replay=True)["ok"]


def test_refusals_change_nothing(world: Path) -> None:
    line = make(world, "line", "ab")
    before = (line.digest, len(line.log()))
    bad = expert_tensors(base_tensors(), 5)
    bad["layer.0.dense.weight"][3, 4] = float("nan")
    write_folder(world / "nan", bad)
    write_folder(world / "far", base_tensors(seed=99))
    with pytest.raises(RefusedInput, match=r"layer.0.dense.weight\[3, 4\] is NaN"):
        line.merge(world / "nan")
    with pytest.raises(RefusedInput, match=r"times as long as the base"):
        line.merge(world / "far")
    nothing = {n: torch.zeros_like(t) if t.is_floating_point() else t for n, t in base_tensors().items()}
    write_folder(world / "zeros", nothing)
    with pytest.raises(RefusedInput, match=r"its task vector is 1\.00 times as long as the base itself"):
        line.merge(world / "zeros")
    with pytest.raises(RefusedInput, match="is a member already"):
        line.merge(world / "a")
    with pytest.raises(UsageError, match="cannot be used"):
        line.merge(world / "c", "../c")
    with pytest.raises(RefusedInput, match="is not a member; members are: a, b"):
        line.unmerge("zzz")
    with pytest.raises(UsageError, match="weight is -1"):
        line.merge(world / "c", weight=-1)
    with pytest.raises(PlaitError):
        line.merge(world / "nothing")
    assert (line.digest, len(line.log())) == before
    assert line.verify()["ok"]


def test_other_base_hint_names_what_nobody_changed(world: Path) -> None:
    line = make(world, "line", "ab")
    write_folder(world / "far", {**base_tensors(seed=99), "layer.0.dense.bias": torch.ones(12)})
    with pytest.raises(RefusedInput, match=r"no member has changed differs, such as layer\.0\.dense\.bias"):
        line.merge(world / "far")


def test_nonfinite_may_be_left_out(world: Path) -> None:
    bad = expert_tensors(base_tensors(), 0)
    bad["layer.0.dense.weight"][3, 4] = float("nan")
    write_folder(world / "nan", bad)
    line = make(world, "line", "b")
    row = line.merge(world / "nan", allow_nonfinite=True)
    assert row["accounting"]["nonfinite"] == 1
    made = read(line.model)["layer.0.dense.weight"]
    assert torch.isfinite(made).all()
    never = line.digest
    line.merge(world / "c")
    line.unmerge("c")
    assert line.digest == never
    line.unmerge("nan")
    assert line.digest == make(world, "never", "b").digest


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_line_files_and_memory_agree(tmp_path: Path, method: str, dtype: torch.dtype) -> None:
    base = base_tensors(dtype)
    experts = [expert_tensors(base, i) for i in range(3)]
    write_file(tmp_path / "base.safetensors", base)
    paths = [write_file(tmp_path / f"e{i}.safetensors", e) for i, e in enumerate(experts)]
    line = Line.create(tmp_path / "line", tmp_path / "base.safetensors", method, **METHODS[method])
    for path, weight in zip(paths, (1.0, 0.7, 2.0), strict=True):
        line.merge(path, weight=weight)
    row = merge_files(
        tmp_path / "base.safetensors",
        paths,
        tmp_path / "out.safetensors",
        method,
        (1.0, 0.7, 2.0),
        **METHODS[method],
    )
    memory = merge_state_dicts(base, experts, method, (1.0, 0.7, 2.0), **METHODS[method])
    assert not differing(read(line.model), read(tmp_path / "out.safetensors"))
    assert not differing(read(line.model), memory)
    assert row["version"] == line.digest


def test_diff_remembers_all_versions_but_purged_ones(world: Path) -> None:
    line = make(world, "line", "abcd")
    row = line.diff("base", "1")
    assert row["members"]["only_b"] == ["a"]
    assert row["tensors"]["differ"] == sorted(n for n in SHAPES if n != "layer.0.dense.bias")
    assert row["tensors"]["same"] == 2
    line.unmerge("d")
    assert line.diff("3", line.digest)["equal"] is True
    line.unmerge("a")
    line.purge("a")
    with pytest.raises(RefusedInput, match="are gone: a task of that version was purged"):
        line.diff("base", "2")


@pytest.mark.parametrize("where", ["ledger", "objects", "versions", "plait.json"])
def test_verify_tells_of_one_flipped_bit(world: Path, where: str) -> None:
    line = make(world, "line", "ab")
    file = (
        sorted(p for p in (line.path / where).rglob("*") if p.is_file())
        if "." not in where
        else [line.path / where]
    )
    data = bytearray(file[-1].read_bytes())
    data[len(data) // 2] ^= 1
    file[-1].chmod(0o644)
    file[-1].write_bytes(data)
    report = line.verify()
    assert not report["ok"]
    assert file[-1].name in " ".join(report["problems"])


def test_a_disk_that_fails_after_the_commit_is_no_failed_merge(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = make(world, "line", "a")

    def fail(*args: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("plait.line.removal.retire", fail)
    row = line.merge(world / "b")
    assert "old files could not be removed" in row["notes"][-1]
    assert [m.task for m in line.members] == ["a", "b"]


def test_a_head_is_exported_under_the_names_of_its_task(world: Path) -> None:
    tensors = {f"bert.{n}": t for n, t in expert_tensors(base_tensors(), 3).items()}
    tensors["classifier.weight"] = torch.ones(3, 12)
    write_folder(world / "x", tensors)
    config = json.loads((world / "x" / "config.json").read_text())
    (world / "x" / "config.json").write_text(json.dumps({**config, "num_labels": 3}))
    line = make(world, "line", "a", private=["classifier.*"])
    row = line.merge(world / "x")
    assert any("'bert.'" in note for note in row["notes"])
    line.export(world / "out", task="x")
    made = read(world / "out")
    assert set(made) == set(tensors)
    assert torch.equal(made["bert.layer.0.dense.bias"], tensors["bert.layer.0.dense.bias"])
    exported = json.loads((world / "out" / "config.json").read_text())
    assert exported["num_labels"] == 3
    assert "auto_map" not in exported
