"""What MDM-OC costs as members arrive: time of a merge and of an exact unmerge, and the most memory that they need.

    python benchmarks/mdm_oc.py [--members 50] [--parameters 25000000] [--dtype F32] [--folder DIR] [--json FILE]

At 10, 20 … members, a merge and the removal of the first member are each run in a process of their own. Memory is the
peak of that process above the interpreter with torch and plait imported. A merge reads every member twice (for the
inner products of the new one, and for the output) and an unmerge once, so time should grow in proportion to members
and memory not at all. Needs as much disk as base, members and three more models.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from plait import Line, __version__
from plait.bench.machine import held, machine, peak
from plait.checkpoint.format import FileWriter

LAYERS = 12
TORCH = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def write(path: Path, parameters: int, dtype: str, seed: int, base: Path | None = None) -> Path:
    """A model of square matrices, or an expert: that model with task vectors that have a part in common."""
    width = max(int((parameters / LAYERS) ** 0.5), 8)
    names = [f"layer.{i}.weight" for i in range(LAYERS)]
    shared, own = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    with FileWriter(str(path), [(n, dtype, (width, width)) for n in names], {"format": "pt"}) as writer:
        for name in names:
            values = 0.02 * torch.randn(width, width, generator=shared)
            common = torch.randn(width, width, generator=shared)
            if base is not None:
                values = values + 5e-4 * common + 1e-3 * torch.randn(width, width, generator=own)
            raw: Any = values.to(TORCH[dtype]).view(torch.uint8).flatten().numpy()
            writer.write(name, 0, memoryview(raw))
        writer.close(sync=False)
    return path


def child(verb: str, line: str, *words: str) -> None:
    """One command in this process, measured."""
    torch.ones(1000).double().sum().item()
    opened, before = Line.open(line), held() or 0
    began, cpu = time.perf_counter(), time.process_time()
    if verb == "merge":
        opened.merge(words[0], words[1])
    else:
        opened.unmerge(words[0])
    row = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}
    print(json.dumps({**row, "peak_mb": ((peak() or 0) - before) / 1e6}))


def measured(*words: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return {key: round(value, 4) for key, value in found.items()}


def run(
    folder: Path, members: int, parameters: int, dtype: str, step: int, options: dict[str, Any]
) -> list[dict[str, Any]]:
    base = write(folder / "base.safetensors", parameters, dtype, 0)
    line, expert = Line.create(folder / "line", base, "mdm_oc", **options), folder / "expert.safetensors"
    marks = {*range(step, members + 1, step), members}
    rows = []
    for count in range(1, members + 1):
        write(expert, parameters, dtype, count, base)
        if count not in marks:
            line.merge(expert, f"t{count:03d}")
            continue
        row: dict[str, Any] = {"members": count}
        row["merge"] = measured("merge", str(line.path), str(expert), f"t{count:03d}")
        first = line.members[0].task
        row["unmerge"] = measured("unmerge", str(line.path), first)
        write(expert, parameters, dtype, int(first[1:]), base)
        line.merge(expert, first)
        rows.append(row)
        show(row)
    return rows


def show(row: dict[str, Any]) -> None:
    parts = [f"{row['members']:>7}"]
    for verb in ("merge", "unmerge"):
        parts += [f"{row[verb][key]:>10.2f}" for key in ("seconds", "cpu")] + [
            f"{row[verb]['peak_mb']:>9.0f}"
        ]
    print(" ".join(parts), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--members", type=int, default=50)
    parser.add_argument("--parameters", type=int, default=25_000_000)
    parser.add_argument("--dtype", choices=list(TORCH), default="F32")
    parser.add_argument("--step", type=int, default=10, help="members between two measurements")
    parser.add_argument("--granularity", default="model")
    parser.add_argument("--folder", help="where the temporary folder is made")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(*args.child)
        return
    print(
        f"{'members':>7} {'merge s':>10} {'cpu s':>10} {'peak MB':>9} {'unmerge s':>10} {'cpu s':>10} {'peak MB':>9}"
    )
    options = {"granularity": args.granularity}
    with tempfile.TemporaryDirectory(prefix="plait-mdm-oc-", dir=args.folder) as name:
        rows = run(Path(name), args.members, args.parameters, args.dtype, args.step, options)
    if args.json:
        record = {
            "benchmark": "mdm_oc",
            "parameters": args.parameters,
            "dtype": args.dtype,
            "options": options,
            "machine": machine(),
            "versions": {
                "plait": __version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
            "rows": rows,
        }
        args.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
