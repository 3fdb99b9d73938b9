"""OPCM against FusionBench's own code on the same files in the same run: seconds of one thread.

    python benchmarks/peers.py --peer-python ENV/bin/python --oracles FOLDER [--dim 768 --layers 12 --tasks 8]

ENV: an environment of its own with fusion_bench 0.2.33. FOLDER: holds make_stream.py and fusion_oracle.py, which make
the input (a CLIP ViT-B/32 vision tower, 87 M parameters in fp32) and run FusionBench's classes. Their time is that of
the merging call alone, on modules in memory; ours is a whole `merge_files`, reading and writing included. The runs
alternate; medians are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from plait.bench.machine import machine, software

OURS = """
import json, resource, sys, time
import torch
torch.set_num_threads(1)
from plait import merge_files
folder, tasks = sys.argv[1], int(sys.argv[2])
began, cpu = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
merge_files(f"{folder}/base.safetensors", [f"{folder}/task_{i}.safetensors" for i in range(tasks)],
            f"{folder}/ours.safetensors", "opcm", variant=sys.argv[3], workers=1, digest=False, force=True)
after = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"seconds": time.perf_counter() - began,
                  "cpu": after.ru_utime + after.ru_stime - cpu.ru_utime - cpu.ru_stime}))
"""

THEIRS = """
import runpy, sys, time
time.time = time.perf_counter = time.process_time  # the script's clock: seconds of the processor
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

NEAR = """
import sys
import torch
from safetensors.torch import load_file
base, a, b = (load_file(p) for p in sys.argv[1:4])
worst = max(float((a[n] - b[n]).abs().max() / (b[n] - base[n]).abs().max()) for n in base)
print(worst)
"""

PEER = """
import json
from importlib.metadata import version
print(json.dumps({name: version(name) for name in ("fusion_bench", "torch", "numpy")}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--oracles", type=Path, required=True)
    parser.add_argument("--dim", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    one = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    rows: dict[str, list[float]] = {"opcm (diagonal)": [], "opcm (block)": [], "fusion_bench opcm": []}
    with tempfile.TemporaryDirectory() as name:
        size = ["--dim", str(args.dim), "--layers", str(args.layers), "--tasks", str(args.tasks)]
        make = [args.peer_python, str(args.oracles / "make_stream.py"), "--out", name, *size]
        subprocess.run(make, check=True, env=one)
        tasks = [f"{name}/task_{i}.safetensors" for i in range(args.tasks)]
        peer = [
            *(args.peer_python, "-c", THEIRS, str(args.oracles / "fusion_oracle.py")),
            *("--base", f"{name}/base.safetensors"),
            *("--tasks", *tasks, "--out", name, "--methods", "opcm", "--threads", "1", "--leafify"),
        ]
        for _ in range(args.repeat):
            for label, variant in (("opcm (diagonal)", "diagonal"), ("opcm (block)", "block")):
                ours = [sys.executable, "-c", OURS, name, str(args.tasks), variant]
                done = subprocess.run(ours, check=True, env=one, capture_output=True, text=True)
                rows[label].append(json.loads(done.stdout)["cpu"])
                if variant == "diagonal":
                    os.rename(f"{name}/ours.safetensors", f"{name}/diagonal.safetensors")
            subprocess.run(peer, check=True, env=one, capture_output=True)
            made = json.loads(Path(name, "oracle.json").read_text())["methods"]["opcm"]
            rows["fusion_bench opcm"].append(made["seconds"])
        files = [f"{name}/{f}.safetensors" for f in ("base", "diagonal", "opcm")]
        told = [args.peer_python, "-c", PEER]
        version = json.loads(subprocess.run(told, check=True, capture_output=True, text=True).stdout)
        near = subprocess.run(
            [args.peer_python, "-c", NEAR, *files], check=True, env=one, capture_output=True, text=True
        )
    median = {label: statistics.median(found) for label, found in rows.items()}
    theirs = median["fusion_bench opcm"]
    print(f"\n{'method':<20} {'CPU seconds':>12} {'ratio':>8}")
    for label, found in median.items():
        print(f"{label:<20} {found:>12.1f} {theirs / found:>7.1f}x")
    print(
        f"largest difference between the two diagonal results, of the task vector's largest element: {near.stdout}"
    )
    if args.json:
        record = {
            "benchmark": "peers",
            "arguments": {
                k: str(v) for k, v in vars(args).items() if k in ("dim", "layers", "tasks", "repeat")
            },
            "seconds": rows,
            "difference": float(near.stdout),
            "machine": machine(),
            "software": software(),
            "peer": version,
        }
        args.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
