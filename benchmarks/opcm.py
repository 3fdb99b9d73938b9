"""CPU time of one OPCM step on the matrices of a ViT-B, against the procedure that others run, in one process.

    python benchmarks/opcm.py [--repeat 3] [--json]

The other procedure is restated from the paper: a singular value decomposition in fp32 of the sum so far, and dense
products with all of U and V. Two forms are timed: with the economy SVD, and with full U and V, as published code
asks for. A layer of a ViT-B has four 768 x 768 matrices, one of 3072 x 768 and one of 768 x 3072. One thread.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch
from torch import Tensor

from plait.methods.base import Part, Where
from plait.methods.opcm import Opcm

LAYER = {(768, 768): 4, (3072, 768): 1, (768, 3072): 1}


def plain_step(total: Tensor, tau: Tensor, share: float, diagonal: bool, full: bool) -> Tensor:
    """The new sum by dense singular vectors in fp32."""
    u, sigma, vh = torch.linalg.svd(total, full_matrices=full)
    rank = int((sigma.cumsum(0) / sigma.sum() > share).float().argmax())
    z = u.T @ tau @ vh.T
    if diagonal:
        z.diagonal().fill_(0)
    z[:rank, :rank] = 0
    new: Tensor = total + u @ z @ vh
    return new


def our_step(method: Opcm, base: Tensor, expert: Tensor, total: Tensor) -> Tensor:
    where = Where("w", tuple(base.shape), "F32", 0, base.numel())
    state = method.step({"total": total.flatten()}, Part(where, base.flatten(), expert.flatten()))
    out: Tensor = state["total"]
    return out.view(base.shape)


def seconds(call: Callable[[], object], repeat: int) -> float:
    """The least CPU time of `repeat` calls."""
    best = float("inf")
    for _ in range(repeat):
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
    return best


def measure(repeat: int) -> dict[str, dict[str, float]]:
    """Per variant: CPU seconds a layer for our step and for the two forms of the other, and the ratios."""
    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(0)
    found = {}
    for variant in ("block", "diagonal"):
        spent = {"plait": 0.0, "economy": 0.0, "full": 0.0}
        for shape, count in LAYER.items():
            base = torch.randn(shape, generator=draw) * 0.02
            expert = base + torch.randn(shape, generator=draw) * 0.002
            total = torch.randn(shape, generator=draw) * 0.002
            method, tau, diagonal = Opcm(variant=variant), expert - base, variant == "diagonal"
            calls: dict[str, Callable[[], object]] = {
                "plait": lambda m=method, b=base, e=expert, s=total: our_step(m, b, e, s),  # type: ignore[misc]
                "economy": lambda s=total, t=tau, d=diagonal: plain_step(s, t, 0.5, d, False),  # type: ignore[misc]
                "full": lambda s=total, t=tau, d=diagonal: plain_step(s, t, 0.5, d, True),  # type: ignore[misc]
            }
            for name, call in calls.items():
                spent[name] += count * seconds(call, repeat)
        spent["economy / plait"] = spent["economy"] / spent["plait"]
        spent["full / plait"] = spent["full"] / spent["plait"]
        found[variant] = spent
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU time of one OPCM step on a ViT-B layer, one thread")
    parser.add_argument("--repeat", type=int, default=3, help="calls of each; the least time counts")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    found = measure(options.repeat)
    if options.json:
        print(json.dumps(found))
        return
    for variant, spent in found.items():
        print(f"OPCM {variant}: CPU seconds for the six matrices of a layer")
        for name, value in spent.items():
            print(f"  {name:16s} {value:8.3f}")


if __name__ == "__main__":
    main()
