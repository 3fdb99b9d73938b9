"""Heads: what tells the classes of a task apart. Made once by the base, then frozen; never merged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from plait.errors import RefusedInput
from plait.problem.base import Examples, Head, Network, Task, Weights
from plait.problem.feed import Feed
from plait.problem.logistic import fit_linear
from plait.tensors import Tensor, torch

BATCH = 64


@dataclass(frozen=True, eq=False)
class ZeroShot:
    """scale * the cosine with each class's embedding. classes: (classes, width), of length 1."""

    classes: Tensor
    scale: float
    task: str = "the task"

    def logits(self, network: Network, weights: Weights, batch: Any) -> Tensor:
        features = _of_width(self.task, network.features(weights, batch), self.classes)
        return self.scale * torch.nn.functional.normalize(features, dim=-1) @ self.classes.to(features).mT


@dataclass(frozen=True, eq=False)
class Linear:
    """features @ weight.T + bias. weight: (classes, width); bias: (classes,)."""

    weight: Tensor
    bias: Tensor
    task: str = "the task"

    def logits(self, network: Network, weights: Weights, batch: Any) -> Tensor:
        features = _of_width(self.task, network.features(weights, batch), self.weight)
        return torch.nn.functional.linear(features, self.weight.to(features), self.bias.to(features))


@dataclass(frozen=True, eq=False)
class Own:
    """What the network puts out itself. classes: how many there must be; 0 for any."""

    classes: int
    task: str = "the task"

    def logits(self, network: Network, weights: Weights, batch: Any) -> Tensor:
        made = network.outputs(weights, batch)
        if self.classes and made.shape[-1] != self.classes:
            raise RefusedInput(
                f"{self.task}: the network's own head has {made.shape[-1]} classes, the task {self.classes}; "
                "use the head `linear` or `zero-shot`, or a checkpoint of this task"
            )
        return made


def make_head(task: Task, network: Network, base_weights: Weights) -> Head:
    """The head of a task, as its `HeadSpec` says.

    zero-shot: every class name is put into every template, embedded by the network with the base's weights (by its
    `text` network where it has one, as CLIP does), scaled to length 1, averaged over templates, and scaled again.
    linear: the tensors `weight` and `bias` of `base_weights`; to these add the private ones of a checkpoint. Where
    the names are "", the head is fitted: see `logistic.fit_linear`. model: the network's own head.

    Errors: RefusedInput where the task has no classes, tensors are missing or have the wrong shape, or the network
    takes no text to embed.
    """
    if task.head.kind == "model":
        return Own(len(task.classes), task.name)
    if not task.classes:
        raise RefusedInput(f"{task.name}: has no classes for a head {task.head.kind}; use the head `model`")
    if task.head.kind == "zero-shot":
        return ZeroShot(_class_embeddings(task, network, base_weights), task.head.scale, task.name)
    if task.head.weight:
        return _stored(task, network, base_weights)
    if task.head.bias:
        raise RefusedInput(
            f"{task.name}: head names the bias {task.head.bias} and no weight; name both or none"
        )
    return _fitted(task, network, base_weights)


def predict(head: Head, network: Network, weights: Weights, examples: Examples, batch: int = BATCH) -> Tensor:
    """(n, classes) fp32 logits on CPU, in the order of the examples, without gradients.

    batch: rows at a time; it bounds memory and does not change the result beyond rounding.
    """

    def logits(ready: Weights, rows: Any) -> Tensor:
        made = head.logits(network, ready, rows)
        if made.dim() != 2:
            raise RefusedInput(
                f"logits are {tuple(made.shape)}, expected (rows, classes); causal-lm has a loss, not classes"
            )
        return made.float()

    return _each(network, weights, examples.inputs, logits, batch)


def _class_embeddings(task: Task, network: Network, weights: Weights) -> Tensor:
    texts = _text_network(task, network)
    total = None
    for template in task.head.templates:
        named = [template.replace("{}", name) for name in task.classes]
        found = torch.nn.functional.normalize(_each(texts, weights, named, texts.features, BATCH, ""), dim=-1)
        total = found if total is None else total + found
    if total is None:
        raise RefusedInput(
            f"{task.name}: head zero-shot has no template; `{{}}` stands for the class name alone"
        )
    return torch.nn.functional.normalize(total, dim=-1)


def _text_network(task: Task, network: Network) -> Network:
    found: Network | None = getattr(network, "text", None)
    if found is not None:
        return found
    if task.kind == "image-classification":
        raise RefusedInput(
            f"{task.name}: head zero-shot needs a network that embeds class names, and this one takes images only; "
            "use the head `linear`, or a CLIP checkpoint with both towers"
        )
    return network


def _stored(task: Task, network: Network, weights: Weights) -> Linear:
    """A head whose tensors lie in the checkpoint."""
    found = {}
    for name in filter(None, (task.head.weight, task.head.bias)):
        if name not in weights:
            raise RefusedInput(
                f"{task.name}: head tensor {name} is not in the checkpoint; name private tensors of the expert, or "
                "none for a head that is fitted"
            )
        found[name] = weights[name].detach().to(network.dtype)
    weight = found[task.head.weight]
    bias = found.get(task.head.bias, torch.zeros(weight.shape[:1]).to(weight))
    if weight.dim() != 2 or len(weight) != len(task.classes) or bias.shape != weight.shape[:1]:
        raise RefusedInput(
            f"{task.name}: head tensors have shapes {tuple(weight.shape)} and {tuple(bias.shape)}, expected "
            f"({len(task.classes)}, width) and ({len(task.classes)},): a row for each class"
        )
    return Linear(weight, bias, task.name)


def _fitted(task: Task, network: Network, weights: Weights) -> Linear:
    examples = task.examples("train")
    if examples.labels is None:
        raise RefusedInput(
            f"{task.name}: training examples have no labels, and a linear head is fitted to them"
        )
    features = _each(network, weights, examples.inputs, network.features, BATCH, "")
    weight, bias = fit_linear(features, examples.labels.to(features.device), len(task.classes))
    return Linear(weight.to(features.dtype), bias.to(features.dtype), task.name)


def _each(
    network: Network, weights: Weights, inputs: Any, function: Any, batch: int, device: str = "cpu"
) -> Tensor:
    """What function(weights, batch) gives for every example, (n, ...), in their order. device: where the result lies;
    "" for where it was computed."""
    feed = Feed(network, Examples(inputs, None, ""))
    ready = getattr(network, "ready", dict)(weights)
    found: list[Tensor] = [torch.empty(0)] * len(inputs)
    with torch.no_grad():
        for piece in feed.pieces(range(len(inputs)), batch):
            made = function(ready, piece.batch)
            for row, one in zip(piece.rows, made.to(device) if device else made, strict=True):
                found[row] = one
    return torch.stack(found)


def _of_width(task: str, features: Tensor, weight: Tensor) -> Tensor:
    if features.shape[-1] != weight.shape[1]:
        raise RefusedInput(
            f"{task}: the network's features have width {features.shape[-1]}, the head takes {weight.shape[1]}; "
            "is the head that of another network?"
        )
    return features
