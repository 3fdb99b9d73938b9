"""Second moments of what goes into each linear layer: sum of x x^T over all tokens, for RegMean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from plait.errors import RefusedInput, UsageError
from plait.problem.base import Network, Weights
from plait.problem.feed import Piece
from plait.problem.objective import Objective
from plait.problem.probes import first_tensor, listening
from plait.tensors import Tensor, torch

LOOKED = 128
"""Rows of a layer's first input by which it is checked to be linear."""


@dataclass(frozen=True)
class Moment:
    """The inputs of one linear layer, as far as least squares cares.

    name: the tensor name of its weight. matrix: sum of x x^T, fp64 on the CPU, symmetric: (in, in) for a weight
    (out, in); (n, n) for a convolution, whose weight is then flattened to (out, n), n = in * kernel height * width;
    (groups, n / groups, n / groups) where it has several groups. count: how many x. inputs_first: the weight is (in,
    out), as in GPT-2.
    """

    name: str
    matrix: Tensor
    count: int
    inputs_first: bool = False


def second_moments(
    objective: Objective,
    weights: Weights,
    names: Iterable[str] | None = None,
    *,
    convolutions: bool = False,
) -> dict[str, Moment]:
    """Weight name -> moment of the inputs of its layer, for all linear layers that are run, by one pass over the
    examples. Their labels are not looked at.

    Tokens that the batch's `attention_mask` marks as padding are left out where a layer's input is (rows, length, in)
    or (rows * length, in). names: weights to look at, all by default. convolutions: take 2-D convolutions too, on
    patches (`unfold`), the border included; each is computed twice. A weight that another layer shares, an embedding
    say, is left out: it is more than one linear map. Jin et al. 2023, arXiv 2212.09849.

    Cost: a forward pass, and 2 * in^2 operations a token and layer; memory in^2 * 8 bytes a layer. UsageError for a
    name that is no such layer's weight; RefusedInput for a named layer that is not run, and for a layer that does
    something else than its weight says.
    """
    found = each_second_moment(objective, weights, names, convolutions=convolutions, at_once=None)
    return {moment.name: moment for moment in found}


def each_second_moment(
    objective: Objective,
    weights: Weights,
    names: Iterable[str] | None = None,
    *,
    convolutions: bool = False,
    at_once: int | None = 1,
    strict: bool = True,
) -> Iterator[Moment]:
    """The same, one after the other: a pass over the examples for every `at_once` layers, so that no more matrices
    than that are in memory; None takes all in one pass. strict: false leaves out what of `names` has no moment, where
    true refuses it."""
    if at_once is not None and at_once < 1:
        raise UsageError(f"at_once is {at_once}, expected at least 1")
    layers = _layers(objective.network, convolutions)
    wanted = list(layers) if names is None else list(names)
    if not strict:
        wanted = [name for name in wanted if name in layers]
    for name in wanted:
        if name not in layers:
            raise UsageError(f"{name} is not the weight of a layer that moments are made for")
    step = at_once or max(len(wanted), 1)
    for first in range(0, len(wanted), step):
        some = wanted[first : first + step]
        made = list(_pass(objective, weights, {name: layers[name] for name in some}))
        if strict and names is not None and len(made) < len(some):
            unused = sorted(set(some) - {moment.name for moment in made})
            raise RefusedInput(
                f"the layer of {unused[0]} was not run by the network; leave it out of `names`"
            )
        yield from made


def _pass(objective: Objective, weights: Weights, layers: dict[str, str]) -> Iterator[Moment]:
    gatherers = {layer: _Gatherer(name) for name, layer in layers.items()}
    with objective.work.doing("probes", len(objective)), torch.no_grad():
        for piece, live in objective.run(weights, (), objective.batch):
            hooks = {layer: gatherer.hook(piece) for layer, gatherer in gatherers.items()}
            with listening(objective.network.module, hooks):
                objective.logits(live, piece)
    for gatherer in gatherers.values():
        if gatherer.total is not None:
            matrix = (gatherer.total.triu() + gatherer.total.triu(1).mT).cpu()
            matrix = matrix if len(matrix) > 1 else matrix[0]
            yield Moment(gatherer.name, matrix, gatherer.count, gatherer.inputs_first)


def _layers(network: Network, convolutions: bool) -> dict[str, str]:
    """Tensor name -> module name of each layer whose weight belongs to linear layers alone."""
    held = dict(network.module.named_parameters(remove_duplicate=False))
    tensor_of = {id(held[own]): name for name, own in network.names.items() if own in held}
    users: dict[str, list[str]] = {}
    mixed = set()
    for layer, module in network.module.named_modules():
        for weight in module.parameters(recurse=False):
            name = tensor_of.get(id(weight))
            if name is None:
                continue
            if weight is getattr(module, "weight", None) and _linear(module, convolutions):
                users.setdefault(name, []).append(layer)
            else:
                mixed.add(name)
    return {name: layers[0] for name, layers in users.items() if name not in mixed and len(layers) == 1}


def _linear(module: torch.nn.Module, convolutions: bool) -> bool:
    if isinstance(module, torch.nn.Conv2d):
        return convolutions
    return isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D"


class _Gatherer:
    """Adds up one layer's moment."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.total: Tensor | None = None
        self.count = 0
        self.inputs_first = False

    def hook(self, piece: Piece) -> Callable[..., None]:
        def take(module: torch.nn.Module, inputs: Sequence[Any], output: Any) -> None:
            from plait.problem.patches import patches

            made = first_tensor(self.name, output)
            given = first_tensor(self.name, inputs)
            if isinstance(module, torch.nn.Conv2d):
                rows = patches(module, inputs)
            else:
                rows = given.flatten(0, -2)[None]
            if self.total is None:
                self.inputs_first = type(module).__name__ == "Conv1D"
                self._check(module, rows, made)
            if not isinstance(module, torch.nn.Conv2d):
                rows = _unpadded(rows, given, piece)
            if self.total is None:
                size = rows.shape[-1]
                self.total = rows.new_zeros((len(rows), size, size), dtype=torch.float64)
            _add_products(self.total, rows.double())
            self.count += rows.shape[1]

        return take

    def _check(self, module: torch.nn.Module, rows: Tensor, made: Tensor) -> None:
        """The layer must be the linear map that its weight says: so it is not, where it pads in its own way."""
        weight: Any = module.weight
        bias: Any = module.bias
        groups = rows.shape[0]
        if not isinstance(module, torch.nn.Conv2d):  # every row is treated alike
            rows, made = rows[:, :LOOKED], made.flatten(0, -2)[:LOOKED]
        if self.inputs_first:
            weight = weight.T
        matrix = weight.reshape(groups, -1, rows.shape[-1])
        expected = (rows @ matrix.mT).transpose(0, 1).flatten(1)
        expected = expected if bias is None else expected + bias
        found = made.movedim(-3, -1) if isinstance(module, torch.nn.Conv2d) else made
        slack = min(0.1, 100 * torch.finfo(made.dtype).eps * rows.shape[-1] ** 0.5)
        if found.numel() != expected.numel() or not torch.allclose(
            found.reshape(expected.shape), expected, rtol=slack, atol=slack * float(expected.abs().max())
        ):
            raise RefusedInput(
                f"the layer of {self.name} ({type(module).__name__}) does not put out its weight times its input; "
                "leave it out, of `names` here or by the option `tables` of a line's method"
            )


def _add_products(total: Tensor, rows: Tensor) -> None:
    """Add rows^T rows, of (groups, n, in), to the upper triangle of `total`; below it stands anything."""
    step = -(-rows.shape[-1] // 4)
    for first in range(0, rows.shape[-1], step):
        last = first + step
        total[:, first:last, first:].baddbmm_(rows[..., first:last].mT, rows[..., first:])


def _unpadded(rows: Tensor, given: Tensor, piece: Piece) -> Tensor:
    mask = piece.mask
    if mask is None or given.shape[:-1] not in (mask.shape, (mask.numel(),)):
        return rows
    return rows[:, mask.flatten().to(rows.device)]
