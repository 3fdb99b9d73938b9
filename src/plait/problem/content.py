"""What an example is made of: when two are equal, and the digest of many."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from plait.problem.base import Examples
from plait.tensors import torch


def make_examples(inputs: Any, labels: Sequence[int] | None = None) -> Examples:
    """Examples with their digest.

    inputs: texts, or images as a uint8 array (n, height, width, 3). labels: n whole numbers, None for causal-lm.

    The digest is sha256 over, example by example: a text as the byte `t`, its length in bytes and its UTF-8 bytes;
    an image as the byte `i`, its height, width and 3, and its bytes row by row; then the label, or nothing where
    there is none. Lengths, sizes and labels are signed 64-bit integers, little-endian. It knows nothing of files.
    """
    labelled = None if labels is None else torch.tensor(list(labels), dtype=torch.int64)
    whole = sha256()
    for i, one in enumerate(inputs):
        whole.update(canonical(one))
        if labels is not None:
            whole.update(_number(int(labels[i])))
    return Examples(inputs, labelled, whole.hexdigest())


def canonical(one: Any) -> bytes:
    """The bytes of one input, as `make_examples` takes them into the digest."""
    if isinstance(one, str):
        data = one.encode("utf-8")
        return b"t" + _number(len(data)) + data
    return b"i" + b"".join(_number(n) for n in one.shape) + bytes(one.tobytes())


def key(one: Any) -> bytes:
    """32 bytes that equal examples share: texts that differ in upper and lower case only, images of one size with the
    same pixels."""
    return sha256(canonical(one.casefold() if isinstance(one, str) else one)).digest()


def _number(value: int) -> bytes:
    return value.to_bytes(8, "little", signed=True)
