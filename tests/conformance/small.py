"""A small network that FusionBench's programs and plait run, for methods that look at data. Needs torch alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WORDS, WIDTH, WIDE, CLASSES, TASKS = 40, 12, 20, 5, 3
EXAMPLES, LENGTH = 64, 6
NETWORKS = ("plain", "padded", "turned", "empty", "labelled")
"""padded: half of the texts are shorter. turned: matrices are stored (in, out). empty: one number of every embedding
is 0. labelled: one logit."""

Model = dict[str, Tensor]


class Conv1D(nn.Module):
    """A linear layer whose weight is stored (in, out), as that of GPT-2, which has this name."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class Small(nn.Module):
    """Token numbers (rows, length), 0 for padding, in; logits (rows, classes) out."""

    def __init__(self, network: str) -> None:
        super().__init__()
        linear = Conv1D if network == "turned" else nn.Linear
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.lift = linear(WIDTH, WIDE)
        self.norm = nn.LayerNorm(WIDE)
        self.mix = linear(WIDE, WIDE)
        self.head = linear(WIDE, 1 if network == "labelled" else CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = torch.tanh(self.mix(self.norm(self.lift(self.embedding(tokens)))))
        seen = (tokens != 0).to(x.dtype)[..., None]
        found: Tensor = self.head((x * seen).sum(1) / seen.sum(1))
        return found


def models(network: str, seed: int) -> list[Model]:
    """A base and TASKS experts, fp32. Matrices and biases move far, the norm little, so that slerp goes both ways."""
    draw = torch.Generator().manual_seed(seed)

    def noise(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=draw)

    base = {}
    for name, tensor in Small(network).state_dict().items():
        base[name] = noise(tensor) / WIDTH**0.5 + (name == "norm.weight")
    experts = [
        {n: t + noise(t) * (0.005 if "norm" in n else 0.2) for n, t in base.items()} for _ in range(TASKS)
    ]
    if network == "empty":
        for model in (base, *experts):
            model["embedding.weight"][:, 0] = 0
    return [base, *experts]


def examples(network: str, seed: int) -> Model:
    """Of a task: `tokens` (EXAMPLES, LENGTH) and `labels` (EXAMPLES,)."""
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, WORDS, (EXAMPLES, LENGTH), generator=draw)
    if network == "padded":
        tokens[::2, LENGTH // 2 :] = 0
    classes = 2 if network == "labelled" else CLASSES
    return {"tokens": tokens, "labels": torch.randint(0, classes, (EXAMPLES,), generator=draw)}


def one_logit_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of two classes where a single logit (rows, 1) speaks for class 1."""
    return F.binary_cross_entropy_with_logits(logits[:, 0], labels.to(logits.dtype))
