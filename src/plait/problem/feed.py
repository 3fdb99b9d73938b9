"""Examples in batches: encoded once, cut by length, taken apart and put together again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, cast

from plait.errors import RefusedInput
from plait.problem.base import Examples, Network
from plait.problem.batching import batches_by_length
from plait.tensors import Tensor, torch

KEEP = 1 << 28
"""Bytes of encoded examples that are kept. More than that are encoded again for every batch."""

FILLING = 1 / 8
"""The share of a batch that may be padding."""

CHUNK = 256
"""Examples that are encoded at a time when their lengths are found out."""

Rebuild = Callable[[Sequence[Tensor]], Any]


@dataclass(frozen=True)
class Piece:
    """A batch, and which examples it holds.

    rows: their numbers in the order of the batch. labels: int64 (rows,) on the batch's device; None where the
    examples have none.
    """

    rows: tuple[int, ...]
    batch: Any
    labels: Tensor | None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def device(self) -> torch.device:
        """Where the batch lies: the network's device."""
        held, _ = parts(self.batch)
        return held[0].device if held else torch.device("cpu")

    @property
    def mask(self) -> Tensor | None:
        """(rows, length) bool, False for padding. None where the network pads nothing."""
        mask = word(self.batch, "attention_mask")
        return None if mask is None else mask.bool()

    @property
    def tokens(self) -> Tensor:
        """(rows, length) token numbers. RefusedInput where the batch has none."""
        tokens = word(self.batch, "input_ids")
        if tokens is None:
            raise RefusedInput(
                f"batch of a causal-lm network is {type(self.batch).__name__} without input_ids; "
                "let collate put the token numbers there"
            )
        return tokens


class Feed:
    """The examples of a task as one network takes them. What it holds does not grow with use."""

    def __init__(self, network: Network, examples: Examples) -> None:
        """RefusedInput where there is no example, or where there are more or fewer labels than examples."""
        self.network = network
        self.examples = examples
        self.highest = _highest_label(examples)
        self._sizes: list[int] = []
        self._kept: list[Any] | None = []

    def pieces(self, rows: Sequence[int], size: int) -> Iterator[Piece]:
        """Batches of at most `size` examples of like length that hold each of `rows` once, shortest first. Little of
        them is padding: a network takes as long for that as for text."""
        sizes = self.sizes()
        for places in batches_by_length([sizes[row] for row in rows], size, FILLING):
            yield self.piece([rows[place] for place in places])

    def singles(self, piece: Piece) -> Iterator[Piece]:
        """Each example of `piece` as a batch of its own."""
        for row in piece.rows:
            yield self.piece((row,))

    def sizes(self) -> Sequence[int]:
        """The length of every example, as the network tells it; found out when it is first asked for."""
        self._measure()
        return self._sizes

    def piece(self, rows: Sequence[int]) -> Piece:
        """A batch of these examples, in this order."""
        self._measure()
        batch = self.network.collate(self._encoded(rows))
        labels = self.examples.labels
        piece = Piece(tuple(rows), batch, None)
        return piece if labels is None else replace(piece, labels=labels[list(rows)].to(piece.device))

    def _encoded(self, rows: Sequence[int]) -> Sequence[Any]:
        if self._kept is not None:
            return [self._kept[row] for row in rows]
        return self.network.encode(take(self.examples.inputs, rows))

    def _measure(self) -> None:
        if self._sizes:
            return
        sizes: list[int] = []
        kept: list[Any] = []
        held = 0
        for first in range(0, len(self.examples), CHUNK):
            rows = range(first, min(first + CHUNK, len(self.examples)))
            encoded = self.network.encode(take(self.examples.inputs, rows))
            if len(encoded) != len(rows):
                raise RefusedInput(
                    f"{len(rows)} examples were encoded as {len(encoded)}; expected one for each"
                )
            sizes += [self.network.size(one) for one in encoded]
            held += sum(map(_bytes, encoded))
            kept = [*kept, *encoded] if held <= KEEP else []
        self._sizes, self._kept = sizes, kept if held <= KEEP else None


def _highest_label(examples: Examples) -> int:
    if not len(examples):
        raise RefusedInput("there are 0 examples; expected at least one")
    if examples.labels is None:
        return -1
    if examples.labels.shape != (len(examples),):
        raise RefusedInput(
            f"labels have shape {tuple(examples.labels.shape)}, expected ({len(examples)},): one for each example"
        )
    if int(examples.labels.min()) < 0:
        raise RefusedInput(f"label {int(examples.labels.min())} is negative; labels count classes from 0")
    return int(examples.labels.max())


def take(inputs: Any, rows: Sequence[int]) -> Any:
    """The inputs of some examples: an array where `inputs` is an array, else a list."""
    return inputs[list(rows)] if hasattr(inputs, "shape") else [inputs[row] for row in rows]


def _bytes(encoded: Any) -> int:
    """About how much memory an encoded example takes."""
    if hasattr(encoded, "nbytes"):
        return int(encoded.nbytes)
    if isinstance(encoded, Mapping):
        return sum(map(_bytes, encoded.values()))
    if isinstance(encoded, (list, tuple)):
        return sum(8 + _bytes(entry) for entry in encoded)
    return 32  # a Python number


def word(batch: Any, name: str) -> Tensor | None:
    """A tensor of a batch by name, a key or an attribute; None where it has none of that name."""
    found = batch.get(name) if isinstance(batch, Mapping) else getattr(batch, name, None)
    return found if isinstance(found, torch.Tensor) else None


def parts(batch: Any) -> tuple[list[Tensor], Rebuild]:
    """The tensors of a batch in a fixed order, and a function that makes such a batch of other tensors."""
    if isinstance(batch, torch.Tensor):
        return [batch], lambda tensors: tensors[0]
    if isinstance(batch, Mapping):
        held, rebuild = _sequence(list(batch.values()))
        keys, kind = list(batch), cast(Any, type(batch))
        return held, lambda tensors: kind(dict(zip(keys, rebuild(tensors), strict=True)))
    if isinstance(batch, (list, tuple)):
        held, rebuild = _sequence(batch)
        if hasattr(batch, "_fields"):
            return held, lambda tensors: type(batch)(*rebuild(tensors))
        return held, lambda tensors: type(batch)(rebuild(tensors))
    if is_dataclass(batch) and not isinstance(batch, type):
        names = [f.name for f in fields(batch)]
        held, rebuild = _sequence([getattr(batch, name) for name in names])
        return held, lambda tensors: replace(batch, **dict(zip(names, rebuild(tensors), strict=True)))
    return [], lambda tensors: batch


def _sequence(values: Sequence[Any]) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], list[Any]]]:
    taken = [parts(value) for value in values]
    held = [tensor for tensors, _ in taken for tensor in tensors]

    def rebuild(tensors: Sequence[Tensor]) -> list[Any]:
        made, first = [], 0
        for own, build in taken:
            made.append(build(tensors[first : first + len(own)]))
            first += len(own)
        return made

    return held, rebuild
