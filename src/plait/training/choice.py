"""Which tensors are trained."""

from __future__ import annotations

from collections.abc import Collection

from plait.checkpoint import Checkpoint, matcher
from plait.errors import RefusedInput
from plait.problem.base import Network, Task
from plait.training.recipe import Recipe


def parameters(network: Network) -> list[str]:
    """Names of the tensors that can be trained: parameters, not buffers, nor what the network holds fixed."""
    own = dict(network.module.named_parameters(remove_duplicate=False))
    return [name for name, target in network.names.items() if target in own and own[target].requires_grad]


def chosen(network: Network, recipe: Recipe, task: Task, base: Checkpoint) -> list[str]:
    """What a recipe trains: all that can be, without the frozen head of the task, as its patterns say.

    RefusedInput where a pattern matches nothing, where nothing is left, or where the network has two parameters for
    what is one tensor in the base.
    """
    head = {task.head.weight, task.head.bias} if task.head.kind == "linear" else set()
    every = [name for name in parameters(network) if name not in head]
    _all_match("train", recipe.train, every)
    _all_match("freeze", recipe.freeze, every)
    wanted = matcher(recipe.train or ("*",))
    unwanted = matcher(recipe.freeze)
    found = [name for name in every if wanted(name) and not unwanted(name)]
    if not found:
        raise RefusedInput(
            f"{task.name}: none of the {len(every)} tensors is left to train; give --freeze fewer patterns, or "
            "--train more"
        )
    for name in found:
        if base.aliases.get(name) in found:
            raise RefusedInput(
                f"{task.name}: {name} and {base.aliases[name]} are one tensor in the base, and the network trains "
                "them apart; freeze one of them, or say in config.json that tie_word_embeddings is false"
            )
    return found


def _all_match(flag: str, patterns: Collection[str], names: Collection[str]) -> None:
    for pattern in patterns:
        if not any(map(matcher([pattern]), names)):
            raise RefusedInput(
                f"--{flag} {pattern!r} matches none of the {len(names)} tensors that can be trained, such as "
                f"{min(names, default='none')}; correct the pattern"
            )
