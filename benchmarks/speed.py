"""How long merges take, against the time to read every input once and write the output once.

    python benchmarks/speed.py [--gigabytes 1] [--repeats 5] [--methods average,ties] [--folder DIR] [--json]

A base and four experts (bf16, the shapes of a language model) are made in a temporary folder. In each round,
all inputs are read by a plain loop into one 4 MB buffer and a file of the output's size is written (`io`),
then every method merges the five files; rounds are interleaved, so that other load on the machine meets all
alike, and medians are compared. `loop` is the least that a merge could be: chunks on two threads, read, averaged by
torch in fp32 without any check, written. `ratio` is wall time over that of `io`; `cpu` is processor seconds; `by cpu`
is what the ratio would be if nothing else ran: processor seconds shared among the workers, over those of
`io`. Peak memory is that of a child process, above the interpreter with torch and plait imported. `growth`
adds and removes one member of a line of N small members.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

EXPERTS = 4
BLOCK = 4 << 20
METHODS = ("average", "task_arithmetic", "magmax", "ties", "model_stock")
TARGETS = {"average": 1.0, "task_arithmetic": 1.0, "magmax": 1.0, "ties": 3.0}
MEMORY = 300.0  # MB


def shapes(elements: int) -> dict[str, tuple[int, ...]]:
    """Tensors of a language model of about `elements` parameters: an embedding, and layers of 16 Mi
    elements."""
    width = 1024
    found: dict[str, tuple[int, ...]] = {"embed.weight": (elements // 4 // width, width)}
    layer, left = 0, elements - elements // 4
    while left > 12 * width * width // 2:
        prefix = f"layers.{layer}"
        for name in "qkvo":
            found[f"{prefix}.attention.{name}.weight"] = (width, width)
        found[f"{prefix}.mlp.up.weight"] = (4 * width, width)
        found[f"{prefix}.mlp.down.weight"] = (width, 4 * width)
        for name in ("attention", "mlp"):
            found[f"{prefix}.{name}.norm.weight"] = (width,)
            found[f"{prefix}.{name}.norm.bias"] = (width,)
        layer, left = layer + 1, left - 12 * width * width
    found["final.norm.weight"] = (width,)
    return found


def make_inputs(folder: Path, elements: int) -> list[Path]:
    """The base and its experts: weights of deviation 0.02, task vectors of deviation 0.001."""
    import torch

    from plait.checkpoint.format import FileWriter

    torch.manual_seed(0)
    entries = [(name, "BF16", shape) for name, shape in shapes(elements).items()]
    paths = [folder / "base.safetensors", *(folder / f"expert-{n}.safetensors" for n in range(EXPERTS))]
    writers = [FileWriter(path, entries) for path in paths]
    for name, _, shape in entries:
        base = (0.02 * torch.randn(shape)).bfloat16()
        for number, writer in enumerate(writers):
            values = base if number == 0 else (base + 0.001 * torch.randn(shape)).bfloat16()
            raw: Any = values.view(-1).view(torch.uint8).numpy()
            writer.write(name, 0, raw)
    for writer in writers:
        writer.close(sync=False)
    return paths


def read_and_write(paths: list[Path], out: Path) -> None:
    """The yardstick: one thread, one buffer, every input byte read once, the output written once."""
    buffer = bytearray(BLOCK)
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    with open(out, "wb", buffering=0) as file:
        left = paths[0].stat().st_size
        while left:
            left -= file.write(memoryview(buffer)[: min(left, BLOCK)])


def plain_loop(paths: list[Path], out: Path, chunk: int = 1 << 18) -> None:
    """The mean of the experts in fp32, chunk by chunk on two threads; nothing is checked, and rounding is torch's."""
    import threading

    import torch

    torch.set_num_threads(1)
    size = paths[0].stat().st_size
    start = size % 2  # the header is averaged too: only the time counts
    handles = [os.open(p, os.O_RDONLY) for p in paths]
    target = os.open(out, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.ftruncate(target, size)
    todo, lock = iter(range(start, size, 2 * chunk)), threading.Lock()

    def work() -> None:
        buffers = [torch.empty(chunk, dtype=torch.bfloat16) for _ in paths]
        total, mean = torch.empty(chunk), torch.empty(chunk, dtype=torch.bfloat16)
        views = [memoryview(b.view(torch.uint8).numpy()) for b in (*buffers, mean)]  # type: ignore[arg-type]
        while True:
            with lock:
                place = next(todo, None)
            if place is None:
                return
            count = min(2 * chunk, size - place)
            for handle, view in zip(handles, views, strict=False):
                os.preadv(handle, [view[:count]], place)
            total.copy_(buffers[1])
            for buffer in buffers[2:]:
                total.add_(buffer)
            mean.copy_(total.mul_(1 / EXPERTS))
            os.pwrite(target, views[-1][:count], place)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for handle in (*handles, target):
        os.close(handle)


def merge(name: str, paths: list[Path], out: Path) -> None:
    """One merge with the engine, no state kept."""
    from plait import engine
    from plait.checkpoint.format import FileWriter, read_header
    from plait.methods.registry import make

    base = read_header(paths[0]).tensors
    members = [
        engine.Incoming(path.stem, 1.0, read_header(path).tensors, None, b"seed") for path in paths[1:]
    ]
    with FileWriter(out, [(n, r.dtype, r.shape) for n, r in base.items()]) as writer:
        engine.fold(
            make(name, {}),  # type: ignore[arg-type]
            base,
            members,
            enter=members,
            state=None,
            new_state=None,
            out=writer.places,
            settings=engine.Settings(compiled=True),
        )
        writer.close(sync=False)


def measure(act: Callable[[], None]) -> tuple[float, float]:
    """Wall and processor seconds of one call."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    act()
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    return wall, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def peak_memory(name: str, paths: list[Path], out: Path) -> float:
    """MB of resident memory that a merge needs above the imported interpreter, in a process of its own."""
    command = [sys.executable, __file__, "--child", name, *map(str, paths), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


def child(name: str, paths: list[Path], out: Path) -> None:
    """What the child process of `peak_memory` does."""
    import torch

    from plait import engine
    from plait.methods.registry import make

    make(name, {})
    engine.Settings()
    torch.ones(1000).double().sum().item()
    before = _status("VmRSS")
    merge(name, paths, out)
    print(_status("VmHWM") - before)


def _status(key: str) -> float:
    with open("/proc/self/status") as file:
        return next(float(line.split()[1]) / 1024 for line in file if line.startswith(key + ":"))


def growth(folder: Path, counts: tuple[int, ...] = (1, 10, 50, 200)) -> dict[str, dict[str, float]]:
    """Seconds to add a member to, and to take one out of, an `average` of N members of 1 Mi elements each."""
    import torch

    from plait import engine
    from plait.checkpoint.format import FileWriter
    from plait.methods.average import Average

    torch.manual_seed(1)
    size = 1 << 20
    refs = []
    base = (0.02 * torch.randn(size)).bfloat16()
    for number in range(max(counts) + 2):
        values = base if number == 0 else (base + 0.001 * torch.randn(size)).bfloat16()
        with FileWriter(folder / f"small-{number}.safetensors", [("w", "BF16", (size,))]) as writer:
            raw: Any = values.view(torch.uint8).numpy()
            writer.write("w", 0, raw)
            refs.append(writer.places)
            writer.close(sync=False)
    members = [engine.Incoming(f"t{n}", 1.0, ref, {}) for n, ref in enumerate(refs[1:])]
    found: dict[str, dict[str, float]] = {}
    with FileWriter(folder / "small-out.safetensors", [("w", "BF16", (size,))]) as writer:

        def fold(after: list[Any], enter: list[Any], leave: list[Any], state: str | None, new: str) -> float:
            start = time.perf_counter()
            engine.fold(
                Average(),
                refs[0],
                after,
                enter=enter,
                leave=leave,
                state=folder / state if state else None,
                new_state=folder / new,
                out=writer.places,
                settings=engine.Settings(),
            )
            return time.perf_counter() - start

        for count in counts:
            held, extra = members[:count], members[count]
            fold(held, held, [], None, "state-n")
            add = median(fold([*held, extra], [extra], [], "state-n", "state-m") for _ in range(5))
            remove = median(fold(held, [], [extra], "state-m", "state-k") for _ in range(5))
            found[str(count)] = {"add": add, "remove": remove}
    return found


def run(folder: Path, elements: int, repeats: int, methods: list[str]) -> dict[str, Any]:
    """All measurements, as one table that survives JSON."""
    from plait import engine

    paths = make_inputs(folder, elements)
    out = folder / "out.safetensors"
    acts: dict[str, Callable[[], None]] = {
        "io": lambda: read_and_write(paths, out),
        "loop": lambda: plain_loop(paths, out),
    }
    for name in methods:
        acts[name] = lambda name=name: merge(name, paths, out)  # type: ignore[misc]
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in acts}
    for number in range(repeats + 1):
        for name, act in acts.items():
            out.unlink(missing_ok=True)
            once = measure(act)
            if number:  # the first round warms caches and loads what is loaded once
                times[name].append(once)
    rows = {}
    for name, taken in times.items():
        workers = {"io": 1, "loop": 2}.get(name, engine.Settings().workers)
        rows[name] = {
            "seconds": median(wall for wall, _ in taken),
            "cpu": median(cpu for _, cpu in taken),
            "ratio": median(wall / io for (wall, _), (io, _) in zip(taken, times["io"], strict=True)),
            "cpu_ratio": median(c / workers / io for (_, c), (_, io) in zip(taken, times["io"], strict=True)),
            "target": TARGETS.get(name),
            "peak_mb": peak_memory(name, paths, out) if name in methods else None,
        }
    size = sum(path.stat().st_size for path in paths)
    return {
        "input_bytes": size,
        "output_bytes": paths[0].stat().st_size,
        "repeats": repeats,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": os.getloadavg()[0],
        "rows": rows,
        "growth": growth(folder),
    }


def show(found: dict[str, Any]) -> None:
    """The table, for people."""
    print(
        f"{found['input_bytes'] / 1e9:.2f} GB in, {found['output_bytes'] / 1e9:.2f} GB out, {found['cores']} cores, "
        f"load {found['load']:.1f}, medians of {found['repeats']} interleaved rounds"
    )
    print(f"{'':18} {'seconds':>8} {'cpu':>8} {'ratio':>7} {'by cpu':>7} {'target':>7} {'peak MB':>8}")
    for name, row in found["rows"].items():
        target = "" if row["target"] is None else f"{row['target']:.1f}"
        peak = "" if row["peak_mb"] is None else f"{row['peak_mb']:.0f}"
        figures = f"{row['seconds']:8.3f} {row['cpu']:8.3f} {row['ratio']:7.2f} {row['cpu_ratio']:7.2f}"
        print(f"{name:18} {figures} {target:>7} {peak:>8}")
    print("members            add       remove   (seconds, average of 1 Mi elements)")
    for count, row in found["growth"].items():
        print(f"{count:>7} {row['add']:14.4f} {row['remove']:12.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=1.0, help="of input, in all five files")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--folder", help="where the temporary folder is made")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        name, *paths, out = args.child
        child(name, [Path(p) for p in paths], Path(out))
        return
    elements = int(args.gigabytes * 1e9 / 2 / (EXPERTS + 1))
    with tempfile.TemporaryDirectory(prefix="plait-speed-", dir=args.folder) as folder:
        found = run(Path(folder), elements, args.repeats, args.methods.split(","))
    if args.json:
        print(json.dumps(found, indent=1))
    else:
        show(found)


if __name__ == "__main__":
    main()
