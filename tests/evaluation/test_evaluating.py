"""A line is measured: against plain arithmetic on what is exported, once only, and in the right places."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from plait import Line
from plait.errors import LockedError, PlaitError, RefusedInput, UsageError
from plait.evaluation.rows import Row, Rows
from plait.problem.task import load_tasks
from tests.evaluation import world as w
from tests.line.models import read, write_folder

Guess = Callable[[Mapping[str, Tensor], Sequence[str]], list[int]]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    w.write_models(tmp_path)
    w.opened.clear()
    w.ran.clear()
    return tmp_path


def make(world: Path, tasks: str = "abc", **options: Any) -> Line:
    line = Line.create(world / "line", world / "base", private="classifier.*", **options)
    for task in tasks:
        line.merge(world / task)
    return line


def measured(line: Line, tasks: Path, **words: Any) -> dict[str, Any]:
    return line.evaluate(tasks, network=w.NETWORK, **words)


def truth(tasks: Path, task: str, weights: Mapping[str, Tensor], guess: Guess) -> list[bool]:
    examples = load_tasks(tasks)[task].examples("test")
    assert examples.labels is not None
    found = guess(weights, list(examples.inputs))
    return [g == label for g, label in zip(found, examples.labels.tolist(), strict=True)]


def rows_of(found: Mapping[str, Any]) -> dict[tuple[str, str, str], Row]:
    """(role, digest, task) -> row."""
    return {(r["role"], r["digest"], r["task"]): Row.of(r) for r in found["rows"]}


def test_accuracies_are_those_of_the_exported_model_example_by_example(world: Path) -> None:
    line, tasks = make(world), w.write_tasks(world, "abc", w.STORED)
    found = rows_of(measured(line, tasks))
    for member in line.members:
        line.export(world / "out", task=member.task, force=True)
        right = truth(tasks, member.task, read(world / "out"), w.linear)
        row = found["version", line.digest, member.task]
        assert row.answers == right
        assert (row.right, row.count, row.value) == (sum(right), 40, sum(right) / 40)
        assert row.low <= row.value <= row.high
        own = read(world / member.task)
        assert found["expert", member.digest, member.task].answers == truth(tasks, member.task, own, w.linear)
        bare = {**w.base_weights(), "classifier.weight": own["classifier.weight"]}
        base = line.status()["base"]["digest"]
        assert found["base", base, member.task].answers == truth(tasks, member.task, bare, w.linear)
    assert len({row.bits for row in found.values()}) > 5  # the models are told apart


def test_zero_shot_heads_are_made_by_the_base(world: Path) -> None:
    line, tasks = make(world, "ab"), w.write_tasks(world, "abz", "zero-shot")
    found = rows_of(measured(line, tasks))
    line.export(world / "out")
    for task in "abz":
        merged = truth(tasks, task, read(world / "out"), w.zero_shot)
        assert found["version", line.digest, task].answers == merged
    assert found["expert", line.members[1].digest, "b"].answers == truth(
        tasks, "b", read(world / "b"), w.zero_shot
    )
    assert [key[2] for key in found if key[0] == "expert"] == ["a", "b"]  # z is no member: it has no expert


def test_the_batch_does_not_show(world: Path) -> None:
    line, tasks = make(world, "ab"), w.write_tasks(world, "ab", w.STORED)
    one = measured(line, tasks, batch=1)["rows"]
    shutil.rmtree(world / "line" / "rows")
    w.ran.clear()
    other = measured(line, tasks, batch=7)["rows"]
    assert max(w.ran) == 7
    strip = {"time"}
    assert [{k: v for k, v in r.items() if k not in strip} for r in one] == [
        {k: v for k, v in r.items() if k not in strip} for r in other
    ]


def test_only_what_is_missing_is_measured(world: Path) -> None:
    line, tasks = make(world, "ab"), w.write_tasks(world, "abc", w.STORED)
    first = measured(line, tasks, only=["a", "b"])
    assert (first["computed"], first["reused"]) == (6, 0)  # base and version on both, two experts
    w.opened.clear()
    again = measured(line, tasks, only=["a", "b"])
    assert (again["computed"], again["reused"]) == (0, 6)
    assert again["rows"] == first["rows"]
    assert w.opened == []  # no network was even opened
    line.merge(world / "c")
    third = measured(line, tasks)
    assert (third["computed"], third["reused"]) == (
        5,
        4,
    )  # the new version on three, c on base and its expert
    w.write_task(world, "a", 77)  # other data: its rows do not count any more
    fourth = measured(line, tasks)
    assert (fourth["computed"], fourth["reused"]) == (3, 6)
    assert len(Rows(line.store).all()) == 6 + 5 + 3


def test_another_head_network_or_split_is_another_measurement(world: Path) -> None:
    line = make(world, "a")
    tasks = w.write_tasks(world, "a", w.STORED)
    assert measured(line, tasks)["computed"] == 3
    assert measured(line, tasks, dtype="float64")["computed"] == 3
    assert measured(line, tasks, split="train")["computed"] == 3
    assert measured(line, w.write_tasks(world, "a", "linear"))["computed"] == 3
    other = measured(line, w.write_tasks(world, "a", {"kind": "zero-shot", "scale": 3}))
    assert (other["computed"], other["reused"]) == (3, 0)
    assert measured(line, tasks := w.write_tasks(world, "a", w.STORED))["reused"] == 3
    assert measured(line, tasks, level=0.5)["reused"] == 3  # the interval comes from the kept answers


def test_a_level_or_seed_changes_intervals_only(world: Path) -> None:
    line, tasks = make(world, "a"), w.write_tasks(world, "a", w.STORED)
    wide, narrow = (measured(line, tasks, level=level)["rows"][0] for level in (0.95, 0.5))
    assert wide["low"] < narrow["low"] <= narrow["value"] == wide["value"]
    assert (narrow["level"], narrow["seed"]) == (0.5, 0)


def test_a_head_that_is_fitted_depends_on_the_training_examples(world: Path) -> None:
    line, tasks = make(world, "a"), w.write_tasks(world, "a", "linear")
    assert measured(line, tasks)["computed"] == 3
    file = world / "a.jsonl"
    kept = file.read_text(encoding="utf-8").splitlines()
    file.write_text("\n".join(kept[:-1]) + "\n", encoding="utf-8")  # the last row is a training row
    assert measured(line, tasks)["computed"] == 3
    file.write_text("\n".join(kept) + "\n", encoding="utf-8")
    assert measured(line, tasks)["computed"] == 0


def test_the_matrix_of_all_versions(world: Path) -> None:
    """Versions that are no longer on disk are built again, and have the answers they had."""
    line = make(world, "", keep=1, method="task_arithmetic", scale=0.7)
    tasks = w.write_tasks(world, "abc", w.STORED)
    answers: dict[tuple[str, str], list[bool]] = {}
    for task in "abc":
        line.merge(world / task)
        weights = read(line.model)
        for name in "abc":
            own = {**weights, "classifier.weight": read(world / name)["classifier.weight"]}
            answers[line.digest, name] = truth(tasks, name, own, w.linear)
    assert len(line.status()["versions"]) == 2  # base and the current one
    found = measured(line, tasks, every=True)
    assert found["computed"] == 3 + 9 + 3
    assert found["skipped"] == []
    got = {(r["digest"], r["task"]): Row.of(r).answers for r in found["rows"] if r["role"] == "version"}
    assert got == answers
    matrix = found["matrix"]
    assert [s["verb"] for s in matrix["steps"]] == ["merge"] * 3
    assert matrix["values"] == [
        [sum(answers[s["version"], name]) / 40 for name in "abc"] for s in matrix["steps"]
    ]
    assert matrix["arrival"] == [0, 1, 2]
    ends = zip(matrix["low"][0], matrix["values"][0], matrix["high"][0], strict=True)
    assert all(low <= value <= high for low, value, high in ends)
    assert line.store.workspaces() == []
    assert line.status()["versions"] == sorted({line.digest, line.status()["base"]["digest"]})
    values = matrix["values"]
    figures = found["figures"]
    assert figures["acc"] == pytest.approx(sum(values[2]) / 3)
    assert figures["backward"] == pytest.approx(
        (values[2][0] - values[0][0] + values[2][1] - values[1][1]) / 2
    )
    assert line.verify(replay=True)["ok"] is True


def test_only_the_current_version_by_default_and_the_matrix_fills_as_the_line_goes(world: Path) -> None:
    line, tasks = make(world, ""), w.write_tasks(world, "ab", w.STORED)
    line.merge(world / "a")
    measured(line, tasks)
    line.merge(world / "b")
    found = measured(line, tasks)
    assert [[v is not None for v in row] for row in found["matrix"]["values"]] == [
        [True, False],
        [True, True],
    ]
    assert found["figures"]["backward"] is not None


def test_a_version_whose_members_are_gone_is_left_out(world: Path) -> None:
    line, tasks = make(world, "ab", keep=1), w.write_tasks(world, "ab", "zero-shot")
    line.unmerge("a")
    line.merge(world / "c")
    found = measured(line, tasks, every=True)
    steps = found["matrix"]["steps"]
    gone = {s["version"] for s in steps if s["sequence"] in (1, 2)}
    why = {row["why"] for row in found["skipped"] if row["digest"] in gone}
    assert why == {
        "it is not on disk any more, and what is kept lacks a (this line has retention vectors, keep 1)"
    }
    lost = [row for row in found["skipped"] if row["role"] == "expert"]
    assert [(row["member"], row["why"].split(" (")[0]) for row in lost] == [
        ("a", "its checkpoint is not kept")
    ]
    values = found["matrix"]["values"]
    assert values[0] == values[1] == [None, None]
    assert None not in values[3]
    assert found["removals"][0]["retain"] is None


def test_what_was_measured_before_a_member_went_stays(world: Path) -> None:
    line, tasks = make(world, "abc", keep=1), w.write_tasks(world, "abc", w.STORED)
    before = measured(line, tasks, every=True)
    line.unmerge("b")
    after = measured(line, tasks, every=True)
    assert after["matrix"]["values"][:3] == before["matrix"]["values"]
    assert after["matrix"]["experts"] == before["matrix"]["experts"]
    (gone,) = after["removals"]
    assert (gone["task"], gone["bytes_equal"], gone["fidelity"]) == ("b", True, 0.0)
    assert gone["forget"] is None  # the head of b went with it, so nothing can be said of b now
    assert [row["task"] for row in after["skipped"]] == ["b"]
    assert "the private tensors of b are not kept" in after["skipped"][0]["why"]


def test_no_interval_of_time_is_lost_when_the_command_is_killed(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, tasks = make(world, "ab"), w.write_tasks(world, "ab", w.STORED)
    real = Rows.put
    left = 3

    def put(self: Rows, rows: Any) -> None:
        nonlocal left
        if not left:
            raise KeyboardInterrupt
        left -= 1
        real(self, rows)

    with monkeypatch.context() as patch:
        patch.setattr(Rows, "put", put)
        with pytest.raises(KeyboardInterrupt):
            measured(line, tasks)
    found = measured(line, tasks)
    assert (found["computed"], found["reused"]) == (3, 3)


def test_a_line_that_keeps_statistics(world: Path) -> None:
    line = make(world, "ab", retention="statistics")
    found = measured(line, w.write_tasks(world, "ab", "zero-shot"))
    assert (found["computed"], len(found["skipped"])) == (4, 2)  # no experts
    assert found["figures"]["acc"] is not None
    assert found["figures"]["backward"] is None
    stored = measured(line, w.write_tasks(world, "ab", w.STORED))
    assert stored["computed"] == 0
    assert len(stored["skipped"]) == 6


def test_a_line_without_members(world: Path) -> None:
    line, tasks = make(world, ""), w.write_tasks(world, "a", "zero-shot")
    found = measured(line, tasks, every=True)
    assert [(r["role"], r["task"]) for r in found["rows"]] == [("base", "a")]
    assert found["figures"]["acc"] is None
    assert found["figures"]["tasks"] == []
    assert found["matrix"]["steps"] == []
    line.merge(world / "a")
    line.unmerge("a")
    back = measured(line, tasks, every=True)
    assert back["computed"] == 1  # the version with a; that without is the base
    assert back["matrix"]["values"][1] == back["matrix"]["base"]


def test_a_task_that_was_never_merged_has_no_head_of_its_own(world: Path) -> None:
    line = make(world, "a")
    found = measured(line, w.write_tasks(world, "az", w.STORED))
    assert found["computed"] == 3
    assert {(row["role"], row["task"]) for row in found["skipped"]} == {("base", "z"), ("version", "z")}
    assert "no checkpoint of this task was merged" in found["skipped"][0]["why"]


def test_members_without_a_task_are_told(world: Path) -> None:
    found = measured(make(world, "abc"), w.write_tasks(world, "b", w.STORED))
    assert found["notes"] == ["no task is given for a, c; the figures are over the other members"]
    assert found["figures"]["tasks"] == ["b"]


def test_an_earlier_version(world: Path) -> None:
    line, tasks = make(world, "abc", keep=5), w.write_tasks(world, "abc", w.STORED)
    found = measured(line, tasks, version="2")
    assert [r["role"] for r in found["rows"]] == ["base"] * 3 + ["version"] * 3 + ["expert"] * 2
    (version,) = {r["digest"] for r in found["rows"] if r["role"] == "version"}
    assert version == line.log()[2]["version"]
    assert measured(line, tasks, version=version[:8])["computed"] == 0
    assert [r["role"] for r in measured(line, tasks, version="base")["rows"]] == ["base"] * 3


def test_a_version_is_measured_with_the_head_that_its_member_had_then(world: Path) -> None:
    line, tasks = make(world, "a"), w.write_tasks(world, "a", w.STORED)
    old = read(world / "a")["classifier.weight"]
    version, weights = line.digest, read(line.model)
    line.replace("a", world / "b")
    line.merge(world / "c")  # a replaced member goes at once; the version before is still on disk
    found = measured(line, tasks, version="2")
    assert found["rows"][1]["own"] == line.members[0].digest
    tasks_then = measured(line, tasks, version="1")["skipped"]
    assert [row["digest"] for row in tasks_then if row["role"] == "version"] == [version]
    fresh = Line.create(world / "kept", world / "base", private="classifier.*")
    fresh.merge(world / "a")
    assert fresh.digest == version
    row = rows_of(measured(fresh, tasks))["version", version, "a"]
    assert row.answers == truth(tasks, "a", {**weights, "classifier.weight": old}, w.linear)
    fresh.replace("a", world / "b")
    again = rows_of(measured(fresh, tasks, every=True))
    assert again["version", version, "a"] == row
    assert again["version", fresh.digest, "a"].own == fresh.members[0].digest != row.own


def test_private_tensors_that_the_base_has_too(world: Path) -> None:
    """They are put in for their task, on versions, base and expert; class names are embedded by the bare base."""
    line = Line.create(world / "line", world / "base", private=["mix.bias", "classifier.*"])
    for task in "ab":
        line.merge(world / task)
    tasks = w.write_tasks(world, "ab", "zero-shot")
    found = rows_of(measured(line, tasks))
    merged, base = read(line.model), w.base_weights()
    assert torch.equal(merged["mix.bias"], base["mix.bias"])
    for member in line.members:
        own = read(world / member.task)
        bias = {"mix.bias": own["mix.bias"]}
        models = {
            ("version", line.digest): {**merged, **bias},
            ("base", line.status()["base"]["digest"]): {**base, **bias},
            ("expert", member.digest): own,
        }
        for (role, digest), weights in models.items():
            right = truth(tasks, member.task, weights, w.zero_shot)
            assert found[role, digest, member.task].answers == right


def test_nan_counts_as_wrong_and_is_told(world: Path) -> None:
    broken = w.expert_weights(0)
    broken["mix.bias"][0] = float("nan")
    write_folder(world / "a", broken)
    line = make(world, "")
    line.merge(world / "a", allow_nonfinite=True)
    found = measured(line, w.write_tasks(world, "a", w.STORED))
    row = rows_of(found)["expert", line.members[0].digest, "a"]
    assert (row.right, row.undefined) == (0, 40)
    assert found["notes"] == [
        f"40 of 40 answers of expert {row.digest[:12]} on a are NaN; they count as wrong"
    ]
    assert measured(line, world / "tasks.yaml")["notes"] == found["notes"]


def test_bf16_weights_run_in_fp32(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("base", "a"):
        weights = read(world / name)
        write_folder(world / name, {n: t.bfloat16() for n, t in weights.items()})
    from plait.line import subjects

    loaded: list[torch.dtype] = []
    real = subjects.load

    def load(*words: Any) -> dict[str, Tensor]:
        found = real(*words)
        loaded.extend(tensor.dtype for tensor in found.values())
        return found

    monkeypatch.setattr(subjects, "load", load)
    line, tasks = make(world, "a"), w.write_tasks(world, "a", w.STORED)
    row = rows_of(measured(line, tasks))["version", line.digest, "a"]
    assert set(loaded) == {torch.float32}  # converted one by one, not as a second model
    line.export(world / "out", task="a")
    wide = {n: t.float() for n, t in read(world / "out").items()}
    assert row.answers == truth(tasks, "a", wide, w.linear)


def test_one_model_at_a_time(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gc
    import weakref

    from plait.line import subjects

    line, tasks = make(world, "abc"), w.write_tasks(world, "abc", w.STORED)
    held: list[weakref.ref[Tensor]] = []
    most = 0
    real = subjects.load

    def load(refs: Any, *words: Any) -> dict[str, Tensor]:
        nonlocal most
        found = real(refs, *words)
        if "mix.weight" in found:
            held.append(weakref.ref(found["mix.weight"]))
            gc.collect()
            most = max(most, sum(ref() is not None for ref in held))
        return found

    monkeypatch.setattr(subjects, "load", load)
    measured(line, tasks, every=True)
    assert len(held) == 7
    assert most == 1


def test_a_locked_line_can_be_read_but_not_measured(world: Path) -> None:
    line, tasks = make(world, "a"), w.write_tasks(world, "a", w.STORED)
    with line.store.lock("merge"):
        with pytest.raises(LockedError):
            measured(line, tasks)
        assert Rows(line.store).all() == []
    measured(line, tasks)
    with line.store.lock("merge"):
        assert measured(line, tasks)["reused"] == 3


def test_what_an_interrupted_merge_left_is_not_touched(world: Path) -> None:
    line, tasks = make(world, "ab", keep=1), w.write_tasks(world, "ab", w.STORED)
    left = line.store.workspace("merge-c") / "half"
    left.write_text("half")
    stale = line.store.workspace("eval-old") / "half"
    stale.write_text("half")
    measured(line, tasks, every=True)
    assert left.exists()
    assert line.store.workspaces() == ["merge-c"]


def test_a_rebuilt_version_with_other_bytes_is_not_measured(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    from plait.line.build import build as real

    line, tasks = make(world, "ab", keep=1), w.write_tasks(world, "ab", "zero-shot")
    monkeypatch.setattr("plait.line.algebra.build", lambda *a, **k: replace(real(*a, **k), digest="f" * 64))
    found = measured(line, tasks, every=True)
    (why,) = {row["why"] for row in found["skipped"]}
    assert why.startswith(
        "its members give ffffffffffff now; it was made by another stack of software (torch "
    )
    assert line.store.workspaces() == []


REFUSALS: list[tuple[dict[str, Any], type[PlaitError], str]] = [
    ({"only": ["a", "q"]}, RefusedInput, "task 'q' is not among the tasks; there are a, b"),
    ({"version": "77"}, RefusedInput, "'77' is no entry and no version of this line"),
    ({"version": "1", "every": True}, UsageError, "give --version or --all, not both"),
    ({"split": "tset"}, UsageError, "split is 'tset', expected one of train, calibration, validation, test"),
    ({"split": "validation"}, RefusedInput, "validation"),
    ({"batch": 0}, UsageError, "batch is 0, expected a whole number of at least 1"),
    ({"level": 2.0}, UsageError, "level is 2.0"),
    ({"device": "gpu"}, UsageError, "device is gpu, expected cpu or cuda"),
    ({"dtype": "int8"}, UsageError, "dtype is int8, expected one of"),
    ({"network": "python:nowhere:made"}, RefusedInput, "cannot be imported"),
    ({"network": None}, RefusedInput, ""),
]


@pytest.mark.parametrize(("words", "kind", "message"), REFUSALS, ids=[str(r[0]) for r in REFUSALS])
def test_refusals_change_nothing(
    world: Path, words: dict[str, Any], kind: type[PlaitError], message: str
) -> None:
    line, tasks = make(world, "a"), w.write_tasks(world, "ab", "zero-shot")
    with pytest.raises(kind) as caught:
        line.evaluate(tasks, **{"network": w.NETWORK, **words})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert Rows(line.store).all() == []
    assert line.verify()["ok"] is True


def test_a_missing_tasks_file_and_a_network_that_does_not_fit(world: Path) -> None:
    line = make(world, "a")
    with pytest.raises(RefusedInput, match=r"nowhere\.yaml"):
        measured(line, world / "nowhere.yaml")
    tasks = w.write_tasks(world, "a", {"kind": "linear", "weight": "mix.weight"})
    with pytest.raises(RefusedInput, match="a: head tensors have shapes"):
        measured(line, tasks)


def test_tasks_may_be_given_as_they_are(world: Path) -> None:
    line, tasks = make(world, "a"), load_tasks(w.write_tasks(world, "ab", w.STORED))
    found = line.evaluate({"a": tasks["a"]}, network=w.NETWORK)
    assert found["computed"] == 3
    assert torch.tensor(found["matrix"]["values"]).shape == (1, 1)
