"""What a process measures and keeps, against a plain way to the same figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from plait.bench import worker
from plait.bench.results import Score
from plait.bench.suites import Sources
from plait.bench.worker import Model, Setup, World, remembering
from plait.demo.minilm import Encoder, load
from plait.problem.network import module_network


@pytest.fixture
def setup(base: Path) -> Setup:
    return Setup("tiny", Sources(), base, 20)


def changed(base: Path, folder: Path) -> Path:
    """A checkpoint that answers otherwise than the base."""
    from plait.demo.minilm import save

    torch.manual_seed(0)
    folder.mkdir()
    weights = load(base)
    save(
        folder, {n: w + 0.5 * w.std() * torch.randn_like(w) for n, w in weights.items() if w.dim() > 1}, base
    )
    return folder


def plainly(base: Path, model: Path, task: str) -> Score:
    """The accuracy by the demo's encoder: nearest class name, both embedded."""
    from plait.bench import tiny

    encoder, made = Encoder.of(base), tiny.make(task, 20)
    start, weights = load(base), load(model)
    named = [encoder.embed_all(start, [t.format(c) for c in made.classes]) for t in ("{}", "a {}")]
    head = torch.nn.functional.normalize(named[0] + named[1], dim=-1)
    examples = made.examples("test")
    found = (encoder.embed_all(weights, examples.inputs) @ head.T).argmax(-1)
    assert examples.labels is not None
    return Score(int((found == examples.labels).sum()), 20)


def test_accuracies_are_those_of_a_plain_loop(setup: Setup, base: Path, tmp_path: Path) -> None:
    other = changed(base, tmp_path / "other")
    apart = 0
    for task in ("kind", "mood", "when"):
        before = worker.measure(setup, Model(base), task, "test")
        after = worker.measure(setup, Model(other), task, "test")
        assert (before, after) == (plainly(base, base, task), plainly(base, other, task))
        apart += before != after
    assert apart, "both models answer alike: the test cannot tell them apart"
    assert worker.measure(setup, Model(base), "kind", "validation").count == 16


def test_the_head_is_the_bases_whatever_ran_before(setup: Setup, base: Path, tmp_path: Path) -> None:
    other = Model(changed(base, tmp_path / "other"))
    late, early = World(setup), World(setup)
    late.weights(other)
    heads: list[Any] = [late.head("mood"), early.head("mood")]
    assert torch.equal(heads[0].classes, heads[1].classes)


def test_a_model_is_read_once_for_many_tasks(
    setup: Setup, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(setup)
    reads: list[Model] = []
    held = world._refs

    def read(model: Model) -> Any:
        reads.append(model)
        return held(model)

    monkeypatch.setattr(world, "_refs", read)
    for _ in range(3):
        world.weights(Model(base))
    assert len(reads) == 1


def test_an_expert_may_lack_what_is_not_merged(setup: Setup, base: Path, tmp_path: Path) -> None:
    other = changed(base, tmp_path / "other")
    assert worker.measure(setup, Model(other, expert=True), "kind", "test") == plainly(base, other, "kind")


def test_texts_become_tokens_once() -> None:
    calls: list[Any] = []

    def encode(inputs: Any) -> list[Any]:
        calls.append(list(inputs))
        return [one.upper() if isinstance(one, str) else one for one in inputs]

    network = remembering(module_network(torch.nn.Linear(1, 1), encode=encode))
    assert network.encode(["a", "b", "a"]) == ["A", "B", "A"]
    assert network.encode(["c", "b"]) == ["C", "B"]
    assert network.encode(["b", "a"]) == ["B", "A"]
    assert calls == [["a", "b"], ["c"]]
    assert [network.encode([1, 2]), network.encode([1, 2])] == [[1, 2], [1, 2]]
    assert calls[2:] == [[1, 2], [1, 2]], "what is no text is not kept"


def test_a_task_in_words(setup: Setup) -> None:
    found = worker.describe(setup, "kind")
    assert found["classes"] == 3
    assert found["head"] == "zero-shot"
    assert {s: found[s]["examples"] for s in ("train", "validation", "test")} == {
        "train": 110,
        "validation": 16,
        "test": 20,
    }
    assert len({found[s]["data"] for s in ("train", "validation", "test")} | {found["head_digest"]}) == 4
