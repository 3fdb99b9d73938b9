"""Loops that merge each task: what is handed out, what is merged, and what is refused before training."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from plait import Line
from plait.errors import NonFinite, NotRemovable, PlaitError, RefusedInput, UsageError
from plait.methods import registry
from plait.methods.trm import Trm
from plait.problem.base import HeadSpec
from plait.problem.content import make_examples
from plait.problem.task import load_tasks
from plait.training import MergeEachTask, merge_callback
from tests.evaluation.world import CLASSES, NETWORK, Letters, base_weights
from tests.line.calibrated import register, write_world
from tests.line.models import differing, read


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    register(tmp_path, monkeypatch)
    write_world(tmp_path)
    yield tmp_path
    registry._points.cache_clear()


def trm(world: Path, **options: Any) -> Line:
    words = {"retention": "none", "descent": "last", "keep": 1, "steps": 2, **options}
    return Line.create(world / "line", world / "base", "trm", network=NETWORK, **words)


def move(module: torch.nn.Module, by: float) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(by * torch.sin(torch.arange(parameter.numel()).float()).view_as(parameter))


def test_each_task_gets_the_model_of_the_tasks_before(world: Path) -> None:
    line, module = trm(world), Letters()
    starts = []
    for turn in MergeEachTask(line, world / "tasks.yaml", module):
        assert differing(dict(module.state_dict()), read(line.model)) == []
        assert turn.task is not None
        starts.append((turn.name, turn.task.name, turn.start, turn.held))
        move(module, 0.1)
    versions = [entry["version"] for entry in line.log()]
    held = [(), ("a",), ("a", "b")]
    assert starts == [(n, n, v, h) for n, v, h in zip("abc", versions, held, strict=False)]
    assert [m.descends for m in line.members] == [
        None,
        {"version": versions[1], "tasks": ["a"]},
        {"version": versions[2], "tasks": ["a", "b"]},
    ]
    assert line.show("c")["known"]["path"]["terms"]["align"]
    assert not list(world.glob(".line*"))


def test_a_merge_is_that_of_the_trained_checkpoint(world: Path) -> None:
    """The first expert of a trm line is its model; without a module the weights are trained."""
    line = trm(world)
    run = iter(MergeEachTask(line, world / "tasks.yaml"))
    turn = next(run)
    assert differing(turn.weights, base_weights()) == []
    turn.weights["mix.bias"] += 1
    turn.weights["mix.weight"] = turn.weights["mix.weight"] * 1.5
    next(run)
    wanted = {"mix.bias": base_weights()["mix.bias"] + 1, "mix.weight": base_weights()["mix.weight"] * 1.5}
    assert differing(read(line.model), wanted) == []


def test_a_run_that_stopped_goes_on_with_the_task_at_hand(world: Path) -> None:
    whole = trm(world)
    module = Letters()
    for _ in MergeEachTask(whole, world / "tasks.yaml", module):
        move(module, 0.1)
    other = Line.create(
        world / "other", world / "base", "trm", network=NETWORK, retention="none", descent="last", steps=2
    )
    for turn in MergeEachTask(other, world / "tasks.yaml", module):
        move(module, 0.1)
        if turn.name == "b":
            break
    assert [m.task for m in other.members] == ["a"]
    again = MergeEachTask(world / "other", world / "tasks.yaml", module)
    names = []
    for turn in again:
        names.append(turn.name)
        move(module, 0.1)
    assert names == list(again.merged) == ["b", "c"]
    assert Line.open(world / "other").digest == whole.digest


def test_any_method_and_tasks_that_are_only_named(world: Path) -> None:
    line = Line.create(world / "line", world / "base", "task_arithmetic", scale=0.5)
    module = torch.nn.ModuleDict({"module": Letters()})  # one prefix is no difference
    for turn in MergeEachTask(line, ["a", "b"], module, weight=2.0):
        assert turn.task is None
        move(module, 0.1)
    assert [m.weight for m in line.members] == [2.0, 2.0]
    receipt = line.unmerge("a")["receipt"]
    assert (receipt["exact"], receipt["descends"]) == (False, ["b"])
    assert line.status()["descent"] == "any"


def test_a_line_of_sums_needs_a_folder_for_the_experts(world: Path) -> None:
    line = Line.create(world / "line", world / "base", retention="statistics")
    with pytest.raises(
        UsageError, match=r"this line keeps sums only, .*: give experts, a folder to keep them in"
    ):
        MergeEachTask(line, ["a", "b"], Letters())
    module, kept = Letters(), world / "kept" / "experts"
    for turn in MergeEachTask(line, ["a", "b"], module, experts=kept):
        if turn.name == "b":
            never = line.digest
        move(module, 0.1)
    assert {p.name for p in kept.iterdir()} == {"a", "b"}
    (kept / "b").rename(world / ".line.b")  # as a run leaves it that is killed after its merge
    assert list(MergeEachTask(line, ["a", "b"], module, experts=kept)) == []
    assert line.unmerge("b", checkpoint=kept / "b")["version"] == never
    with pytest.raises(
        RefusedInput, match=r"experts/b exists, and the expert of b is to lie there; move it away"
    ):
        next(iter(MergeEachTask(line, ["b"], module, experts=kept)))
    run = iter(MergeEachTask(line, ["c"], module, experts=kept))
    next(run)
    (kept / "c").mkdir()  # while the task was trained
    with pytest.raises(RefusedInput, match="experts/c exists"):
        next(run)
    assert [m.task for m in line.members] == ["a"]
    assert (world / ".line.c" / "model.safetensors").is_file()


def test_a_private_head_stays_the_tasks_own(world: Path) -> None:
    line = Line.create(world / "line", world / "base", private="classifier.*")
    module = Letters()
    module.register_module("classifier", torch.nn.Linear(8, 3))
    for _ in MergeEachTask(line, ["a"], module):
        move(module, 0.1)
    assert line.members[0].private == ("classifier.bias", "classifier.weight")


def test_a_failed_merge_leaves_the_expert(world: Path) -> None:
    line, module = trm(world), Letters()
    run = iter(MergeEachTask(line, world / "tasks.yaml", module))
    next(run)
    torch.nn.init.constant_(module.mix.bias, float("nan"))
    with pytest.raises(NonFinite) as caught:
        next(run)
    (note,) = caught.value.__notes__
    assert note == f"the expert is in {world}/.line.a; merge it by hand, or train it again"
    assert load_file(world / ".line.a" / "model.safetensors")["mix.bias"].isnan().all()
    assert line.members == ()


# What is refused


def one_line(error: BaseException) -> str:
    assert "\n" not in str(error)
    return str(error)


def task(name: str, labels: list[int], classes: tuple[str, ...] = CLASSES, head: str = "zero-shot") -> Any:
    texts = [f"abc{i}" for i in range(len(labels))]
    return SimpleNamespace(
        name=name,
        kind="text-classification",
        classes=classes,
        head=HeadSpec(head),  # type: ignore[arg-type]
        examples=lambda split: make_examples(texts, labels),
    )


def trained(line: Line, tasks: Any) -> list[str]:
    """Names of the tasks that a loop comes to train."""
    return [turn.name for turn in MergeEachTask(line, tasks)]


def test_no_data_for_the_current_task(world: Path) -> None:
    line = trm(world)
    with pytest.raises(RefusedInput) as caught:
        trained(line, {"a": task("a", [])})
    assert one_line(caught.value) == "a: has 0 calibration examples, and method trm looks at them; add some"
    with pytest.raises(UsageError, match="method trm computes losses on the task that comes in"):
        trained(line, ["a"])
    found: Any = load_tasks(world / "tasks.yaml")["a"]
    bare = SimpleNamespace(**{key: getattr(found, key) for key in ("name", "kind", "classes", "head")})

    def nothing(split: str) -> Any:
        raise RefusedInput(f"a: has no {split} split")

    bare.examples = nothing
    with pytest.raises(RefusedInput, match=r"^a: has no calibration split$"):
        trained(line, {"a": bare})


def test_a_head_that_does_not_cover_the_classes(world: Path) -> None:
    line = trm(world)
    with pytest.raises(RefusedInput) as caught:
        trained(line, {"a": task("a", [0, 3])})
    assert one_line(caught.value) == (
        "a: its head tells 3 classes apart and there is a label 3; give it all classes of the task"
    )
    with pytest.raises(RefusedInput, match="the network's own head has 8 classes, the task 3; use"):
        trained(line, {"a": task("a", [0, 1], head="model")})
    assert trained(line, {"a": task("a", [0, 7], tuple("abcdefgh"), "model")}) == ["a"]


def test_an_expert_that_does_not_descend_from_the_last_model(world: Path) -> None:
    line = trm(world)
    tasks = world / "tasks.yaml"
    line.merge(world / "a", "a", private="classifier.*", tasks=tasks)  # the first: the last model is the base
    last = line.digest[:12]
    with pytest.raises(RefusedInput) as caught:
        line.merge(world / "b", "b", private="classifier.*", tasks=tasks)
    assert one_line(caught.value) == (
        f"{world}/b: has no record of what it was trained from, and this line takes only experts of its last model, "
        f"{last}; train from that one (plait finetune --from, or plait.training.MergeEachTask), or say so with --from"
    )
    record = {"format": 1, "task": "b", "start": {"digest": line.log()[0]["version"], "tasks": []}}
    (world / "b" / "plait_training.json").write_text(json.dumps(record))
    with pytest.raises(RefusedInput, match=f"b: was trained from {record['start']['digest'][:12]}, and"):  # type: ignore[index]
        line.merge(world / "b", "b", private="classifier.*", tasks=tasks)
    with pytest.raises(RefusedInput, match=r"b: was trained from .* this line takes only"):
        line.merge(world / "b", "b", private="classifier.*", tasks=tasks, descends_from="0")
    assert [m.task for m in line.members] == ["a"]
    line.merge(world / "b", "b", private="classifier.*", tasks=tasks, descends_from="1")
    assert line.status()["descent"] == "last"
    assert line.status()["members"][1]["descends"]["tasks"] == ["a"]


def test_a_checkpoint_that_is_not_there_is_what_is_said(world: Path) -> None:
    with pytest.raises(PlaitError, match=r"none: "):
        trm(world).merge(world / "none", tasks=world / "tasks.yaml")


def says_its_start(checkpoint: Path, task: str, start: str) -> None:
    record = {"format": 1, "task": task, "start": {"digest": start, "tasks": []}}
    (checkpoint / "plait_training.json").write_text(json.dumps(record))


def test_a_line_without_members_takes_no_expert_of_another_model(world: Path) -> None:
    line = Line.create(world / "line", world / "base", descent="last", private="classifier.*")
    base = line.digest
    says_its_start(world / "b", "b", "f" * 64)
    with pytest.raises(RefusedInput, match=f"b: was trained from {'f' * 12}, .* its last model, {base[:12]}"):
        line.merge(world / "b", "b")
    says_its_start(world / "b", "b", base)
    line.merge(world / "b", "b")
    says_its_start(world / "c", "c", line.digest)
    line.unmerge("b")
    with pytest.raises(RefusedInput, match="c: was trained from "):
        line.merge(world / "c", "c")
    assert line.members == ()


def test_what_replaces_a_member_starts_where_that_one_did_or_from_the_last_model(world: Path) -> None:
    line = Line.create(world / "line", world / "base", descent="last", private="classifier.*")
    line.merge(world / "a", "a")
    first = line.digest
    says_its_start(world / "b", "b", first)
    line.merge(world / "b", "b")
    says_its_start(world / "c", "b", "f" * 64)
    with pytest.raises(RefusedInput, match=f"c: was trained from {'f' * 12}"):
        line.replace("b", world / "c")
    (world / "c" / "plait_training.json").unlink()
    with pytest.raises(RefusedInput, match="c: has no record of what it was trained from"):
        line.replace("b", world / "c")
    says_its_start(world / "c", "b", first)
    line.replace("b", world / "c")
    line.replace("a", world / "a")  # it says nothing, as before: the base
    says_its_start(world / "b", "b", line.digest)
    line.replace("b", world / "b")


def test_a_line_that_moved_on_while_a_task_was_trained(world: Path) -> None:
    line, module = trm(world), Letters()
    run = iter(MergeEachTask(line, world / "tasks.yaml", module))
    next(run)
    line.merge(world / "c", "c", private="classifier.*", tasks=world / "tasks.yaml")
    with pytest.raises(RefusedInput, match=r"\.line\.a: was trained from .* takes only experts of its last"):
        next(run)


def test_nothing_can_be_unmerged(world: Path) -> None:
    line, module = trm(world), Letters()
    for _ in MergeEachTask(line, world / "tasks.yaml", module):
        move(module, 0.1)
    with pytest.raises(NotRemovable) as caught:
        line.unmerge("a")
    assert one_line(caught.value).startswith("cannot unmerge a: this line keeps nothing of its members")


def test_another_network_is_refused_before_a_tensor_is_touched(world: Path) -> None:
    line = trm(world)
    wrong = Letters()
    wrong.mix = torch.nn.Linear(10, 9)
    before = {name: tensor.clone() for name, tensor in wrong.state_dict().items()}
    with pytest.raises(RefusedInput, match=r"module's mix\..* is \(9.*, in the line's model it is \(8"):
        next(iter(MergeEachTask(line, world / "tasks.yaml", wrong)))
    assert differing(dict(wrong.state_dict()), before) == []
    with pytest.raises(RefusedInput, match="the module lacks 2 of the 2 tensors of the line's model, mix"):
        next(iter(MergeEachTask(line, world / "tasks.yaml", torch.nn.Sequential(torch.nn.Linear(2, 2)))))
    with pytest.raises(UsageError, match=r"tasks is None, expected a tasks\.yaml"):
        MergeEachTask(line, None)  # type: ignore[arg-type]
    for word in ("wieght", "task"):
        with pytest.raises(
            UsageError, match=rf"{word}: expected arguments of Line\.merge that hold for every task"
        ):
            MergeEachTask(line, world / "tasks.yaml", None, None, **{word: 2.0})
    with pytest.raises(UsageError, match=r"module is a dict, expected the torch\.nn\.Module that is trained"):
        next(iter(MergeEachTask(line, world / "tasks.yaml", {"mix.weight": torch.zeros(8, 10)})))


def test_a_word_without_meaning(world: Path) -> None:
    with pytest.raises(UsageError, match="descent is 'first', expected any or last"):
        trm(world, descent="first")


# What a line of two models keeps


def test_the_store_of_a_line_that_keeps_nothing(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Base, last model and, while it is merged, the current expert: no tensor of a member before."""
    line, module = trm(world, samples=8), Letters()
    inner, during = Trm.step, []

    def step(*words: Any) -> Any:
        during.append(tensor_files(line.path))
        return inner(*words)

    monkeypatch.setattr(Trm, "step", step)
    for _ in MergeEachTask(line, world / "tasks.yaml", module):
        move(module, 0.1)
    base, last = line.log()[0]["version"], line.digest
    before = line.log()[-2]["version"]
    (state,) = set((line._head()["state"] or {}).values())
    header = 256  # bytes of a safetensors file before its two tensors, at most
    model = 4 * (8 * 10 + 8)  # fp32
    after = tensor_files(line.path)
    assert set(after) == {f"versions/{base}", f"versions/{last}", "objects"}
    assert all(model < size < model + header for size in after.values()), after
    assert line.store.objects.size(state) == after["objects"]
    assert set(during[-1]) == {
        f"versions/{base}",
        f"versions/{before}",
        "objects",
        "merge-c/member.safetensors",
        "merge-c/data.safetensors",
        "merge-c/version",
    }
    assert during[-1]["merge-c/member.safetensors"] < model + header
    assert all(m.object is None and m.objects == () for m in line.members)


def tensor_files(line: Path) -> dict[str, int]:
    """Bytes of what holds tensors in a line: everything but JSON, links and files without bytes."""
    found: dict[str, int] = {}
    for path in line.rglob("*"):
        if path.is_symlink() or not path.is_file() or not path.stat().st_size:
            continue
        start = path.read_bytes()[:9]
        if start[8:9] != b"{" or start[0:1] == b"{":
            continue
        parts = path.relative_to(line).parts
        kind = "objects" if parts[0] == "objects" else "/".join(parts[:2])
        if parts[0] == "tmp":
            kind = "/".join(parts[1:3])
        found[kind] = found.get(kind, 0) + path.stat().st_size
    return found


# The callback


def test_the_callback_of_a_trainer(world: Path) -> None:
    handler = pytest.importorskip("transformers.trainer_callback")
    line, module = trm(world), Letters()
    begin, end = "on_train_begin", "on_train_end"
    args = SimpleNamespace(output_dir=str(world / "out"))
    state = handler.TrainerState()

    def event(callback: Any, what: str) -> None:
        calls = handler.CallbackHandler([handler.DefaultFlowCallback(), callback], module, None, None, None)
        getattr(calls, what)(args, state, handler.TrainerControl())

    for name in "ab":
        callback = merge_callback(line, name, world / "tasks.yaml")
        event(callback, begin)
        assert differing(dict(module.state_dict()), read(line.model)) == []
        move(module, 0.1)
        event(callback, end)
        assert callback.merged["task"] == name
    assert line.members[1].descends == {"version": line.log()[1]["version"], "tasks": ["a"]}

    interrupted = merge_callback(line, "c", world / "tasks.yaml")
    event(interrupted, begin)
    move(module, 0.3)
    kept = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    state.global_step = 5
    again = merge_callback(world / "line", "c", load_tasks(world / "tasks.yaml"))
    event(again, begin)
    assert differing(dict(module.state_dict()), kept) == [], "its own weights go on"
    event(again, end)
    assert Line.open(world / "line").members[2].descends["tasks"] == ["a", "b"]  # type: ignore[index]
    with pytest.raises(RefusedInput, match=r"plait_start\.json: is of task c, this run is of d"):
        event(merge_callback(line, "d", world / "tasks.yaml"), begin)
    state.global_step = 0
    with pytest.raises(RefusedInput, match="task c is a member already"):
        event(merge_callback(line, "c", world / "tasks.yaml"), begin)
