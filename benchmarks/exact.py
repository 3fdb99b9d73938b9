"""Nanoseconds of one core per element of the base: exact sums of four members, chunk by chunk, without files.

    python benchmarks/exact.py [chunk elements, default 32768]

The best of many runs, in CPU time of the thread, so that other programs disturb little. `scan` is part of every row.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import thread_time

import torch
from torch import Tensor

from plait.tensors.exact import Exact, ExactSum, difference, scan, settle
from plait.tensors.select import keys

MEMBERS = 4
DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}


def chunks(name: str, count: int, tiny: bool) -> tuple[Tensor, list[Tensor]]:
    """A base like trained weights and members near it; with `tiny`, one element in a thousand is near zero."""
    rng = torch.Generator().manual_seed(0)
    base = torch.randn(count, generator=rng, dtype=torch.float64) * 0.02
    if tiny:
        base[::1000] *= 1e-25
    members = [base + torch.randn(count, generator=rng) * 1e-3 * (base != 0) for _ in range(MEMBERS)]
    if tiny:
        for m in members:
            m[::1000] = base[::1000] * 1.5
    return base.to(DTYPES[name]), [m.to(DTYPES[name]) for m in members]


def additive(
    name: str, base: Tensor, experts: list[Tensor], weight: float, finish: Callable[[Exact], Exact]
) -> Tensor:
    of_base = scan(base)
    total = ExactSum(len(base), name)
    for e in experts:
        total.add(difference(e, base, (scan(e), of_base)).times(weight))
    return settle(base, finish(total.value()), base.dtype)


def ties(name: str, base: Tensor, experts: list[Tensor], threshold: int) -> Tensor:
    of_base = scan(base)
    plus, minus = ExactSum(len(base), name), ExactSum(len(base), name)
    ups, downs = (ExactSum(len(base), name, narrow=True) for _ in range(2))
    for e in experts:
        delta = difference(e, base, (scan(e), of_base))
        delta = delta.where(keys(delta) >= threshold)
        above, below = delta.positive(), delta.negative()
        plus.add(above)
        minus.add(below)
        sign = delta.sign()
        ups.add(Exact.of(sign > 0))
        downs.add(Exact.of(sign < 0))
    p, m = plus.value(), minus.value()
    sign = (p + m).sign()
    shift = p.over(ups.value().double()).where(sign > 0) + m.over(downs.value().double()).where(sign < 0)
    return settle(base, shift, base.dtype)


def stored(name: str, base: Tensor, experts: list[Tensor]) -> float:
    """One member joins a state that is read and written again."""
    total = ExactSum(len(base), name)
    for e in experts[1:]:
        total.add(difference(e, base))
    dense, sparse = total.pack()

    def one() -> None:
        again = ExactSum.unpack(len(base), name, dense, sparse)
        again.add(difference(experts[0], base))
        settle(base, again.value().over(4.0), base.dtype)
        again.pack()

    return measure(one, len(base))


def measure(work: Callable[[], object], count: int) -> float:
    work()
    best = float("inf")
    for _ in range(max(20, (1 << 24) // count)):
        start = thread_time()
        work()
        best = min(best, thread_time() - start)
    return best / count * 1e9


def row(name: str, base: Tensor, experts: list[Tensor]) -> str:
    count = len(base)
    threshold = int(keys(difference(experts[0], base)).sort().values[int(0.8 * count)])
    shapes: dict[str, Callable[[], object]] = {
        "average": lambda: additive(name, base, experts, 1.0, lambda x: x.over(4.0)),
        "average of 3": lambda: additive(name, base, experts[:3], 1.0, lambda x: x.over(3.0)),
        "task arithmetic": lambda: additive(name, base, experts, 1.0, lambda x: x.times(0.3)),
        "weighted": lambda: additive(name, base, experts, 0.3, lambda x: x.over(1.2)),
        "TIES": lambda: ties(name, base, experts, threshold),
        "keys of 1 member": lambda: keys(difference(experts[0], base)),
    }
    cells = [f"{label} {measure(work, count):.1f}" for label, work in shapes.items()]
    return " | ".join([*cells, f"state in, 1 member, state out {stored(name, base, experts):.1f}"])


def main() -> None:
    torch.set_num_threads(1)
    torch.empty(24 << 20, dtype=torch.uint8)  # freed blocks are then kept, as they are in the engine
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 32768
    print(f"{MEMBERS} members, chunks of {count} elements, ns per element of the base")
    for name in DTYPES:
        for tiny in (False, True):
            print(f"{name}{' with tiny elements' if tiny else ''}: {row(name, *chunks(name, count, tiny))}")


if __name__ == "__main__":
    main()
