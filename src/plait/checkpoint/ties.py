"""Tied weights: one tensor that a checkpoint stores under two names, or under one of the two."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from plait.checkpoint.format import blocks, same_bytes
from plait.types import DTYPES, TensorRef

_HEAD = re.compile(
    r"(^|\.)(lm_head|embed_out|output|predictions\.decoder|proj_out|decoder|output_projection)\.weight$"
)
_EMBEDDING = re.compile(r"(^|[._])(embed\w*|word_embeddings|wte|shared)(\.\w+)?\.weight$")


def is_head(name: str) -> bool:
    """Whether a name is that of an output layer which models tie to their embedding."""
    return _HEAD.search(name) is not None


def is_embedding(name: str) -> bool:
    """Whether a name is that of a token embedding."""
    return _EMBEDDING.search(name) is not None and not is_head(name)


def find_aliases(tensors: Mapping[str, TensorRef], config: Mapping[str, Any] | None) -> dict[str, str]:
    """Names whose tensor is that of another name: alias -> the name that is kept.

    Only embeddings and output layers are looked at: other layers that start equal may part in training.
    A head is no alias where the configuration says that it is not tied.
    """

    def found(name: str, others: Sequence[str]) -> str | None:
        return twin(tensors[name], [tensors[other] for other in others])

    kinds = {name: (ref.dtype, ref.shape) for name, ref in tensors.items() if ref.mergeable}
    return choose_aliases(kinds, config, found)


def choose_aliases(
    kinds: Mapping[str, tuple[str, tuple[int, ...]]],
    config: Mapping[str, Any] | None,
    twin_of: Callable[[str, Sequence[str]], str | None],
) -> dict[str, str]:
    """The rule of `find_aliases`, wherever the tensors are: alias -> the name that is kept.

    kinds: dtype and shape of each float tensor. twin_of: which of several names has the tensor of a name, as
    `twin`. An embedding is kept rather than a head, then the first by name: the order of the tensors and how
    they are cut into files must not show, as random numbers go by the name that is kept.
    """
    groups: dict[tuple[str, tuple[int, ...]], list[str]] = defaultdict(list)
    for name, (dtype, shape) in kinds.items():
        if len(shape) == 2 and (is_head(name) or is_embedding(name)):
            groups[dtype, shape].append(name)
    heads_tied = ties_heads(config)
    aliases: dict[str, str] = {}
    for group in groups.values():
        ordered = sorted(group, key=lambda name: (is_head(name), name))
        for place, name in enumerate(ordered[1:], 1):
            if is_head(name) and not heads_tied:
                continue
            kept = twin_of(name, [other for other in ordered[:place] if other not in aliases])
            if kept is not None:
                aliases[name] = kept
    return aliases


def ties_heads(config: Mapping[str, Any] | None) -> bool:
    """False where the configuration says that the output layer has weights of its own."""
    if config is None:
        return True
    text = config.get("text_config")
    inner = text.get("tie_word_embeddings", True) if isinstance(text, dict) else True
    return config.get("tie_word_embeddings", inner) is not False


def says_tied(config: Mapping[str, Any] | None) -> bool:
    """True where the configuration says that the output layer is the embedding."""
    if config is None:
        return False
    text = config.get("text_config")
    inner = text.get("tie_word_embeddings") if isinstance(text, dict) else None
    return config.get("tie_word_embeddings", inner) is True


def twin(ref: TensorRef, candidates: Iterable[TensorRef]) -> str | None:
    """The name of the first candidate with the dtype, shape and bytes of `ref`; None if there is none.

    A tensor of one repeated value has no twin: all biases of a new model are equal without being tied.
    """
    for other in candidates:
        if other.name != ref.name and same_bytes(ref, other):
            return None if is_constant(ref) else other.name
    return None


def is_constant(ref: TensorRef) -> bool:
    """Whether all elements have the same bytes. Stops at the first block that differs."""
    size = DTYPES[ref.dtype].size
    first: bytes | None = None
    for part in blocks(ref, 1 << 16):  # a multiple of every element size
        if first is None:
            first = bytes(part[:size])
        if part != first * (len(part) // size):
            return False
    return True
