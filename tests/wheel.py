"""Build the wheel, install it in an environment of its own, and run the main job with what it brings along.

Run by `make wheel`: what users install is the wheel, not the checkout.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent

JOB = """
import json, subprocess, sys
from pathlib import Path
import torch
from plait import Line
from plait.checkpoint.format import FileWriter

def write(path, seed):
    g = torch.Generator().manual_seed(0)
    weight = torch.randn(64, 64, generator=g) * 0.02
    if seed:
        weight = weight + torch.randn(64, 64, generator=g.manual_seed(seed)) * 1e-3
    writer = FileWriter(path, [("w", "F32", (64, 64))], {"format": "pt"})
    writer.write("w", 0, memoryview(weight.numpy().tobytes()))
    writer.close()

for name, seed in (("base", 0), ("a", 1), ("b", 2)):
    write(f"{name}.safetensors", seed)
plait = [str(Path(sys.executable).with_name("plait"))]
def run(*words):
    return json.loads(subprocess.run([*plait, "--json", *words], check=True, capture_output=True, text=True).stdout)
run("init", "line", "--base", "base.safetensors", "--method", "ties", "--density", "0.5")
run("merge", "line", "a.safetensors")
one = run("status", "line")["version"]
run("merge", "line", "b.safetensors")
assert run("status", "line")["version"] != one
run("unmerge", "line", "b")
assert run("status", "line")["version"] == one
assert run("verify", "line", "--replay")["ok"]
names = {row["name"] for row in run("methods")["methods"]}
assert {"average", "task_arithmetic", "ties", "magmax", "model_stock", "opcm"} <= names, names
print("the wheel merges, unmerges and verifies")
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        constraints = str(ROOT / "constraints.txt")
        subprocess.run(
            [*pip, "wheel", "-q", "--no-deps", "-w", str(folder), "-c", constraints, str(ROOT)], check=True
        )
        wheel = next(folder.glob("plait-*.whl"))
        subprocess.run([sys.executable, "-m", "venv", str(folder / "env")], check=True)
        python = folder / "env" / "bin" / "python"
        subprocess.run(
            [
                python,
                "-m",
                "pip",
                "--disable-pip-version-check",
                "install",
                "-q",
                "-c",
                constraints,
                str(wheel),
            ],
            check=True,
        )
        (folder / "job").mkdir()
        clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        subprocess.run([python, "-c", JOB], check=True, cwd=folder / "job", env=clean)


if __name__ == "__main__":
    main()
