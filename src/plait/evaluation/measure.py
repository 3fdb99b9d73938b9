"""One model on one task: right or wrong, answer by answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256

from plait.errors import RefusedInput
from plait.evaluation.rows import Condition
from plait.problem.base import Examples, Head, Network, Split, Task, Weights
from plait.tensors import Tensor, torch


@dataclass(frozen=True)
class Measured:
    """answers: True where the class (for causal-lm the next token) with the highest logit is the right one. groups:
    how many answers each example has, None for one each. undefined: how many had NaN among their logits; they count
    as wrong."""

    answers: list[bool]
    groups: list[int] | None
    undefined: int


def metric(task: Task) -> str:
    """What is measured of tasks of this kind."""
    return "token accuracy" if task.kind == "causal-lm" else "accuracy"


def condition(task: Task, split: Split, network: str) -> Condition:
    """How a task is measured. Reads the data, for its digest."""
    return Condition(task.name, split, metric(task), task.examples(split).digest, head_digest(task), network)


def head_digest(task: Task) -> str:
    """sha256 of all that a head is made of, beside base, network and a member's private tensors."""
    fitted = task.head.kind == "linear" and not task.head.weight
    words = [asdict(task.head), list(task.classes), task.examples("train").digest if fitted else None]
    return sha256(json.dumps(words, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def measure(head: Head, network: Network, weights: Weights, examples: Examples, batch: int) -> Measured:
    """Run a model on examples. batch: rows at a time; it bounds memory and changes logits by rounding only.

    Errors: RefusedInput where network, head and weights do not fit each other or the examples.
    """
    if examples.labels is None:
        return _tokens(head, network, weights, examples, batch)
    from plait.problem.heads import predict

    logits = predict(head, network, weights, examples, batch)
    highest = int(examples.labels.max()) if len(examples) else 0
    if highest >= logits.shape[1]:
        raise RefusedInput(
            f"the head tells {logits.shape[1]} classes apart and there is a label {highest}; give it all classes"
        )
    right, undefined = _right(logits, examples.labels.to(logits.device))
    return Measured(right.tolist(), None, undefined)


def _right(logits: Tensor, labels: Tensor) -> tuple[Tensor, int]:
    """(n,) bool, and the number of rows with NaN. logits: (n, classes); labels: (n,)."""
    undefined = torch.isnan(logits).any(-1)
    return (logits.argmax(-1) == labels) & ~undefined, int(undefined.sum())


def _tokens(head: Head, network: Network, weights: Weights, examples: Examples, batch: int) -> Measured:
    """Every token after a text's first, predicted from those before it."""
    from plait.problem.feed import Feed, Piece

    def row(piece: Piece, logits: Tensor, place: int) -> tuple[list[bool], int]:
        tokens, mask = piece.tokens[place], piece.mask
        there = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask[place]
        wanted = there[1:] & there[:-1]
        right, bad = _right(logits[place, :-1][wanted], tokens[1:][wanted])
        return right.tolist(), bad

    feed = Feed(network, examples)
    ready: Weights = getattr(network, "ready", dict)(weights)
    found: dict[int, list[bool]] = {}
    undefined = 0
    with torch.no_grad():
        for piece in feed.pieces(range(len(examples)), batch):
            logits = head.logits(network, ready, piece.batch)
            for place, number in enumerate(piece.rows):
                found[number], bad = row(piece, logits, place)
                undefined += bad
    return _joined([found[number] for number in range(len(examples))], undefined)


def _joined(texts: Sequence[list[bool]], undefined: int) -> Measured:
    answers = [answer for text in texts for answer in text]
    if not answers:
        raise RefusedInput("no text has a second token; there is nothing to predict")
    return Measured(answers, [len(text) for text in texts if text], undefined)
