"""Inputs made from a model alone, in place of examples that are no longer there (synthetic replay).

For each class of a task, inputs start as noise and climb the log-probability of that class under the model and the
task's head: images as the pixels that the network sees, texts as the embeddings of a row of tokens. What they are
good for has to be measured: nothing makes them look like the data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from plait.errors import RefusedInput, UsageError
from plait.problem.base import Examples, Head, Network, Weights
from plait.problem.feed import Feed
from plait.problem.module import ModuleNetwork
from plait.problem.objective import Objective, differentiable
from plait.tensors import Tensor, torch
from plait.tensors.random import uniform

PIXELS, EMBEDDINGS = "pixel_values", "embeddings"

OTHER = r"position|token_type|(^|\.)wpe$"
"""Embeddings that are not of tokens, by their names."""

WORD = 2
"""The token whose embedding is replaced: no usual model fills up with it."""


@dataclass(frozen=True)
class Recipe:
    """each: inputs of a class. steps, rate: of Adam on the inputs. length: tokens of a text. smooth: weight of the
    total variation of images (mean absolute difference of neighbours). near: weight of the mean squared distance from
    the origin, for texts from the mean embedding in units of its spread. seed: of the noise."""

    each: int = 4
    steps: int = 100
    rate: float = 0.05
    length: int = 16
    smooth: float = 0.1
    near: float = 0.01
    seed: int = 0


def synthesise(
    task: str,
    network: Network,
    head: Head | None,
    classes: int,
    weights: Weights,
    recipe: Recipe = Recipe(),
    *,
    like: Any = None,
    batch: int = 32,
    fixed: Weights | None = None,
) -> Objective:
    """The objective of made-up inputs, `recipe.each` of every class, in the order of classes, labelled with them.

    weights: the model whose opinion is asked, all tensors that the network uses; they are not changed. like: one
    image (uint8 (height, width, 3)), which says how large they are; None for texts. The noise depends on task and
    seed alone. Deterministic for a given thread count. batch, fixed: of the objective.

    Errors: UsageError for a recipe or a number of classes below 1; RefusedInput for a network that is not made of a
    torch module, or without an embedding of tokens.
    """
    if classes < 1 or recipe.each < 1 or recipe.steps < 0:
        raise UsageError(
            f"synthetic replay of {task} with {classes} classes, {recipe.each} inputs each and {recipe.steps} steps; "
            "expected at least one class that the head tells apart, and one input"
        )
    if not isinstance(network, ModuleNetwork):
        raise RefusedInput(f"{task}: its network is no torch module; synthetic replay looks into one")
    room = _pixels(network, like) if like is not None else _tokens(network, weights, recipe)
    labels = torch.arange(classes).repeat_interleave(recipe.each)
    inputs = _noise(task, recipe.seed, (len(labels), *room.shape))
    climber = Objective(room.network, head, Examples(list(inputs), labels, ""), batch=batch, fixed=fixed)
    made = _climb(climber, weights, inputs, room, recipe)
    digest = sha256(made.contiguous().numpy().tobytes() + labels.numpy().tobytes()).hexdigest()
    return Objective(room.network, head, Examples(list(made), labels, digest), batch=batch, fixed=fixed)


@dataclass(frozen=True)
class _Room:
    """Where inputs live. network: takes them as examples. shape: of one. variation: the penalty on neighbours."""

    network: Network
    shape: tuple[int, ...]
    variation: Callable[[Tensor], Tensor]


def _pixels(network: ModuleNetwork, like: Any) -> _Room:
    """Images are the floating-point tensor of a batch: the batch itself, or what it holds as `pixel_values`."""
    batch = network.collate(network.encode([like]))
    alone = isinstance(batch, torch.Tensor)
    found = batch if alone else batch.get(PIXELS) if isinstance(batch, Mapping) else None
    if not isinstance(found, torch.Tensor) or not found.is_floating_point() or found.dim() < 2:
        raise RefusedInput(
            f"{network.about}: its batches are no tensor of images and hold none as {PIXELS}, and examples are made "
            "up in it; let its collate put them there, or use fit.replay=none"
        )

    def collate(rows: Sequence[Any]) -> Any:
        stacked = torch.stack(list(rows)).to(network.device, network.dtype)
        return stacked if alone else {PIXELS: stacked}

    own = replace(network, encoder=list, collator=collate, length=lambda one: 0)
    return _Room(own, tuple(found.shape[1:]), _total_variation if found.dim() == 4 else _no_variation)


def _tokens(network: ModuleNetwork, weights: Weights, recipe: Recipe) -> _Room:
    """Texts are (length, width) numbers around 0, in units of the spread of the embeddings around their mean."""
    name, layer = _embedding(network)
    path = name.rpartition(".")[0]
    table = next(weights[own] for own, target in network.names.items() if target == name)
    spread, mean = torch.std_mean(table.detach().float(), dim=0)
    width = int(layer.embedding_dim)

    def collate(rows: Sequence[Any]) -> dict[str, Tensor]:
        drawn = torch.stack(list(rows))
        found = (mean.to(drawn) + spread.to(drawn) * drawn).to(network.device, network.dtype)
        mask = torch.ones(drawn.shape[:2], dtype=torch.int64, device=network.device)
        return {"input_ids": mask * WORD, "attention_mask": mask, EMBEDDINGS: found}

    def within(function: Any) -> Any:
        def run(module: Any, batch: Mapping[str, Tensor]) -> Tensor:
            rest = {key: value for key, value in batch.items() if key != EMBEDDINGS}
            given = batch[EMBEDDINGS]
            handle = module.get_submodule(path).register_forward_hook(lambda *_: given)
            try:
                made: Tensor = function(module, rest)
                return made
            finally:
                handle.remove()

        return run

    own = replace(
        network,
        encoder=list,
        collator=collate,
        length=len,
        to_features=network.to_features and within(network.to_features),
        to_outputs=network.to_outputs and within(network.to_outputs),
    )
    return _Room(own, (recipe.length, width), _no_variation)


def _embedding(network: ModuleNetwork) -> tuple[str, Any]:
    """The layer that embeds tokens: the embedding with the most rows that is none of positions or kinds."""
    found = [
        (not re.search(OTHER, path), layer.num_embeddings, f"{path}.weight", layer)
        for path, layer in network.module.named_modules()
        if isinstance(layer, torch.nn.Embedding)
    ]
    if not found:
        raise RefusedInput(f"{network.about} has no embedding of tokens; synthetic replay of texts needs one")
    _, _, name, layer = max(found, key=lambda entry: entry[:2])
    return name, layer


def _noise(task: str, seed: int, shape: tuple[int, ...]) -> Tensor:
    """Standard normal numbers, fp32 (Box and Muller 1958)."""
    count = 1
    for axis in shape:
        count *= axis
    root = sha256(f"plait replay {seed}".encode()).digest()
    first, second = uniform(root, f"{task} 1", 0, count), uniform(root, f"{task} 2", 0, count)
    made = (-2 * (first + 2.0**-33).log()).sqrt() * (2 * torch.pi * second).cos()
    return made.float().view(shape)


def _climb(climber: Objective, weights: Weights, inputs: Tensor, room: _Room, recipe: Recipe) -> Tensor:
    """The inputs after Adam on -log p(class) and the priors, each input by itself."""
    now = inputs.clone()
    first, second = torch.zeros_like(now), torch.zeros_like(now)
    for step in range(1, recipe.steps + 1):
        slope = _slope(climber, weights, now, room, recipe)
        first = 0.9 * first + 0.1 * slope
        second = 0.999 * second + 0.001 * slope * slope
        ahead = (first / (1 - 0.9**step)) / ((second / (1 - 0.999**step)).sqrt() + 1e-8)
        now = now - recipe.rate * ahead
    return now


def _slope(climber: Objective, weights: Weights, now: Tensor, room: _Room, recipe: Recipe) -> Tensor:
    """The derivative of the sum of every input's objective by the inputs."""
    found = torch.zeros_like(now)
    labels = climber.feed.examples.labels
    with differentiable():
        for first in range(0, len(now), climber.micro):
            rows = range(first, min(first + climber.micro, len(now)))
            leaf = now[list(rows)].detach().requires_grad_()
            feed = Feed(room.network, Examples([leaf[i] for i in range(len(rows))], _cut(labels, rows), ""))
            for piece in feed.pieces(range(len(rows)), len(rows)):
                live = climber.live(weights, (), piece.device)
                total = climber.surprise(live, piece).sum().to(leaf.device)
            prior = (
                recipe.smooth * room.variation(leaf) + recipe.near * leaf.flatten(1).square().mean(1).sum()
            )
            found[list(rows)] = torch.autograd.grad(total + prior, leaf)[0]
    return found


def _cut(labels: Tensor | None, rows: range) -> Tensor | None:
    return None if labels is None else labels[list(rows)]


def _no_variation(inputs: Tensor) -> Tensor:
    return inputs.new_zeros(())


def _total_variation(images: Tensor) -> Tensor:
    """The sum over images, (rows, channels, height, width), of the mean absolute difference of neighbours."""
    across = (images[..., 1:] - images[..., :-1]).abs().flatten(1).mean(1)
    down = (images[..., 1:, :] - images[..., :-1, :]).abs().flatten(1).mean(1)
    return (across + down).sum()
