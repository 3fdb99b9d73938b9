"""`python -m plait.demo [--out DIR] [--seed N] [--quick]`: exit code 0 if every claim that is shown holds."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from plait.errors import PlaitError, RefusedInput, UsageError

MARK = "results.json"
MADE = ("base", "experts", "lines", "never", "export", MARK)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m plait.demo", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("plait-demo"), help="folder for what is made")
    parser.add_argument("--seed", type=int, default=0, help="chooses the splits and the order of training")
    parser.add_argument(
        "--quick", action="store_true", help="few examples, a part of the encoder: a test of the road"
    )
    parser.add_argument("--workers", type=int, default=0, help="processes; 0: one for each core, at most 4")
    chosen = parser.parse_args(arguments)
    try:
        return run(chosen.out, chosen.seed, chosen.quick, chosen.workers)
    except PlaitError as error:
        print(f"plait.demo: {error}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        print(f"plait.demo: {error.name} is missing; run `make demo`", file=sys.stderr)
        return UsageError.exit_code


def run(out: Path, seed: int, quick: bool, workers: int) -> int:
    """The whole demo; returns the exit code."""
    import torch

    from plait.demo.road import walk
    from plait.demo.screen import Screen
    from plait.demo.walk import QUICK, Effort, Walk

    clear(out)
    screen = Screen()
    screen.results |= {"seed": seed, "quick": quick, "threads_per_process": 1}
    screen.say("plait: merge fine-tuned checkpoints one by one, take one out again, prove it byte for byte.")
    if quick:
        screen.say(
            "(--quick: few examples, a part of the encoder: accuracies mean nothing, the proofs are the same)"
        )
    spawn = multiprocessing.get_context("spawn")
    count = workers or min(4, os.cpu_count() or 1)
    with ProcessPoolExecutor(count, spawn, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        walk(Walk(out, seed, QUICK if quick else Effort(), screen, pool))
    screen.finish(out / MARK)
    return 1 if screen.failed() else 0


def clear(out: Path) -> None:
    """Make `out`, or empty it of an earlier run. RefusedInput where it holds anything else."""
    found = {entry.name for entry in out.iterdir()} if out.is_dir() else set()
    if out.exists() and (not out.is_dir() or found - set(MADE)):
        raise RefusedInput(f"{out}: holds more than the demo makes; choose another folder with --out")
    for name in found - {MARK}:
        shutil.rmtree(out / name)
    (out / MARK).unlink(missing_ok=True)
    out.mkdir(parents=True, exist_ok=True)


if __name__ == "__main__":
    sys.exit(main())
