"""Which tensor of a checkpoint is which parameter of a network. Nothing is guessed: it fits, or it is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from torch import Tensor, nn

from plait.checkpoint import Checkpoint
from plait.checkpoint.names import map_names
from plait.errors import RefusedInput


def fit(
    module: nn.Module,
    checkpoint: Checkpoint,
    *,
    rename: Callable[[str], str] = lambda name: name,
    optional: Callable[[str], bool] = lambda name: False,
    by: str = "config.json",
) -> dict[str, str]:
    """Tensor name in the checkpoint -> name of the parameter or buffer of `module`.

    rename: from the checkpoint's names to the module's, before one common prefix is added or removed. optional: names
    of the module that the checkpoint need not have. by: what describes the network, for messages. Of tied weights the
    one name is taken that stands for all of them.
    Errors: RefusedInput, one line, where the checkpoint lacks a tensor, has another shape, has layers that the
    module has not, or stores different tensors for weights that are tied.
    """
    held = {rename(name): name for name, ref in checkpoint.tensors.items() if ref.mergeable}
    targets = stored(module)
    shared, _, _ = map_names(list(targets), list(held)) if held else ({}, "", "")
    found = {name: held[theirs] for name, theirs in shared.items() if name in targets}
    names: dict[str, str] = {}
    missing = []
    for group in _tied(targets):
        given = {name: found[name] for name in group if name in found}
        if not given:
            missing += [name for name in group[:1] if not optional(name)]
            continue
        target = _kept(checkpoint, given)
        _same_shape(checkpoint, given[target], tuple(targets[target].shape), by)
        names[given[target]] = target
    if missing:
        raise RefusedInput(
            f"{checkpoint.path}: the weights lack {len(missing)} of the {len(targets)} tensors of the network that "
            f"{by} describes, {missing[0]} first; weights and {by} must be of one model"
        )
    _no_deeper(checkpoint, set(found.values()), by)
    return names


def own_names(module: nn.Module) -> dict[str, str]:
    """The names where a checkpoint has those of this very module; tied weights go by their first name."""
    return {group[0]: group[0] for group in _tied(stored(module))}


def stored(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and floating-point buffers that belong into a checkpoint, tied ones under every name."""
    held: Mapping[str, Tensor] = module.state_dict(keep_vars=True)
    return {name: tensor for name, tensor in held.items() if tensor.is_floating_point()}


def _tied(targets: Mapping[str, Tensor]) -> list[list[str]]:
    groups: dict[int, list[str]] = {}
    for name, tensor in targets.items():
        groups.setdefault(id(tensor), []).append(name)
    return list(groups.values())


def _kept(checkpoint: Checkpoint, given: Mapping[str, str]) -> str:
    """The name of the module whose tensor in the checkpoint stands for all names of tied weights."""
    kept = [name for name, theirs in given.items() if len(given) == 1 or theirs not in checkpoint.aliases]
    if len(kept) != 1:
        raise RefusedInput(
            f"{checkpoint.path}: {' and '.join(given.values())} differ, and config.json says that they are tied; "
            "set tie_word_embeddings to false there"
        )
    return kept[0]


def _same_shape(checkpoint: Checkpoint, name: str, shape: tuple[int, ...], by: str) -> None:
    found = checkpoint.tensors[name].shape
    if found != shape:
        raise RefusedInput(
            f"{checkpoint.path}: {name} is {found}, and the network that {by} describes has {shape}; "
            f"weights and {by} must be of one model"
        )


def _no_deeper(checkpoint: Checkpoint, used: set[str], by: str) -> None:
    """Refuse weights of more layers than the network runs: without them it would be another model."""
    kinds = {_kind(name) for name in used}
    for name, ref in checkpoint.tensors.items():
        if name not in used and ref.mergeable and _kind(name) != name and _kind(name) in kinds:
            raise RefusedInput(
                f"{checkpoint.path}: {name} belongs to a layer that {by} does not describe; "
                f"weights and {by} must be of one model"
            )


def _kind(name: str) -> str:
    return re.sub(r"(?<=\.)\d+(?=\.)", "#", name)
