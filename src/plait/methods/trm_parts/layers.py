"""Which of a network's layers count, and how much."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from plait.errors import RefusedInput
from plait.methods.groups import layer_of
from plait.tensors import Tensor

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


def depths(objective: Any, weights: Weights, pattern: str = "", depth: float = 1.0) -> dict[str, float]:
    """omega by layer that runs, omega_l = l^depth / sum_l l^depth, l from 1 in the order in which they run (TRM,
    arXiv 2605.08311).

    objective: a `plait.problem.Objective`. pattern: see `layers_of`. depth 0: all layers count the same.
    RefusedInput where no layer runs. Cost: a forward pass of one example.
    """
    there = objective.running(weights, layers_of(objective.network.module, pattern))
    return dict(zip(there, shares(len(there), depth), strict=True))


def shares(count: int, depth: float) -> list[float]:
    """omega of `count` layers, the first first."""
    powers = [(number / count) ** depth for number in range(1, count + 1)]
    return [power / sum(powers) for power in powers]
