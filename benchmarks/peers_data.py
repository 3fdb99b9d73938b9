"""RegMean and Fisher merging beside FusionBench's own classes, on the same network, experts and examples in the same
run: processor seconds of one thread.

    python benchmarks/peers_data.py [--json benchmarks/results/peers_data.json]

Both programs compute the statistics of every expert on its examples and merge, all in memory; FusionBench runs in the
environment that `make conformance` makes. The programs take turns, medians are told. The network is that of the
conformance tests, widened. Fisher information is that of the labels that are given, one example at a time, of one
logit there and of two classes here: FusionBench's rule for several classes is another number. How far the RegMean
models lie from each other is told too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from peers import CLOCK, ROOT, VERSIONS, Worker, peer, python

from plait.bench.machine import machine, software

SHARED = (
    CLOCK
    + """
sys.path.insert(0, ROOT)
import torch
from safetensors.torch import load_file, save_file
from tests.conformance import small as sizes
torch.set_num_threads(1)
def resize(size):
    for name, value in size.items():
        setattr(sizes, name, value)
def made(network):
    return sizes.models(network, 1), [sizes.examples(network, 100 + i) for i in range(sizes.TASKS)]
"""
)
OURS = (
    SHARED
    + """
from plait.methods.memory import apply
from plait.methods.registry import make
from plait.problem.base import Examples
from plait.problem.moments import second_moments
from plait.problem.objective import Objective
from tests.problem.nets import Toy
class Net(Toy):
    def __init__(self, network):
        super().__init__(lambda: sizes.Small(network), torch.float32)
        self.names = {own: own for own in self.names.values()}
    def collate(self, encoded):
        return torch.stack(list(encoded))
def regmean(objective, expert):
    return {f"moment/{n}": m.matrix / m.count for n, m in second_moments(objective, expert).items()}
def fisher(objective, expert):
    return {f"fisher/{n}": t for n, t in objective.fisher(expert).items()}
def work(size, out, name):
    resize({**size, "CLASSES": 2} if name == "fisher" else size)
    (base, *experts), data = made("plain")
    sides = []
    for expert, own in zip(experts, data):
        objective = Objective(Net("plain"), None, Examples(own["tokens"], own["labels"], "made up"))
        sides.append({"regmean": regmean, "fisher": fisher}[name](objective, expert))
    save_file(apply(make(name), base, experts, sides=sides), f"{out}/ours.safetensors")
"""
)
THEIRS = (
    SHARED
    + """
import importlib, logging
from pathlib import Path
import lightning
logging.disable(logging.WARNING)
def work(size, out, name):
    resize(size)
    sys.modules.pop("tests.conformance.fusion_small", None)  # it took the last size in
    f = importlib.import_module("tests.conformance.fusion_small")
    network = "plain" if name == "regmean" else "labelled"
    bench = f.Bench.__new__(f.Bench)
    bench.network, bench.dtype, bench.out = network, torch.float32, Path(out)
    bench.models, bench.data = made(network)
    if name == "regmean":
        class Merge(f.NoClip, f.RegMeanAlgorithmForCLIP): ...
        options = {"reduce_non_diagonal_ratio": 0.95, "weight_transpose": True}
        merge = Merge(num_regmean_examples=sizes.EXAMPLES, **options, **f.LOADER)
        bench.merge("theirs", merge)
    else:
        bench.labelled("theirs", normalize=False, minimal=0.0)
"""
)
DISTANCE = """
import json, sys
from safetensors.torch import load_file
a, b = (load_file(f"{sys.argv[1]}/{n}.safetensors") for n in ("ours", "theirs"))
print(json.dumps(max(float((a[n] - t).abs().max() / t.abs().max()) for n, t in b.items())))
"""
TINY = {"WIDTH": 12, "WIDE": 20, "EXAMPLES": 32}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=768, help="of the embeddings")
    parser.add_argument("--wide", type=int, default=768, help="of the layers")
    parser.add_argument("--examples", type=int, default=256, help="of each of three tasks")
    parser.add_argument("--length", type=int, default=32, help="tokens of an example")
    parser.add_argument("--words", type=int, default=4096, help="that there are")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not Path(peer("fusionbench")).exists():
        sys.exit(f"{peer('fusionbench')} is missing: make conformance")
    size = {
        "WIDTH": args.width,
        "WIDE": args.wide,
        "EXAMPLES": args.examples,
        "LENGTH": args.length,
        "WORDS": args.words,
    }
    root = f"ROOT = {str(ROOT)!r}\n"
    workers = Worker(sys.executable, root + OURS), Worker(peer("fusionbench"), root + THEIRS)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as out:
        for name in ("regmean", "fisher"):
            found: tuple[list[float], list[float]] = [], []
            for turn in range(args.repeat):
                for worker, seconds in zip(workers, found, strict=True):
                    # `RUN` takes what it merges first to warm up, then what it times.
                    seconds.append(worker.seconds(TINY if turn == 0 else None, size, out, name)["whole"])
            row: dict[str, Any] = {"name": name, "ours": found[0], "theirs": found[1]}
            if name == "regmean":
                row["distance"] = json.loads(python([sys.executable, "-c", DISTANCE, out]))
            rows.append(row)
            medians = (f"{statistics.median(each):8.2f}" for each in found)
            print(f"{name:<10}", *medians, row.get("distance", ""), flush=True)
    for worker in workers:
        worker.close()
    record = {
        "benchmark": "peers_data",
        "arguments": {**size, "TASKS": 3, "repeat": args.repeat},
        "rows": rows,
        "machine": machine(),
        "software": software(),
        "peers": json.loads(python([peer("fusionbench"), "-c", VERSIONS, "fusion_bench", "torch"])),
    }
    if args.json:
        args.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
