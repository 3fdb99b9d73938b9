"""Lines of `ode_m`: what it keeps beside the model, and that members leave without a trace."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plait import Line
from plait.checkpoint.format import read_header
from plait.cli.entry import run
from plait.engine.watching import Watching
from plait.errors import NotRemovable, UsageError
from plait.methods import registry
from tests.evaluation.world import NETWORK
from tests.line.calibrated import forget_data, make, register, write_world
from tests.line.models import differing, read

SHORT: dict[str, Any] = {"h": 0.25, "samples": 12}
WAYS: dict[str, dict[str, Any]] = {
    "paper": {},
    "new": {"calibration": "new"},
    "merged": {"target": "merged"},
    "released": {"variant": "released", "refine": 2},
    "refined average": {"variant": "control_refine", "refine": 2, "h": 0.0},
}
WAYS_ON: dict[str, dict[str, Any]] = {
    **WAYS,
    "refined": {"variant": "control_refine", "h": 0.0, "refine": 12, "batch": 4, "rate": 1e-4},
    "plain AdamW": {"variant": "control_adamw", "h": 0.0, "refine": 12, "batch": 4, "rate": 1e-3},
}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    register(tmp_path, monkeypatch)
    write_world(tmp_path)
    yield tmp_path
    registry._points.cache_clear()


@pytest.mark.parametrize("snapshots", [0, 1])
@pytest.mark.parametrize("way", WAYS)
def test_unmerge_gives_the_bytes_of_never_having_merged(world: Path, way: str, snapshots: int) -> None:
    options = {**SHORT, **WAYS[way], "snapshots": snapshots}
    line = make(world, "line", "abc", "ode_m", **options)
    never = make(world, "never", "ac", "ode_m", **options)
    (world / "tasks.yaml").unlink()
    assert line.verify(replay=True)["replay"] == "equal"
    receipt = line.unmerge("b")["receipt"]
    assert receipt["exact"]
    assert line.digest == never.digest == receipt["never_merged"]
    assert line._head()["state"] == never._head()["state"]


def test_the_first_member_is_the_model_and_weights_say_how_far_a_path_goes(world: Path) -> None:
    line = make(world, "line", "a", "ode_m", **SHORT)
    made, held = read(line.model), read(world / "a")
    assert not differing(made, {n: held[n] if "classifier" not in n else t for n, t in made.items()})
    line.merge(world / "b", weight=3.0, tasks=world / "tasks.yaml")
    assert line.show("b")["known"]["t_end"] == pytest.approx(0.75)
    line.reweight("b", 1.0)
    assert line.show("b")["known"]["t_end"] == pytest.approx(0.5)


# going on inside a merge


TRM: dict[str, Any] = {"steps": 6, "batch": 5, "pre": 0.0, "res": 0.0}


def cut(patch: pytest.MonkeyPatch, task: str, at: int) -> list[tuple[str, int]]:
    """From now on notes are kept after every step, and the merge of `task` stops at its step `at` (0: never), before
    the note. Returns what is told."""
    told: list[tuple[str, int]] = []
    patch.setattr("plait.engine.watching.SECONDS", -1.0)
    patch.setattr("plait.engine.watching.TIMES", 0.0)

    def tell(self: Watching, done: int, steps: int, loss: float) -> None:
        told.append((self._task, done))
        if (self._task, done) == (task, at):
            raise SystemExit(9)

    patch.setattr(Watching, "tell", tell)
    return told


@pytest.mark.parametrize("way", ["paper", "new", "merged", "released", "refined", "plain AdamW", "trm"])
def test_a_merge_that_was_stopped_on_its_way_goes_on_to_the_same_bytes(
    world: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    name, options = ("trm", TRM) if way == "trm" else ("ode_m", {"samples": 12, "h": 0.1, **WAYS_ON[way]})
    line = make(world, "line", "a", name, **options)
    want = make(world, "other", "ab", name, **options)
    words: dict[str, Any] = {"tasks": world / "tasks.yaml"}
    cut(monkeypatch, "b", 3)
    with pytest.raises(SystemExit):
        line.merge(world / "b", **words)
    told = cut(monkeypatch, "b", 4)
    with pytest.raises(SystemExit):
        line.merge(world / "b", **words)
    assert told == [("b", 3), ("b", 4)]
    told = cut(monkeypatch, "", 0)
    line.merge(world / "b", **words)
    assert told[0] == ("b", 4)
    assert line.digest == want.digest
    assert line._head()["state"] == want._head()["state"]
    assert line.members == want.members  # with the trace, and the work of all runs
    assert not line.store.workspaces()


def test_a_later_member_goes_on_after_whole_steps_and_part_of_one(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = make(world, "line", "abc", "ode_m", **{**SHORT, "h": 0.1})
    never = make(world, "never", "bc", "ode_m", **{**SHORT, "h": 0.1})
    cut(monkeypatch, "c", 3)
    with pytest.raises(SystemExit):
        line.unmerge("a")
    told = cut(monkeypatch, "", 0)
    assert line.unmerge("a")["version"] == never.digest
    assert told == [("c", 3), ("c", 4), ("c", 5)]


@pytest.mark.parametrize("change", ["weight", "damage", "task"])
def test_a_note_of_another_merge_is_not_used(
    world: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    options = {**SHORT, "h": 0.1}
    line = make(world, "line", "a", "ode_m", **options)
    cut(monkeypatch, "b", 3)
    with pytest.raises(SystemExit):
        line.merge(world / "b", "b", tasks=world / "tasks.yaml")
    work = line.path / "tmp" / "merge-b" / "steps-2"
    note = json.loads((work / "inside.json").read_text())
    weight = 1.0
    if change == "weight":
        weight = 2.0
    elif change == "damage":
        file = Path(note["folder"]) / "state.safetensors"
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    else:
        note["plan"] = note["plan"][:-1] + "c"
        (work / "inside.json").write_text(json.dumps(note))
    told = cut(monkeypatch, "", 0)
    line.merge(world / "b", "b", tasks=world / "tasks.yaml", weight=weight)
    assert told[0] == ("b", 1)
    want = make(world, "want", "a", "ode_m", **options)
    want.merge(world / "b", "b", tasks=world / "tasks.yaml", weight=weight)
    assert line.digest == want.digest


# points of the path


def test_points_are_the_models_of_paths_that_end_there(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = make(world, "line", "a", "ode_m", **SHORT)
    before = read(line.model)
    plain = make(world, "plain", "ab", "ode_m", **SHORT)
    cut(monkeypatch, "b", 2)
    words: dict[str, Any] = {"tasks": world / "tasks.yaml", "path_points": world / "points"}
    words["path_at"] = (0.5, 0.3, 0, 0.9)
    with pytest.raises(SystemExit):
        line.merge(world / "b", **words)
    told = cut(monkeypatch, "", 0)
    done = line.merge(world / "b", **words)
    points = done["points"]
    assert done["notes"] == [
        "no point was written for t = 0.9: the path ends before, or there was none to follow"
    ]
    assert told == [("b", 2)]  # points before the stop are not made again
    assert line.digest == plain.digest
    assert [(p["t"], Path(p["path"]).name) for p in points] == [(0, "t-0"), (0.3, "t-0.3"), (0.5, "t-0.5")]
    assert differing(read(Path(points[0]["path"])), before) == []
    assert differing(read(Path(points[2]["path"])), read(line.model)) == []
    short = make(world, "short", "a", "ode_m", **SHORT)
    short = Line.create(
        world / "end", world / "base", "ode_m", network=NETWORK, private="classifier.*", **SHORT, t_end=0.3
    )
    for task in "ab":
        short.merge(world / task, tasks=world / "tasks.yaml")
    assert differing(read(Path(points[1]["path"])), read(short.model)) == []
    file = next(Path(points[1]["path"]).glob("*.safetensors"))
    assert read_header(file).metadata["plait.t"] == "0.3"
    assert {p.name for p in (world / "points").iterdir()} == {"points.json", "t-0", "t-0.3", "t-0.5"}
    whole = make(world, "whole", "a", "ode_m", **SHORT)
    whole.merge(world / "b", **{**words, "path_points": world / "at once"})
    for point in points:
        assert differing(read(world / "at once" / Path(point["path"]).name), read(Path(point["path"]))) == []


def test_without_places_there_is_a_point_for_every_step(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = make(world, "line", "a", "ode_m", **SHORT)
    words = ["merge", str(line.path), str(world / "b"), "--tasks", str(world / "tasks.yaml")]
    more = ["--path-points", str(world / "points")]
    assert run([*words, *more, "--path-at", "0.2,1.5"]) == 2
    assert "numbers from 0 to 1 are expected" in capsys.readouterr().err
    assert run([*words, *more]) == 0
    told = capsys.readouterr().out
    assert f"2 models, t = 0.25 to 0.5, in {world / 'points'}" in told
    assert run([*words[:2], str(world / "c"), *words[3:], *more]) == 5
    assert "holds no points of this merge; give another place" in capsys.readouterr().err
    assert len(Line.open(line.path).members) == 2


def test_points_are_refused_where_there_is_no_path(world: Path) -> None:
    with pytest.raises(UsageError, match="ode_m with these options follows none"):
        make(world, "one", "", "ode_m", variant="control_refine").merge(
            world / "a", tasks=world / "tasks.yaml", path_points=world / "points"
        )
    line = make(world, "two", "", "ode_m")
    with pytest.raises(UsageError, match="path_points, their folder, is missing"):
        line.merge(world / "a", tasks=world / "tasks.yaml", path_at=[0.5])
    with pytest.raises(UsageError, match=r"t is 1.5, expected a number from 0 to 1"):
        line.merge(world / "a", tasks=world / "tasks.yaml", path_points=world / "points", path_at=[1.5])
    for odd, message in ((["a"], "t is 'a', expected a number"), (0.25, "path_at is 0.25, expected numbers")):
        with pytest.raises(UsageError, match=message):
            line.merge(world / "a", tasks=world / "tasks.yaml", path_points=world / "p", path_at=odd)  # type: ignore[arg-type]
    done = line.merge(world / "a", tasks=world / "tasks.yaml", path_points=world / "points")
    assert done["points"] == []
    assert done["notes"] == []
    assert not (world / "points").exists()


# what a line keeps


def test_weights_change_later_without_the_users_files(world: Path) -> None:
    line = make(world, "line", "abc", "ode_m", **SHORT)
    want = make(world, "want", "a", "ode_m", **SHORT)
    want.merge(world / "b", tasks=world / "tasks.yaml", weight=3.0)
    want.merge(world / "c", tasks=world / "tasks.yaml")
    forget_data(world)
    line.reweight("b", 3.0)
    assert line.digest == want.digest
    assert line._head()["state"] == want._head()["state"]
    assert line.verify(replay=True)["replay"] == "equal"


def test_a_line_that_keeps_nothing_says_what_is_possible(world: Path) -> None:
    with pytest.raises(UsageError, match="at each merge, and retention none keeps no examples"):
        make(world, "line", "", "ode_m", retention="none")
    line = make(world, "new", "ab", "ode_m", **SHORT, calibration="new", retention="none")
    for verb in (line.unmerge, lambda task: line.reweight(task, 2.0)):
        with pytest.raises(
            NotRemovable, match=r"can be exported while it is kept, and a new line with.*vectors"
        ):
            verb("a")
    assert make(world, "kept", "ab", "ode_m", **SHORT, calibration="new").digest == line.digest


def test_purge_deletes_the_calibration_set_with_its_task(world: Path) -> None:
    line = make(world, "line", "abc", "ode_m", **SHORT, snapshots=1)
    sets = {m.task: m.data or "" for m in line.members}
    line.unmerge("b")
    line.purge("b")
    assert {t: line.store.objects.has(d) for t, d in sets.items()} == {"a": True, "b": False, "c": True}
    forget_data(world)
    line.unmerge("a")
    assert line.verify(replay=True)["replay"] == "equal"
