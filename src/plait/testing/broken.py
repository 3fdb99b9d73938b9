"""What is said when a law does not hold."""

from __future__ import annotations

from collections.abc import Mapping

from plait.methods.base import Method
from plait.methods.pieces import same_bytes
from plait.tensors import Tensor


class LawBroken(AssertionError):
    """A method does not do what every method must do."""


def label(method: Method) -> str:
    return f"{method.name} {method.options()}"


def same(method: Method, got: Mapping[str, Tensor], want: Mapping[str, Tensor], complaint: str) -> None:
    for name, tensor in want.items():
        if same_bytes(got[name], tensor):
            continue
        a, b = got[name].view(-1), tensor.view(-1)
        bad = ((a != b) | (a.signbit() != b.signbit())).nonzero().view(-1)
        at = int(bad[0]) if len(bad) else 0
        raise LawBroken(
            f"{label(method)}: {complaint}: {name} ({b.dtype}) differs in {len(bad)} elements, "
            f"the first at {at}: {a[at].item()!r}, expected {b[at].item()!r}"
        )
