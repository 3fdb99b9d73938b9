"""Inputs that are made from a model alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

from plait.errors import RefusedInput, UsageError
from plait.problem.base import Network
from plait.problem.heads import Linear
from plait.problem.module import ModuleNetwork, strip
from plait.problem.network import open_network
from plait.problem.objective import Objective
from plait.problem.synthetic import Recipe, synthesise
from tests.problem.folders import bert, weights_of
from tests.problem.nets import Toy, perceptron

CLASSES = 3
QUICK = Recipe(each=2, steps=30, length=5)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.last = nn.Linear(4, CLASSES)

    def forward(self, pixels: Tensor) -> Tensor:
        made: Tensor = self.last(torch.tanh(self.first(pixels)).mean((2, 3)))
        return made


def images() -> tuple[ModuleNetwork, dict[str, Tensor]]:
    torch.manual_seed(0)
    module = Small()
    weights = {name: tensor.detach().clone() * 3 for name, tensor in module.state_dict().items()}
    strip(module, torch.device("cpu"), torch.float32)

    def collate(rows: Sequence[Any]) -> dict[str, Tensor]:
        return {
            "pixel_values": torch.stack([torch.as_tensor(r).permute(2, 0, 1) for r in rows]).float() / 255
        }

    network = ModuleNetwork(
        module,
        {name: name for name in weights},
        torch.device("cpu"),
        torch.float32,
        encoder=list,
        collator=collate,
        to_outputs=lambda net, batch: net(batch["pixel_values"]),
        length=lambda one: 0,
    )
    return network, weights


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("bert")
    bert(made)
    return made


def texts(folder: Path) -> tuple[Network, Linear, dict[str, Tensor]]:
    network = open_network(folder, "text-classification")
    weights = weights_of(folder)
    width = weights["embeddings.word_embeddings.weight"].shape[1]
    torch.manual_seed(1)
    return network, Linear(torch.randn(CLASSES, width), torch.zeros(CLASSES)), weights


IMAGE = numpy.zeros((6, 5, 3), dtype=numpy.uint8)


def test_texts_climb_to_their_class(folder: Path) -> None:
    network, head, weights = texts(folder)
    before = {name: tensor.clone() for name, tensor in weights.items()}
    noise = synthesise("t", network, head, CLASSES, weights, replace(QUICK, steps=0))
    made = synthesise("t", network, head, CLASSES, weights, QUICK)
    assert len(made) == len(noise) == 2 * CLASSES
    assert made.feed.examples.labels is not None
    assert made.feed.examples.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert made.feed.examples.inputs[0].shape == (5, weights["embeddings.word_embeddings.weight"].shape[1])
    assert made.loss(weights) < 0.5 * noise.loss(weights)
    assert all(torch.equal(weights[name], tensor) for name, tensor in before.items())


def test_images_climb_to_their_class() -> None:
    network, weights = images()
    noise = synthesise("t", network, None, CLASSES, weights, replace(QUICK, steps=0), like=IMAGE)
    made = synthesise("t", network, None, CLASSES, weights, QUICK, like=IMAGE)
    assert made.feed.examples.inputs[0].shape == (3, 6, 5)
    assert made.loss(weights) < 0.8 * noise.loss(weights)


def test_batches_that_are_a_tensor_of_images() -> None:
    network, weights = images()
    plain = replace(
        network,
        collator=lambda rows: network.collator(rows)["pixel_values"],
        to_outputs=lambda net, batch: net(batch),
    )
    one = synthesise("t", network, None, CLASSES, weights, QUICK, like=IMAGE)
    assert synthesise("t", plain, None, CLASSES, weights, QUICK, like=IMAGE).digest == one.digest
    other = replace(network, collator=lambda rows: {"images": torch.as_tensor(rows[0])[None]})
    with pytest.raises(RefusedInput, match="hold none as pixel_values"):
        synthesise("t", other, None, CLASSES, weights, QUICK, like=IMAGE)


def test_smoother_images() -> None:
    network, weights = images()

    def variation(smooth: float) -> float:
        recipe = replace(QUICK, smooth=smooth)
        made = synthesise("t", network, None, CLASSES, weights, recipe, like=IMAGE).feed.examples.inputs
        return sum(float((one[..., 1:] - one[..., :-1]).abs().mean()) for one in made)

    assert variation(30.0) < 0.7 * variation(0.0)


def test_the_batch_size_changes_only_rounding(folder: Path) -> None:
    network, head, weights = texts(folder)
    one = synthesise("t", network, head, CLASSES, weights, QUICK, batch=1).feed.examples.inputs
    all_ = synthesise("t", network, head, CLASSES, weights, QUICK, batch=32).feed.examples.inputs
    torch.testing.assert_close(torch.stack(one), torch.stack(all_), atol=1e-3, rtol=0)


def test_task_and_seed_decide_the_noise(folder: Path) -> None:
    network, head, weights = texts(folder)

    def digest(task: str, seed: int) -> str:
        return synthesise(task, network, head, CLASSES, weights, replace(QUICK, seed=seed)).digest

    assert digest("a", 0) == digest("a", 0)
    assert len({digest("a", 0), digest("b", 0), digest("a", 1)}) == 3


def test_gradients_by_weights_exist(folder: Path) -> None:
    network, head, weights = texts(folder)
    made: Objective = synthesise("t", network, head, CLASSES, weights, QUICK)
    _, gradient = made.loss_and_gradient(weights)
    assert float(gradient["encoder.layer.0.intermediate.dense.weight"].abs().max()) > 0
    assert not gradient["embeddings.word_embeddings.weight"].any()  # no token is looked up


def test_what_cannot_be(folder: Path) -> None:
    network, weights = images()
    with pytest.raises(RefusedInput, match="no embedding of tokens"):
        synthesise("t", network, None, CLASSES, weights, QUICK)
    with pytest.raises(RefusedInput, match="no torch module"):
        synthesise("t", Toy(lambda: perceptron(2, 3)), None, CLASSES, {}, QUICK)
    with pytest.raises(UsageError, match="0 classes"):
        synthesise("t", network, None, 0, weights, QUICK, like=IMAGE)
