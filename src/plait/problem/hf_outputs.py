"""What networks of transformers compute, as functions of (module, batch)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from plait.problem.batching import mean_of_tokens


def mean_of_last(module: Any, batch: Mapping[str, Tensor]) -> Tensor:
    """The mean over tokens of the last hidden states, (examples, width)."""
    return mean_of_tokens(module(**batch).last_hidden_state, batch.get("attention_mask"))


def logits(module: Any, batch: Mapping[str, Tensor]) -> Tensor:
    """What a model with a head for classes puts out, (examples, classes)."""
    made: Tensor = module(**batch).logits
    return made


def next_tokens(module: Any, batch: Mapping[str, Tensor]) -> Tensor:
    """The logits of the next token at every place, (examples, tokens, vocabulary)."""
    made: Tensor = module(**batch, use_cache=False).logits
    return made


def before(last: str) -> Callable[[Any, Mapping[str, Tensor]], Tensor]:
    """What the layer `last` sees: the logits of the model without it."""
    parent, _, name = last.rpartition(".")

    def features(module: Any, batch: Mapping[str, Tensor]) -> Tensor:
        holder = module.get_submodule(parent)
        layer = getattr(holder, name)
        setattr(holder, name, nn.Identity())
        try:
            return logits(module, batch)
        finally:
            setattr(holder, name, layer)

    return features


def tower_alone(module: Any, batch: Mapping[str, Tensor]) -> Tensor:
    """What a CLIP image tower without its text tower makes of images, (examples, width)."""
    seen = module(**batch)
    made: Tensor = seen.image_embeds if hasattr(seen, "image_embeds") else seen.pooler_output
    return made


def image_embeddings(module: Any, batch: Mapping[str, Tensor]) -> Tensor:
    """The projected embeddings of CLIP's image tower, (examples, width)."""
    made: Tensor = module.visual_projection(module.vision_model(**batch).pooler_output)
    return made


def text_embeddings(module: Any, batch: Mapping[str, Tensor]) -> Tensor:
    """The projected embeddings of CLIP's text tower, (examples, width)."""
    made: Tensor = module.text_projection(module.text_model(**batch).pooler_output)
    return made
