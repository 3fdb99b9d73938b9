"""The diagonal Fisher information against one gradient for every example, made by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from plait.errors import UsageError
from plait.problem import fisher
from plait.problem.objective import Objective
from tests.problem.nets import (
    Convolutions,
    Matrix,
    Texts,
    Toy,
    Transformer,
    draw,
    images,
    perceptron,
    points,
    sentences,
)

EPS = torch.finfo(torch.float64).eps
Made = tuple[Objective, dict[str, Tensor]]


def points_case(**options: Any) -> Made:
    network = Toy(lambda: perceptron(4, 5, 3))
    return Objective(network, None, points(11, 4, 3), **options), draw(network, 1)


def texts_case(**options: Any) -> Made:
    network = Texts(Transformer)
    head = Matrix(torch.linspace(-1, 1, 24, dtype=torch.float64).view(3, 8).sin())
    return Objective(network, head, sentences(11), **options), draw(network, 2)


def images_case(**options: Any) -> Made:
    network = Toy(Convolutions)
    return Objective(network, None, images(7), **options), draw(network, 3)


def causal_case(**options: Any) -> Made:
    network = Texts(lambda: Transformer(causal=True))
    return Objective(network, None, sentences(9, classes=None), **options), draw(network, 4)


CASES = {"points": points_case, "texts": texts_case, "images": images_case, "causal": causal_case}
every = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def log_probabilities(objective: Objective, weights: dict[str, Tensor], row: int) -> Tensor:
    """log p(y|x) for every y that there is; of a text only its own."""
    example = objective.feed.examples.inputs[row]
    batch = objective.network.collate([example])
    if objective.feed.examples.labels is None:
        scores = objective.network.outputs(weights, batch)[0].log_softmax(-1)
        return sum((scores[i, token] for i, token in enumerate(example[1:])), torch.zeros(())).view(1)
    if objective.head is not None:
        return objective.head.logits(objective.network, weights, batch)[0].log_softmax(-1)
    return objective.network.outputs(weights, batch)[0].log_softmax(-1)


def by_hand(made: Made, labels: str) -> dict[str, Tensor]:
    objective, weights = made
    leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    totals = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    given = objective.feed.examples.labels
    for row in range(len(objective)):
        scores = log_probabilities(objective, leaves, row)
        own = 0 if given is None else int(given[row])
        for label, score in enumerate(scores):
            share = float(label == own) if labels == "given" else score.exp().item()
            slopes = torch.autograd.grad(score, list(leaves.values()), retain_graph=True)
            for name, slope in zip(leaves, slopes, strict=True):
                totals[name] += share * slope**2
    return {name: total / len(objective) for name, total in totals.items()}


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Up to 1000 eps of a tensor's largest entry: sums of some hundred terms, in another order. A slope that is zero
    but for rounding, as that of a key's bias is, may be 1000 eps of the largest one."""
    assert list(found) == list(expected)
    zero = (1e3 * EPS) ** 2 * max(tensor.max().item() for tensor in expected.values())
    for name, tensor in expected.items():
        assert (found[name] - tensor).abs().max() <= 1e3 * EPS * tensor.max() + zero, name


@every
@pytest.mark.parametrize("how", ["auto", "vmap", "loop"])
def test_fisher_is_the_mean_of_squared_gradients(case: Callable[..., Made], how: Any) -> None:
    objective, weights = made = case(batch=4)
    same(objective.fisher(weights, how=how), by_hand(made, "given"))


@pytest.mark.parametrize("case", [points_case, texts_case, images_case], ids=["points", "texts", "images"])
@pytest.mark.parametrize("how", ["vmap", "loop"])
def test_fisher_over_labels_of_the_model(case: Callable[..., Made], how: Any) -> None:
    objective, weights = made = case(batch=4)
    same(objective.fisher(weights, how=how, labels="model"), by_hand(made, "model"))


def test_fisher_of_a_binary_model_in_closed_form() -> None:
    """Logits (0, w x): E over y of the squared slope is p (1 - p) x^2."""
    network = Toy(lambda: torch.nn.Linear(1, 2, bias=False))
    weights = {"net.weight": torch.tensor([[0.0], [0.7]], dtype=torch.float64)}
    examples = points(20, 1, 2)
    x = examples.inputs[:, 0]
    p = torch.sigmoid(0.7 * x)
    found = Objective(network, None, examples).fisher(weights, labels="model")["net.weight"]
    assert found[1].item() == pytest.approx((p * (1 - p) * x**2).mean().item(), rel=1e-13)


@every
def test_micro_batches_do_not_show(case: Callable[..., Made]) -> None:
    whole, weights = case(batch=20)
    cut, _ = case(batch=20, micro=3)
    same(cut.fisher(weights), whole.fisher(weights))


def test_names_choose_what_is_squared() -> None:
    objective, weights = points_case()
    full = objective.fisher(weights)
    more = {**weights, "pooler": torch.ones(2)}
    for how in ("vmap", "loop"):
        some = objective.fisher(more, ["net.2.bias", "pooler"], how=how)
        same(some, {"net.2.bias": full["net.2.bias"], "pooler": torch.zeros(2)})
        assert torch.equal(objective.fisher(more, ["pooler"], how=how)["pooler"], torch.zeros(2))
        assert objective.fisher(more, [], how=how) == {}


def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ways that are gone, in order."""
    gone: list[str] = []
    for name in ("_slopes", "_one_by_one"):
        true = getattr(fisher, name)

        def spy(*words: Any, true: Any = true, name: str = name) -> Any:
            gone.append(name)
            return true(*words)

        monkeypatch.setattr(fisher, name, spy)
    return gone


def test_auto_goes_by_vmap_where_that_is_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = calls(monkeypatch)
    objective, weights = texts_case(batch=4)
    objective.fisher(weights)
    assert gone == ["_slopes"] * 3


def test_auto_goes_by_one_where_vmap_cannot_run_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    class Asking(Toy):
        def outputs(self, weights: Any, batch: Any) -> Tensor:
            return super().outputs(weights, batch if bool(batch.sum() > 0) else batch + 0)

    gone = calls(monkeypatch)
    plain, weights = made = points_case()
    objective = Objective(Asking(lambda: perceptron(4, 5, 3)), None, plain.feed.examples, batch=4)
    same(objective.fisher(weights), by_hand(made, "given"))
    assert gone == ["_slopes", *["_one_by_one"] * 3]
    with pytest.raises(RuntimeError, match="vmap"):
        objective.fisher(weights, how="vmap")


def test_auto_goes_by_one_where_vmap_finds_another_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch with a tensor that belongs to no row runs under vmap, and something else is computed."""

    class Scaled(Toy):
        def collate(self, encoded: Any) -> Any:
            return {"x": super().collate(encoded), "scale": torch.arange(1.0, 5.0, dtype=torch.float64)}

        def outputs(self, weights: Any, batch: Any) -> Tensor:
            return super().outputs(weights, batch["x"] * batch["scale"])

    network = Scaled(lambda: perceptron(4, 3))
    objective = Objective(network, None, points(4, 4, 3))  # 4 rows of width 4: no shape tells them apart
    weights = draw(network, 1)
    for labels in ("given", "model"):
        with monkeypatch.context() as patch:
            gone = calls(patch)
            same(objective.fisher(weights, labels=labels), by_hand((objective, weights), labels))
            assert gone == ["_slopes", "_one_by_one"]


def test_gradients_of_single_examples_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    objective, weights = points_case(batch=8)
    one = sum(weight.numel() for weight in weights.values()) * 8
    sizes = []
    true = fisher._slopes

    def spy(objective: Any, live: Any, piece: Any, chosen: Any) -> Any:
        sizes.append(len(piece))
        return true(objective, live, piece, chosen)

    monkeypatch.setattr(fisher, "_slopes", spy)
    monkeypatch.setattr(fisher, "ROOM", 3 * one)
    expected = by_hand((objective, weights), "given")
    same(objective.fisher(weights), expected)
    assert sizes == [3, 3, 3, 2]
    monkeypatch.setattr(fisher, "ROOM", one - 1)
    same(objective.fisher(weights), expected)
    assert sizes[4:] == [1] * 11
    monkeypatch.setattr(fisher, "SMALL", one)
    same(objective.fisher(weights), expected)
    assert len(sizes) == 15  # large gradients need no vmap


def test_words_that_make_no_sense() -> None:
    objective, weights = points_case()
    with pytest.raises(UsageError, match="labels is 'mine'"):
        objective.fisher(weights, labels="mine")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="how 'fast'"):
        objective.fisher(weights, how="fast")  # type: ignore[arg-type]
    texts, words = causal_case()
    with pytest.raises(UsageError, match="texts have no classes"):
        texts.fisher(words, labels="model")
