"""What has a hand in the bytes beside the inputs where networks run: threads, device, versions of software."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plait.tensors import torch

if TYPE_CHECKING:
    from plait.problem.base import Network


@dataclass(frozen=True)
class Compute:
    """How the networks of a line run. network: python:module:function, or None for the one that the base's
    config.json describes. batch: rows at a time. threads: None for as many as torch takes."""

    network: str | None = None
    device: str = "cpu"
    dtype: str = "float32"
    batch: int = 32
    threads: int | None = None

    def running(self) -> AbstractContextManager[None]:
        """The block in which networks run."""
        return steady(self.threads, self.device)

    def record(self, networks: Iterable[Network]) -> dict[str, Any]:
        """What decides the bytes beside the inputs, for the ledger; asked for in such a block."""
        found: dict[str, Any] = {"threads": torch.get_num_threads(), "device": _device(self.device)}
        for network in networks:
            found |= {name: word for name, word in versions(network).items() if name not in _ALWAYS}
        return found


_ALWAYS = ("plait", "python", "torch", "cpu")


def stack_words(record: Mapping[str, Any]) -> str:
    """`, 2 threads on cpu, transformers 5.0`: what a stack of software has beside torch and the processor; "" where
    no network ran."""
    if not record:
        return ""
    others = [f"{name} {word}" for name, word in sorted(record.items()) if name not in ("threads", "device")]
    return ", ".join(["", f"{record['threads']} threads on {record['device']}", *others])


def _device(device: str) -> str:
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.startswith("cuda") else device


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
