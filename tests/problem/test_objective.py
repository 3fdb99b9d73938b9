"""Losses, gradients and Hessian-vector products against numbers that are found in other ways."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from plait.errors import RefusedInput, UsageError
from plait.problem import feed
from plait.problem.base import Examples
from plait.problem.objective import Objective
from tests.problem.nets import Matrix, Texts, Toy, Transformer, draw, perceptron, points, sentences

EPS = torch.finfo(torch.float64).eps


def small(**options: Any) -> tuple[Objective, dict[str, Tensor]]:
    network = Toy(lambda: perceptron(4, 5, 3))
    return Objective(network, None, points(13, 4, 3), **options), draw(network, 1)


def texts(
    causal: bool = False, side: str = "right", dtype: torch.dtype = torch.float64, **options: Any
) -> tuple[Objective, dict[str, Tensor]]:
    network = Texts(lambda: Transformer(causal=causal), dtype, side)
    head = None if causal else Matrix(torch.linspace(-1, 1, 24, dtype=torch.float64).view(3, 8).sin())
    examples = sentences(13, classes=None if causal else 3)
    return Objective(network, head, examples, **options), draw(network, 2, dtype)


def tiny(causal: bool = False, side: str = "right") -> tuple[Objective, dict[str, Tensor]]:
    network = Texts(lambda: Transformer(words=5, width=4, blocks=1, causal=causal), side=side)
    head = None if causal else Matrix(torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4).sin())
    examples = sentences(4, words=5, classes=None if causal else 3, longest=4)
    return Objective(network, head, examples, micro=3), draw(network, 2)


CASES: dict[str, Callable[..., tuple[Objective, dict[str, Tensor]]]] = {
    "perceptron": small,
    "transformer": texts,
    "causal": lambda **options: texts(causal=True, **options),
    "causal, padded on the left": lambda **options: texts(causal=True, side="left", **options),
}
every = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def flat(tensors: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors.values()])


def close(one: Tensor, other: Tensor, times: float = 1e3) -> None:
    """Equal up to `times` eps of the largest magnitude: sums of some hundred terms in another order."""
    assert one.shape == other.shape
    assert (one - other).abs().max() <= times * EPS * other.abs().max()


# losses
def test_loss_is_the_mean_cross_entropy() -> None:
    objective, weights = small(batch=4)
    x, labels = objective.feed.examples.inputs, objective.feed.examples.labels
    hidden = torch.tanh(x @ weights["net.0.weight"].T + weights["net.0.bias"])
    scores = hidden @ weights["net.2.weight"].T + weights["net.2.bias"]
    assert labels is not None
    assert objective.loss(weights) == pytest.approx(
        -scores.log_softmax(1)[range(13), labels].mean().item(), rel=1e-13
    )


@pytest.mark.parametrize("side", ["left", "right"])
def test_causal_loss_is_the_mean_over_tokens_one_text_at_a_time(side: str) -> None:
    objective, weights = texts(causal=True, side=side, batch=5)
    total, count = 0.0, 0
    for tokens in objective.feed.examples.inputs:
        batch = {"input_ids": torch.tensor([tokens]), "attention_mask": torch.ones(1, len(tokens))}
        scores = objective.network.outputs(weights, batch)[0].log_softmax(-1)
        total -= sum(scores[i, tokens[i + 1]].item() for i in range(len(tokens) - 1))
        count += len(tokens) - 1
    assert objective.loss(weights) == pytest.approx(total / count, rel=1e-13)


def test_texts_without_a_second_token_have_no_loss() -> None:
    network = Texts(lambda: Transformer(causal=True))
    objective = Objective(network, None, Examples([[3], [4]], None, ""))
    with pytest.raises(RefusedInput, match="nothing to predict"):
        objective.loss(draw(network, 1))


# gradients
class AsFunction(torch.autograd.Function):
    """The objective as a function of autograd, whose backward is the gradient under test."""

    @staticmethod
    def forward(ctx: Any, objective: Objective, names: tuple[str, ...], *tensors: Tensor) -> Tensor:
        loss, gradient = objective.loss_and_gradient(dict(zip(names, tensors, strict=True)))
        ctx.save_for_backward(*(gradient[name] for name in names))
        return torch.tensor(loss, dtype=torch.float64)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        return (None, None, *(slope * gradient for gradient in ctx.saved_tensors))


@pytest.mark.parametrize("kind", ["perceptron", "transformer", "causal", "causal, padded on the left"])
def test_gradient_passes_gradcheck(kind: str) -> None:
    left = "left" if kind.endswith("left") else "right"
    objective, weights = small(micro=5) if kind == "perceptron" else tiny(kind.startswith("causal"), left)
    names = tuple(weights)
    inputs = [weight.clone().requires_grad_() for weight in weights.values()]
    assert torch.autograd.gradcheck(
        lambda *tensors: AsFunction.apply(objective, names, *tensors),  # type: ignore[no-untyped-call]
        inputs,
        fast_mode=False,
    )


@every
def test_micro_batches_do_not_show(case: Callable[..., tuple[Objective, dict[str, Tensor]]]) -> None:
    whole, weights = case(batch=13)
    loss, gradient = whole.loss_and_gradient(weights)
    product = whole.hvp(weights, gradient)
    for micro in (1, 2, 5):
        cut, _ = case(batch=micro + 1, micro=micro)
        assert cut.loss(weights) == pytest.approx(loss, rel=1e-13)
        cut_loss, cut_gradient = cut.loss_and_gradient(weights)
        assert cut_loss == pytest.approx(loss, rel=1e-13)
        close(flat(cut_gradient), flat(gradient))
        close(flat(cut.hvp(weights, gradient)), flat(product))


def test_many_micro_batches_are_summed_without_much_rounding() -> None:
    network = Toy(lambda: torch.nn.Linear(1, 2, bias=False), torch.float32)
    weights = {"net.weight": torch.tensor([[0.3], [0.1]])}
    one = Examples(torch.full((1, 1), 0.7), torch.tensor([1]), "")
    many = Examples(torch.full((500, 1), 0.7), torch.ones(500, dtype=torch.int64), "")
    _, expected = Objective(network, None, one).loss_and_gradient(weights)
    _, found = Objective(network, None, many, micro=1).loss_and_gradient(weights)
    assert torch.allclose(found["net.weight"], expected["net.weight"], rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_gradient_is_added_to_what_is_there(dtype: torch.dtype) -> None:
    """With its share, into the tensors that are given: also where the network computes in another dtype."""
    network = Toy(lambda: torch.nn.Linear(3, 2), dtype)
    generator = torch.Generator().manual_seed(4)
    kept = torch.float32 if dtype == torch.bfloat16 else dtype
    weights = {
        n: torch.randn(s, generator=generator).to(kept)
        for n, s in (("net.weight", (2, 3)), ("net.bias", (2,)))
    }
    inputs = torch.randn(9, 3, generator=generator).to(kept)
    objective = Objective(network, None, Examples(inputs, torch.arange(9) % 2, ""), micro=4)
    loss, gradient = objective.loss_and_gradient(weights)
    there = {name: torch.full_like(weight, 0.5) for name, weight in weights.items()}
    places = {name: tensor.data_ptr() for name, tensor in there.items()}
    assert objective.add_gradient(weights, {"net.bias": there["net.bias"]}, -2.0) == loss
    assert torch.equal(there["net.weight"], torch.full_like(weights["net.weight"], 0.5))
    objective.add_gradient(weights, {"net.weight": there["net.weight"]}, -2.0)
    for name, tensor in there.items():
        assert tensor.data_ptr() == places[name]
        apart = (tensor - (0.5 - 2 * gradient[name])).abs().max()
        assert apart < (1e-6 if kept == torch.float32 else 1e-14)
        assert weights[name].grad is None


def test_names_choose_what_is_differentiated() -> None:
    objective, weights = small()
    _, full = objective.loss_and_gradient(weights)
    _, some = objective.loss_and_gradient(weights, ["net.2.bias"])
    assert list(some) == ["net.2.bias"]
    assert torch.equal(some["net.2.bias"], full["net.2.bias"])
    assert list(full) == list(weights)
    assert objective.loss_and_gradient(weights, [])[1] == {}


def test_tensors_that_the_network_does_not_use_have_no_slope() -> None:
    objective, weights = small()
    more = {**weights, "pooler.weight": torch.ones(2, 3), "steps": torch.tensor(7)}
    _, gradient = objective.loss_and_gradient(more)
    assert torch.equal(gradient.pop("pooler.weight"), torch.zeros(2, 3))
    assert set(gradient) == set(weights)  # integers have no gradient
    _, none = objective.loss_and_gradient(more, ["pooler.weight"])
    assert torch.equal(none["pooler.weight"], torch.zeros(2, 3))
    vector = {"pooler.weight": torch.ones(2, 3)}
    assert torch.equal(objective.hvp(more, vector)["pooler.weight"], torch.zeros(2, 3))


def test_weights_are_left_alone() -> None:
    objective, weights = small()
    copies = {name: weight.clone() for name, weight in weights.items()}
    _, gradient = objective.loss_and_gradient(weights)
    objective.hvp(weights, gradient)
    objective.fisher(weights)
    for name, weight in weights.items():
        assert torch.equal(weight, copies[name])
        assert not weight.requires_grad
        assert weight.grad is None
        assert not gradient[name].requires_grad


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
def test_gradients_are_found_where_the_caller_switched_them_off(off: Callable[[], Any]) -> None:
    objective, weights = small()
    _, gradient = objective.loss_and_gradient(weights)
    product, fisher = objective.hvp(weights, gradient), objective.fisher(weights)
    with off():
        assert torch.equal(flat(objective.loss_and_gradient(weights)[1]), flat(gradient))
        assert torch.equal(flat(objective.hvp(weights, gradient)), flat(product))
        assert torch.equal(flat(objective.fisher(weights)), flat(fisher))
        own = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        objective.add_gradient(weights, own)
        assert torch.equal(flat(own), flat(gradient))


# dtypes, devices, fixed tensors
def test_dtypes_of_weights_and_network_may_differ() -> None:
    exact, weights = texts()
    rough, _ = texts(dtype=torch.float32)
    _, expected = exact.loss_and_gradient(weights)
    _, found = rough.loss_and_gradient(weights)
    for name, gradient in found.items():
        assert gradient.dtype == torch.float64  # as the weights
        assert torch.allclose(gradient, expected[name], rtol=1e-4, atol=1e-5)
    assert any(not torch.equal(found[name], expected[name]) for name in found)  # computed in fp32
    halves = {name: weight.half() for name, weight in weights.items()}
    for result in (rough.loss_and_gradient(halves)[1], rough.hvp(halves, halves), rough.fisher(halves)):
        assert {tensor.dtype for tensor in result.values()} == {torch.float32}


def test_networks_get_weights_on_their_device_once() -> None:
    seen: set[torch.device] = set()
    moved: set[int] = set()

    class Elsewhere(Toy):
        def collate(self, encoded: Any) -> Any:
            return super().collate(encoded).to("meta")

        def outputs(self, weights: Any, batch: Any) -> Tensor:
            seen.update(weight.device for weight in weights.values())
            moved.add(id(weights["net.0.weight"]))
            return super().outputs(weights, batch)

    network = Elsewhere(lambda: perceptron(4, 3))
    objective = Objective(network, None, points(6, 4, 3), batch=2)
    with pytest.raises(Exception, match="meta"):  # a device that holds no values: the loss cannot be read
        objective.loss(draw(network, 1))
    assert seen == {torch.device("meta")}
    assert len(moved) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_results_lie_where_the_weights_lie() -> None:
    class Cuda(Toy):
        def collate(self, encoded: Any) -> Any:
            return super().collate(encoded).cuda()

    network = Cuda(lambda: perceptron(4, 5, 3))
    weights = draw(network, 1)
    plain, _ = small()
    objective = Objective(network, None, points(13, 4, 3), micro=5)
    _, gradient = objective.loss_and_gradient(weights)
    close(flat(gradient), flat(plain.loss_and_gradient(weights)[1]))
    on_device = {name: weight.cuda() for name, weight in weights.items()}
    assert objective.hvp(on_device, on_device)["net.0.weight"].is_cuda


def test_fixed_tensors_need_not_be_handed_in() -> None:
    plain, weights = small()
    fixed = {"net.0.weight": weights["net.0.weight"], "net.0.bias": weights["net.0.bias"]}
    rest = {name: weight for name, weight in weights.items() if name not in fixed}
    objective = Objective(plain.network, None, plain.feed.examples, fixed=fixed)
    loss, gradient = objective.loss_and_gradient(rest)
    assert loss == plain.loss(weights)
    assert list(gradient) == list(rest)
    wrong = {"net.0.bias": torch.zeros(5, dtype=torch.float64)}
    other = Objective(plain.network, None, plain.feed.examples, fixed=wrong)
    assert other.loss(weights) == loss  # what is handed in counts
    with pytest.raises(RefusedInput, match=r"lack 2 of 4 tensors of the network, net\.2\.bias first"):
        objective.loss({})


def test_tokens_of_a_sample_are_counted_by_themselves() -> None:
    objective, weights = texts(causal=True)
    whole, _ = objective.loss_and_gradient(weights)
    sample = objective.sample(4, seed=1)
    part, _ = sample.loss_and_gradient(weights)
    assert whole == pytest.approx(objective.loss(weights), rel=1e-12)
    assert part == pytest.approx(sample.loss(weights), rel=1e-12)
    assert objective.loss_and_gradient(weights)[0] == whole


# Hessian-vector products
def dense_hessian(objective: Objective, weights: dict[str, Tensor]) -> Tensor:
    """The Hessian of the loss of all examples, each in a batch of its own, by torch.autograd.functional."""
    names, shapes = list(weights), [weight.shape for weight in weights.values()]
    cuts = [weight.numel() for weight in weights.values()]
    labels = objective.feed.examples.labels

    def loss(vector: Tensor) -> Tensor:
        tensors = [part.view(shape) for part, shape in zip(torch.split(vector, cuts), shapes, strict=True)]
        own = dict(zip(names, tensors, strict=True))
        total, count = torch.zeros((), dtype=torch.float64), 0
        for row, example in enumerate(objective.feed.examples.inputs):
            batch = objective.network.collate([example])
            if labels is None:
                scores = objective.network.outputs(own, batch)[0]
                wanted = torch.tensor(example)
                total = total + F.cross_entropy(scores[:-1], wanted[1:], reduction="sum")
                count += len(example) - 1
            else:
                head = objective.head
                scores = (
                    objective.network.outputs(own, batch)
                    if head is None
                    else head.logits(objective.network, own, batch)
                )
                total = total + F.cross_entropy(scores, labels[row : row + 1])
                count += 1
        return total / count

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        found: Tensor = torch.autograd.functional.hessian(loss, flat(weights))  # type: ignore[no-untyped-call]
    return found


@pytest.mark.parametrize("kind", ["perceptron", "transformer", "causal"])
def test_hvp_is_the_dense_hessian_times_the_vector(kind: str) -> None:
    objective, weights = small(micro=3) if kind == "perceptron" else tiny(kind == "causal")
    hessian = dense_hessian(objective, weights)
    vector = draw(objective.network, 9)  # type: ignore[arg-type]
    close(flat(objective.hvp(weights, vector)), hessian @ flat(vector))


def test_hvp_of_some_tensors_is_a_block_of_the_hessian() -> None:
    objective, weights = small(micro=4)
    hessian = dense_hessian(objective, weights)
    name = "net.0.bias"
    first = weights["net.0.weight"].numel()
    block = hessian[first : first + 5, first : first + 5]
    vector = torch.linspace(-1, 1, 5, dtype=torch.float64)
    close(objective.hvp(weights, {name: vector})[name], block @ vector)


def test_hvp_of_a_linear_model_of_its_logits_needs_no_graph_of_slopes() -> None:
    """A network whose loss does not bend: nothing of the gradient can be differentiated."""

    @dataclass(frozen=True)
    class Straight:
        def logits(self, network: Any, weights: Any, batch: Any) -> Tensor:
            shift: Tensor = weights["net.0.bias"].sum()
            return torch.zeros(len(batch), 3, dtype=torch.float64) + shift

    plain, weights = small()
    objective = Objective(plain.network, Straight(), plain.feed.examples)
    assert flat(objective.hvp(weights, weights)).abs().max() < 100 * EPS


# samples
def test_samples_are_drawn_by_their_seed() -> None:
    objective, weights = small()
    one, again, other = objective.sample(5, 3), objective.sample(5, 3), objective.sample(5, 4)
    assert one.rows == again.rows
    assert len(set(one.rows)) == len(one) == 5
    assert one.rows != other.rows
    assert one.digest == again.digest
    assert len({one.digest, other.digest, objective.digest}) == 3
    assert objective.sample(100, 1).rows == objective.rows
    assert objective.sample(100, 1).digest == objective.digest == objective.feed.examples.digest
    examples = objective.feed.examples
    assert examples.labels is not None
    rows = list(one.rows)
    alone = Objective(objective.network, None, Examples(examples.inputs[rows], examples.labels[rows], ""))
    assert one.loss(weights) == pytest.approx(alone.loss(weights), rel=1e-13)
    with pytest.raises(UsageError, match="n is 0"):
        objective.sample(0, 1)


def test_the_seed_of_a_sample_means_the_same_everywhere() -> None:
    """Written down, so that a change of the generator is seen."""
    objective, _ = small()
    assert objective.sample(4, 42).rows == (0, 1, 4, 10)


def test_examples_are_encoded_once_for_all_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    objective, weights = small(batch=4)
    network = objective.network
    assert isinstance(network, Toy)
    loss = objective.loss(weights)
    for seed in range(3):
        objective.sample(5, seed).loss(weights)
    assert network.encoded == 13
    monkeypatch.setattr(feed, "KEEP", 100)
    monkeypatch.setattr(feed, "CHUNK", 2)
    large = Objective(network, None, objective.feed.examples, batch=4)
    assert large.loss(weights) == loss
    assert network.encoded == 3 * 13  # once for the lengths, once for the batches


def test_what_is_encoded_for_its_length_only_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    there: weakref.WeakSet[Tensor] = weakref.WeakSet()
    most = 0

    class Wide(Toy):
        def encode(self, inputs: Any) -> list[Tensor]:
            nonlocal most
            made = [one.clone() for one in inputs]
            there.update(made)
            most = max(most, len(there))
            return made

    network = Wide(lambda: perceptron(4, 3))
    monkeypatch.setattr(feed, "KEEP", 5 * 4 * 8)
    monkeypatch.setattr(feed, "CHUNK", 2)
    Objective(network, None, points(50, 4, 3), batch=2).loss(draw(network, 1))
    assert most <= 5 + 2 * 2  # what may be kept, a chunk that is there still and one that comes


def test_batches_hold_examples_of_like_length() -> None:
    objective, _ = texts()
    pieces = list(objective.feed.pieces(objective.rows, 4))
    lengths = [len(objective.feed.examples.inputs[row]) for piece in pieces for row in piece.rows]
    assert lengths == sorted(lengths)
    assert sorted(row for piece in pieces for row in piece.rows) == list(range(13))
    assert [len(piece) for piece in pieces] == [4, 4, 4, 1]


# what it cost
def test_work_is_counted() -> None:
    objective, weights = small(micro=2)
    start = objective.work - objective.work
    assert start.samples == start.losses == 0
    _, gradient = objective.loss_and_gradient(weights)
    objective.sample(5, 1).loss(weights)
    objective.hvp(weights, gradient)
    objective.fisher(weights)
    work = objective.work
    assert (work.losses, work.gradients, work.products, work.fishers) == (1, 1, 1, 1)
    assert work.samples == 13 + 5 + 13 + 13
    assert work.seconds > 0
    assert (work + work - work) == work


# errors
def test_words_that_make_no_sense() -> None:
    objective, weights = small()
    with pytest.raises(UsageError, match="micro is 0"):
        small(micro=0)
    with pytest.raises(UsageError, match="batch is -1"):
        small(batch=-1)
    with pytest.raises(UsageError, match=r"net\.9 is not among the 4 tensors"):
        objective.loss_and_gradient(weights, ["net.9"])
    with pytest.raises(UsageError, match=r"steps is torch\.int64"):
        objective.loss_and_gradient({**weights, "steps": torch.tensor(1)}, ["steps"])
    with pytest.raises(UsageError, match=r"net\.0\.bias of the vector is \(1,\), expected \(5,\)"):
        objective.hvp(weights, {"net.0.bias": torch.ones(1)})


def test_examples_that_do_not_fit() -> None:
    network = Toy(lambda: perceptron(4, 3))
    weights = draw(network, 1)
    inputs = torch.zeros(3, 4)
    with pytest.raises(RefusedInput, match="0 examples"):
        Objective(network, None, Examples([], None, ""))
    with pytest.raises(RefusedInput, match=r"labels have shape \(2,\), expected \(3,\)"):
        Objective(network, None, Examples(inputs, torch.tensor([0, 1]), ""))
    with pytest.raises(RefusedInput, match="label -1 is negative"):
        Objective(network, None, Examples(inputs, torch.tensor([0, -1, 1]), ""))
    with pytest.raises(RefusedInput, match="3 classes and there is a label 3"):
        Objective(network, None, Examples(inputs, torch.tensor([0, 3, 1]), "")).loss(weights)
    with pytest.raises(RefusedInput, match="2 axes and the examples no labels"):
        Objective(network, None, Examples(inputs, None, "")).loss(weights)


def test_networks_that_break_their_word() -> None:
    class Short(Toy):
        def encode(self, inputs: Any) -> Any:
            return super().encode(inputs)[:-1]

    network = Short(lambda: perceptron(4, 3))
    with pytest.raises(RefusedInput, match="3 examples were encoded as 2"):
        Objective(network, None, points(3, 4, 3)).loss(draw(network, 1))

    class Bare(Texts):
        def collate(self, encoded: Any) -> Any:
            return super().collate(encoded)["input_ids"]

        def outputs(self, weights: Any, batch: Any) -> Tensor:
            return Toy.call(self, weights, batch, torch.ones_like(batch))

    speaker = Bare(lambda: Transformer(causal=True))
    with pytest.raises(RefusedInput, match="Tensor without input_ids"):
        Objective(speaker, None, sentences(3, classes=None)).loss(draw(speaker, 1))
