"""What goes on inside a network: the outputs of its layers, and how far they lie from those of other weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf, sqrt
from typing import Any

from plait.errors import RefusedInput, UsageError
from plait.problem.base import Weights
from plait.problem.feed import Piece
from plait.problem.objective import Objective
from plait.tensors import Tensor, torch


@dataclass(frozen=True)
class Seen:
    """What one layer put out for one batch.

    rows: numbers of the examples. output: rows first; the first tensor where the layer puts out several. mask: (rows,
    length) bool, False for padding, where the output has an axis of tokens, else None.
    """

    layer: str
    rows: tuple[int, ...]
    output: Tensor
    mask: Tensor | None

    def pooled(self) -> Tensor:
        """(rows, width): the mean over tokens, without padding; over places for (rows, channels, height, width)."""
        if self.output.dim() == 2:
            return self.output
        if self.output.dim() > 3:
            return self.output.flatten(2).mean(2)
        if self.mask is None:
            return self.output.mean(1)
        share = self.mask.to(self.output.dtype) / self.mask.sum(1, keepdim=True).clamp_min(1)
        return (self.output * share[..., None]).sum(1)


def blocks(module: torch.nn.Module) -> tuple[str, ...]:
    """Names of the layers that a network is a stack of, in order: the members of a ModuleList or Sequential. Of
    several, that with most members among those with at least half as many parameters as the largest; where there is
    none, every module without children that has parameters."""
    sizes = {
        name: sum(parameter.numel() for parameter in part.parameters())
        for name, part in module.named_modules()
        if isinstance(part, (torch.nn.ModuleList, torch.nn.Sequential)) and len(part)
    }
    large = [name for name, size in sizes.items() if size and 2 * size >= max(sizes.values())]
    if not large:
        return tuple(
            name
            for name, part in module.named_modules()
            if name and not any(part.children()) and any(True for _ in part.parameters())
        )
    members = {name: [child for child, _ in module.get_submodule(name).named_children()] for name in large}
    stack = max(large, key=lambda name: len(members[name]))
    return tuple(f"{stack}.{child}".lstrip(".") for child in members[stack])


def activations(
    objective: Objective,
    weights: Weights,
    visit: Callable[[Seen], None],
    layers: Iterable[str] | None = None,
) -> None:
    """Hand the output of each of `layers` (names of modules, `blocks` by default) to `visit`, batch by batch, so that
    no more than one batch is in memory. No gradients.

    UsageError for a module that the network has not; RefusedInput for a layer that was not run.
    """
    chosen = named(objective, layers)
    with objective.work.doing("probes", len(objective)), torch.no_grad():
        for piece, live in objective.run(weights, (), objective.batch):
            for seen in outputs(objective, live, piece, chosen):
                visit(seen)


def representations(
    objective: Objective, weights: Weights, layers: Iterable[str] | None = None
) -> dict[str, Tensor]:
    """Layer -> (examples, width): its outputs, pooled as `Seen.pooled` says, in the order of the examples."""
    place = {row: i for i, row in enumerate(objective.rows)}
    found: dict[str, Tensor] = {}

    def visit(seen: Seen) -> None:
        pooled = seen.pooled()
        if seen.layer not in found:
            found[seen.layer] = pooled.new_empty((len(place), pooled.shape[1]))
        found[seen.layer][[place[row] for row in seen.rows]] = pooled

    activations(objective, weights, visit, layers)
    return found


def drift(
    objective: Objective,
    weights: Weights,
    targets: Sequence[Weights],
    layers: Mapping[str, float] | None = None,
    names: Iterable[str] | None = None,
) -> tuple[float, dict[str, Tensor]]:
    """How far the layers' outputs lie from the mean of those under `targets`, and its gradient by tensor name.

    sum_l layers[l] * ||h_l(weights) - mean_t h_l(t)||^2 / dim, the mean over examples; dim counts the entries of an
    example's output, padding left out. layers: shares by module name; by default every one of `blocks`, the l-th of n
    with share l / (1 + ... + n), so that deeper layers weigh more (TRM, arXiv 2605.08311). names: see
    `Objective.loss_and_gradient`. No more than one micro-batch is in memory.
    """
    if not targets:
        raise UsageError("there are 0 targets; expected at least one set of weights")
    stack = blocks(objective.network.module)
    total = len(stack) * (len(stack) + 1) / 2
    shares = {name: (i + 1) / total for i, name in enumerate(stack)} if layers is None else dict(layers)
    chosen = named(objective, shares)
    ready: list[dict[str, Tensor]] = []

    def measure(live: Weights, piece: Piece) -> tuple[Tensor, int]:
        if not ready:
            ready.extend(objective.live(target, (), piece.device) for target in targets)
        sums: dict[str, Tensor] = {}
        for target in ready:
            for seen in outputs(objective, target, piece, chosen):
                before = sums.get(seen.layer)
                sums[seen.layer] = seen.output if before is None else before + seen.output
        terms = [
            shares[seen.layer] * _square(seen, sums[seen.layer] / len(ready)).sum(dtype=torch.float64)
            for seen in outputs(objective, live, piece, chosen)
        ]
        return torch.stack(terms).sum(), len(piece)

    return objective.value_and_gradient(measure, weights, names)


def running(objective: Objective, weights: Weights, layers: Sequence[str]) -> tuple[str, ...]:
    """Those of `layers` that run, in the order in which they are first done. One forward pass of one example.

    UsageError for a module that the network has not; RefusedInput where none of them runs.
    """
    found: dict[str, None] = {}
    hooks = {layer: partial(_mark, found, layer) for layer in named(objective, layers)}
    with torch.no_grad(), listening(objective.network.module, hooks):
        piece, live = next(objective.run(weights, (), 1))
        objective.logits(live, piece)
    if not found:
        raise RefusedInput(
            f"none of {len(hooks)} layers was run by the network, {layers[0]} first; name others"
        )
    return tuple(found)


def _mark(into: dict[str, None], layer: str, *_: Any) -> None:
    into[layer] = None


def apart(
    objective: Objective, weights: Weights, reference: Weights, layers: Sequence[str]
) -> dict[str, float]:
    """By layer, sqrt(mean ||h(weights) - h(reference)||^2 / mean ||h(reference)||^2) of what it puts out, the
    mean over examples, padding left out; infinite where only the reference is 0. Cost: 2 losses. Errors: see
    `outputs`."""
    found = {layer: [0.0, 0.0] for layer in named(objective, layers)}
    other: Weights = {}
    with objective.work.doing("probes", len(objective)), torch.no_grad():
        for piece, live in objective.run(weights, (), objective.batch):
            other = other or objective.live(reference, (), piece.device)
            now, then = (outputs(objective, held, piece, layers) for held in (live, other))
            for one, two in zip(now, then, strict=True):
                found[one.layer][0] += float(_square(one, two.output).sum(dtype=torch.float64))
                found[one.layer][1] += float(_square(two, torch.zeros(())).sum(dtype=torch.float64))
    return {
        layer: sqrt(off / size) if size else (inf if off else 0.0) for layer, (off, size) in found.items()
    }


def _square(seen: Seen, target: Tensor) -> Tensor:
    """(rows,) mean square of the difference over an example's own entries."""
    squares = (seen.output - target).square()
    if seen.mask is None:
        return squares.flatten(1).mean(1)
    own = seen.mask.to(squares.dtype)
    return (squares.flatten(2).mean(2) * own).sum(1) / own.sum(1).clamp_min(1)


def named(objective: Objective, layers: Iterable[str] | None) -> tuple[str, ...]:
    """Names of modules, checked; `blocks` where none are given."""
    module = objective.network.module
    if layers is None:
        return blocks(module)
    chosen = tuple(layers)
    if not chosen:
        raise UsageError("0 layers were named; expected at least one")
    there = dict(module.named_modules())
    for name in chosen:
        if name not in there:
            raise UsageError(
                f"the network has no module {name!r}; its stack is {list(blocks(module))[:4]} ..."
            )
    return chosen


@contextmanager
def listening(module: torch.nn.Module, hooks: Mapping[str, Callable[..., None]]) -> Iterator[None]:
    """Call hooks[name](module, inputs, output) after every forward of that module, until the block ends."""
    handles = [module.get_submodule(name).register_forward_hook(hook) for name, hook in hooks.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def outputs(objective: Objective, live: Weights, piece: Piece, layers: Sequence[str]) -> list[Seen]:
    """The output of each of `layers` for one batch, by one forward pass; the last of a layer that is run again."""
    found: dict[str, Tensor] = {}

    def hook(layer: str) -> Callable[..., None]:
        def keep(module: torch.nn.Module, inputs: Any, output: Any) -> None:
            found[layer] = first_tensor(layer, output)

        return keep

    with listening(objective.network.module, {layer: hook(layer) for layer in layers}):
        objective.logits(live, piece)
    for layer in layers:
        if layer not in found:
            raise RefusedInput(f"module {layer} was not run by the network; choose layers that it runs")
        if found[layer].dim() < 2 or len(found[layer]) != len(piece):
            raise RefusedInput(
                f"module {layer} puts out {tuple(found[layer].shape)} for {len(piece)} examples; "
                "expected one row for each"
            )
    mask = piece.mask
    return [Seen(layer, piece.rows, found[layer], _fitting(mask, found[layer])) for layer in layers]


def _fitting(mask: Tensor | None, output: Tensor) -> Tensor | None:
    return mask if mask is not None and output.dim() == 3 and output.shape[:2] == mask.shape else None


def first_tensor(layer: str, output: Any) -> Tensor:
    """The tensor that a module puts out; the first where it puts out several."""
    while not isinstance(output, torch.Tensor):
        if isinstance(output, Mapping):
            output = tuple(output.values())
        if not isinstance(output, (list, tuple)) or not output:
            raise RefusedInput(f"module {layer} puts out {type(output).__name__}; expected a tensor")
        output = output[0]
    return output
