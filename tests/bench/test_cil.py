"""The class-incremental setting: groups of classes, heads, what each entrant does, and a whole run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from plait.bench import cil, cil_bench, cil_table, results, tiny
from plait.bench.cil_data import Setup, Stream, World, describe, together, world_of
from plait.bench.cil_learners import EwcLearner, GemLearner, Learner, Lesson, Model, learner
from plait.bench.cil_methods import METHODS, parse
from plait.bench.cil_run import figures, run_stream
from plait.bench.suites import Sources
from plait.cli import main
from plait.demo.minilm import Encoder, load
from plait.errors import RefusedInput, UsageError
from plait.evaluation.metrics import class_incremental_accuracy
from plait.methods.memory import apply
from plait.methods.registry import make
from plait.problem.objective import Objective
from plait.training import Recipe
from plait.training.loop import train

RECIPE = Recipe(examples=0, epochs=1, batch=8, rate=3e-4)


@pytest.fixture(scope="module")
def setup(base: Path) -> Setup:
    return Setup("cil-tiny", Sources(), base, 6, None, RECIPE)


@pytest.fixture(scope="module")
def world(setup: Setup) -> World:
    return world_of(setup)


@pytest.fixture(scope="module")
def stream(world: World) -> Stream:
    return Stream(world, "words", 3, 42)


def lessons(stream: Stream) -> list[Lesson]:
    return [Lesson(i, stream.head(i + 1), stream.examples("train", i), {}) for i in range(len(stream))]


def learned(goes: Learner, stream: Stream, count: int = 2) -> list[Model]:
    """The model after each of the first groups."""
    model = {name: goes.world.base[name] for name in goes.world.names}
    models = []
    for lesson in lessons(stream)[:count]:
        model = goes.learn(Lesson(lesson.place, lesson.head, lesson.examples, model))
        models.append(model)
    return models


def go(world: World, stream: Stream, text: str, count: int = 2) -> list[Model]:
    found = parse(text)
    return learned(learner(world, found.name, found.words(), 42), stream, count)


def equal(one: Model, other: Model) -> bool:
    return all(torch.equal(one[name], other[name]) for name in other)


# Groups


def test_groups_hold_every_class_once() -> None:
    order = cil.order(77, 42)
    assert sorted(order) == list(range(77))
    assert order != cil.order(77, 43)
    made = cil.groups(order, 10)
    assert [label for group in made for label in group] == order
    assert [len(group) for group in made] == [8] * 7 + [7] * 3


def test_splits_by_their_names() -> None:
    text = cil.find("cil-text")
    assert text.pairs(None) == [
        ("clinc150", 5), ("clinc150", 10), ("clinc150", 15), ("banking77", 7), ("banking77", 11),
    ]  # fmt: skip
    assert text.pairs(["7", "clinc150/10"]) == [("clinc150", 10), ("banking77", 7)]
    assert text.pairs(["banking77"]) == [("banking77", 7), ("banking77", 11)]
    with pytest.raises(UsageError, match=r"splits '6' are none of cil-text; choose of: clinc150/5, "):
        text.pairs(["6"])
    with pytest.raises(UsageError, match="suite 'x' is not known; choose one of: cil-text"):
        cil.find("x")


def test_examples_of_a_group_are_those_of_its_classes(stream: Stream, world: World) -> None:
    first = 0
    whole = tiny.make_all().examples("test")
    assert whole.labels is not None
    known = dict(zip(whole.inputs, whole.labels.tolist(), strict=True))
    for place, group in enumerate(stream.groups):
        for split in ("train", "test"):
            examples = stream.examples(split, place)
            assert examples.labels is not None
            assert set(examples.labels.tolist()) == set(range(first, first + len(group)))
            if split == "train":
                assert examples.labels.bincount()[first:].tolist() == [6] * len(group)
            else:
                own = [known[text] for text in examples.inputs]
                assert [stream.order[label] for label in examples.labels.tolist()] == own
        first += len(group)


def test_a_head_knows_the_classes_seen_and_no_more(stream: Stream, base: Path) -> None:
    encoder, task = Encoder.of(base), tiny.make_all()
    named = [encoder.embed_all(load(base), [t.format(c) for c in task.classes]) for t in task.head.templates]
    wanted = torch.nn.functional.normalize(named[0] + named[1], dim=-1)
    for count in (1, 2, 3):
        seen = [label for group in stream.groups[:count] for label in group]
        head: Any = stream.head(count)
        assert torch.allclose(head.classes, wanted[seen], atol=1e-5)


def test_means_of_features_as_a_head(world: World, monkeypatch: pytest.MonkeyPatch, base: Path) -> None:
    examples = world.examples("words", "train")
    found = Encoder.of(base).embed_all(load(base), examples.inputs)
    assert examples.labels is not None
    means = torch.stack([found[examples.labels == label].mean(0) for label in range(7)])
    wanted = torch.nn.functional.normalize(means, dim=1)
    assert torch.allclose(world._means("words"), wanted, atol=1e-5)


# Entrants


def test_every_entrant_is_understood_and_the_wrong_ones_are_not() -> None:
    assert [parse(text).label for text in METHODS] == list(METHODS)
    assert parse("ewc samples=8 strength=2").words() == {"strength": 2.0, "samples": 8}
    assert parse("ewc").grid(3) == ("strength", [1e2, 1e4, 1e6])
    assert parse("ewc strength=2").grid(3) == parse("trm pre=0").grid(3) == (None, [])
    assert parse("trm").grid(2) == ("pre", [0.1, 1.0])
    assert parse("ema").grid(5) == ("alpha", [0.5, 0.6, 0.7, 0.8, 0.9])
    assert parse("sequential").grid(5) == parse("ema").grid(1) == (None, [])
    for text, message in (
        ("gem gama=1", "'gama=1' in 'gem gama=1' is no option; gem has batch, gamma, memory, as KEY=VALUE"),
        ("ema alpha=2", "alpha is 2"),
        (
            "fisher",
            "method fisher wants Fisher information of each task, which this setting does not compute; leave it out",
        ),
        ("nothing", "method 'nothing' is not known"),
    ):
        with pytest.raises(UsageError, match=message):
            parse(text)


def test_each_group_is_trained_from_the_model_before(
    world: World, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[Model] = []
    inner = Learner.train

    def learn(self: Learner, lesson: Lesson, adjust: Any) -> Model:
        starts.append(lesson.model)
        return inner(self, lesson, adjust)

    monkeypatch.setattr(Learner, "train", learn)
    models = go(world, stream, "average", 3)
    assert equal(starts[0], {name: world.base[name] for name in world.names})
    assert equal(starts[1], models[0])
    assert equal(starts[2], models[1])


def test_sequential_fine_tuning_is_the_loop_again_and_again(world: World, stream: Stream) -> None:
    weights = dict(world.base)
    for place, model in enumerate(go(world, stream, "sequential")):
        examples, recipe = stream.examples("train", place), replace(RECIPE, seed=42_000 + place)
        head = stream.head(place + 1)
        weights |= train(world.network, head, weights, examples, recipe, names=world.names).weights
        assert equal(model, {name: weights[name] for name in world.names})


def test_a_constant_alpha_has_its_ends(world: World, stream: Stream) -> None:
    sequential = go(world, stream, "sequential")
    assert not equal(sequential[0], sequential[1])
    assert equal(go(world, stream, "ema alpha=1")[1], sequential[1])
    kept = go(world, stream, "ema alpha=0")
    assert equal(kept[1], kept[0])
    by_trm, by_ema = (go(world, stream, f"{name} alpha=0.7")[1] for name in ("trm", "ema"))
    for name, tensor in by_ema.items():  # two ways to round one line
        assert torch.allclose(by_trm[name], tensor, rtol=0, atol=1e-6)


def test_a_method_merges_the_task_vectors_from_the_base(
    world: World, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    experts: list[Model] = []
    inner = Learner.train

    def learn(self: Learner, lesson: Lesson, adjust: Any) -> Model:
        experts.append(inner(self, lesson, adjust))
        return experts[-1]

    monkeypatch.setattr(Learner, "train", learn)
    models = go(world, stream, "ties scale=0.7")
    base = {name: world.base[name] for name in world.names}
    for count in (1, 2):
        assert equal(models[count - 1], apply(make("ties", {"scale": 0.7}), base, experts[:count]))


def test_trm_sees_the_newest_group_alone_and_ode_m_all(
    world: World, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    for name, options in (("trm", {"steps": 0}), ("ode_m", {"refine": 0})):
        goes: Any = learner(world, name, make(name, options).options(), 42)

        def step(method: Any, state: Any, base: Any, expert: Any, members: Any, problem: Any) -> Any:
            seen.append([type(one).__name__ for one in problem.values()])
            return dict(expert), {}

        monkeypatch.setattr(type(goes.rule), "step", step)
        learned(goes, stream)
        assert goes.models == 2.0
        assert goes.samples == (0 if name == "trm" else sum(len(stream.examples("train", i)) for i in (0, 1)))
    assert seen == [["Objective"], ["Absent", "Objective"], ["Objective"], ["Objective", "Objective"]]


def test_ewc_pulls_by_the_fisher_information_of_the_groups_before(world: World, stream: Stream) -> None:
    sequential = go(world, stream, "sequential")
    assert equal(go(world, stream, "ewc strength=0")[1], sequential[1])
    assert not equal(go(world, stream, "ewc strength=1e6")[1], sequential[1])
    goes = learner(world, "ewc", {"strength": 3.0, "samples": 5}, 42)
    assert isinstance(goes, EwcLearner)
    models = learned(goes, stream)
    wanted = {name: torch.zeros_like(world.base[name]) for name in world.names}
    for lesson, model in zip(lessons(stream), models, strict=False):
        whole = Objective(world.network, lesson.head, lesson.examples, fixed=world.base)
        drawn = whole.sample(5, 42)
        for row in drawn.rows:  # one example at a time
            alone = drawn.sample(len(drawn), 0)
            alone.rows = (row,)
            for name, slope in alone.loss_and_gradient(model, world.names)[1].items():
                wanted[name] += slope.square() / len(drawn)
    for name, one in goes.fisher.items():
        scale = float(wanted[name].abs().max())
        assert torch.allclose(one, wanted[name], rtol=1e-3, atol=1e-4 * scale + 1e-12), name
    adjust = goes.adjust(Lesson(2, stream.head(3), stream.examples("train", 2), models[1]))
    assert adjust is not None
    leaves = {name: (tensor + 0.5).requires_grad_() for name, tensor in models[1].items()}
    table = world.names[0]
    leaves[table].grad = torch.ones_like(leaves[table])
    adjust(leaves)
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        pull = 3.0 * goes.fisher[name] * 0.5 + (1.0 if name == table else 0.0)
        assert torch.allclose(leaf.grad, pull, rtol=1e-4, atol=1e-6)


def test_gem_keeps_examples_and_turns_gradients(world: World, stream: Stream) -> None:
    goes = learner(world, "gem", {"gamma": 0.0, "memory": 7, "batch": 0}, 42)
    assert isinstance(goes, GemLearner)
    models = learned(goes, stream)
    assert [len(one) for one in goes.memory] == [7, 7]
    assert (goes.samples, goes.models) == (14, 1.0)
    lesson = Lesson(2, stream.head(3), stream.examples("train", 2), models[1])
    adjust = goes.adjust(lesson)
    assert adjust is not None
    old = [goes.objective(lesson, one).loss_and_gradient(models[1])[1] for one in goes.memory]
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in models[1].items()}
    for name, leaf in leaves.items():
        leaf.grad = -old[0][name] - old[1][name]
    adjust(leaves)
    size = float(sum(slope.square().sum() for slope in old[0].values()))
    for one in old:
        inner = sum(
            float((leaf.grad * one[name]).sum()) for name, leaf in leaves.items() if leaf.grad is not None
        )
        assert inner > -1e-4 * size


# Runs


def test_a_run_is_a_plain_loop(setup: Setup, world: World, stream: Stream) -> None:
    found = run_stream(setup, "words", 3, 42, "sequential", {}, "test")
    models = go(world, stream, "sequential", 3)
    for count, model in enumerate(models, 1):
        whole = together([stream.examples("test", i) for i in range(count)])
        head: Any = stream.head(count)
        predicted = plain(world, model, whole.inputs, head.classes)
        assert whole.labels is not None
        seen = set(range(len(head.classes)))
        wanted = class_incremental_accuracy(predicted, whole.labels.tolist(), seen)
        assert found["figures"]["seen"][count - 1] == pytest.approx(wanted)
        assert [right is None for right in found["right"][count - 1]] == [i >= count for i in range(3)]
    assert found["figures"]["final"] == found["figures"]["seen"][-1]
    assert found["classes"] == [3, 2, 2]
    assert len(found["training"]) == len(found["merging"]) == len(found["seconds"]) == 3
    assert (found["models"], found["samples"]) == (1.0, 0)


def plain(world: World, model: Model, texts: list[str], rows: Tensor) -> list[int]:
    encoder = Encoder.of(world.setup.base)
    found: list[int] = (encoder.embed_all({**world.base, **model}, texts) @ rows.T).argmax(1).tolist()
    return found


def test_joint_training_sees_all_groups_at_once(setup: Setup) -> None:
    found = run_stream(setup, "words", 3, 42, "joint", {}, "test")
    assert found["right"][:2] == [[None] * 3] * 2
    assert found["samples"] == 7 * 6
    assert (found["figures"]["average"], found["figures"]["forgetting"]) == (None, None)
    assert found["figures"]["final"] > 1 / 7


def test_figures_by_hand() -> None:
    found = figures([[8, None], [4, 6]], [10, 20])
    assert found == {
        "final": 10 / 30,
        "average": pytest.approx((0.8 + 10 / 30) / 2),
        "forgetting": pytest.approx(0.4),
        "seen": [0.8, 10 / 30],
    }


class Inline:
    """Jobs done at once, in this process."""

    def __init__(self) -> None:
        self.jobs: list[Any] = []

    def submit(self, job: Callable[..., Any], *words: Any) -> Future[Any]:
        self.jobs.append((job.__name__, *words[1:]))
        done: Future[Any] = Future()
        done.set_result(job(*words))
        return done


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> Inline:
    pool = Inline()

    @contextmanager
    def executor(count: int, begin: Any) -> Iterator[Inline]:
        yield pool

    monkeypatch.setattr(cil_bench, "executor", executor)
    return pool


def test_a_run_goes_on_and_is_shown(
    base: Path, tmp_path: Path, inline: Inline, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r.json"
    words = ["cil", "cil-tiny", "--cache", str(tmp_path / "cache"), "--out", str(out), "--each", "4"]
    words += ["--epochs", "1", "--budget", "2", "--orders"]
    assert main(["bench", *words, "42", "--methods", "ema,sequential,joint", "--quiet"]) == 0
    shown = capsys.readouterr().out
    assert "words: 7 classes in 3 groups, 1 order (42)" in shown
    tuned = [job for job in inline.jobs if job[0] == "run_stream" and job[-1] == "validation"]
    assert [(job[3], job[5]) for job in tuned] == [(7, {"alpha": 0.5}), (7, {"alpha": 0.7})]
    inline.jobs.clear()
    assert main(["bench", *words, "42-43", "--methods", "ema,sequential,joint", "--quiet"]) == 0
    capsys.readouterr()
    assert [job[3:5] for job in inline.jobs if job[0] == "run_stream"] == [
        (43, "ema"), (43, "sequential"), (43, "joint"),
    ]  # fmt: skip
    found = results.read(out, results.CIL)
    assert len(found["cells"]) == 6
    assert len(found["runs"]) == 2
    assert found["tasks"]["words"]["classes"] == 7
    tuning = found["methods"]["ema"]["sets"]["words"]["tuning"]
    assert found["methods"]["ema"]["sets"]["words"]["options"] == {"alpha": tuning["chosen"]}
    text = "\n".join(cil_table.markdown(found))
    assert "Made up; the figures mean nothing." in text
    assert "| method | orders | final | average |" in text
    (block,) = cil_table.blocks(found)
    assert {row[0].split()[0] for row in block[1]} == {"ema", "sequential", "joint"}
    assert main(["bench", "table", str(out)]) == 0
    assert capsys.readouterr().out.startswith("cil-tiny: Made up")
    assert str(tmp_path) not in out.read_text()
    with pytest.raises(RefusedInput, match=r"holds results with setting\.each 4, this run has 5"):
        cil_bench.run(
            cil_bench.Asked("cil-tiny", out, tmp_path / "cache", each=5, recipe={"epochs": 1}, budget=2)
        )


def test_words_that_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PLAIT_DATA", raising=False)
    for words, message in (
        (
            ("cil-tiny", "--orders", "7"),
            "seed 7 is the order by which options are chosen, and is not reported",
        ),
        (("cil-tiny", "--last"), "--last is for `plait bench run`; leave it out of cil"),
        (("tiny",), "suite 'tiny' is not known; choose one of: cil-text, cil-images, cil-tiny"),
        (("cil-tiny", "--device", "tpu"), "device is tpu, expected cpu or cuda"),
        (("cil-tiny", "--splits", "4"), "splits '4' are none of cil-tiny; choose of: words/3"),
        (("cil-text",), "suite cil-text needs data: give its folder with --data"),
        ((), "a suite is needed: plait bench cil SUITE"),
    ):
        assert main(["bench", "cil", *words, "--cache", str(tmp_path)]) != 0
        assert message in capsys.readouterr().err
    assert main(["bench", "run", "tiny", "--methods", "average", "--splits", "5"]) == 2
    assert "--splits is for `plait bench cil`; leave it out of run" in capsys.readouterr().err
    assert main(["bench", "cil", "cil-tiny", "--rate", "0"]) == 2
    assert "'0' is no learning rate; expected a number above 0" in capsys.readouterr().err


def test_a_data_set_is_described(setup: Setup) -> None:
    found = describe(setup, "words")
    assert (found["classes"], found["head"]) == (7, "names")
    assert found["train"]["examples"] == 7 * 6
    assert found["test"]["examples"] == 3 * 24
    assert json.dumps(found)
