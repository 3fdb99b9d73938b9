"""What a merge and an unmerge cost as a line grows: seconds and bytes kept, for 1 to 200 members.

    python benchmarks/members.py [--members 200] [--parameters 1000000] [--json FILE]

A small model, so that the fixed costs of a command (checks, hashes, fsync) are in the figure too. Additive methods
should be flat; a fold's merge is flat and its unmerge of the first member grows, because all later ones are folded
again.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from plait import Line, __version__
from plait.checkpoint.format import FileWriter

METHODS: dict[str, dict[str, Any]] = {
    "average": {},
    "task_arithmetic": {"scale": 0.3},
    "ties": {"density": 0.2},
    "magmax": {},
}


def write(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    writer = FileWriter(
        str(path), [(n, "BF16", tuple(t.shape)) for n, t in tensors.items()], {"format": "pt"}
    )
    for name, tensor in tensors.items():
        writer.write(name, 0, memoryview(tensor.bfloat16().view(torch.uint8).flatten().numpy()))
    writer.close()
    return path


def model(parameters: int, seed: int, base: dict[str, torch.Tensor] | None = None) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    width = max(int((parameters / 12) ** 0.5), 8)
    if base is None:
        return {f"layer.{i}.weight": torch.randn(width, width, generator=g) * 0.02 for i in range(12)}
    return {n: t + torch.randn(t.shape, generator=g) * 1e-3 for n, t in base.items()}


def folder_bytes(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


def measure(
    method: str, options: dict[str, Any], count: int, parameters: int, root: Path
) -> list[dict[str, Any]]:
    """Merge `count` experts; around each reported size, the median of five merges, and of three unmerges of the
    first member (put back afterwards)."""
    base = model(parameters, 0)
    write(root / "base.safetensors", base)
    line = Line.create(root / "line", root / "base.safetensors", method, **options)
    marks = sorted({m for m in (5, 10, 20, 50, 100, 200, count) if m <= count})
    rows = []
    took: list[float] = []
    worked: list[float] = []
    for i in range(count):
        expert = write(root / "expert.safetensors", model(parameters, i + 1, base))
        began, cpu = time.perf_counter(), time.process_time()
        line.merge(expert, f"t{i:03d}")
        took.append(time.perf_counter() - began)
        worked.append(time.process_time() - cpu)
        if i + 1 in marks:
            first = write(root / "first.safetensors", model(parameters, 1, base))
            away, effort = [], []
            for _ in range(3):
                began, cpu = time.perf_counter(), time.process_time()
                line.unmerge("t000")
                away.append(time.perf_counter() - began)
                effort.append(time.process_time() - cpu)
                line.merge(first, "t000")
            rows.append(
                {
                    "method": method,
                    "members": i + 1,
                    "merge_seconds": round(statistics.median(took[-5:]), 4),
                    "merge_cpu": round(statistics.median(worked[-5:]), 4),
                    "unmerge_seconds": round(statistics.median(away), 4),
                    "unmerge_cpu": round(statistics.median(effort), 4),
                    "line_bytes": folder_bytes(root / "line"),
                }
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--members", type=int, default=200)
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    print(
        f"{'method':<16} {'members':>7} {'merge s':>9} {'cpu':>7} {'unmerge s':>9} {'cpu':>7} {'line MB':>9}"
    )
    for method in args.methods:
        with tempfile.TemporaryDirectory() as name:
            for row in measure(method, METHODS[method], args.members, args.parameters, Path(name)):
                rows.append(row)
                print(
                    f"{row['method']:<16} {row['members']:>7} {row['merge_seconds']:>9.3f} {row['merge_cpu']:>7.3f} "
                    f"{row['unmerge_seconds']:>9.3f} {row['unmerge_cpu']:>7.3f} {row['line_bytes'] / 1e6:>9.1f}",
                    flush=True,
                )
    if args.json:
        record = {
            "benchmark": "members",
            "parameters": args.parameters,
            "versions": {
                "plait": __version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
            "cpu": torch.backends.cpu.get_cpu_capability(),
            "rows": rows,
        }
        args.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
