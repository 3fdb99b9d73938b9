"""What each place of a convolution's output is made of, so that a convolution is a linear layer on patches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from plait.errors import RefusedInput


def patches(module: torch.nn.Conv2d, inputs: Sequence[Any]) -> Tensor:
    """(groups, patches, in * k * k / groups) of a layer that is called with `inputs`, examples first, then places.

    The layer is run once more, to see what it hands to the convolution: some layers pad in ways of their own before.
    RefusedInput where it makes more or fewer convolutions than one.
    """
    with _Watch() as watch:
        module.forward(*inputs)
    if len(watch.calls) != 1:
        raise RefusedInput(
            f"a layer {type(module).__name__} makes {len(watch.calls)} convolutions, expected 1; leave it out"
        )
    call = watch.calls[0]
    given = call.input if call.input.dim() == 4 else call.input[None]  # a single example without its axis
    wide = torch.nn.functional.pad(given, _border(call.padding, module.kernel_size, call.dilation))
    cut = torch.nn.functional.unfold(wide, module.kernel_size, dilation=call.dilation, stride=call.stride)
    rows, _, places = cut.shape
    cut = cut.view(rows, call.groups, -1, places)
    return cut.permute(1, 0, 3, 2).reshape(call.groups, rows * places, -1)


class _Call(NamedTuple):
    """The arguments of `torch.conv2d`, in its order."""

    input: Tensor
    weight: Tensor
    bias: Tensor | None = None
    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1
    groups: int = 1


class _Watch(TorchFunctionMode):
    """Notes every 2-D convolution that is made in its block."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Call] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.conv2d:
            self.calls.append(_Call(*args, **(kwargs or {})))
        return func(*args, **(kwargs or {}))


def _border(padding: Any, kernel: tuple[int, ...], dilation: Any) -> list[int]:
    """Zeros to the left, right, top and bottom, as `pad` takes them."""
    if padding == "valid":
        padding = 0
    if padding == "same":
        reach = [step * (size - 1) for size, step in zip(kernel, _pair(dilation), strict=True)]
        return [side for total in reversed(reach) for side in (total // 2, total - total // 2)]
    return [size for size in reversed(_pair(padding)) for _ in range(2)]


def _pair(sizes: Any) -> tuple[int, int]:
    """(height, width) of a number or a pair."""
    first, second = (sizes, sizes) if isinstance(sizes, int) else sizes
    return first, second
