"""Small models with random weights in Hugging Face folders, saved by transformers itself: nothing is downloaded."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

os.environ["HF_HUB_OFFLINE"] = "1"

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "red", "green", "blue", "sky", "grass", "a", "of", "the", "very"]
TEXTS = [
    "red",
    "the green grass of the sky",
    "a very very blue sky",
    "blue",
    "the sky of the grass of the red sky",
]
LABELS = ("red", "green grass", "blue sky")

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


def library() -> Any:
    return pytest.importorskip("transformers", reason="the extra hf is not installed")


def tokenizer(folder: Path, length: int = 32, **special: Any) -> Any:
    """A tokenizer of whole words for texts of at most `length` tokens, saved as tokenizer.json, with [CLS] and [SEP]
    around a text unless `special` says otherwise."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    if special.pop("around", True):
        made.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    words = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        **special,
    }
    whole = library().PreTrainedTokenizerFast(
        tokenizer_object=made,
        model_max_length=length,
        model_input_names=["input_ids", "attention_mask"],  # no token types: not every model takes them
        **words,
    )
    whole.save_pretrained(folder)
    return whole


def saved(folder: Path, make: Callable[[], Any]) -> Any:
    """A model whose weights are all random, also those that transformers starts at 0 or 1, saved in `folder`."""
    torch.manual_seed(0)
    model = make().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model


def bert(folder: Path, architecture: str = "BertModel", **config: Any) -> Any:
    transformers = library()
    shape = transformers.BertConfig(
        **{"vocab_size": len(WORDS), "max_position_embeddings": 32, **SMALL, **config}
    )
    tokenizer(folder)
    return saved(folder, lambda: getattr(transformers, architecture)(shape))


def weights_of(folder: Path) -> dict[str, Tensor]:
    """What the safetensors library finds in a folder."""
    return load_file(folder / "model.safetensors")


def images(count: int = 5, side: int = 20) -> Any:
    """uint8 (count, side, side, 3)."""
    g = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (count, side, side, 3), generator=g, dtype=torch.uint8).numpy()


def each(network: Any, weights: Any, inputs: Any, what: str = "features", batch: int = 100) -> Tensor:
    """(n, ...): what a network gives for every example, `batch` of them at a time, in their order."""
    encoded = network.encode(inputs)
    parts = [network.collate(encoded[i : i + batch]) for i in range(0, len(encoded), batch)]
    with torch.no_grad():
        return torch.cat([getattr(network, what)(weights, part) for part in parts])
