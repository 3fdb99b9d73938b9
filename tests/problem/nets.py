"""Small networks for tests of what is computed with them: a perceptron, a transformer and a convolution net."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from plait.problem.base import Examples, Network, Weights


class Toy:
    """A module as a `Network`. Inputs are tensors; an example is its own encoding."""

    def __init__(self, make: Callable[[], nn.Module], dtype: torch.dtype = torch.float64) -> None:
        with torch.device("meta"):  # made there, as moving there would untie weights
            module = make()
        self.module = module.eval()
        self.dtype = dtype
        self.names: Mapping[str, str] = {
            f"net.{name}": name for name in (*dict(module.named_parameters()), *dict(module.named_buffers()))
        }
        self.encoded = 0  # examples that were encoded so far

    def encode(self, inputs: Any) -> Sequence[Any]:
        self.encoded += len(inputs)
        return list(inputs)

    def size(self, encoded: Any) -> int:
        return len(encoded)

    def collate(self, encoded: Sequence[Any]) -> Any:
        return torch.stack(list(encoded)).to(self.dtype)

    def call(self, weights: Weights, *inputs: Any) -> Tensor:
        own = {param: weights[name] for name, param in self.names.items()}
        found: Tensor = functional_call(self.module, own, inputs)
        return found

    def features(self, weights: Weights, batch: Any) -> Tensor:
        return self.call(weights, batch)

    def outputs(self, weights: Weights, batch: Any) -> Tensor:
        return self.call(weights, batch)


class Texts(Toy):
    """The same for lists of token numbers of different length, padded on one side."""

    def __init__(
        self, make: Callable[[], nn.Module], dtype: torch.dtype = torch.float64, side: str = "right"
    ) -> None:
        super().__init__(make, dtype)
        self.side = side

    def collate(self, encoded: Sequence[Any]) -> dict[str, Tensor]:
        length = max(map(len, encoded))

        def wide(tokens: Sequence[int], value: int) -> list[int]:
            pad = [value] * (length - len(tokens))
            return [*tokens, *pad] if self.side == "right" else [*pad, *tokens]

        return {
            "input_ids": torch.tensor([wide(tokens, 0) for tokens in encoded]),
            "attention_mask": torch.tensor([wide([1] * len(tokens), 0) for tokens in encoded]),
        }

    def call(self, weights: Weights, *inputs: Any) -> Tensor:
        (batch,) = inputs
        return super().call(weights, batch["input_ids"], batch["attention_mask"])


@dataclass(frozen=True)
class Matrix:
    """A frozen linear head on the features."""

    matrix: Tensor  # (classes, width)

    def logits(self, network: Network, weights: Weights, batch: Any) -> Tensor:
        return network.features(weights, batch) @ self.matrix.to(network.dtype).T


def perceptron(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for first, second in pairwise(widths):
        layers += [nn.Linear(first, second), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


class Block(nn.Module):
    """One attention layer and one hidden layer, with residual sums."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, seen: Tensor) -> tuple[Tensor, str]:
        rows, length, width = x.shape

        def split(part: nn.Module) -> Tensor:
            found: Tensor = part(x)
            return found.view(rows, length, self.heads, width // self.heads).transpose(1, 2)

        mixed = F.scaled_dot_product_attention(
            split(self.query), split(self.key), split(self.value), attn_mask=seen
        )
        x = self.norm(x + self.out(mixed.transpose(1, 2).reshape(rows, length, width)))
        return x + self.narrow(F.gelu(self.wide(x))), "layers may put out more than a tensor"


class Transformer(nn.Module):
    """Token numbers and mask in; out one embedding a text (mean over its tokens), or logits for every next token."""

    def __init__(
        self, words: int = 11, width: int = 8, heads: int = 2, blocks: int = 2, causal: bool = False
    ) -> None:
        super().__init__()
        self.causal = causal
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        if causal:
            self.speak = nn.Linear(width, words, bias=False)
            self.speak.weight = self.words.weight

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = self.words(tokens)
        seen = mask[:, None, None, :].bool()
        if self.causal:
            length = tokens.shape[1]
            seen = seen & torch.ones(length, length, dtype=torch.bool).tril()
            seen = seen | torch.eye(length, dtype=torch.bool)  # padding sees itself, or it would see nothing
        for block in self.blocks:
            x, _ = block(x, seen)
        share = mask.to(x.dtype) / mask.sum(1, keepdim=True)
        found: Tensor = self.speak(x) if self.causal else (x * share[..., None]).sum(1)
        return found


class Convolutions(nn.Module):
    """Images (rows, 3, height, width) to logits."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.apart = nn.Conv2d(4, 4, 3, padding="same", groups=4, bias=False)
        self.circle = nn.Conv2d(4, 6, (3, 1), padding=(1, 0), padding_mode="circular", groups=2)
        self.last = nn.Linear(6, 3)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.tanh(self.first(images))
        x = torch.tanh(self.circle(torch.tanh(self.apart(x))))
        found: Tensor = self.last(x.mean((2, 3)))
        return found


def draw(network: Toy, seed: int, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Random weights for `network`, by the names that a checkpoint has."""
    chance = torch.Generator().manual_seed(seed)
    shapes = {**dict(network.module.named_parameters()), **dict(network.module.named_buffers())}
    return {
        name: (torch.randn(shapes[own].shape, generator=chance, dtype=torch.float64) * 0.4).to(dtype)
        for name, own in network.names.items()
    }


def points(n: int, width: int, classes: int, seed: int = 0) -> Examples:
    chance = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n, width, generator=chance, dtype=torch.float64)
    return Examples(inputs, torch.randint(classes, (n,), generator=chance), f"points {n} {seed}")


def sentences(n: int, words: int = 11, classes: int | None = 3, longest: int = 7, seed: int = 0) -> Examples:
    """Texts of 2 to `longest` tokens; without labels where there are no classes."""
    chance = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, longest + 1, (n,), generator=chance).tolist()
    texts = [torch.randint(1, words, (length,), generator=chance).tolist() for length in lengths]
    labels = None if classes is None else torch.randint(classes, (n,), generator=chance)
    return Examples(texts, labels, f"sentences {n} {seed}")


def images(n: int, seed: int = 0) -> Examples:
    chance = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n, 3, 8, 6, generator=chance, dtype=torch.float64)
    return Examples(inputs, torch.randint(3, (n,), generator=chance), f"images {n} {seed}")
