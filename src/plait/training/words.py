"""Training only those rows of a token table that have a gradient: the same result in half the time.

MiniLM has 11.7 million of its 22.7 million weights in its token table, and the texts of a task hold a tenth of its
words. The other rows have a gradient of zeros at every step, so AdamW without weight decay leaves them as they are;
reading and writing them all the same is what takes the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plait.problem.base import Network, Weights
from plait.tensors import Tensor, torch


def token_table(network: Network) -> str | None:
    """The tensor that holds a row for every token number, of a network in which only the rows of a batch's tokens
    matter: the encoder that is built in. None for any other network; the table may be tied to its output there."""
    from plait.problem.minilm import Bert

    if not isinstance(network.module, Bert):
        return None
    parameter = "embeddings.word_embeddings.weight"
    return next(name for name, target in network.names.items() if target == parameter)


class UsedWords:
    """A network (see `plait.problem.base.Network`) that numbers the tokens of some texts from 0, for weights whose
    table holds the rows of these tokens only.

    used: int64, the token numbers that occur, sorted. Padding becomes the first of them; it is masked.
    """

    def __init__(self, network: Network, table: str, texts: Any) -> None:
        self.network, self.table = network, table
        self.used = torch.tensor(sorted({token for text in network.encode(texts) for token in text}))
        self._rank = {token: rank for rank, token in enumerate(self.used.tolist())}

    @property
    def module(self) -> torch.nn.Module:
        return self.network.module

    @property
    def names(self) -> Any:
        return self.network.names

    @property
    def dtype(self) -> torch.dtype:
        return self.network.dtype

    def encode(self, inputs: Any) -> Sequence[Any]:
        return [[self._rank[token] for token in text] for text in self.network.encode(inputs)]

    def size(self, encoded: Any) -> int:
        return self.network.size(encoded)

    def collate(self, encoded: Sequence[Any]) -> Any:
        return self.network.collate(encoded)

    def features(self, weights: Weights, batch: Any) -> Tensor:
        return self.network.features(weights, batch)

    def outputs(self, weights: Weights, batch: Any) -> Tensor:
        return self.network.outputs(weights, batch)

    def cut(self, weights: Weights) -> dict[str, Tensor]:
        """The weights with the rows of the used tokens in place of the table."""
        table = weights[self.table]
        return {**weights, self.table: table[self.used.to(table.device)]}

    def put_back(self, rows: Tensor, table: Tensor) -> Tensor:
        """A copy of the whole table with these rows in it."""
        whole = table.clone()
        whole[self.used.to(table.device)] = rows
        return whole
