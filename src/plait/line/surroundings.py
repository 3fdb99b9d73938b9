"""What has a hand in the bytes beside the inputs: threads, device, versions of software."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from plait.problem.base import Network
from plait.tensors import torch


@contextmanager
def steady(threads: int | None, device: str) -> Iterator[None]:
    """So many threads in this block; on a GPU algorithms that give the same every time, where torch has them."""
    before = torch.get_num_threads()
    strict = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    if threads is not None:
        torch.set_num_threads(threads)
    if device.startswith("cuda"):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.use_deterministic_algorithms(strict, warn_only=only_warns)


def versions(network: Network) -> dict[str, Any]:
    """Versions of plait, Python, torch and what encodes examples, and of the package that the network's layers come
    from."""
    from importlib.metadata import PackageNotFoundError, version

    from plait.line.build import software

    found = dict(software())
    for name in ("numpy", "tokenizers", "pillow", type(network.module).__module__.split(".")[0]):
        try:
            found.setdefault(name, version(name))
        except PackageNotFoundError:
            continue
    return found
