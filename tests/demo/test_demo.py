"""The whole road, walked quickly; and that it fails where a claim does not hold."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from plait import Line
from plait.demo import proofs, road
from plait.demo.__main__ import main
from plait.demo.minilm import WEIGHTS
from plait.demo.screen import Screen
from plait.demo.tasks import Task, load_tasks
from plait.demo.training import Score
from plait.demo.walk import QUICK, Walk
from tests.demo.conftest import Run

TASKS = ["polarity", "language", "colour", "entity"]
METHODS = ["average", "task_arithmetic"]


def walk_over(out: Path) -> Walk:
    return Walk(out, 3, QUICK, Screen(), ThreadPoolExecutor(1))


def flip(file: Path, place: int = -1) -> None:
    """Change one bit of a file that may be read-only."""
    file.chmod(0o644)
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)


def test_a_run_succeeds_and_every_claim_holds(quick: Run) -> None:
    results = quick.results
    assert quick.code == 0
    assert results["failed"] == []
    assert [c["name"] for c in results["claims"]] == [
        "the first merge gives the expert",
        *(f"unmerge equals never merged: {m}" for m in METHODS),
        "plain subtraction is not exact",
        *(f"verify: {m}" for m in METHODS),
        "the export has the line's bytes",
        "the export answers alike",
    ]
    assert all(c["holds"] for c in results["claims"])


def test_the_results_hold_every_number(quick: Run) -> None:
    results = quick.results
    assert results["seed"] == 3
    assert results["quick"] is True
    assert {"plait", "torch", "python"} <= set(results["versions"])
    assert list(results["tasks"]) == TASKS
    for method in METHODS:
        steps = results["lines"][method]["steps"]
        done = [(s["verb"], s["task"]) for s in steps]
        assert done == [*(("merge", t) for t in TASKS), ("unmerge", road.REMOVED)]
        assert len({s["version"] for s in steps}) == 5
        for step in steps:
            assert list(step["scores"]) == TASKS
            for score in step["scores"].values():
                assert 0 <= score["right"] <= score["count"] == QUICK.sizes.test
        assert steps[-1]["version"] == results["never_merged"][method]["never"]
        assert steps[-1]["receipt"]["never_merged"] == steps[-1]["version"]
    assert set(results["subtraction"]) == {f"{m}, {d}" for m in METHODS for d in ("fp32", "bf16")}
    assert results["seconds"]["total"] > 0


def test_the_folders_can_be_used_afterwards(quick: Run) -> None:
    assert [m.task for m in Line.open(quick.out / "lines" / "average").members] == [
        t for t in TASKS if t != road.REMOVED
    ]
    for name in (*(f"experts/{t}" for t in TASKS), "export", "base"):
        assert {"config.json", "tokenizer.json", WEIGHTS} <= {p.name for p in (quick.out / name).iterdir()}


def test_another_model_in_place_of_the_never_merged_one_is_seen(
    quick: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = {m: Line.open(quick.out / "lines" / m) for m in METHODS}
    w = walk_over(quick.out)
    proofs.compare_with_never(w, lines, dict.fromkeys(METHODS, lines["average"]), road.REMOVED)
    assert w.screen.failed() == ["unmerge equals never merged: task_arithmetic"]
    assert "DIFFERENT" in capsys.readouterr().out


def test_one_flipped_bit_in_a_line_is_seen(quick: Run, tmp_path: Path) -> None:
    shutil.copytree(quick.out / "lines" / "average", tmp_path / "line")
    line = Line.open(tmp_path / "line")
    flip(line.model / WEIGHTS)
    w = walk_over(tmp_path)
    proofs.replay(w, {"average": line})
    proofs.compare_with_never(w, {"average": line}, {"average": line}, road.REMOVED)
    assert w.screen.failed() == ["verify: average", "unmerge equals never merged: average"]


def test_one_flipped_bit_in_the_export_is_seen(
    quick: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Line.open(quick.out / "lines" / "average")
    (tmp_path / "base").symlink_to(quick.out / "base")

    def export(self: Line, out: Path) -> None:
        shutil.copytree(self.model, out)
        flip(out / WEIGHTS)

    monkeypatch.setattr(Line, "export", export)
    tasks: list[Task] = load_tasks(3, QUICK.sizes)[:1]
    w = walk_over(tmp_path)
    proofs.export_and_reload(w, line, tasks, {tasks[0].name: Score(-1, QUICK.sizes.test)}, road.REMOVED)
    assert w.screen.failed() == ["the export has the line's bytes", "the export answers alike"]


def test_a_claim_that_fails_makes_the_run_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(road, "walk", lambda w: w.screen.claim("planted", False, "It does not hold."))
    assert main(["--out", str(tmp_path / "out")]) == 1
    assert Run(1, tmp_path / "out").results["failed"] == ["planted"]


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.txt").write_text("words")
    assert main(["--out", str(tmp_path)]) == 5
    assert "holds more than the demo makes; choose another folder" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]
