"""The processor's own word on whether floating-point results were exact (IEEE 754, the inexact exception).

Every operation that rounds raises a flag that stays up until it is cleared; the flags belong to the thread. A
sum that is computed with the flag down before and after is exact, whatever its operands: no bound has to be
proved. Only meaningful for torch operations that run in the calling thread.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from functools import cache

from plait.tensors import Tensor, torch

_INEXACT = {"x86_64": 0x20, "AMD64": 0x20, "aarch64": 0x10, "arm64": 0x10}
_ONE_THREAD = 1 << 15
"""Elements up to which torch never divides an element-wise operation among threads."""


@cache
def _library() -> tuple[Callable[[int], int], Callable[[int], int], int] | None:
    """(clear, test, flag), or None where the flag is not to be had."""
    flag = _INEXACT.get(platform.machine())
    try:
        library = ctypes.PyDLL(None)
        return None if flag is None else (library.feclearexcept, library.fetestexcept, flag)
    except (OSError, AttributeError, TypeError):
        return None


@cache
def works() -> bool:
    """Whether the flag tells exact results of torch from rounded ones here: tried once, at the first call."""
    if _library() is None:
        return False
    for wide, narrow, bits in ((torch.float32, torch.bfloat16, 24), (torch.float64, torch.float32, 53)):
        for at in (0, 5, 63, 4095):
            one = torch.zeros(4096, dtype=wide)
            last = torch.zeros(4096, dtype=narrow)
            one[at], last[at] = 1.0, 2.0 ** (1 - bits)
            for addend, rounds in ((last, False), (last / 4, True)):
                for form in _FORMS:
                    lower()
                    form(one, addend)
                    if raised() != rounds:
                        return False
    return True


_FORMS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    lambda one, addend: one + addend.to(one.dtype),
    lambda one, addend: one.clone().add_(addend),
    lambda one, addend: one.clone().add_(addend, alpha=-1.0),
    lambda one, addend: torch.sub(one, addend, alpha=3.0),
    lambda one, addend: (one + 1) * (1.0 + float(addend.max())),
)
"""The operations that `linear` relies on, each rounding if and only if `addend` is below the last place of
`one`."""


def usable(count: int) -> bool:
    """Whether the flag can vouch for an element-wise operation on `count` elements in this thread."""
    return works() and (count <= _ONE_THREAD or torch.get_num_threads() == 1)


def lower() -> None:
    """Take the flag down."""
    found = _library()
    if found is not None:
        found[0](found[2])


def raised() -> bool:
    """Whether something rounded since the flag was taken down."""
    found = _library()
    return found is None or bool(found[1](found[2]) & found[2])
