"""Outputs of layers against the same layers computed by hand, and second moments against pooled inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from plait.errors import RefusedInput, UsageError
from plait.problem.base import Examples
from plait.problem.moments import each_second_moment, second_moments
from plait.problem.objective import Objective
from plait.problem.patches import patches
from plait.problem.probes import Seen, activations, blocks, drift, representations
from tests.problem.nets import (
    Block,
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
HEAD = Matrix(torch.linspace(-1, 1, 24, dtype=torch.float64).view(3, 8).sin())


def texts(causal: bool = False, side: str = "right", **options: Any) -> tuple[Objective, dict[str, Tensor]]:
    network = Texts(lambda: Transformer(causal=causal), side=side)
    examples = sentences(11, classes=None if causal else 3)
    return Objective(network, None if causal else HEAD, examples, **options), draw(network, 2)


def alone(objective: Objective, weights: dict[str, Tensor], row: int) -> list[Tensor]:
    """(length, width) outputs of the embedding and of each block for one text without padding, module by module."""
    module = objective.network.module
    own = {param: weights[name] for name, param in objective.network.names.items()}

    def part(name: str, *inputs: Any) -> Any:
        cut = {
            key.removeprefix(f"{name}."): value for key, value in own.items() if key.startswith(f"{name}.")
        }
        return functional_call(module.get_submodule(name), cut, inputs)

    tokens = torch.tensor([objective.feed.examples.inputs[row]])
    length = tokens.shape[1]
    seen = torch.ones(1, 1, 1, length, dtype=torch.bool)
    if getattr(module, "causal", False):
        seen = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
    found = [part("words", tokens)]
    for i in range(2):
        found.append(part(f"blocks.{i}", found[-1], seen)[0])
    return [tensor[0] for tensor in found]


def close(found: Tensor, expected: Tensor) -> None:
    """Up to 1000 eps of the largest entry: sums of some hundred terms, in another order."""
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= 1e3 * EPS * expected.abs().max()


# outputs of layers
@pytest.mark.parametrize("side", ["left", "right"])
def test_activations_are_those_of_each_text_alone(side: str) -> None:
    objective, weights = texts(side=side, batch=4)
    met: list[tuple[str, int]] = []

    def visit(seen: Seen) -> None:
        assert len(seen.rows) <= 4
        for place, row in enumerate(seen.rows):
            met.append((seen.layer, row))
            own = seen.output[place] if seen.mask is None else seen.output[place][seen.mask[place]]
            close(own, alone(objective, weights, row)[1 + int(seen.layer[-1])])

    activations(objective, weights, visit)
    assert sorted(met) == [(f"blocks.{i}", row) for i in range(2) for row in range(11)]


def test_layers_can_be_chosen() -> None:
    objective, weights = texts()
    met: dict[tuple[int, ...], list[str]] = {}
    activations(
        objective,
        weights,
        lambda seen: met.setdefault(seen.rows, []).append(seen.layer),
        ["blocks.1.wide", "words"],
    )
    assert met
    assert all(layers == ["blocks.1.wide", "words"] for layers in met.values())


@pytest.mark.parametrize("side", ["left", "right"])
def test_representations_are_means_over_tokens_in_the_order_of_the_examples(side: str) -> None:
    objective, weights = texts(side=side, batch=4)
    for part in (objective, objective.sample(6, 1)):
        found = representations(part, weights)
        assert list(found) == ["blocks.0", "blocks.1"]
        for i, layer in enumerate(found):
            rows = [alone(objective, weights, row)[1 + i].mean(0) for row in part.rows]
            close(found[layer], torch.stack(rows))


def test_representations_of_images_are_means_over_places() -> None:
    network = Toy(Convolutions)
    objective = Objective(network, None, images(5), batch=2)
    weights = draw(network, 3)
    found = representations(objective, weights, ["first", "last"])
    batch = network.collate(list(objective.feed.examples.inputs))
    first = nn.functional.conv2d(
        batch, weights["net.first.weight"], weights["net.first.bias"], stride=2, padding=1
    )
    close(found["first"], first.mean((2, 3)))
    close(found["last"], network.outputs(weights, batch))


def test_blocks_are_the_stack_that_holds_most() -> None:
    with torch.device("meta"):
        assert blocks(Transformer(blocks=3)) == ("blocks.0", "blocks.1", "blocks.2")
        assert blocks(perceptron(2, 3, 4)) == ("0", "1", "2")
        assert blocks(Convolutions()) == ("first", "apart", "circle", "last")
        staged = nn.Sequential(*(nn.Sequential(*(Block(4, 1) for _ in range(3))) for _ in range(2)))
        assert blocks(staged) == ("0.0", "0.1", "0.2")  # more members than the whole, and half of it
        lopsided = nn.Module()
        lopsided.head = nn.Sequential(*(nn.Linear(1, 1) for _ in range(9)))
        lopsided.layers = nn.ModuleList(Block(8, 1) for _ in range(2))
        assert blocks(lopsided) == ("layers.0", "layers.1")


def test_hooks_are_taken_off_again() -> None:
    objective, weights = texts()

    def stop(seen: Seen) -> None:
        raise KeyboardInterrupt

    representations(objective, weights)
    second_moments(objective, weights)
    with pytest.raises(KeyboardInterrupt):
        activations(objective, weights, stop)
    with pytest.raises(RefusedInput, match="lack"):
        representations(objective, {})
    assert not any(module._forward_hooks for module in objective.network.module.modules())


def test_layers_that_cannot_be_looked_at() -> None:
    objective, weights = texts()
    for layers, message in ((["blocks.7"], r"no module 'blocks\.7'"), ([], "0 layers")):
        with pytest.raises(UsageError, match=message):
            representations(objective, weights, layers)
    with pytest.raises(RefusedInput, match="module blocks was not run"):
        representations(objective, weights, ["blocks"])

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.text, self.flat, self.last = nn.Identity(), nn.Identity(), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            self.text("words")
            self.flat(x.flatten())
            found: Tensor = self.last(x)
            return found

    network = Toy(Odd)
    odd = Objective(network, None, points(3, 4, 3))
    with pytest.raises(RefusedInput, match="text puts out str; expected a tensor"):
        representations(odd, draw(network, 1), ["text"])
    with pytest.raises(RefusedInput, match=r"flat puts out \(12,\) for 3 examples"):
        representations(odd, draw(network, 1), ["flat"])


# how far they drift
def drift_by_hand(
    objective: Objective, weights: dict[str, Tensor], targets: list[dict[str, Tensor]], shares: list[float]
) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for row in range(len(objective)):
        own = alone(objective, weights, row)
        theirs = [alone(objective, target, row) for target in targets]
        for i, share in enumerate(shares):
            middle = torch.stack([other[1 + i] for other in theirs]).mean(0)
            total = total + share * ((own[1 + i] - middle) ** 2).mean()
    return total / len(objective)


def test_drift_and_its_gradient() -> None:
    objective, weights = texts(batch=4)
    targets = [draw(objective.network, seed) for seed in (5, 6)]  # type: ignore[arg-type]
    leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    expected = drift_by_hand(objective, leaves, targets, [1 / 3, 2 / 3])
    slopes = torch.autograd.grad(expected, list(leaves.values()))
    found, gradient = drift(objective, weights, targets)
    assert found == pytest.approx(expected.item(), rel=1e-12)
    for name, slope in zip(leaves, slopes, strict=True):
        assert (gradient[name] - slope).abs().max() <= 1e4 * EPS * max(s.abs().max() for s in slopes)
    value, some = drift(objective, weights, targets, {"blocks.0": 0.5}, ["net.words.weight"])
    assert value == pytest.approx(drift_by_hand(objective, weights, targets, [0.5]).item(), rel=1e-12)
    assert list(some) == ["net.words.weight"]
    assert drift(objective, weights, [weights])[0] == 0
    with pytest.raises(UsageError, match="0 targets"):
        drift(objective, weights, [])


# second moments
def inputs_by_hand(objective: Objective, weights: dict[str, Tensor], row: int) -> dict[str, Tensor]:
    """Weight name -> (length, in): what goes into each linear layer of the transformer for one text alone."""
    found: dict[str, Tensor] = {}
    states = alone(objective, weights, row)

    def linear(name: str, x: Tensor) -> Tensor:
        found[f"{name}.weight"] = x
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    for i in range(2):
        x = states[i]
        query, key, value = (linear(f"net.blocks.{i}.{part}", x) for part in ("query", "key", "value"))
        heads = []
        for h in range(2):
            own = slice(4 * h, 4 * h + 4)
            scores = query[:, own] @ key[:, own].T / 2
            if getattr(objective.network.module, "causal", False):
                scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), float("-inf"))
            heads.append(scores.softmax(-1) @ value[:, own])
        y = x + linear(f"net.blocks.{i}.out", torch.cat(heads, 1))
        y = nn.functional.layer_norm(
            y, (8,), weights[f"net.blocks.{i}.norm.weight"], weights[f"net.blocks.{i}.norm.bias"]
        )
        linear(f"net.blocks.{i}.narrow", nn.functional.gelu(linear(f"net.blocks.{i}.wide", y)))
    return found


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("side", ["left", "right"])
def test_second_moments_are_those_of_texts_without_padding(causal: bool, side: str) -> None:
    objective, weights = texts(causal, side, batch=4)
    expected: dict[str, Tensor] = {}
    count = 0
    for row in range(len(objective)):
        count += len(objective.feed.examples.inputs[row])
        for name, x in inputs_by_hand(objective, weights, row).items():
            expected[name] = expected.get(name, torch.zeros(())) + x.T @ x
    found = second_moments(objective, weights)
    assert set(found) == set(expected)  # without the tied weight, which is an embedding too
    for name, moment in found.items():
        assert moment.count == count
        assert not moment.inputs_first
        close(moment.matrix, expected[name])
        assert torch.equal(moment.matrix, moment.matrix.T)


def test_one_layer_at_a_time_gives_the_same() -> None:
    objective, weights = texts(batch=4)
    whole = second_moments(objective, weights)
    before = objective.work
    probes = before.probes
    cut = list(each_second_moment(objective, weights))
    assert objective.work.probes - probes == len(whole)
    assert [moment.name for moment in cut] == list(whole)
    for moment in cut:
        assert torch.equal(moment.matrix, whole[moment.name].matrix)
    some = list(each_second_moment(objective, weights, ["net.blocks.1.wide.weight"], at_once=5))
    assert [moment.name for moment in some] == ["net.blocks.1.wide.weight"]


def test_moments_need_no_labels() -> None:
    objective, weights = texts()
    bare = Objective(objective.network, HEAD, Examples(objective.feed.examples.inputs, None, ""))
    found, expected = second_moments(bare, weights), second_moments(objective, weights)
    assert all(torch.equal(found[name].matrix, expected[name].matrix) for name in expected)


def test_moments_of_a_network_in_fp32_are_summed_in_fp64() -> None:
    network = Toy(lambda: nn.Linear(1, 2), torch.float32)
    examples = Examples(torch.full((10_000, 1), 0.7), torch.zeros(10_000, dtype=torch.int64), "")
    (moment,) = second_moments(
        Objective(network, None, examples, batch=1000), draw(network, 1, torch.float32)
    ).values()
    square = torch.tensor(0.7).double().item() ** 2
    assert moment.matrix.dtype == torch.float64
    assert moment.matrix.item() == pytest.approx(10_000 * square, rel=1e-12)


def test_tokens_in_one_long_row_are_told_from_padding() -> None:
    class Long(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(11, 4)
            self.flat = nn.Linear(4, 4)
            self.pooled = nn.Linear(4, 3)

        def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
            x = self.flat(self.words(tokens).flatten(0, 1)).view(*tokens.shape, 4)
            found: Tensor = self.pooled((x * mask[..., None]).sum(1))
            return found

    network = Texts(Long)
    weights = draw(network, 1)
    objective = Objective(network, None, sentences(9), batch=4)
    found = second_moments(objective, weights)
    tokens = torch.tensor([token for text in objective.feed.examples.inputs for token in text])
    x = weights["net.words.weight"][tokens]
    assert found["net.flat.weight"].count == len(tokens)
    close(found["net.flat.weight"].matrix, x.T @ x)
    assert found["net.pooled.weight"].count == 9


@pytest.mark.parametrize("convolutions", [False, True])
def test_moments_of_convolutions_are_those_of_patches(convolutions: bool) -> None:
    network = Toy(Convolutions)
    weights = draw(network, 3)
    objective = Objective(network, None, images(30), batch=7)
    found = second_moments(objective, weights, convolutions=convolutions)
    kernels = ["net.first.weight", "net.apart.weight", "net.circle.weight"] if convolutions else []
    assert list(found) == [*kernels, "net.last.weight"]
    if not convolutions:
        return
    x = network.collate(list(objective.feed.examples.inputs))
    wide = nn.functional.pad(x, (1, 1, 1, 1))
    patches = [wide[:, :, i : i + 3, j : j + 3].flatten(1) for i in range(0, 8, 2) for j in range(0, 6, 2)]
    rows = torch.cat(patches)
    assert found["net.first.weight"].count == len(rows) == 30 * 12
    close(found["net.first.weight"].matrix, rows.T @ rows)
    first = nn.functional.conv2d(
        x, weights["net.first.weight"], weights["net.first.bias"], stride=2, padding=1
    )
    inner = nn.functional.pad(torch.tanh(first), (1, 1, 1, 1))
    for group in range(4):
        rows = torch.cat(
            [inner[:, group, i : i + 3, j : j + 3].flatten(1) for i in range(4) for j in range(3)]
        )
        close(found["net.apart.weight"].matrix[group], rows.T @ rows)
    apart = nn.functional.conv2d(
        torch.nn.functional.pad(torch.tanh(first), (1, 1, 1, 1)), weights["net.apart.weight"], groups=4
    )
    middle = torch.tanh(apart)
    round_about = torch.cat([middle[:, :, -1:], middle, middle[:, :, :1]], 2)
    for group in range(2):
        own = round_about[:, 2 * group : 2 * group + 2]
        rows = torch.cat([own[:, :, i : i + 3, j].flatten(1) for i in range(4) for j in range(3)])
        close(found["net.circle.weight"].matrix[group], rows.T @ rows)


def test_weights_that_lie_inputs_first() -> None:
    class Conv1D(nn.Module):  # as in GPT-2
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.empty(4, 3)), nn.Parameter(torch.empty(3))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight + self.bias

    network = Toy(lambda: nn.Sequential(Conv1D()))
    objective = Objective(network, None, points(9, 4, 3))
    (moment,) = second_moments(objective, draw(network, 1)).values()
    assert moment.inputs_first
    x = objective.feed.examples.inputs
    close(moment.matrix, x.T @ x)


@pytest.mark.parametrize(
    "words",
    [
        {"kernel_size": (3, 2), "padding": (2, 1), "stride": (1, 2)},
        {"kernel_size": (2, 3), "padding": "same", "dilation": (3, 1)},
        {"kernel_size": (4, 1), "padding": "same", "groups": 2},
        {"kernel_size": 2, "padding": "valid", "dilation": 2, "stride": 3},
        {"kernel_size": (1, 3), "padding": (0, 2), "padding_mode": "reflect"},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_a_convolution_is_its_kernel_times_patches(words: dict[str, Any]) -> None:
    layer = nn.Conv2d(4, 6, bias=False, dtype=torch.float64, **words)
    chance = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, 8, 7, generator=chance, dtype=torch.float64)
    rows = patches(layer, (x,))
    kernel = layer.weight.detach().view(len(rows), -1, rows.shape[-1])
    expected = layer(x).detach().permute(0, 2, 3, 1)
    close((rows @ kernel.mT).transpose(0, 1).reshape(expected.shape), expected)
    assert torch.equal(patches(layer, (x[1],)), patches(layer, (x[1:],)))


def test_a_convolution_may_be_run_on_one_example_without_its_axis() -> None:
    class Single(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fold = nn.Conv2d(2, 3, 2, dtype=torch.float64)

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([self.fold(one) for one in x]).flatten(1)

    class Batch(Single):
        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.fold(x).flatten(1)
            return found

    inputs = torch.randn(5, 2, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = []
    for kind in (Single, Batch):
        network = Toy(kind)
        objective = Objective(network, None, Examples(inputs, None, ""))
        found.append(second_moments(objective, draw(network, 1), convolutions=True)["net.fold.weight"])
    assert found[0].count == found[1].count == 5 * 3 * 2
    close(found[0].matrix, found[1].matrix)


def test_convolutions_that_pad_in_their_own_way() -> None:
    class Below(nn.Conv2d):
        """Pads on the right and below only, before it convolves with words of its own."""

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.conv2d(
                nn.functional.pad(x, (0, 2, 0, 2)), self.weight, bias=self.bias, padding="valid"
            )

    network = Toy(lambda: nn.Sequential(Below(3, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    objective = Objective(network, None, images(4))
    (moment,) = second_moments(objective, draw(network, 1), convolutions=True).values()
    wide = nn.functional.pad(network.collate(list(objective.feed.examples.inputs)), (0, 2, 0, 2))
    rows = torch.cat([wide[:, :, i : i + 3, j : j + 3].flatten(1) for i in range(8) for j in range(6)])
    assert moment.count == len(rows)
    close(moment.matrix, rows.T @ rows)


def test_layers_that_are_not_what_they_seem_are_refused() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    class Scaled(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * 1.01

    class Twice(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + super().forward(x)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.once, self.twice, self.last = Scaled(3, 3, 3), Twice(3, 4, 3), Doubled(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.last(self.twice(self.once(x)).mean((2, 3)))
            return found

    network = Toy(Net)
    objective = Objective(network, None, images(4))
    for name in ("net.once.weight", "net.last.weight"):
        with pytest.raises(RefusedInput, match=rf"the layer of {name} .* does not put out its weight times"):
            second_moments(objective, draw(network, 1), [name], convolutions=True)
    with pytest.raises(RefusedInput, match="a layer Twice makes 2 convolutions"):
        second_moments(objective, draw(network, 1), ["net.twice.weight"], convolutions=True)


def test_names_that_have_no_moment() -> None:
    objective, weights = texts()
    with pytest.raises(UsageError, match=r"net\.blocks\.0\.norm\.weight is not the weight of a layer"):
        second_moments(objective, weights, ["net.blocks.0.norm.weight"])
    with pytest.raises(UsageError, match="at_once is 0"):
        list(each_second_moment(objective, weights, at_once=0))

    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.pooler = nn.Linear(4, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.used(x)
            return found

    network = Toy(Idle)
    idle = Objective(network, None, points(5, 4, 3))
    assert list(second_moments(idle, draw(network, 1))) == ["net.used.weight"]
    with pytest.raises(RefusedInput, match=r"net\.pooler\.weight was not run"):
        second_moments(idle, draw(network, 1), ["net.used.weight", "net.pooler.weight"])
