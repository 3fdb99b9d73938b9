"""Examples in batches of like length, and the padding and pooling that keep a batch from showing in the results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from plait.tensors import Tensor, torch

FEW = 8
"""Examples below which a batch is not cut for the sake of its filling."""


def batches_by_length(lengths: Sequence[int], batch: int, filling: float = 1.0) -> Iterator[list[int]]:
    """Indices of examples in batches of like length, shortest first, so that little is padded.

    Every index is in one batch; examples of equal length keep their order. filling: the share of a batch that may be
    padding; a batch of 8 or more ends before the example that would bring it above that.
    """
    rows: list[int] = []
    held = 0
    for row in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        padded = (len(rows) + 1) * lengths[row]
        if len(rows) == batch or (len(rows) >= FEW and padded - held - lengths[row] > filling * padded):
            yield rows
            rows, held = [], 0
        rows.append(row)
        held += lengths[row]
    if rows:
        yield rows


def pad(
    tokens: Sequence[Sequence[int]], filler: int, device: str | torch.device = "cpu"
) -> dict[str, Tensor]:
    """Texts of any length as one batch, filled up on the right.

    Returns `input_ids` (rows, length) int64 and, only where something was filled up, `attention_mask` (rows, length)
    int64: 1 for a token, 0 for filling.
    """
    length = max(map(len, tokens))
    ids = [[*t, *[filler] * (length - len(t))] for t in tokens]
    batch = {"input_ids": torch.tensor(ids, dtype=torch.int64, device=device)}
    if any(len(t) < length for t in tokens):
        mask = [[1] * len(t) + [0] * (length - len(t)) for t in tokens]
        batch["attention_mask"] = torch.tensor(mask, dtype=torch.int64, device=device)
    return batch


def mean_of_tokens(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """(rows, width): the mean over the tokens of (rows, length, width), filling left out.

    mask: (rows, length), 1 for a token and 0 for filling; None where nothing was filled up.
    """
    mask = torch.ones_like(hidden[..., 0]) if mask is None else mask.to(hidden.dtype)
    return (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
