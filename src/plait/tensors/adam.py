"""Adam on a few tensors with a gradient that is written out, no network and no tape."""

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
    optimiser = torch.optim.Adam(here, lr=rate, foreach=False)
    for _ in range(steps):
        for tensor, slope in zip(here, slopes(here), strict=True):
            tensor.grad = slope
        optimiser.step()
    return [tensor.detach() for tensor in here]
