"""Tied weights in mappings of tensors: merged once, by the rule for checkpoints that come without a configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plait.checkpoint.ties import choose_aliases, is_embedding, is_head
from plait.errors import KeyMismatch
from plait.methods.pieces import dtype_name, mergeable, same_bytes
from plait.tensors import Tensor, torch

_SAME_SIZE = {2: "int16", 4: "int32", 8: "int64"}


def tied_names(tensors: Mapping[str, Tensor], tie_word_embeddings: bool = True) -> dict[str, str]:
    """Names whose tensor is that of another name: alias -> the name that is kept.

    As `Checkpoint.aliases` of a file with these tensors: embeddings and output layers of one dtype and shape with
    equal bytes, whether or not they share memory. tie_word_embeddings: as in config.json; False: no output layer
    is tied.
    """
    held = {
        name: tensor.detach().cpu().contiguous()
        for name, tensor in tensors.items()
        if (is_head(name) or is_embedding(name)) and mergeable(tensor)
    }

    def twin(name: str, others: Sequence[str]) -> str | None:
        found = next((other for other in others if same_bytes(held[name], held[other])), None)
        return None if found is None or _is_constant(held[name]) else found

    kinds = {name: (dtype_name(tensor), tuple(tensor.shape)) for name, tensor in held.items()}
    return choose_aliases(kinds, {"tie_word_embeddings": tie_word_embeddings}, twin)


def without(tensors: Mapping[str, Tensor], tied: Mapping[str, str], owner: str) -> dict[str, Tensor]:
    """The tensors but for the aliases. KeyMismatch where an alias differs from the tensor that it is tied to.

    tied: of the base; an expert may lack an alias. owner: whose tensors they are, for the message.
    """
    problems = tuple(
        f"{alias} differs from {kept}"
        for alias, kept in tied.items()
        if alias in tensors
        and kept in tensors
        and not same_bytes(*(tensors[n].detach().cpu().contiguous() for n in (alias, kept)))
    )
    if problems:
        raise KeyMismatch(
            f"{owner} does not fit the base: {'; '.join(problems)}, which the base ties; expected equal tensors, or "
            "tie_word_embeddings=False for a model whose output layer has weights of its own",
            problems,
        )
    return {name: tensor for name, tensor in tensors.items() if name not in tied}


def _is_constant(tensor: Tensor) -> bool:
    """Whether all elements have the same bytes."""
    bits = tensor.view(-1).view(getattr(torch, _SAME_SIZE[tensor.element_size()]))
    return torch.equal(bits[1:], bits[:-1])
