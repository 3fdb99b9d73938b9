"""The sentence encoder that is built in: BERT with mean pooling, in plain torch. MiniLM is one.

The encoder is that of Devlin et al. 2019 (arXiv 1810.04805), pooled as in Sentence-BERT (Reimers and Gurevych 2019,
arXiv 1908.10084). Parameters have the names that Hugging Face checkpoints give them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plait.checkpoint import Checkpoint
from plait.errors import PlaitError, RefusedInput
from plait.problem.batching import mean_of_tokens, pad
from plait.problem.fitting import fit
from plait.problem.module import ModuleNetwork, strip, without_weights

PADDING = 0  # the token that fills up; masked, so any would do


def is_encoder(config: Mapping[str, Any]) -> bool:
    """Whether a config.json describes an encoder that is built in: BERT with GELU and without a head for classes."""
    names = config.get("architectures") or []
    return (
        config.get("model_type") == "bert"
        and config.get("hidden_act") == "gelu"
        and config.get("position_embedding_type", "absolute") == "absolute"
        and not config.get("is_decoder", False)
        and not any(str(name).endswith("ForSequenceClassification") for name in names)
    )


@dataclass(frozen=True)
class Shape:
    """The numbers in a config.json that make a BERT encoder."""

    layers: int
    heads: int
    width: int
    inner: int
    words: int
    places: int
    kinds: int
    epsilon: float

    @classmethod
    def of(cls, config: Mapping[str, Any], path: str) -> Shape:
        """RefusedInput where a number is missing or makes no sense."""
        counts = {
            "layers": "num_hidden_layers",
            "heads": "num_attention_heads",
            "width": "hidden_size",
            "inner": "intermediate_size",
            "words": "vocab_size",
            "places": "max_position_embeddings",
            "kinds": "type_vocab_size",
        }
        found = {}
        for word, key in counts.items():
            value = config.get(key)
            if type(value) is not int or value < 1:
                raise RefusedInput(
                    f"{path}: config.json has {key} {value!r}, expected a number of at least 1"
                )
            found[word] = value
        epsilon = config.get("layer_norm_eps", 1e-12)
        if type(epsilon) is not float or found["width"] % found["heads"]:
            raise RefusedInput(
                f"{path}: config.json has layer_norm_eps {epsilon!r} and {found['heads']} heads for a width of "
                f"{found['width']}, expected a float, and heads that divide the width; fetch it again"
            )
        return cls(epsilon=epsilon, **found)


class Bert(nn.Module):
    """(rows, length) token numbers and their mask -> (rows, length, width) hidden states of the last layer.

    mask: (rows, length), 0 for filling; None where there is none.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embeddings = _Embeddings(shape)
        self.encoder = _Stack(shape)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        hidden: Tensor = self.embeddings(ids)
        bias = None
        if mask is not None:
            bias = ((1 - mask.to(hidden.dtype)) * torch.finfo(hidden.dtype).min)[:, None, None, :]
        made: Tensor = self.encoder(hidden, bias)
        return made


class _Embeddings(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(shape.words, shape.width)
        self.position_embeddings = nn.Embedding(shape.places, shape.width)
        self.token_type_embeddings = nn.Embedding(shape.kinds, shape.width)
        self.LayerNorm = nn.LayerNorm(shape.width, eps=shape.epsilon)

    def forward(self, ids: Tensor) -> Tensor:
        kinds = self.token_type_embeddings.weight[0]
        places = self.position_embeddings.weight[: ids.shape[1]]
        made: Tensor = self.LayerNorm(self.word_embeddings(ids) + kinds + places)
        return made


class _Stack(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.layer = nn.ModuleList(_Layer(shape) for _ in range(shape.layers))

    def forward(self, hidden: Tensor, bias: Tensor | None) -> Tensor:
        for layer in self.layer:
            hidden = layer(hidden, bias)
        return hidden


class _Layer(nn.Module):
    """One transformer block, normalised after each residual sum."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention = _Attention(shape)
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(shape.width, shape.inner)})
        self.output = _Output(shape.inner, shape)

    def forward(self, hidden: Tensor, bias: Tensor | None) -> Tensor:
        hidden = self.attention(hidden, bias)
        made: Tensor = self.output(F.gelu(self.intermediate["dense"](hidden)), hidden)
        return made


class _Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        parts = ("query", "key", "value")
        self.self = nn.ModuleDict({part: nn.Linear(shape.width, shape.width) for part in parts})
        self.output = _Output(shape.width, shape)

    def forward(self, hidden: Tensor, bias: Tensor | None) -> Tensor:
        rows, length, width = hidden.shape

        def split(part: str) -> Tensor:
            made: Tensor = self.self[part](hidden)
            return made.view(rows, length, self.heads, -1).transpose(1, 2)

        query, key, value = split("query"), split("key"), split("value")
        scores = query @ key.transpose(-1, -2) / (width // self.heads) ** 0.5
        if bias is not None:
            scores = scores + bias
        seen = (scores.softmax(-1) @ value).transpose(1, 2).reshape(rows, length, width)
        made: Tensor = self.output(seen, hidden)
        return made


class _Output(nn.Module):
    def __init__(self, width: int, shape: Shape) -> None:
        super().__init__()
        self.dense = nn.Linear(width, shape.width)
        self.LayerNorm = nn.LayerNorm(shape.width, eps=shape.epsilon)

    def forward(self, made: Tensor, residual: Tensor) -> Tensor:
        hidden: Tensor = self.LayerNorm(residual + self.dense(made))
        return hidden


def build(shape: Shape, device: torch.device, dtype: torch.dtype) -> Bert:
    """The encoder without weights."""
    with without_weights():
        module = Bert(shape)
    strip(module, device, dtype)
    return module


def embed(module: Bert, batch: Mapping[str, Tensor]) -> Tensor:
    """(rows, width) sentence embeddings of a batch as `batching.pad` makes it, not scaled to length 1."""
    mask = batch.get("attention_mask")
    return mean_of_tokens(module(batch["input_ids"], mask), mask)


def read_tokenizer(folder: str | os.PathLike[str], longest: int) -> Any:
    """The tokenizer of a folder's tokenizer.json: texts of at most `longest` tokens, no padding.

    Errors: PlaitError where the package tokenizers is not installed; RefusedInput for a broken or missing file.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise PlaitError(
            "package tokenizers is not installed, and texts are read with it; run `pip install 'plait[text]'`"
        ) from None
    path = os.path.join(os.fspath(folder), "tokenizer.json")
    if not os.path.isfile(path):
        raise RefusedInput(
            f"{path}: is not there, and texts are read with it; put the model's tokenizer there"
        )
    try:
        tokenizer = Tokenizer.from_file(path)
    except Exception as error:  # the package raises nothing more special
        raise RefusedInput(f"{path}: is no tokenizer ({error}); fetch it again") from error
    tokenizer.no_padding()
    tokenizer.enable_truncation(longest)
    return tokenizer


def open_encoder(
    checkpoint: Checkpoint, *, device: torch.device, dtype: torch.dtype, longest: int
) -> ModuleNetwork:
    """The network of a checkpoint folder whose config.json `is_encoder` takes."""
    shape = Shape.of(checkpoint.config or {}, checkpoint.path)
    module = build(shape, device, dtype)
    names = fit(module, checkpoint)
    tokenizer = read_tokenizer(checkpoint.path, min(longest, shape.places, _stated_length(checkpoint.path)))

    def encode(texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]

    return ModuleNetwork(
        module,
        names,
        device,
        dtype,
        encoder=encode,
        collator=lambda encoded: pad(encoded, PADDING, device),
        to_features=embed,
        about=f"the bert encoder of {checkpoint.path}",
    )


def _stated_length(folder: str) -> int:
    """How many tokens the model was trained to read, by the file that sentence-transformers keeps."""
    path = os.path.join(folder, "sentence_bert_config.json")
    try:
        with open(path, encoding="utf-8") as file:
            stated = json.load(file).get("max_seq_length")
    except (OSError, ValueError, AttributeError):
        stated = None
    return stated if isinstance(stated, int) and stated > 0 else 1 << 30
