"""The loss of one task as a function of weights: its value, gradient, diagonal Fisher and Hessian-vector product."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from hashlib import sha256
from random import Random
from typing import Literal

from plait.errors import RefusedInput, UsageError
from plait.problem.base import Examples, Head, Network, Weights
from plait.problem.feed import Feed, Piece
from plait.problem.totals import Work, zeros_like
from plait.tensors import Tensor, torch

Measure = Callable[[Weights, Piece], "tuple[Tensor, int]"]
"""(weights, piece) -> (a sum over the piece's examples that is differentiable, how many things were summed)."""


class Objective:
    """Cross-entropy of a network and a head on some examples, as a function of weights.

    The mean over examples; for causal-lm the mean over predicted tokens, padding left out. Losses are sums over
    micro-batches in fp64, divided once; gradients are summed in the precision that they are returned in. Both depend
    on the size of micro-batches by rounding alone. Nothing of a call is kept but counts, and no weights are written
    into.

    Weights: fp64 stays fp64, every other type is returned as fp32. The network computes in `network.dtype` on its
    own device; results lie where the weights lie.
    """

    def __init__(
        self,
        network: Network,
        head: Head | None,
        examples: Examples,
        *,
        batch: int = 32,
        micro: int | None = None,
        fixed: Weights | None = None,
    ) -> None:
        """head: None for what the network puts out itself (always so for causal-lm). batch: rows at a time where
        nothing is differentiated. micro: rows at a time where something is, `batch` by default; it bounds memory.
        fixed: tensors that calls may leave out of their weights, such as buffers.

        UsageError for a batch below 1; RefusedInput where there is no example or a label is negative.
        """
        for name, rows in (("batch", batch), ("micro", micro)):
            if rows is not None and rows < 1:
                raise UsageError(f"{name} is {rows}, expected at least 1")
        self.network = network
        self.head = head
        self.feed = Feed(network, examples)
        self.rows = tuple(range(len(examples)))
        self.batch = batch
        self.micro = micro or batch
        self.fixed = dict(fixed or {})
        self.work = Work()
        self._things: int | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def digest(self) -> str:
        """sha256 (hex) of the examples that this objective is about."""
        whole = self.feed.examples.digest
        if len(self.rows) == len(self.feed.examples):
            return whole
        return sha256(f"{whole} {self.rows}".encode()).hexdigest()

    def sample(self, n: int, seed: int) -> Objective:
        """The objective of n of the examples, drawn without replacement; of all where there are no more than n. The
        same n and seed draw the same examples. Work is counted with this objective's."""
        if n < 1:
            raise UsageError(f"n is {n}, expected at least 1 example")
        other = copy(self)
        other._things = None
        other.rows = tuple(sorted(Random(seed).sample(self.rows, min(n, len(self)))))
        return other

    # what it computes
    def loss(self, weights: Weights) -> float:
        """The loss at `weights`."""
        with self.work.doing("losses", len(self)), torch.no_grad():
            found = [self._cross_entropy(live, piece) for piece, live in self.run(weights, (), self.batch)]
            return sum(value.item() for value, _ in found) / _some(sum(count for _, count in found))

    def loss_and_gradient(
        self, weights: Weights, names: Iterable[str] | None = None
    ) -> tuple[float, dict[str, Tensor]]:
        """The loss and its gradient with respect to the tensors `names`, by default all floating-point ones of
        `weights`. A tensor that the network does not use has a gradient of zeros. UsageError for a name that
        `weights` has not, or that is no floating-point tensor."""
        slopes = zeros_like({name: weights[name] for name in self.chosen(weights, names)})
        return self.add_gradient(weights, slopes), slopes

    def add_gradient(self, weights: Weights, into: Mapping[str, Tensor], share: float = 1.0) -> float:
        """The loss; `share` times its gradient is added to the tensors of `into`, in place, so that several tasks, or
        the steps of a path, share them.

        into: name of a floating-point tensor of `weights` -> a tensor of its shape, fp32 or fp64, on its device.
        """
        count = self.things()
        value = 0.0
        chosen = self.chosen(weights, into)
        own = zeros_like(into) if any(slope.is_inference() for slope in into.values()) else into
        with self.work.doing("gradients", len(self)), differentiable():
            for piece, live in self.run(weights, chosen, self.micro):
                found, _ = self._cross_entropy(live, piece)
                value += found.item()
                add_derivative(found, live, own, share / count)
        if own is not into:  # torch lets nothing be added to tensors of its inference mode outside of it
            for name, slope in into.items():
                slope.add_(own[name])
        return value / count

    def things(self) -> int:
        """What the loss is the mean over: the number of examples; of predicted tokens for causal-lm."""
        if self.feed.examples.labels is not None:
            return len(self)
        if self._things is None:
            pieces = self.feed.pieces(self.rows, self.micro)
            self._things = sum(int(_predicted(piece).sum()) for piece in pieces)
        return _some(self._things)

    def value_and_gradient(
        self, measure: Measure, weights: Weights, names: Iterable[str] | None = None
    ) -> tuple[float, dict[str, Tensor]]:
        """The same for another quantity: the sum of what `measure` finds in every micro-batch, over the sum of the
        counts. `measure` gets the weights as leaves of a graph, as the network takes them."""
        slopes = zeros_like({name: weights[name] for name in self.chosen(weights, names)})
        value, count = 0.0, 0
        with self.work.doing("gradients", len(self)), differentiable():
            for piece, live in self.run(weights, slopes, self.micro):
                found, things = measure(live, piece)
                add_derivative(found, live, slopes)
                value += found.item()
                count += things
        for slope in slopes.values():
            slope /= _some(count)
        return value / _some(count), slopes

    def hvp(self, weights: Weights, vector: Weights) -> dict[str, Tensor]:
        """H v: the Hessian of the loss with respect to the tensors of `vector`, times it. By differentiating twice,
        never as a matrix; attention runs by its plain formula, as fused kernels have no second derivative.

        vector: tensor name -> tensor of that weight's shape. UsageError for another name or shape.
        """
        from torch.nn.attention import SDPBackend, sdpa_kernel

        chosen = self.chosen(weights, vector)
        for name in chosen:
            if vector[name].shape != weights[name].shape:
                raise UsageError(
                    f"{name} of the vector is {tuple(vector[name].shape)}, expected {tuple(weights[name].shape)}"
                )
        made = zeros_like({name: weights[name] for name in chosen})
        count = 0
        with self.work.doing("products", len(self)), differentiable(), sdpa_kernel(SDPBackend.MATH):
            for piece, live in self.run(weights, chosen, self.micro):
                found, things = self._cross_entropy(live, piece)
                first = derivative(found, live, chosen, again=True)
                slope = _inner(first, {name: vector[name].to(live[name]) for name in chosen})
                add_derivative(slope, live, made)
                count += things
        for slope in made.values():
            slope /= _some(count)
        return made

    def fisher(
        self,
        weights: Weights,
        names: Iterable[str] | None = None,
        *,
        labels: Literal["given", "model"] = "given",
        how: Literal["auto", "vmap", "loop"] = "auto",
    ) -> dict[str, Tensor]:
        """The diagonal of the Fisher information: the mean over examples of the squared gradient of log p(y|x), one
        example at a time (Matena and Raffel 2022, arXiv 2111.09832, eq. 5). For causal-lm p(y|x) is the probability
        of the whole text.

        labels: "given" takes y from the examples (the empirical Fisher), "model" the expectation over y drawn from
        p(y|x): one backward pass a class. how: "vmap" runs several examples at a time, "loop" one; "auto" tries the
        first for small networks, and goes on one at a time where it fails. The choice does not change the result
        beyond rounding.
        """
        from plait.problem.fisher import diagonal

        with self.work.doing("fishers", len(self)), differentiable():
            return diagonal(self, weights, self.chosen(weights, names), labels, how)

    def running(self, weights: Weights, layers: Sequence[str]) -> tuple[str, ...]:
        """See `probes.running`."""
        from plait.problem import probes

        return probes.running(self, weights, layers)

    def drift(
        self, weights: Weights, targets: Sequence[Weights], layers: Mapping[str, float]
    ) -> tuple[float, dict[str, Tensor]]:
        """See `probes.drift`."""
        from plait.problem import probes

        return probes.drift(self, weights, targets, layers)

    def apart(self, weights: Weights, reference: Weights, layers: Sequence[str]) -> dict[str, float]:
        """See `probes.apart`."""
        from plait.problem import probes

        return probes.apart(self, weights, reference, layers)

    # what the probes build on
    def run(
        self, weights: Weights, chosen: Iterable[str], size: int
    ) -> Iterator[tuple[Piece, dict[str, Tensor]]]:
        """Micro-batches of at most `size` rows, each with all weights as the network takes them; those in `chosen`
        ask for gradients. RefusedInput where the network needs a tensor that is not there."""
        missing = sorted(set(self.network.names) - set(weights) - set(self.fixed))
        if missing:
            raise RefusedInput(
                f"weights lack {len(missing)} of {len(self.network.names)} tensors of the network, "
                f"{missing[0]} first; hand in what does not change as `fixed`"
            )
        live: dict[str, Tensor] = {}
        for piece in self.feed.pieces(self.rows, size):
            live = live or self.live(weights, chosen, piece.device)
            yield piece, live

    def live(self, weights: Weights, chosen: Iterable[str], device: torch.device) -> dict[str, Tensor]:
        """All weights on `device`, floating-point ones in the network's dtype, as leaves of a new graph."""
        wanted = set(chosen)
        held = {}
        for name, weight in {**self.fixed, **weights}.items():
            dtype = self.network.dtype if weight.is_floating_point() else weight.dtype
            leaf = weight.detach().to(device=device, dtype=dtype)
            held[name] = leaf.requires_grad_() if name in wanted else leaf
        return held

    def chosen(self, weights: Weights, names: Iterable[str] | None) -> tuple[str, ...]:
        """The names to differentiate by, checked."""
        if names is None:
            return tuple(name for name, weight in weights.items() if weight.is_floating_point())
        chosen = tuple(names)
        for name in chosen:
            if name not in weights:
                raise UsageError(f"{name} is not among the {len(weights)} tensors of the weights")
            if not weights[name].is_floating_point():
                raise UsageError(
                    f"{name} is {weights[name].dtype}; only floating-point tensors have gradients"
                )
        return chosen

    def logits(self, weights: Weights, piece: Piece) -> Tensor:
        """What the head says, (rows, classes), or (rows, length, vocabulary) for causal-lm."""
        if self.head is None:
            return self.network.outputs(weights, piece.batch)
        return self.head.logits(self.network, weights, piece.batch)

    def surprise(self, weights: Weights, piece: Piece) -> Tensor:
        """(rows,) minus log p(y|x) of each example, in fp32 or fp64."""
        logits = self.logits(weights, piece)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        self._fits(logits)
        if piece.labels is not None:
            return torch.nn.functional.cross_entropy(logits, piece.labels, reduction="none")
        wanted = torch.where(_predicted(piece), piece.tokens[:, 1:], -100)
        each = torch.nn.functional.cross_entropy(
            logits[:, :-1].transpose(1, 2), wanted, ignore_index=-100, reduction="none"
        )
        return each.sum(1)

    def _fits(self, logits: Tensor) -> None:
        labelled = self.feed.examples.labels is not None
        if logits.dim() != (2 if labelled else 3):
            held = "labels" if labelled else "no labels"
            raise RefusedInput(
                f"logits have {logits.dim()} axes and the examples {held}; expected (rows, classes) with labels, "
                "or (rows, length, vocabulary) without"
            )
        if self.feed.highest >= logits.shape[-1]:
            raise RefusedInput(
                f"the head has {logits.shape[-1]} classes and there is a label {self.feed.highest}; "
                "give it all classes of the task"
            )

    def _cross_entropy(self, weights: Weights, piece: Piece) -> tuple[Tensor, int]:
        total = self.surprise(weights, piece).sum(dtype=torch.float64)
        return total, len(piece) if piece.labels is not None else int(_predicted(piece).sum())


def _predicted(piece: Piece) -> Tensor:
    """(rows, length - 1): which tokens after the first are predicted from a token before them."""
    mask = piece.mask
    if mask is None:
        return torch.ones_like(piece.tokens[:, 1:], dtype=torch.bool)
    return mask[:, 1:] & mask[:, :-1]


def _some(count: int) -> int:
    if not count:
        raise RefusedInput("no text has a second token; there is nothing to predict")
    return count


@contextmanager
def differentiable() -> Iterator[None]:
    """Graphs are made in this block, whatever the caller has switched off: without one, slopes would be zeros."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


def derivative(
    value: Tensor, live: Weights, chosen: Iterable[str], *, again: bool = False
) -> dict[str, Tensor]:
    """d value / d weight by name, without those that `value` does not depend on. again: keep the graph, so that the
    derivative can be differentiated."""
    names = list(chosen)
    if not value.requires_grad or not names:
        return {}
    found = torch.autograd.grad(value, [live[name] for name in names], create_graph=again, allow_unused=True)
    return {name: slope for name, slope in zip(names, found, strict=True) if slope is not None}


def add_derivative(value: Tensor, live: Weights, into: Mapping[str, Tensor], factor: float = 1.0) -> None:
    """Add factor * d value / d weight to the tensors of `into`, in place. Leaves of the same dtype and place have
    them as their gradients, so that a derivative needs no memory of its own; those of low precision are multiplied
    afterwards, which keeps them in its range."""
    if not value.requires_grad or not into:
        return
    wide = all(
        live[name].dtype == slope.dtype and live[name].device == slope.device for name, slope in into.items()
    )
    if not wide:
        for name, slope in derivative(value, live, into).items():
            into[name].add_(slope.to(into[name]), alpha=factor)
        return
    for name, slope in into.items():
        live[name].grad = slope
    torch.autograd.backward(value * factor, inputs=[live[name] for name in into])
    for name, slope in into.items():
        held = live[name].grad
        live[name].grad = None
        if held is not None and held is not slope and held.data_ptr() != slope.data_ptr():
            slope.copy_(held)


def _inner(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> Tensor:
    """Sum of products over all tensors of `one`; a constant 0 where nothing of it can be differentiated."""
    terms = [(slope * other[name]).sum() for name, slope in one.items() if slope.requires_grad]
    return torch.stack(terms).sum() if terms else torch.zeros(())
