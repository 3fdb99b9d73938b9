"""Numbers on tensors. `torch` is loaded at its first use, so that naming a method costs no import of it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch as torch
    from torch import Tensor as Tensor
else:

    class _Torch:
        """Stands for the torch module until an attribute is asked for; each attribute is then kept here."""

        def __getattr__(self, name: str) -> Any:
            value = getattr(import_module("torch"), name)
            setattr(self, name, value)
            return value

    torch = _Torch()
    Tensor = "torch.Tensor"

BLOCK = 1 << 16
"""Elements in a block. Chunks start at multiples of it, so block sums never depend on the chunk size."""
