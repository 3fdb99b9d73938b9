"""One model on one task: answers, example by example, also for texts that are continued."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from plait.errors import RefusedInput
from plait.evaluation.measure import Measured, measure
from plait.problem.base import Examples
from plait.problem.heads import Own
from tests.problem.nets import Matrix, Texts, Toy, Transformer, draw, perceptron, points, sentences


def test_answers_in_the_order_of_the_examples() -> None:
    network, examples = Toy(lambda: perceptron(5, 7, 3)), points(50, 5, 3)
    weights = draw(network, 0)
    found = measure(Own(3), network, weights, examples, 8)
    x = examples.inputs
    hidden = torch.tanh(x @ weights["net.0.weight"].T + weights["net.0.bias"])
    logits = hidden @ weights["net.2.weight"].T + weights["net.2.bias"]
    labels = examples.labels
    assert labels is not None
    assert found == Measured(
        [int(row.argmax()) == int(t) for row, t in zip(logits, labels, strict=True)], None, 0
    )
    assert 0 < sum(found.answers) < 50


def test_texts_of_different_length_come_back_in_order() -> None:
    network, examples = Texts(Transformer), sentences(30, longest=9)
    weights = draw(network, 1)
    head = Matrix(torch.randn(3, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    together = measure(head, network, weights, examples, 16)
    assert together == measure(head, network, weights, examples, 1)
    one = [measure(head, network, weights, only(examples, i), 1).answers[0] for i in range(30)]
    assert together.answers == one


def only(examples: Examples, i: int) -> Examples:
    labels = None if examples.labels is None else examples.labels[i : i + 1]
    return Examples(examples.inputs[i : i + 1], labels, str(i))


@pytest.mark.parametrize("side", ["left", "right"])
def test_every_token_but_the_first_is_an_answer(side: str) -> None:
    network = Texts(lambda: Transformer(causal=True), side=side)
    weights = draw(network, 2)
    examples = sentences(12, classes=None)
    found = measure(Own(0), network, weights, examples, 5)
    assert found.groups == [len(text) - 1 for text in examples.inputs]
    answers = []
    for text in examples.inputs:
        logits = network.outputs(weights, network.collate([text]))[0]
        answers += [int(logits[i].argmax()) == text[i + 1] for i in range(len(text) - 1)]
    assert found.answers == answers
    assert 0 < sum(answers) < len(answers)


class Following:
    """Says that after each token comes the next number."""

    def logits(self, network: Any, weights: Any, batch: Any) -> Tensor:
        return torch.nn.functional.one_hot(batch["input_ids"] + 1, 12).double()


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_token_is_predicted_from_the_one_before_it(side: str) -> None:
    network = Texts(lambda: Transformer(causal=True), side=side)
    texts = [[1, 2, 3, 7], [5, 6], [4, 4, 5, 6, 9]]
    found = measure(Following(), network, draw(network, 0), Examples(texts, None, "x"), 3)
    assert found == Measured([True, True, False, True, False, True, True, False], [3, 1, 4], 0)


def test_texts_of_one_token_have_no_answer() -> None:
    network = Texts(lambda: Transformer(causal=True))
    weights = draw(network, 2)
    mixed = Examples([[1, 2, 3], [4], [5, 6]], None, "mixed")
    assert measure(Own(0), network, weights, mixed, 2).groups == [2, 1]
    with pytest.raises(RefusedInput, match="no text has a second token"):
        measure(Own(0), network, weights, Examples([[1], [2]], None, "short"), 2)


def test_nan_is_wrong_wherever_it_stands() -> None:
    class Broken:
        def logits(self, network: Any, weights: Any, batch: Any) -> Tensor:
            made = torch.zeros(len(batch), 3)
            made[:, 0] = 1.0
            made[::2, 2] = torch.nan
            return made

    network = Toy(lambda: perceptron(5, 3))
    examples = Examples(torch.zeros(4, 5), torch.tensor([0, 0, 2, 0]), "x")
    found = measure(Broken(), network, draw(network, 0), examples, 4)
    assert found == Measured([False, True, False, True], None, 2)


def test_a_label_beyond_the_head() -> None:
    network = Toy(lambda: perceptron(5, 3))
    examples = Examples(torch.zeros(2, 5), torch.tensor([0, 3]), "x")
    with pytest.raises(RefusedInput, match="tells 3 classes apart and there is a label 3"):
        measure(Own(0), network, draw(network, 0), examples, 4)
