"""Every method that FusionBench or mergekit has too, on the same files in the same run: processor seconds of one
thread.

    python benchmarks/peers.py [--json benchmarks/results/peers.json] [--only opcm ties]

The peers' environments are those that `make conformance` makes, the input comes from the script make_stream.py in the
folder that PLAIT_ORACLES names, by default as large as MiniLM. Each program has a process that first merges a small
input by the method at hand, so that little is loaded or compiled in the time that counts; the programs take turns,
medians are told. All three read the files, merge, and write a file. FusionBench merges modules in memory: what its
merging call alone takes is told beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plait.bench.machine import machine, software

Folders = tuple[str, str]

ROOT = Path(__file__).parent.parent
SMALL = {"dim": 24, "layers": 1, "tasks": 4, "patch": 4}
WUDI, DOP = 3, 1  # steps: each costs the same

TIES = {"trim": "model", "kept": "inclusive", "zero": "majority", "scale": 0.3}
DARE = {"name": "dare", "density": 0.5}
FUSION: dict[str, tuple[str, dict[str, Any]]] = {
    "simple_average": ("average", {}),
    "task_arithmetic": ("task_arithmetic", {"scale": 0.3}),
    "dare_ta": ("task_arithmetic", {"scale": 0.3, "sparsify": DARE}),
    "ties": ("ties", TIES),
    "magmax": ("magmax", {"scale": 0.5}),
    "model_stock": ("model_stock", {"clamp": False}),
    "opcm": ("opcm", {"variant": "diagonal"}),
    "opcm_paper": ("opcm", {"variant": "block"}),
    "iso_c": ("iso_c", {"tables": ""}),
    "iso_cts": ("iso_cts", {"tables": ""}),
    "tsvm": ("tsv_m", {"tables": ""}),
    "wudi": ("wudi", {"tables": "", "steps": WUDI}),
    "dop": ("dop", {"steps": DOP}),
}
"""FusionBench's methods, by their names in fusion_oracle.py, and ours."""

PLAIN, THIN = {"weight": 1.0}, {"weight": 1.0, "density": 0.5}
CRUMBS = {**THIN, "gamma": 0.05}
MERGEKIT: dict[str, dict[str, Any]] = {
    "linear": PLAIN,
    "task_arithmetic": PLAIN,
    "ties": {"weight": 1.0, "density": 0.2},
    "dare_linear": THIN,
    "dare_ties": THIN,
    "della": {**THIN, "epsilon": 0.1},
    "breadcrumbs": CRUMBS,
    "breadcrumbs_ties": CRUMBS,
    "model_stock": {},
    "slerp": {},
    "nuslerp": PLAIN,
}
"""mergekit's methods and the parameters of each model. plait reads the same recipe."""

CLOCK = """
import json, sys, time
seconds = {}
def timed(work, *given):
    begin = time.process_time()
    work(*given)
    seconds["whole"] = time.process_time() - begin
"""

OURS = (
    CLOCK
    + """
import torch
torch.set_num_threads(1)
from plait import merge_files
def work(folder, method, options):
    merge_files(f"{folder}/base.safetensors", [f"{folder}/task_{i}.safetensors" for i in range(4)],
                f"{folder}/ours.safetensors", method, workers=1, digest=False, force=True, **options)
"""
)
OURS_RECIPE = (
    CLOCK
    + """
import torch
torch.set_num_threads(1)
from plait import merge_files
from plait.recipe import read_recipe
def work(folder, name):
    r = read_recipe(f"{folder}/{name}.yml")
    merge_files(r.base, [m.checkpoint for m in r.members], f"{folder}/ours.safetensors", r.method,
                weights=[m.weight for m in r.members], workers=1, digest=False, force=True, **r.options)
"""
)
FUSIONBENCH = (
    CLOCK
    + """
import argparse, runpy
time.time = time.perf_counter = time.process_time  # the script's clock: seconds of the processor
oracle = runpy.run_path(ORACLE)
from safetensors.torch import load_file, save_file
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
how = argparse.Namespace(alpha=0.5, ta_scale=0.3, ties_scale=0.3, threshold=20, merge_func="mean", dop_steps=DOP,
                         wudi_iters=WUDI, leafify=True, accelerator="cpu", cties_scale=0.5,
                         not_linear=r"(^|[._])(\\w*embedding\\w*|embed\\w*|norm\\w*|ln\\w*|layer_?norm\\w*)$")
def work(folder, name):
    base, *tasks = (load_file(f"{folder}/{n}.safetensors") for n in ("base", *(f"task_{i}" for i in range(4))))
    out, seconds["alone"], _ = oracle["run"](base, tasks, name, how)
    save_file(out, f"{folder}/theirs.safetensors")
"""
)
MERGEKIT_RUN = (
    CLOCK
    + """
import torch
torch.set_num_threads(1)
from mergekit.scripts.merge_raw_pytorch import main
def work(folder, name):
    main([f"{folder}/{name}.yml", f"{folder}/{name}.made"], standalone_mode=False)
"""
)
RUN = """
for line in sys.stdin:
    small, large, *rest = json.loads(line)
    if small:
        work(small, *rest)
    timed(work, large, *rest)
    print("seconds", json.dumps(seconds), flush=True)
"""

VERSIONS = """
import json, sys
from importlib.metadata import version
print(json.dumps({name: version(name) for name in sys.argv[1:]}))
"""


def environment() -> dict[str, str]:
    one = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return {**os.environ, **one, "TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1"}


def python(words: list[str]) -> str:
    """What a process of one thread printed on its last line."""
    one = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "TQDM_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(words, env=one, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{words[0]} ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    return (done.stdout.strip().splitlines() or [""])[-1]


class Worker:
    """A process of one program that merges what it is told, and says how long the processor took."""

    def __init__(self, interpreter: str, script: str) -> None:
        self.process = subprocess.Popen(
            [interpreter, "-c", script + RUN],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def seconds(self, *given: Any) -> dict[str, float]:
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        print(json.dumps(given), file=process.stdin, flush=True)
        for line in process.stdout:
            if line.startswith("seconds "):
                found: dict[str, float] = json.loads(line.removeprefix("seconds "))
                return found
        sys.exit(f"{process.args!r:.80} stopped at {given[2:]}")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def recipes(folder: str) -> None:
    """A recipe of every method of mergekit, over the input in `folder`."""
    base, *tasks = (f"{folder}/{n}.safetensors" for n in ("base", *(f"task_{i}" for i in range(4))))
    for name, each in MERGEKIT.items():
        some = tasks[: {"slerp": 1, "nuslerp": 2}.get(name, 4)]
        recipe = {"merge_method": name, "models": [{"model": t, "parameters": each} for t in some]}
        if name != "linear":
            recipe["base_model"] = base
        if name == "slerp":
            recipe["parameters"] = {"t": 0.3}
        # JSON is YAML.
        Path(folder, f"{name}.yml").write_text(json.dumps({**recipe, "dtype": "float32"}))


def measure(
    program: str,
    name: str,
    given: tuple[Any, ...],
    workers: tuple[Worker, Worker],
    folders: Folders,
    repeat: int,
) -> dict[str, Any]:
    """A row: the processor seconds of both programs, run in turns. given: what ours is told."""
    ours: list[float] = []
    theirs: dict[str, list[float]] = {"whole": []}
    for turn in range(repeat):
        where = folders if turn == 0 else ("", folders[1])
        ours.append(workers[0].seconds(*where, *given)["whole"])
        for key, value in workers[1].seconds(*where, name).items():
            theirs.setdefault(key, []).append(value)
    told = (f"{statistics.median(found):8.2f}" for found in (ours, *theirs.values()))
    print(f"{program:<12} {name:<17}", *told, flush=True)
    return {"program": program, "name": name, "ours": ours, "theirs": theirs}


def fusionbench(scripts: Path, folders: Folders, repeat: int, only: list[str]) -> list[dict[str, Any]]:
    oracle = FUSIONBENCH.replace("ORACLE", repr(str(scripts / "fusion_oracle.py")))
    oracle = oracle.replace("dop_steps=DOP", f"dop_steps={DOP}").replace(
        "wudi_iters=WUDI", f"wudi_iters={WUDI}"
    )
    workers = Worker(sys.executable, OURS), Worker(peer("fusionbench"), oracle)
    rows = [
        measure("FusionBench", name, ours, workers, folders, repeat)
        for name, ours in FUSION.items()
        if not only or name in only
    ]
    for worker in workers:
        worker.close()
    return rows


def mergekit(folders: Folders, repeat: int, only: list[str]) -> list[dict[str, Any]]:
    workers = Worker(sys.executable, OURS_RECIPE), Worker(peer("mergekit"), MERGEKIT_RUN)
    rows = [
        measure("mergekit", name, (name,), workers, folders, repeat)
        for name in MERGEKIT
        if not only or name in only
    ]
    for worker in workers:
        worker.close()
    return rows


def peer(name: str) -> str:
    """Its interpreter."""
    return str(ROOT / ".conformance" / name / "bin" / "python")


def make(fusion: str, scripts: Path, folder: str, size: Mapping[str, int]) -> None:
    words = [word for key, value in size.items() for word in (f"--{key}", str(value))]
    python([fusion, str(scripts / "make_stream.py"), "--out", folder, *words])
    recipes(folder)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--patch", type=int, default=100, help="side of a patch: a tensor that is no matrix")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="these methods; other rows of --json stay"
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    scripts = Path(os.environ.get("PLAIT_ORACLES") or ROOT.parent / "shared" / "oracles")
    for needed, hint in (
        (Path(peer("mergekit")), "make conformance"),
        (scripts / "fusion_oracle.py", "set PLAIT_ORACLES"),
    ):
        if not needed.exists():
            sys.exit(f"{needed} is missing: {hint}")
    size = {"dim": args.dim, "layers": args.layers, "tasks": 4, "patch": args.patch}
    with tempfile.TemporaryDirectory() as name:
        folders = (f"{name}/small", f"{name}/large")
        for folder, its in zip(folders, (SMALL, size), strict=True):
            make(peer("fusionbench"), scripts, folder, its)
        rows = fusionbench(scripts, folders, args.repeat, args.only)
        rows += mergekit(folders, args.repeat, args.only)
        length = Path(folders[1], "base.safetensors").stat().st_size
    record = {
        "benchmark": "peers",
        "arguments": {**size, "repeat": args.repeat, "wudi": WUDI, "dop": DOP},
        "parameters": length // 4,
        "rows": rows,
        "machine": machine(),
        "software": software(),
        "peers": {
            **json.loads(python([peer("fusionbench"), "-c", VERSIONS, "fusion_bench", "torch"])),
            **json.loads(python([peer("mergekit"), "-c", VERSIONS, "mergekit"])),
        },
    }
    if args.json and args.only and args.json.exists():
        new = {(row["program"], row["name"]): row for row in rows}
        old = json.loads(args.json.read_text())["rows"]
        record["rows"] = [new.pop((row["program"], row["name"]), row) for row in old] + [*new.values()]
    if args.json:
        args.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
