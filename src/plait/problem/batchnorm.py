"""Running statistics of BatchNorm layers, computed anew from unlabelled examples.

A running mean and variance describe the activations of the model that they were counted on. Those of a merged model
are others: they are no mean of its members' (Izmailov et al. 2018, arXiv 1803.05407; Jordan et al. 2022, arXiv
2211.08403), and what a method makes of variances need not even be positive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch.nn.modules.batchnorm import _BatchNorm

from plait.errors import RefusedInput, UsageError
from plait.problem.base import Network, Weights
from plait.problem.feed import Piece
from plait.problem.objective import Objective
from plait.tensors import Tensor, torch


@dataclass(frozen=True)
class Layer:
    """A BatchNorm layer, by the checkpoint's names of its running mean and variance."""

    mean: str
    variance: str


def population_statistics(objectives: Mapping[str, Objective], weights: Weights) -> dict[str, Tensor]:
    """New running_mean and running_var of every BatchNorm layer that the network runs, by their names in `weights`.

    Layer by layer, in the order in which they run: the mean and the variance of a layer's input over all examples
    (and places, padding left out) while all layers before it normalise by the statistics that were found for them.
    With m_t and v_t the mean and the (biased) variance over the examples of task t, and T tasks,

        running_mean = 1/T sum_t m_t          running_var = 1/T sum_t v_t + 1/T sum_t (m_t - running_mean)^2

    so every task counts alike, however many examples it has. These are what one batch of all examples would be
    normalised by. Nothing is a moving average and nothing is drawn at random: the order and the size of batches show
    in no more than rounding. Sums run in fp64; results have the shapes and dtypes that they have in `weights`, and
    the layers after are run with these.

    objectives: by task; their labels and heads are not looked at, only what runs before the head's end. weights: the
    floating-point tensors to run with; only statistics that are among them are computed. Counts (num_batches_tracked)
    have no part in this. Layers that freeze their statistics (no `torch.nn.BatchNorm*`) are left alone.
    Cost: a pass over all examples for each layer, which ends at that layer: together about half as much as one whole
    forward pass for each layer. One batch is in memory.
    Errors: RefusedInput where there is no such layer, where a layer runs twice in one pass (its statistics would
    have to be two), where tasks differ in their layers, or where an input of a layer is not finite.
    """
    if not objectives:
        raise UsageError("there are 0 tasks; expected at least one to take examples from")
    orders = {task: _order(objective, weights) for task, objective in objectives.items()}
    found: dict[str, Tensor] = {}
    for layer in _common(orders):
        live = {**weights, **found}
        parts = [_moments(task, objective, live, layer) for task, objective in objectives.items()]
        means = torch.stack([mean for mean, _ in parts])
        mean = means.mean(0)
        variance = torch.stack([variance for _, variance in parts]).mean(0) + (means - mean).square().mean(0)
        for name, value in ((layer.mean, mean), (layer.variance, variance)):
            found[name] = value.to(weights[name])
            if not bool(torch.isfinite(found[name]).all()):
                raise RefusedInput(
                    f"{name}, computed anew, is not finite in {found[name].dtype}: the layer's inputs hold NaN or "
                    "infinity, or are very large; measure the merged model, or merge by another method or scale"
                )
    return found


def layers(network: Network, weights: Weights) -> dict[Layer, str]:
    """The BatchNorm layers whose running statistics are in `weights`, with the name of each one's module."""
    names = {target: name for name, target in network.names.items() if name in weights}
    found = {}
    for path, part in network.module.named_modules():
        mean, variance = (f"{path}.{word}".lstrip(".") for word in ("running_mean", "running_var"))
        if isinstance(part, _BatchNorm) and mean in names and variance in names:
            found[Layer(names[mean], names[variance])] = path
    return found


def _order(objective: Objective, weights: Weights) -> list[Layer]:
    """The layers that one pass over one batch runs, in order."""
    there = layers(objective.network, weights)
    ran: list[Layer] = []

    def note(layer: Layer) -> Callable[[Tensor], None]:
        return lambda _: ran.append(layer)

    with torch.no_grad(), _before(objective.network, {there[layer]: note(layer) for layer in there}):
        piece, live = next(iter(objective.run(weights, (), objective.batch)))
        objective.logits(live, piece)
    twice = next((layer for layer in ran if ran.count(layer) > 1), None)
    if twice is not None:
        raise RefusedInput(
            f"the network runs the BatchNorm layer of {twice.mean} {ran.count(twice)} times for one batch; its "
            "statistics can be those of one place only: keep the ones that it has"
        )
    return ran


def _common(orders: Mapping[str, list[Layer]]) -> list[Layer]:
    first, *others = orders
    if not orders[first]:
        raise RefusedInput(
            f"{first}: the network runs no BatchNorm layer whose running statistics are merged; there is nothing to "
            "compute anew (one that was folded needs no statistics)"
        )
    for task in others:
        if orders[task] != orders[first]:
            raise RefusedInput(
                f"{task} runs other BatchNorm layers than {first}, or in another order ({len(orders[task])} and "
                f"{len(orders[first])}); expected tasks that share one network"
            )
    return orders[first]


class _Reached(Exception):
    """The layer that a pass is for has its input; nothing after it needs to run."""


def _moments(task: str, objective: Objective, weights: Weights, layer: Layer) -> tuple[Tensor, Tensor]:
    """Mean and biased variance (channels,) of what goes into a layer, over all examples of a task, in fp64."""
    place = layers(objective.network, weights)[layer]
    count, total, square = 0, torch.zeros(()), torch.zeros(())
    inputs: list[Tensor] = []

    def take(given: Tensor) -> None:
        inputs.append(given)
        raise _Reached

    with (
        objective.work.doing("probes", len(objective)),
        torch.no_grad(),
        _before(objective.network, {place: take}),
    ):
        for piece, live in objective.run(weights, (), objective.batch):
            try:
                objective.logits(live, piece)
            except _Reached:
                rows = _rows(layer, inputs.pop(), piece).double()
                count += len(rows)
                total, square = total.to(rows) + rows.sum(0), square.to(rows) + rows.square().sum(0)
            else:
                raise RefusedInput(f"{task}: the BatchNorm layer of {layer.mean} runs for some examples only")
    mean = total / count
    return mean.cpu(), (square / count - mean.square()).clamp_min(0).cpu()


def _rows(layer: Layer, given: Tensor, piece: Piece) -> Tensor:
    """(n, channels): every place of every example, without padding."""
    places = given.movedim(1, -1)
    mask = piece.mask
    if mask is None or bool(mask.all()) or given.shape[:-1] == (len(piece),):
        return places.flatten(0, -2)
    if places.shape[:-1] == mask.shape:
        return places[mask]
    if places.shape[:-1] == (mask.numel(),):
        return places[mask.flatten()]
    raise RefusedInput(
        f"the BatchNorm layer of {layer.mean} takes {tuple(given.shape)}, and the batch is padded to "
        f"{tuple(mask.shape)}; expected one place for each token, so that padding can be left out"
    )


@contextmanager
def _before(network: Network, hooks: Mapping[str, Callable[[Tensor], None]]) -> Iterator[None]:
    """Call hooks[module's name](its input) before every forward of that module, until the block ends."""

    def hooked(hook: Callable[[Tensor], None]) -> Callable[..., None]:
        def call(module: torch.nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
            hook(positional[0] if positional else named["input"])

        return call

    handles = [
        network.module.get_submodule(name).register_forward_pre_hook(hooked(hook), with_kwargs=True)
        for name, hook in hooks.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
