"""The words of the layer: what a task, its examples, a network and a head are. Nothing here reads a file.

A network holds no weights. Weights are an argument: a mapping from the tensor names of a checkpoint to tensors, so
that the same network runs the base, an expert and a merged model, and gives gradients with respect to any of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from plait.tensors import Tensor, torch

Weights = Mapping[str, Tensor]
"""Tensors of a checkpoint by name; a network ignores those that it does not use."""

Kind = Literal["text-classification", "image-classification", "causal-lm", "python"]

Split = Literal["train", "calibration", "validation", "test"]


@dataclass(frozen=True)
class Examples:
    """Examples in a fixed order.

    inputs: texts, or images as a uint8 array (n, height, width, 3). labels: int64 (n,), None for causal-lm, where the
    text is its own label. digest: sha256 (hex) over inputs and labels in this order.
    """

    inputs: Any
    labels: Tensor | None
    digest: str

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True)
class HeadSpec:
    """How classes are told apart.

    zero-shot: cosine with the embedding of each class name, put into every template ("{}") and averaged, made once by
    the base and frozen; times `scale` before the softmax. linear: a matrix (and bias) that is the task's own: tensors
    `weight` and `bias` of the checkpoint (private there), or, where these are "", fitted on frozen base features of
    the training examples. model: what the network puts out itself.
    """

    kind: Literal["zero-shot", "linear", "model"] = "model"
    templates: tuple[str, ...] = ("{}",)
    scale: float = 20.0
    weight: str = ""
    bias: str = ""


class Task(Protocol):
    """A task: what is to be told apart, and the examples."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> Kind: ...

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names by label; empty for causal-lm."""

    @property
    def head(self) -> HeadSpec: ...

    def examples(self, split: Split) -> Examples:
        """Read once, then kept. RefusedInput where the data does not hold what the task says of it."""


class Network(Protocol):
    """A network without weights."""

    @property
    def module(self) -> torch.nn.Module:
        """The network as a module whose parameters lie on the meta device: for hooks, and for the names of layers."""

    @property
    def names(self) -> Mapping[str, str]:
        """Tensor name in the checkpoint -> name of the parameter or buffer of `module`, for all that it uses."""

    @property
    def dtype(self) -> torch.dtype:
        """In which it computes; weights are converted to it."""

    def encode(self, inputs: Any) -> Sequence[Any]:
        """Texts as token numbers, images as normalised tensors, ...: what does not depend on the weights, by example.
        Deterministic."""

    def size(self, encoded: Any) -> int:
        """The length of one encoded example; batches hold examples of like length."""

    def collate(self, encoded: Sequence[Any]) -> Any:
        """A batch on the network's device: padded, stacked. A tensor, or a mapping, sequence or dataclass of tensors
        whose first axis is the row. Where rows are padded it has, as a key or an attribute, `attention_mask`
        (rows, length), 0 for padding; for causal-lm also `input_ids` (rows, length)."""

    def features(self, weights: Weights, batch: Any) -> Tensor:
        """(rows, width): embeddings of a batch, for zero-shot (normalised to length 1) and linear heads.
        Differentiable with respect to the weights."""

    def outputs(self, weights: Weights, batch: Any) -> Tensor:
        """(rows, classes) logits of the model's own head; for causal-lm (rows, length, vocabulary)."""


class Head(Protocol):
    """A task's head, ready to use; it holds its own tensors, which are never merged."""

    def logits(self, network: Network, weights: Weights, batch: Any) -> Tensor:
        """(rows, classes); differentiable with respect to the weights."""
