"""The diagonal of the Fisher information, one example at a time: squares do not add up like gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plait.errors import UsageError
from plait.problem.base import Weights
from plait.problem.feed import Piece, parts
from plait.problem.totals import Totals
from plait.tensors import Tensor, torch

if TYPE_CHECKING:
    from plait.problem.objective import Objective

ROOM = 1 << 28
"""Bytes of gradients of single examples that are held at a time."""

SMALL = 1 << 23
"""Bytes of one gradient from which on, on a processor, one example at a time is at least as fast as several."""

FEW = 16
"""Squares of that many examples are added up in fp32 before they enter the sum in fp64."""

CANNOT = (RuntimeError, TypeError, ValueError, AttributeError, IndexError, KeyError, NotImplementedError)
"""What a network that cannot be run by vmap may raise."""


def diagonal(
    objective: Objective, weights: Weights, chosen: tuple[str, ...], labels: str, how: str
) -> dict[str, Tensor]:
    """See `Objective.fisher`."""
    if labels not in ("given", "model") or how not in ("auto", "vmap", "loop"):
        raise UsageError(
            f"labels is {labels!r} and how {how!r}; expected given or model, and auto, vmap or loop"
        )
    if labels == "model" and objective.feed.examples.labels is None:
        raise UsageError("labels 'model' sums over all classes; texts have no classes, use 'given'")
    totals = Totals()
    one = sum(weights[name].numel() for name in chosen) * objective.network.dtype.itemsize
    how = "loop" if how == "auto" and one >= SMALL else how
    size = objective.micro if how == "loop" else max(1, min(objective.micro, ROOM // max(one, 1)))
    for piece, live in objective.run(weights, chosen, size):
        squares = None
        if how != "loop":
            squares = _together(objective, live, piece, chosen, labels, careful=how == "auto")
            how = "loop" if squares is None else how
        if squares is not None:
            totals.add(chosen, squares)
            continue
        for some in _one_by_one(objective, live, piece, chosen, labels):
            totals.add(chosen, some)
    return totals.over(len(objective), {name: weights[name] for name in chosen})


def _one_by_one(
    objective: Objective, live: Weights, piece: Piece, chosen: tuple[str, ...], labels: str
) -> Iterator[dict[str, Tensor]]:
    """Sums of squares, at most `FEW` gradients in each."""
    leaves = [live[name] for name in chosen]
    sums: dict[str, Tensor] = {}
    count = 0
    for single in objective.feed.singles(piece):
        if labels == "given":
            terms = [(1.0, objective.surprise(live, single).sum())]
        else:
            scores = objective.logits(live, single)[0].log_softmax(-1)
            terms = [(score.exp().item(), score) for score in scores]
        for share, term in terms:
            if not term.requires_grad:
                continue
            slopes = torch.autograd.grad(
                term, leaves, retain_graph=term is not terms[-1][1], allow_unused=True
            )
            for name, slope in zip(chosen, slopes, strict=True):
                if slope is not None:
                    _add_square(sums, name, slope, share)
            count += 1
            if count == FEW:
                yield sums
                sums, count = {}, 0
    if sums:
        yield sums


def _add_square(sums: dict[str, Tensor], name: str, slope: Tensor, share: float) -> None:
    wide = slope if slope.dtype == torch.float64 else slope.float()
    if name in sums:
        sums[name].addcmul_(wide, wide, value=share)
    else:
        sums[name] = wide.square().mul_(share)


def _together(
    objective: Objective, live: Weights, piece: Piece, chosen: tuple[str, ...], labels: str, *, careful: bool
) -> dict[str, Tensor] | None:
    """Sums of squares over the rows of a piece. careful: None where vmap does not run the network, or finds other
    losses than a batch has."""
    if not careful:
        return _all_rows(objective, live, piece, chosen, labels)
    try:
        return _all_rows(objective, live, piece, chosen, labels, compare=True)
    except CANNOT:
        return None


def _all_rows(
    objective: Objective,
    live: Weights,
    piece: Piece,
    chosen: tuple[str, ...],
    labels: str,
    compare: bool = False,
) -> dict[str, Tensor]:
    if labels == "given":
        slopes, values = _slopes(objective, live, piece, chosen)
        if compare:
            _compare(objective, live, piece, values)
        return _squares(slopes, None)
    with torch.no_grad():
        shares = objective.logits(live, piece).softmax(-1)
    totals: dict[str, Tensor] = {}
    for label in range(shares.shape[1]):
        same = replace(piece, labels=torch.full_like(shares[:, 0], label, dtype=torch.int64))
        slopes, values = _slopes(objective, live, same, chosen)
        if compare and not label:
            _compare(objective, live, same, values)
        for name, squares in _squares(slopes, shares[:, label]).items():
            totals[name] = totals[name] + squares if name in totals else squares
    return totals


def _compare(objective: Objective, live: Weights, piece: Piece, values: Tensor) -> None:
    """ValueError where vmap found other losses: it takes the first axis of every tensor of a batch for the rows."""
    with torch.no_grad():
        plain = objective.surprise(live, piece)
    slack = 1e3 * torch.finfo(objective.network.dtype).eps * (1 + plain.abs().max())
    if not bool((values - plain).abs().max() <= slack):
        raise ValueError("rows of the batch are not independent of each other")


def _squares(slopes: dict[str, Tensor], shares: Tensor | None) -> dict[str, Tensor]:
    """Sum over rows, in fp64, of each row's squared gradient times its share."""
    found = {}
    for name, slope in slopes.items():
        squares = slope.square()
        if shares is not None:
            squares *= shares.view(-1, *[1] * (slope.dim() - 1))
        found[name] = squares.sum(0, dtype=torch.float64)
    return found


def _slopes(
    objective: Objective, live: Weights, piece: Piece, chosen: tuple[str, ...]
) -> tuple[dict[str, Tensor], Tensor]:
    """Gradient of every row's surprise, (rows, *shape) by name, and the surprises (rows,), by vmap over rows."""
    from torch.func import grad_and_value, vmap
    from torch.nn.attention import SDPBackend, sdpa_kernel

    held, rebuild = parts(piece.batch)
    rest = {name: weight for name, weight in live.items() if name not in set(chosen)}

    def one(own: dict[str, Tensor], row: list[Tensor], label: Tensor | None) -> Tensor:
        batch = rebuild([tensor[None] for tensor in row])
        labels = None if label is None else label[None]
        return objective.surprise({**rest, **own}, Piece((0,), batch, labels)).sum()

    every: Any = vmap(grad_and_value(one), in_dims=(None, 0, None if piece.labels is None else 0))
    with sdpa_kernel(SDPBackend.MATH):
        slopes, values = every({name: live[name].detach() for name in chosen}, held, piece.labels)
    return slopes, values
