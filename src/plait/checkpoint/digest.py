"""The identity of a checkpoint: one sha256 per tensor and one over all, whatever the sharding."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping

from plait.checkpoint.format import hash_tensor
from plait.types import TensorRef


def tensor_digests(tensors: Mapping[str, TensorRef], workers: int | None = None) -> dict[str, str]:
    """`hash_tensor` of every tensor, by name, in the given order; large tensors are hashed side by side."""
    from concurrent.futures import (
        ThreadPoolExecutor,
    )  # here: it costs 10 ms, which most commands need not pay

    count = workers or min(8, os.cpu_count() or 1)
    names = sorted(tensors, key=lambda name: -tensors[name].nbytes)  # large ones first: threads end together
    with ThreadPoolExecutor(count) as pool:
        found = dict(zip(names, pool.map(lambda name: hash_tensor(tensors[name]), names), strict=True))
    return {name: found[name] for name in tensors}


def root_digest(digests: Mapping[str, str]) -> str:
    """sha256, in hex, of the lines `digest  name`, sorted by name: the identity of a checkpoint."""
    text = "".join(f"{digests[name]}  {name}\n" for name in sorted(digests))
    return hashlib.sha256(text.encode()).hexdigest()
