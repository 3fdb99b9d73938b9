"""Random numbers that belong to a place: element i of a tensor always gets the same one."""

from __future__ import annotations

from hashlib import sha256
from math import pi

from plait.tensors import Tensor, torch


def uniform(seed: bytes, name: str, first: int, count: int) -> Tensor:
    """Numbers k * 2^-32, k uniform in 0 .. 2^32 - 1, for elements `first` to `first + count` of tensor
    `name`.

    A counter-based generator (Philox 4x64, Salmon et al. 2011) is keyed by sha256(seed, name) and moved to
    the first element, so chunks, order, threads and other tensors change nothing. Returns (count,) fp64 in
    [0, 1).
    Cost: about 2 ns an element.
    """
    import numpy

    key = int.from_bytes(
        sha256(len(seed).to_bytes(8, "little") + seed + name.encode()).digest()[:16], "little"
    )
    # One step of the counter gives four 64-bit words, that is eight elements.
    skip = first % 8
    words = numpy.random.Philox(key=key).advance(first // 8).random_raw((skip + count + 1) // 2)
    halves = words.astype("<u8", copy=False).view("<u4")[skip : skip + count]
    return torch.from_numpy(halves.astype(numpy.float64) * 2.0**-32)


def normal(seed: bytes, name: str, count: int) -> Tensor:
    """`count` normal numbers for tensor `name`, (count,) fp64: Box and Muller 1958."""
    flat = uniform(seed, name, 0, 2 * count)
    radius = (-2 * torch.log1p(-flat[:count])).sqrt()
    return radius * torch.cos(2 * pi * flat[count:])
