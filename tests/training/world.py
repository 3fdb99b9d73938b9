"""A sentence encoder of a few thousand weights, written without plait and without transformers, and tasks for it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

pytest.importorskip("tokenizers", reason="the built-in encoder reads texts with it")

WORDS = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]"),
    *("red", "green", "blue", "cat", "dog", "cow", "oak", "elm", "fir", "a", "the", "one", "very"),
]
WIDTH, INNER, LAYERS, PLACES = 16, 24, 2, 16
TABLE = "embeddings.word_embeddings.weight"
ROWS = (
    [(f"{a} {b}", 0) for a in ("a", "the", "one", "very") for b in ("red", "green", "blue")]
    + [(f"{a} {b}", 1) for a in ("a", "the", "one") for b in ("cat", "dog", "cow")]
    + [(f"the very very {b}", 2) for b in ("oak", "elm", "fir")]
)
"""Texts of two lengths and their classes."""
CLASSES = ("dog", "oak", "red")
"""Class names that are wrong for the labels, so that only training gets them right."""


def weights(seed: int = 0) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)

    def drawn(*shape: int, middle: float = 0.0, spread: float = 0.3) -> Tensor:
        return middle + spread * torch.randn(*shape, generator=g)

    made = {
        TABLE: drawn(len(WORDS), WIDTH, spread=2.0),  # so that texts differ
        "embeddings.position_embeddings.weight": drawn(PLACES, WIDTH),
        "embeddings.token_type_embeddings.weight": drawn(2, WIDTH),
    }

    def norm(name: str) -> None:
        made[f"{name}.weight"], made[f"{name}.bias"] = drawn(WIDTH, middle=1.0), drawn(WIDTH)

    def linear(name: str, out: int, into: int) -> None:
        made[f"{name}.weight"], made[f"{name}.bias"] = drawn(out, into), drawn(out)

    norm("embeddings.LayerNorm")
    for layer in (f"encoder.layer.{i}" for i in range(LAYERS)):
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            linear(f"{layer}.attention.{part}", WIDTH, WIDTH)
        norm(f"{layer}.attention.output.LayerNorm")
        linear(f"{layer}.intermediate.dense", INNER, WIDTH)
        linear(f"{layer}.output.dense", WIDTH, INNER)
        norm(f"{layer}.output.LayerNorm")
    linear("pooler.dense", WIDTH, WIDTH)
    return made


def write_base(
    folder: Path, dtype: torch.dtype = torch.float32, more: Mapping[str, Tensor] | None = None
) -> Path:
    """The encoder as a Hugging Face folder, with a piece of code that must not travel. more: tensors beside."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    folder.mkdir(parents=True)
    config = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_act": "gelu",
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "vocab_size": len(WORDS),
        "max_position_embeddings": PLACES,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text("raise SystemExit\n")
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.save(str(folder / "tokenizer.json"))
    tensors = {name: tensor.to(dtype) for name, tensor in weights().items()}
    tensors.update(more or {})
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def read(folder: Path) -> dict[str, Tensor]:
    """What the safetensors library finds in a folder."""
    return {
        name: one for file in sorted(folder.glob("*.safetensors")) for name, one in load_file(file).items()
    }


def write_tasks(folder: Path, head: Any = "zero-shot", **more: Mapping[str, Any]) -> Path:
    """tasks.yaml with the task `things`, and others that are like it but for what `more` says."""
    rows: Sequence[tuple[str, int]] = ROWS
    for split, mark in (("train", ""), ("test", " a")):
        lines = [json.dumps({"text": text + mark, "label": label}) for text, label in rows]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    things = {
        "kind": "text-classification",
        "splits": {split: {"data": f"{split}.jsonl"} for split in ("train", "test")},
        "classes": list(CLASSES),
        "head": head,
    }
    file = folder / "tasks.yaml"
    file.write_text(
        json.dumps({"tasks": {"things": things, **{k: {**things, **v} for k, v in more.items()}}})
    )
    return file


def right(folder: Path, base: Path, tasks: Path, task: str = "things", split: Any = "train") -> int:
    """How many examples a checkpoint gets right, by the base's head."""
    from plait.problem.heads import make_head, predict
    from plait.problem.network import open_network
    from plait.problem.task import load_tasks

    found = load_tasks(tasks)[task]
    network = open_network(base, found.kind)
    examples = found.examples(split)
    assert examples.labels is not None
    logits = predict(make_head(found, network, read(base)), network, read(folder), examples)
    return int((logits.argmax(-1) == examples.labels).sum())
