"""Adam on a few tensors with a gradient that is written out, no network and no tape. `torch.optim` loads a compiler
that takes seconds, which a merge has no use for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from plait.tensors import Tensor, torch


def descend(
    start: Sequence[Tensor],
    slopes: Callable[[Sequence[Tensor]], Sequence[Tensor]],
    steps: int,
    rate: float,
) -> list[Tensor]:
    """`steps` steps of Adam (Kingma & Ba 2015; betas 0.9 and 0.999, epsilon 1e-8) of size `rate`.

    slopes: the gradient at the tensors that it is given, one of each shape; called once a step. Returns new tensors;
    `start` is not written to. Where a slope is 0 from the start, nothing moves. The bytes are those of one thread.
    """
    here = [tensor.clone() for tensor in start]
    mean = [torch.zeros_like(tensor) for tensor in start]
    square = [torch.zeros_like(tensor) for tensor in start]
    for step in range(1, steps + 1):
        for x, m, s, slope in zip(here, mean, square, slopes(here), strict=True):
            m.mul_(0.9).add_(slope * 0.1)
            s.mul_(0.999).add_((slope * slope).mul_(0.001))
            size = (s / (1 - 0.999**step)).sqrt_().add_(1e-8)
            x.sub_((m * (rate / (1 - 0.9**step))).div_(size))
    return here
