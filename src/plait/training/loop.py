"""The loop itself: batches in, steps of AdamW, trained tensors out. No files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from plait.errors import NonFinite, RefusedInput
from plait.problem.base import Examples, Head, Network, Weights
from plait.problem.feed import Feed, Piece
from plait.problem.objective import Objective, differentiable
from plait.tensors import Tensor, torch
from plait.training.choice import parameters
from plait.training.recipe import Recipe
from plait.training.schedule import one_epoch, share_of_rate
from plait.training.words import UsedWords, token_table

Adjust = Callable[[Mapping[str, Tensor]], None]
"""Gets the tensors that are trained, as leaves of a graph, after each backward pass; it may change their `.grad`."""


@dataclass(frozen=True)
class Trained:
    """What came of it.

    weights: the tensors that were trained, by name, on the network's device and in its dtype. losses: before every
    step, the mean cross-entropy of its batch.
    """

    weights: dict[str, Tensor]
    losses: list[float]


def train(
    network: Network,
    head: Head | None,
    weights: Weights,
    examples: Examples,
    recipe: Recipe,
    *,
    names: Sequence[str] | None = None,
    what: str = "the task",
    progress: Any = None,
    adjust: Adjust | None = None,
) -> Trained:
    """Fine-tune `names` (all parameters by default) of `weights`, in the network's dtype, on all of `examples`.

    head: frozen, or None for what the network puts out itself. The network stays in evaluation: no dropout, running
    statistics stand still. weights is not written into. what: the name for messages. progress: told of every step.
    adjust: what is done to gradients before a step, such as a penalty's added; tensors are then trained whole, words
    that do not occur included. Nothing but the order of the examples is drawn, from the recipe's seed, so the same
    inputs give the same bytes for the same thread count, device and versions of software.

    Errors: NonFinite where the loss or a trained tensor becomes NaN or infinite; RefusedInput where network, head and
    examples do not fit.
    """
    live: dict[str, Tensor] = dict(getattr(network, "ready", dict)(weights))
    chosen = list(parameters(network) if names is None else names)
    table = token_table(network)
    words = None
    if table is not None and table in chosen and recipe.weight_decay == 0 and adjust is None:
        words = UsedWords(network, table, examples.inputs)
        network, live = words, words.cut(live)
    leaves = {name: live[name].detach().clone().requires_grad_() for name in chosen}
    run = _Run(network, head, {**live, **leaves}, examples, recipe, what)
    with differentiable():
        losses = run.steps(leaves, progress, adjust)
    found = {name: leaf.detach() for name, leaf in leaves.items()}
    _all_finite(found, what, recipe)
    if words is not None and table is not None:
        found[table] = words.put_back(found[table], weights[table].to(found[table]))
    return Trained(found, losses)


@dataclass(frozen=True)
class _Run:
    """What stays the same from step to step. live: all weights, some of them leaves that are trained."""

    network: Network
    head: Head | None
    live: Weights
    examples: Examples
    recipe: Recipe
    what: str

    def steps(self, leaves: Mapping[str, Tensor], progress: Any, adjust: Adjust | None) -> list[float]:
        """All steps of all epochs. Returns the loss before each."""
        recipe = self.recipe
        feed = Feed(self.network, self.examples)
        objective = Objective(self.network, self.head, self.examples)
        optimiser = torch.optim.AdamW(
            list(leaves.values()), lr=recipe.rate, weight_decay=recipe.weight_decay, fused=True
        )
        chance = torch.Generator().manual_seed(recipe.seed)
        total = recipe.epochs * -(-len(self.examples) // recipe.batch)
        losses: list[float] = []
        if progress is not None:
            progress.begin("training", total)
        try:
            for _ in range(recipe.epochs):
                for rows in one_epoch(feed.sizes(), recipe.batch, chance):
                    piece = feed.piece(rows)
                    for group in optimiser.param_groups:
                        group["lr"] = recipe.rate * share_of_rate(len(losses) / total, recipe.warmup)
                    loss = _mean(objective, self.live, piece)
                    losses.append(self._checked(loss.item(), len(losses) + 1, total))
                    optimiser.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    if adjust is not None:
                        adjust(leaves)
                    optimiser.step()
                    if progress is not None:
                        progress.advance(1)
        finally:
            if progress is not None:
                progress.end()
        return losses

    def _checked(self, loss: float, step: int, total: int) -> float:
        if isfinite(loss):
            return loss
        advice = f"lower the rate, which is {self.recipe.rate:g}"
        if step == 1:
            bad = next((n for n, t in self.live.items() if not bool(torch.isfinite(t).all())), None)
            advice = "nothing was trained yet: does the head hold NaN?"
            if bad is not None:
                advice = f"{bad} holds NaN or infinity before anything was trained; repair the checkpoint"
        raise NonFinite(f"{self.what}: the loss is {loss} at step {step} of {total}; {advice}")


def _mean(objective: Objective, live: Weights, piece: Piece) -> Tensor:
    """Mean cross-entropy over examples, for causal-lm over predicted tokens."""
    each = objective.surprise(live, piece)
    if piece.labels is not None:
        return each.mean()
    tokens, mask = piece.tokens, piece.mask
    count = tokens[:, 1:].numel() if mask is None else int((mask[:, 1:] & mask[:, :-1]).sum())
    if not count:
        raise RefusedInput("a batch has no text with a second token; there is nothing to predict")
    return each.sum() / count


def _all_finite(trained: Weights, what: str, recipe: Recipe) -> None:
    for name, tensor in trained.items():
        if not bool(torch.isfinite(tensor).all()):
            raise NonFinite(
                f"{what}: {name} is NaN or infinite after the last step; lower the rate, which is {recipe.rate:g}"
            )
