"""The steps, against AdamW written out from the paper, and what they leave alone."""

from __future__ import annotations

from math import cos, pi
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from plait.errors import NonFinite, RefusedInput
from plait.problem.base import Examples
from plait.problem.heads import Linear
from plait.problem.network import module_network, open_network
from plait.problem.objective import Objective
from plait.training import loop
from plait.training.choice import parameters
from plait.training.loop import train
from plait.training.recipe import Recipe
from tests.problem import nets
from tests.training.world import ROWS, TABLE, WIDTH, WORDS, read, write_base

G = torch.Generator().manual_seed(0)
POINTS = torch.randn(12, 3, generator=G, dtype=torch.float64)
EXAMPLES = Examples(POINTS, torch.arange(12) % 2, "points")
START = {
    "weight": torch.randn(2, 3, generator=G, dtype=torch.float64),
    "bias": torch.randn(2, generator=G, dtype=torch.float64),
}


def linear() -> Any:
    return module_network(nn.Linear(3, 2), dtype="float64")


def by_the_paper(recipe: Recipe, steps: int) -> dict[str, Tensor]:
    """AdamW (arXiv 1711.05101, algorithm 2) on all points at once; the gradient of the mean cross-entropy by hand."""
    theta = {name: tensor.clone() for name, tensor in START.items()}
    m = {name: torch.zeros_like(tensor) for name, tensor in theta.items()}
    v = {name: torch.zeros_like(tensor) for name, tensor in theta.items()}
    for t in range(1, steps + 1):
        logits = POINTS @ theta["weight"].T + theta["bias"]
        slope = torch.softmax(logits, 1)
        slope[torch.arange(12), torch.arange(12) % 2] -= 1
        gradient = {"weight": slope.T @ POINTS / 12, "bias": slope.sum(0) / 12}
        done = (t - 1) / steps
        if done < recipe.warmup:
            eta = recipe.rate * (done + 0.001) / recipe.warmup
        else:
            eta = recipe.rate * (1 + cos(pi * (done - recipe.warmup) / (1 - recipe.warmup))) / 2
        for name in theta:
            m[name] = 0.9 * m[name] + 0.1 * gradient[name]
            v[name] = 0.999 * v[name] + 0.001 * gradient[name] ** 2
            step = (m[name] / (1 - 0.9**t)) / ((v[name] / (1 - 0.999**t)).sqrt() + 1e-8)
            theta[name] = theta[name] - eta * step - eta * recipe.weight_decay * theta[name]
    return theta


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("warmup", [0.0, 0.25])
def test_the_steps_are_those_of_the_paper(decay: float, warmup: float) -> None:
    recipe = Recipe(epochs=20, rate=0.05, batch=12, warmup=warmup, weight_decay=decay)
    before = {name: tensor.clone() for name, tensor in START.items()}
    found = train(linear(), None, START, EXAMPLES, recipe)
    wanted = by_the_paper(recipe, 20)
    assert len(found.losses) == 20
    for name, tensor in found.weights.items():
        # 20 steps of a few roundings each of numbers around 1; the decay is multiplied in before, not added
        assert (tensor - wanted[name]).abs().max() <= 1e-13
        assert torch.equal(START[name], before[name])
        assert not torch.equal(tensor, before[name])
    assert found.losses[-1] < found.losses[0]


def test_the_last_batch_of_an_epoch_may_be_smaller() -> None:
    told: list[Any] = []

    class Gauge:
        def begin(self, label: str, total: int) -> None:
            told.append((label, total))

        def advance(self, count: int) -> None:
            told.append(count)

        def end(self) -> None:
            told.append("end")

    found = train(linear(), None, START, EXAMPLES, Recipe(epochs=2, batch=5), progress=Gauge())
    assert len(found.losses) == 6
    assert told == [("training", 6), *[1] * 6, "end"]


def test_the_first_loss_is_that_of_the_objective() -> None:
    network = nets.Texts(lambda: nets.Transformer(causal=True))
    start, texts = nets.draw(network, 0), nets.sentences(6, classes=None)
    wanted = Objective(network, None, texts).loss(start)  # over tokens, not texts
    (found,) = train(network, None, start, texts, Recipe(epochs=1, batch=6)).losses
    assert found == pytest.approx(wanted, rel=1e-12)
    dense = Objective(linear(), None, EXAMPLES)
    (found,) = train(linear(), None, START, EXAMPLES, Recipe(epochs=1, batch=12)).losses
    assert found == pytest.approx(dense.loss(START), rel=1e-12)


def test_a_frozen_head_is_not_trained() -> None:
    network = module_network(nn.Linear(3, 4), features=lambda module, batch: module(batch), dtype="float64")
    start = {"weight": torch.ones(4, 3).double(), "bias": torch.zeros(4).double()}
    matrix = torch.randn(2, 4, generator=G, dtype=torch.float64)
    head = Linear(matrix.clone(), torch.zeros(2).double())
    found = train(network, head, start, EXAMPLES, Recipe(rate=0.1))
    assert torch.equal(head.weight, matrix)
    assert set(found.weights) == {"weight", "bias"}


class Normed(nn.Module):
    """Has all that is no parameter to train: a running statistic, and a table that is held fixed."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.out = nn.Linear(3, 2)
        self.fixed = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.out(self.norm(x) * self.fixed)
        return made


def test_buffers_and_fixed_tensors_stay() -> None:
    network = module_network(Normed(), dtype="float64")
    assert set(network.names) >= {"norm.running_mean", "fixed"}
    assert set(parameters(network)) == {"norm.weight", "norm.bias", "out.weight", "out.bias"}
    start = {
        name: torch.ones_like(tensor, device="cpu") for name, tensor in Normed().double().state_dict().items()
    }
    found = train(network, None, start, EXAMPLES, Recipe(rate=0.1))
    assert set(found.weights) == set(parameters(network))
    assert torch.equal(start["norm.running_mean"], torch.ones(3).double())


def test_only_the_names_that_are_asked_for_are_trained() -> None:
    found = train(linear(), None, START, EXAMPLES, Recipe(rate=0.1), names=["bias"])
    assert list(found.weights) == ["bias"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("loop") / "base")


def of_texts(base: Path, **words: Any) -> loop.Trained:
    rows = [row for row in ROWS if "elm" not in row[0]]
    examples = Examples([text for text, _ in rows], torch.tensor([label for _, label in rows]), "texts")
    head = Linear(torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(1)), torch.zeros(3))
    network = open_network(base, "text-classification")
    return train(network, head, read(base), examples, Recipe(rate=1e-2, batch=4, **words))


def test_leaving_unused_words_out_changes_no_bit(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = of_texts(base)
    monkeypatch.setattr(loop, "token_table", lambda network: None)
    slow = of_texts(base)
    assert fast.losses == slow.losses
    assert fast.weights.keys() == slow.weights.keys()
    assert all(torch.equal(one, slow.weights[name]) for name, one in fast.weights.items())
    moved = (fast.weights[TABLE] != read(base)[TABLE]).any(1)
    # without [PAD], which is masked, [UNK] and the word that no text has
    assert [word for word, gone in zip(WORDS, moved, strict=True) if not gone] == ["[PAD]", "[UNK]", "elm"]


def test_weight_decay_shrinks_unused_words_too(base: Path) -> None:
    found = of_texts(base, weight_decay=0.5).weights[TABLE]
    unused = WORDS.index("elm")
    assert (found[unused].abs() < read(base)[TABLE][unused].abs()).all()


def test_a_table_that_is_not_trained_stays_out_of_it(base: Path) -> None:
    network = open_network(base, "text-classification")
    examples = Examples(["a red oak", "the cat"], torch.tensor([0, 1]), "two")
    head = Linear(torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(1)), torch.zeros(2))
    found = train(network, head, read(base), examples, Recipe(), names=["embeddings.LayerNorm.bias"])
    assert list(found.weights) == ["embeddings.LayerNorm.bias"]


def test_training_that_diverges_names_the_step() -> None:
    wide = Examples(POINTS * 1e200, EXAMPLES.labels, "wide")
    with pytest.raises(
        NonFinite, match=r"^heights: the loss is (nan|inf) at step [2-9]\d* of 60; lower the rate"
    ):
        train(linear(), None, START, wide, Recipe(epochs=10, rate=1e200, batch=2), what="heights")


def test_a_start_that_is_nan_is_not_blamed_on_the_rate() -> None:
    start = {**START, "bias": torch.tensor([float("nan"), 0.0]).double()}
    with pytest.raises(
        NonFinite, match=r"step 1 of 6; bias holds NaN or infinity before anything was trained"
    ):
        train(linear(), None, start, EXAMPLES, Recipe(epochs=1, batch=2))


def test_what_breaks_in_the_last_step_is_seen_too() -> None:
    with pytest.raises(NonFinite, match=r"weight is NaN or infinite after the last step; lower the rate"):
        train(
            linear(), None, START, EXAMPLES, Recipe(epochs=1, batch=12, rate=1e308, warmup=0, weight_decay=9)
        )


def test_it_trains_where_gradients_were_switched_off() -> None:
    with torch.no_grad():
        found = train(linear(), None, START, EXAMPLES, Recipe(rate=0.1))
    assert not torch.equal(found.weights["bias"], START["bias"])


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        (Examples(POINTS, torch.arange(12), "many"), "the head has 2 classes and there is a label 11"),
        (Examples(POINTS[:0], torch.zeros(0, dtype=torch.int64), "none"), "there are 0 examples"),
    ],
    ids=["labels", "none"],
)
def test_examples_that_do_not_fit(examples: Examples, message: str) -> None:
    with pytest.raises(RefusedInput, match=message):
        train(linear(), None, START, examples, Recipe())
