"""Exact real numbers written in base 2^40: digits of fp64, each the multiple of its bin's quantum.

A number is sum_e d_e with bins e = 0, -40, -80, ..., -1080; d_e is a multiple of 2^e. In the canonical form every
digit but that of bin 0 lies in [-2^(e+39), 2^(e+39)), so a number has one form only; bin 0 takes what is left and
must stay below 2^53. Working sums may hold larger digits; `carry` brings them to the canonical form.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from plait.errors import RefusedInput
from plait.tensors import Tensor, torch

STEP = 40
BINS = tuple(range(0, -1081, -STEP))
LIMIT = 2.0**53
"""Digits of bin 0 must stay below it; sums are refused from 2^52 on."""


def digits(x: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Digits of fp64 numbers below 2^53, rounded to nearest from the top bin down; all-zero digits left out."""
    largest = float(x.abs().max()) if x.numel() else 0.0
    for e in BINS:
        if largest == 0.0:
            return
        if largest < 2.0 ** (e - 1):
            continue
        if e == 0:
            part = torch.round(x)
        elif e == BINS[-1]:
            part = x
        else:
            magic = 1.5 * 2.0 ** (52 + e)
            part = (x + magic) - magic
        x = x - part
        yield e, part
        largest = float(x.abs().max())


def carry(bins: dict[int, Tensor]) -> None:
    """Bring `bins` to the canonical form, in place (new tensors are put in); bins of zeros are dropped."""
    for e in reversed(BINS[1:]):
        digit = bins.get(e)
        if digit is None:
            continue
        up = 2.0 ** (e + STEP)
        magic = 1.5 * 2.0**52 * up
        over = (digit + magic) - magic
        digit = digit - over
        tie = digit == up / 2
        if bool(tie.any()):
            digit = torch.where(tie, digit - up, digit)
            over = torch.where(tie, over + up, over)
        bins[e] = digit
        if bool(over.any()):
            above = bins.get(e + STEP)
            bins[e + STEP] = over if above is None else above + over
    for e in list(bins):
        if not bool(bins[e].any()):
            del bins[e]
    if 0 in bins and not float(bins[0].abs().max()) < LIMIT:
        raise refuse(float(bins[0].abs().max()))


def refuse(largest: float) -> RefusedInput:
    """The error for a magnitude that is too large."""
    return RefusedInput(
        f"an element of a sum of task vectors reaches {largest:.3g}, exact sums need magnitudes below 2^52; "
        "look for overflow in the expert, or keep the tensor out with --private"
    )


@contextmanager
def owned(*names: str) -> Iterator[None]:
    """A refusal inside says whose numbers it means: `names`, a member and a tensor perhaps, stand before it."""
    try:
        yield
    except RefusedInput as refusal:
        raise type(refusal)(": ".join((*names, str(refusal)))) from refusal


def last_bit(x: Tensor, quantum: int) -> int:
    """The largest e for which every element of `x`, multiples of 2^quantum below 2^(quantum+53), is a multiple
    of 2^e; `quantum` where all are zero."""
    import numpy as np

    half = -quantum // 2  # 2^1080 is no float
    whole = (x * 2.0**half * 2.0 ** (-quantum - half)).to(torch.int64).numpy()
    union = int(np.bitwise_or.reduce(whole)) if whole.size else 0
    return quantum + ((union & -union).bit_length() - 1 if union else 0)
