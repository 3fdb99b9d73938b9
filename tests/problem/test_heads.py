"""Heads against what they say they are, computed by transformers or by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from plait.errors import RefusedInput
from plait.problem.base import Examples, HeadSpec, Kind, Network, Split, Weights
from plait.problem.heads import make_head, predict
from plait.problem.logistic import fit_linear
from plait.problem.network import module_network, open_network
from tests.problem.folders import LABELS, TEXTS, bert, images, library, weights_of
from tests.problem.test_network_hf import clip, gpt2, image_processor, vit

EPS = torch.finfo(torch.float32).eps


@dataclass
class Made:
    """A task of this file."""

    head: HeadSpec
    inputs: Any = field(default_factory=lambda: TEXTS)
    kind: Kind = "text-classification"
    classes: tuple[str, ...] = LABELS
    labels: Sequence[int] | None = (0, 1, 2, 2, 2)
    name: str = "colours"

    def examples(self, split: Split = "train") -> Examples:
        labels = None if self.labels is None else torch.tensor(self.labels)
        return Examples(self.inputs, labels, "")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("bert")
    bert(made)
    return made


def opened(folder: Path, kind: Kind = "text-classification") -> tuple[Network, dict[str, Tensor]]:
    return open_network(folder, kind), weights_of(folder)


def close(found: Tensor, wanted: Tensor, slack: float = 200) -> None:
    # cosines of small networks: some dozens of roundings, and the lengths that they are divided by
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() <= slack * EPS * wanted.abs().max()


def test_zero_shot_is_the_cosine_with_class_names(folder: Path) -> None:
    spec = HeadSpec("zero-shot", ("{}", "a {}", "the very {}"), 7.0)
    network, weights = opened(folder)
    head = make_head(Made(spec), network, weights)
    found = predict(head, network, weights, Made(spec).examples())

    transformers = library()
    model, whole = (
        transformers.AutoModel.from_pretrained(folder),
        transformers.AutoTokenizer.from_pretrained(folder),
    )

    def unit(text: str) -> Tensor:
        with torch.no_grad():
            mean: Tensor = model(**whole(text, return_tensors="pt")).last_hidden_state[0].mean(0)
        made: Tensor = mean / mean.norm()
        return made

    sums = [unit(label) + unit(f"a {label}") + unit(f"the very {label}") for label in LABELS]
    wanted = [[7.0 * unit(text) @ (total / total.norm()) for total in sums] for text in TEXTS]
    close(found, torch.tensor(wanted))


def test_zero_shot_of_clip_is_that_of_clip(tmp_path: Path) -> None:
    model = clip(tmp_path)
    network, weights = opened(tmp_path, "image-classification")
    task = Made(HeadSpec("zero-shot", ("the {}",), 5.0), images(), "image-classification")
    found = predict(make_head(task, network, weights), network, weights, task.examples())
    processor, whole = image_processor(tmp_path), library().AutoTokenizer.from_pretrained(tmp_path)
    texts = whole([f"the {label}" for label in LABELS], return_tensors="pt", padding=True)
    pictures = processor(images=list(images()), return_tensors="pt")
    with torch.no_grad():
        wanted = model(**texts, **pictures).logits_per_image / model.logit_scale.exp() * 5.0
    close(found, wanted)


def test_a_head_is_made_of_the_base_and_stays(folder: Path) -> None:
    network, weights = opened(folder)
    task = Made(HeadSpec("zero-shot"))
    head: Any = make_head(task, network, weights)
    before = head.classes.clone()
    moved = {name: weight + 0.1 for name, weight in weights.items()}
    assert not torch.equal(
        predict(head, network, moved, task.examples()), predict(head, network, weights, task.examples())
    )
    assert torch.equal(head.classes, before)
    assert not head.classes.requires_grad


def test_logits_can_be_differentiated(folder: Path) -> None:
    network, weights = opened(folder)
    for spec in (HeadSpec("zero-shot"), HeadSpec("linear")):
        head = make_head(Made(spec), network, weights)
        name = "encoder.layer.0.output.dense.bias"
        bias = weights[name].clone().requires_grad_()
        logits = head.logits(network, {**weights, name: bias}, network.collate(network.encode(TEXTS)))
        (slope,) = torch.autograd.grad(logits.square().sum(), bias)
        assert slope.abs().max() > 0


def test_a_linear_head_of_private_tensors_is_the_model_s_own(tmp_path: Path) -> None:
    vit(tmp_path)
    network, weights = opened(tmp_path, "image-classification")
    spec = HeadSpec("linear", weight="classifier.weight", bias="classifier.bias")
    linear, own = (Made(s, images(), "image-classification") for s in (spec, HeadSpec("model")))
    found = predict(make_head(linear, network, weights), network, weights, linear.examples())
    close(found, predict(make_head(own, network, weights), network, weights, own.examples()))
    without = Made(HeadSpec("linear", weight="classifier.weight"), images(), "image-classification")
    shifted = predict(make_head(without, network, weights), network, weights, without.examples())
    close(shifted + weights["classifier.bias"], found)


def test_a_fitted_head_is_at_the_minimum() -> None:
    g = torch.Generator().manual_seed(0)
    features = torch.randn(60, 5, generator=g, dtype=torch.float64) * 3 + 10
    labels = (features[:, 0] > 10).long() + (features[:, 1] > 11).long()
    weight, bias = fit_linear(features, labels, 3)
    centre = features.mean(0)
    scale = (features - centre).square().mean().sqrt()
    inputs = (features - centre) / scale

    # the gradient of the mean cross-entropy + 10 |W|^2 / (2 n), by its formula
    excess = torch.softmax(features @ weight.T + bias, dim=1) - torch.nn.functional.one_hot(labels, 3)
    slope = excess.T @ inputs / 60 + 10 * weight * scale / 60
    assert slope.abs().max() < 1e-8
    assert excess.mean(0).abs().max() < 1e-8
    assert bool((weight.abs() > 0.01).any())


def test_a_fitted_head_depends_on_nothing_else() -> None:
    g = torch.Generator().manual_seed(0)
    features, labels = torch.randn(40, 6, generator=g), torch.arange(40) % 3
    weight, bias = fit_linear(features, labels, 3)
    torch.manual_seed(5)
    with torch.no_grad():
        again = fit_linear(features, labels, 3)
    assert torch.equal(weight, again[0])
    assert torch.equal(bias, again[1])
    order = torch.randperm(40, generator=g)
    mixed, _ = fit_linear(features[order], labels[order], 3)
    assert (mixed - weight).abs().max() < 1e-6 * weight.abs().max()
    larger, shift = fit_linear(features * 8 + 4, labels, 3)
    close((features * 8 + 4).double() @ larger.T + shift, features.double() @ weight.T + bias, 1e3)


def test_a_fitted_head_learns_its_training_examples(folder: Path) -> None:
    network, weights = opened(folder)
    task = Made(HeadSpec("linear"), TEXTS * 20, labels=(0, 1, 2, 2, 2) * 20)
    head = make_head(task, network, weights)
    found = predict(head, network, weights, task.examples())
    assert found.argmax(1).tolist() == [0, 1, 2, 2, 2] * 20


def test_features_that_are_all_equal_give_a_head_of_shares() -> None:
    weight, bias = fit_linear(torch.ones(4, 2), torch.tensor([0, 0, 0, 1]), 2)
    assert weight.abs().max() == 0
    assert torch.softmax(bias, 0).tolist() == pytest.approx([0.75, 0.25], abs=1e-6)


@pytest.mark.parametrize("kind", ["zero-shot", "linear"])
@pytest.mark.parametrize("batch", [1, 2, 100])
def test_batches_and_order_do_not_show(kind: Any, batch: int, folder: Path) -> None:
    network, weights = opened(folder)
    task = Made(HeadSpec(kind))
    head = make_head(task, network, weights)
    alone = torch.cat([predict(head, network, weights, Examples([text], None, "")) for text in TEXTS])
    found = predict(head, network, weights, task.examples(), batch=batch)
    assert found.dtype == torch.float32
    close(found, alone)


def test_predictions_are_fp32_whatever_the_network_computes_in(folder: Path) -> None:
    task = Made(HeadSpec("zero-shot"))
    weights = weights_of(folder)
    for dtype in ("float64", "bfloat16"):
        network = open_network(folder, "text-classification", dtype=dtype)
        head: Any = make_head(task, network, weights)
        assert head.classes.dtype == network.dtype
        assert predict(head, network, weights, task.examples()).dtype == torch.float32


def test_predictions_have_no_gradient(folder: Path) -> None:
    network, weights = opened(folder)
    task = Made(HeadSpec("zero-shot"))
    live = {name: weight.requires_grad_() for name, weight in weights.items()}
    head: Any = make_head(task, network, live)
    assert not head.classes.requires_grad
    assert not predict(head, network, live, task.examples()).requires_grad


def test_a_network_of_a_user_needs_no_text(folder: Path) -> None:
    module = torch.nn.Linear(2, 3)
    weights: Weights = {"weight": torch.eye(3)[:, :2], "bias": torch.zeros(3)}
    network = module_network(module)
    task = Made(HeadSpec("model"), torch.tensor([[1.0, 0.0], [0.0, 2.0]]), "python")
    found = predict(make_head(task, network, weights), network, weights, task.examples())
    assert found.tolist() == [[1, 0, 0], [0, 2, 0]]


def refused(task: Made, network: Network, weights: Weights) -> str:
    with pytest.raises(RefusedInput) as caught:
        predict(make_head(task, network, weights), network, weights, task.examples())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_head_with_another_number_of_classes(tmp_path: Path) -> None:
    vit(tmp_path)
    network, weights = opened(tmp_path, "image-classification")
    task = Made(HeadSpec("model"), images(), "image-classification", ("one", "two"))
    assert "own head has 3 classes, the task 2" in refused(task, network, weights)
    spec = HeadSpec("linear", weight="classifier.weight", bias="classifier.bias")
    task = Made(spec, images(), "image-classification", ("one", "two"))
    assert "shapes (3, 16) and (3,), expected (2, width) and (2,)" in refused(task, network, weights)


def test_images_without_a_text_network(tmp_path: Path) -> None:
    vit(tmp_path)
    network, weights = opened(tmp_path, "image-classification")
    task = Made(HeadSpec("zero-shot"), images(), "image-classification")
    assert "takes images only; use the head `linear`" in refused(task, network, weights)


def test_heads_that_cannot_be_made(folder: Path) -> None:
    network, weights = opened(folder)
    assert "has no head of its own" in refused(Made(HeadSpec("model")), network, weights)
    assert "has no classes" in refused(Made(HeadSpec("zero-shot"), classes=()), network, weights)
    assert "has no template" in refused(Made(HeadSpec("zero-shot", ())), network, weights)
    assert "head tensor my.weight is not in the checkpoint" in refused(
        Made(HeadSpec("linear", weight="my.weight")), network, weights
    )
    assert "names the bias b and no weight" in refused(Made(HeadSpec("linear", bias="b")), network, weights)
    assert "have no labels" in refused(Made(HeadSpec("linear"), labels=None), network, weights)
    assert "there are 0 examples" in refused(Made(HeadSpec("zero-shot"), inputs=[]), network, weights)
    wide = {**weights, "w": torch.zeros(3, 5)}
    assert "features have width 16, the head takes 5" in refused(
        Made(HeadSpec("linear", weight="w")), network, wide
    )


def test_a_causal_model_tells_no_classes_apart(tmp_path: Path) -> None:
    gpt2(tmp_path)
    network, weights = opened(tmp_path, "causal-lm")
    assert "causal-lm has a loss, not classes" in refused(
        Made(HeadSpec("model"), kind="causal-lm", classes=(), labels=None), network, weights
    )
