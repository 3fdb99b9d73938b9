"""Running statistics computed anew, against numpy that convolves place by place over all examples at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from plait.errors import RefusedInput, UsageError
from plait.problem.base import Examples
from plait.problem.batchnorm import population_statistics
from plait.problem.network import module_network
from plait.problem.objective import Objective

EPSILON = 1e-5


class Two(nn.Module):
    """Two convolutions, each with BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.second = nn.Conv2d(3, 4, 2, bias=False)
        self.deeper = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 2)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu(self.norm(self.first(images)))
        made: Tensor = self.head(torch.relu(self.deeper(self.second(hidden))).mean((2, 3)))
        return made


def weights_of(module: nn.Module, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Random weights, with running statistics that are far from the true ones."""
    g = torch.Generator().manual_seed(3)
    held = {n: t for n, t in module.state_dict().items() if t.is_floating_point()}
    made = {n: torch.randn(t.shape, generator=g, dtype=torch.float64) for n, t in held.items()}
    return {n: (t.abs() + 3 if "running_var" in n else t).to(dtype) for n, t in made.items()}


def images(seed: int, number: int, shift: float = 0.0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(number, 2, 6, 6, generator=g, dtype=torch.float64) * (1 + seed) + shift


def objective(
    module: nn.Module, inputs: Any, batch: int = 4, dtype: str = "float64", **how: Any
) -> Objective:
    return Objective(
        module_network(module, dtype=dtype, **how), None, Examples(inputs, None, "x"), batch=batch
    )


def convolved(inputs: Any, weight: Any, bias: Any) -> Any:
    rows, _, height, width = inputs.shape
    size = weight.shape[-1]
    made = np.zeros((rows, len(weight), height - size + 1, width - size + 1))
    for r, o, y, x in np.ndindex(*made.shape):
        made[r, o, y, x] = (inputs[r, :, y : y + size, x : x + size] * weight[o]).sum() + bias[o]
    return made


def by_hand(tasks: list[Tensor], weights: dict[str, Tensor]) -> dict[str, Any]:
    """Every example of every task with weight 1 / (tasks * examples of its task); all layers over all at once."""
    w = {name: tensor.numpy() for name, tensor in weights.items()}
    shares = np.concatenate([np.full(len(task), 1 / (len(tasks) * len(task))) for task in tasks])
    hidden = np.concatenate([task.numpy() for task in tasks])
    found: dict[str, Any] = {}
    for conv, norm in (("first", "norm"), ("second", "deeper")):
        bias = w.get(f"{conv}.bias", np.zeros(len(w[f"{conv}.weight"])))
        hidden = convolved(hidden, w[f"{conv}.weight"], bias)
        mean = (shares[:, None] * hidden.mean((2, 3))).sum(0)
        apart = hidden - mean[:, None, None]
        variance = (shares[:, None] * (apart**2).mean((2, 3))).sum(0)
        found |= {f"{norm}.running_mean": mean, f"{norm}.running_var": variance}
        scaled = apart / np.sqrt(variance + EPSILON)[:, None, None]
        hidden = np.maximum(w[f"{norm}.weight"][:, None, None] * scaled + w[f"{norm}.bias"][:, None, None], 0)
    return found


def test_statistics_are_those_of_all_examples_with_every_task_alike() -> None:
    weights = weights_of(Two())
    inputs = [images(0, 9, 2.0), images(1, 3)]
    found = population_statistics(
        {"a": objective(Two(), inputs[0]), "b": objective(Two(), inputs[1])}, weights
    )
    wanted = by_hand(inputs, weights)
    assert set(found) == set(wanted)
    for name, tensor in found.items():
        # fp64 throughout: sums of about 200 terms, each of a relative error below 2**-50
        np.testing.assert_allclose(tensor.numpy(), wanted[name], rtol=1e-11, atol=1e-11)
        assert not torch.allclose(tensor, weights[name], rtol=0.05)


def test_batches_do_not_show() -> None:
    weights = weights_of(Two())
    inputs = images(0, 11, 1.0)
    found = [
        population_statistics({"a": objective(Two(), rows, batch)}, weights)
        for rows, batch in ((inputs, 1), (inputs, 4), (inputs, 11), (inputs.flip(0), 3))
    ]
    for other in found[1:]:
        for name in found[0]:
            torch.testing.assert_close(other[name], found[0][name], rtol=1e-12, atol=1e-12)


def test_a_batch_of_everything_in_training_mode_normalises_alike() -> None:
    """What torch makes of one batch of all examples of one task; its running_var is n / (n - 1) of the variance."""
    module = Two().double()
    module.load_state_dict(weights_of(module), strict=False)
    for part in (module.norm, module.deeper):
        part.momentum = 1.0
    inputs = images(0, 8)
    weights = {n: t.clone() for n, t in module.state_dict().items() if t.is_floating_point()}
    module.train()(inputs)
    found = population_statistics({"a": objective(Two(), inputs)}, weights)
    for name, places in (("norm", 8 * 16), ("deeper", 8 * 9)):
        state = module.state_dict()
        torch.testing.assert_close(found[f"{name}.running_mean"], state[f"{name}.running_mean"])
        biased = state[f"{name}.running_var"] * (places - 1) / places
        torch.testing.assert_close(found[f"{name}.running_var"], biased)


def test_results_have_the_dtype_of_the_weights_and_later_layers_run_with_them() -> None:
    weights = weights_of(Two(), torch.bfloat16)
    before = {name: tensor.clone() for name, tensor in weights.items()}
    inputs = images(0, 6, 300.0)  # means of hundreds, which bf16 rounds by more than the deviation
    found = population_statistics({"a": objective(Two(), inputs)}, weights)
    assert {tensor.dtype for tensor in found.values()} == {torch.bfloat16}
    assert all(torch.equal(weights[name], before[name]) for name in weights)
    made = objective(Two(), inputs)
    made.fixed = {name: found.pop(name) for name in ("norm.running_mean", "norm.running_var")}
    deeper = population_statistics({"a": made}, {n: t for n, t in weights.items() if n not in made.fixed})
    assert {name: tensor.tolist() for name, tensor in deeper.items()} == {
        name: tensor.tolist() for name, tensor in found.items()
    }


class Tokens(nn.Module):
    """BatchNorm over the places of texts, as (rows, width, length)."""

    def __init__(self, flat: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 3)
        self.norm = nn.BatchNorm1d(3)
        self.flat = flat

    def forward(self, batch: Any) -> Tensor:
        hidden = self.embed(batch["input_ids"])
        made: Tensor = self.norm(hidden.flatten(0, 1) if self.flat else hidden.mT)
        return made


@pytest.mark.parametrize("flat", [False, True])
def test_padding_is_left_out(flat: bool) -> None:
    from plait.problem.batching import pad

    texts = [[1, 2, 3, 4], [5], [6, 6], [1], [2, 3, 1, 1, 5]]
    weights = weights_of(Tokens())
    made = objective(Tokens(flat), texts, 2, collate=lambda rows: pad(rows, 0), size=len)
    made.rows = (0, 1, 2, 4, 3)
    made.feed._sizes, made.feed._kept = [0] * 5, list(texts)  # batches of unlike length
    found = population_statistics({"a": made}, weights)
    every = weights["embed.weight"][torch.tensor([token for text in texts for token in text])]
    torch.testing.assert_close(found["norm.running_mean"], every.mean(0))
    torch.testing.assert_close(found["norm.running_var"], every.var(0, correction=0))


class Twice(Two):
    def forward(self, images: Tensor) -> Tensor:
        made: Tensor = self.norm(self.norm(self.first(images))).mean((2, 3))
        return made


class Fewer(Two):
    def forward(self, images: Tensor) -> Tensor:
        hidden = self.norm(self.first(images))
        made: Tensor = self.second(hidden).mean((2, 3))
        return made


class Sometimes(Two):
    def forward(self, images: Tensor) -> Tensor:
        hidden = self.first(images)
        made: Tensor = (self.norm(hidden) if len(images) > 1 else hidden).mean((2, 3))
        return made


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ([nn.Flatten()], "a: the network runs no BatchNorm layer whose running statistics are merged"),
        ([Twice()], r"runs the BatchNorm layer of norm\.running_mean 2 times"),
        ([Two(), Fewer()], r"b runs other BatchNorm layers than a, or in another order \(1 and 2\)"),
        ([Sometimes()], r"a: the BatchNorm layer of norm\.running_mean runs for some examples only"),
    ],
)
def test_what_has_no_such_statistics(modules: list[nn.Module], message: str) -> None:
    weights = weights_of(Two())
    made = {name: objective(module, images(0, 5)) for name, module in zip("ab", modules, strict=False)}
    with pytest.raises(RefusedInput, match=message) as caught:
        population_statistics(made, weights)
    assert "\n" not in str(caught.value)


def test_layers_that_do_not_run_or_are_not_merged_stay() -> None:
    weights = weights_of(Two())
    found = population_statistics({"a": objective(Fewer(), images(0, 5))}, weights)
    assert sorted(found) == ["norm.running_mean", "norm.running_var"]
    own = {"norm.running_mean", "norm.running_var"}
    made = objective(Two(), images(0, 5))
    made.fixed = {name: weights[name] for name in own}
    found = population_statistics({"a": made}, {n: t for n, t in weights.items() if n not in own})
    assert sorted(found) == ["deeper.running_mean", "deeper.running_var"]


def test_inputs_that_are_not_finite_are_refused() -> None:
    weights = weights_of(Two())
    weights["first.weight"] = weights["first.weight"] * float("nan")
    with pytest.raises(RefusedInput, match=r"norm\.running_mean, computed anew, is not finite"):
        population_statistics({"a": objective(Two(), images(0, 5))}, weights)
    with pytest.raises(UsageError, match="there are 0 tasks"):
        population_statistics({}, weights)
