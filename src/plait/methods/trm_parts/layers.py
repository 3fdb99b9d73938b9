"""What a network's layers put out, and how far that lies from the mean of two other models."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from plait.errors import RefusedInput
from plait.methods.groups import layer_of
from plait.tensors import Tensor, torch

Weights = Mapping[str, Tensor]


def layers_of(module: Any, pattern: str = "") -> tuple[str, ...]:
    """Names of the modules whose outputs count: those that `pattern`, a regular expression, finds; by default the
    layers of the network's tensors (`groups.layer_of`), the numbered ones where there are any."""
    there = [path for path, _ in module.named_modules() if path]
    if pattern:
        found = [path for path in there if re.search(pattern, path)]
    else:
        layers = {layer_of(name) for name, _ in module.named_parameters()}
        numbered = {layer for layer in layers if layer.rpartition(".")[2].isdigit()}
        found = [path for path in there if path in (numbered or layers)]
    if not found:
        raise RefusedInput(
            f"layers {pattern!r} finds none of the network's {len(there)} modules; expected at least one: leave it "
            "out for the layers of its tensors"
        )
    return tuple(found)


def preservation(
    objective: Any, weights: Weights, targets: Sequence[Weights], pattern: str = "", depth: float = 1.0
) -> tuple[float, dict[str, Tensor]]:
    """L_pre and its gradient by tensor name,

        sum_l omega_l ||h_l(weights) - mean_t h_l(t)||^2 / dim,   omega_l = l^depth / sum_l l^depth

    the mean over examples, with h_l the output of the l-th layer that runs, and dim its entries of an example,
    padding left out (TRM, arXiv 2605.08311).

    objective: a `plait.problem.Objective`. pattern: see `layers_of`; layers that do not run are left out. depth 0:
    all layers count the same. RefusedInput where no layer runs. Cost: a gradient, and a forward pass for each target.
    """
    names = layers_of(objective.network.module, pattern)
    ready: list[Weights] = []

    def measure(live: Weights, piece: Any) -> tuple[Tensor, int]:
        if not ready:
            ready.extend(objective.live(target, (), piece.device) for target in targets)
        held = [outputs(objective, target, piece, names) for target in ready]
        terms = []
        now = outputs(objective, live, piece, names)
        for share, (layer, output) in zip(shares(len(now), depth), now.items(), strict=True):
            goal = torch.stack([there[layer] for there in held]).mean(0)
            terms.append(share * squares(output - goal, piece))
        return torch.stack(terms).sum(), len(piece)

    found: tuple[float, dict[str, Tensor]] = objective.value_and_gradient(measure, weights)
    return found


def shares(count: int, depth: float) -> list[float]:
    """omega of `count` layers, the first first."""
    powers = [(number / count) ** depth for number in range(1, count + 1)]
    return [power / sum(powers) for power in powers]


def squares(apart: Tensor, piece: Any) -> Tensor:
    """The sum over the rows of a batch of each row's mean square, without padding; 0-d fp64."""
    square = apart.square()
    mask = piece.mask
    if mask is None or square.dim() != 3 or square.shape[:2] != mask.shape:
        return square.mean(dtype=torch.float64) * len(piece)
    own = mask.to(square.dtype)
    total: Tensor = ((square.mean(2) * own).sum(1) / own.sum(1).clamp_min(1)).sum(dtype=torch.float64)
    return total


def outputs(objective: Any, live: Weights, piece: Any, names: Sequence[str]) -> dict[str, Tensor]:
    """The outputs of these modules for one batch, in the order in which they are first done; of several tensors the
    first, of several runs the last. RefusedInput where none of them runs."""
    found: dict[str, Tensor] = {}
    with listening(objective.network.module, names, found):
        objective.logits(live, piece)
    if not found:
        raise RefusedInput(
            f"none of {len(names)} layers was run by the network, {names[0]} first; name others with `layers`"
        )
    return found


@contextmanager
def listening(module: Any, names: Sequence[str], into: dict[str, Tensor]) -> Iterator[None]:
    """What these modules put out in this block, written into `into`."""

    def keep(name: str) -> Callable[..., None]:
        def hook(part: Any, inputs: Any, output: Any) -> None:
            tensor = _first(output)
            if tensor is not None:
                into[name] = tensor

        return hook

    handles = [module.get_submodule(name).register_forward_hook(keep(name)) for name in names]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _first(output: Any) -> Tensor | None:
    while isinstance(output, (Mapping, list, tuple)):
        held = list(output.values()) if isinstance(output, Mapping) else output
        if not held:
            return None
        output = held[0]
    is_real = isinstance(output, torch.Tensor) and output.is_floating_point() and output.numel() > 0
    return output if is_real else None
