"""Run FusionBench, peft and mergekit on input made on the spot, and compare: `make conformance`.

    python tests/conformance/live.py [--seed 1]

The peers are installed into environments of their own in `.conformance`, from the package index, at the versions in
`tests/conformance/fusionbench.txt` and `mergekit.txt`. The programs that make the input and run the peers are those
in the folder that PLAIT_ORACLES names (`../shared/oracles` by default). What they write has the form of the recorded
cases, so the tests that compare are the same: everything in tests/conformance.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import yaml

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PEERS = ROOT / ".conformance"
SCRIPTS = ("make_stream.py", "fusion_oracle.py", "peft_mergekit_oracle.py")
SIZE = ("--dim", "48", "--layers", "2", "--tasks", "4", "--patch", "4", "--rank", "4")
FUSION = (
    *("simple_average", "task_arithmetic", "ties", "magmax", "model_stock", "iso_c", "iso_cts", "tsvm"),
    *("opcm", "opcm_paper", "cta", "cties", "cavg", "wudi", "dop"),
)
MERGEKIT = """
import sys
from mergekit.scripts.merge_raw_pytorch import main
for name in sys.argv[1:]:
    main([f"{name}.yml", f"{name}.made"], standalone_mode=False)
"""


def environment(name: str) -> Path:
    """The interpreter of a peer's environment, made where it is missing or its list of packages has changed."""
    wanted, folder = HERE / f"{name}.txt", PEERS / name
    python, stamp = folder / "bin" / "python", folder / "packages.txt"
    if not (stamp.is_file() and stamp.read_bytes() == wanted.read_bytes()):
        print(f"making {folder.relative_to(ROOT)} (once)", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
        # torch brings libraries of its own, which differ by system; all other packages are in the list.
        subprocess.run([*pip, "-c", str(wanted), "torch==2.13.0"], check=True)
        subprocess.run([*pip, "--no-deps", "-r", str(wanted)], check=True)
        stamp.write_bytes(wanted.read_bytes())
    return python


def oracles() -> Path:
    """The folder of the peers' programs. Ends with one line where it or one of them is missing."""
    folder = Path(os.environ.get("PLAIT_ORACLES") or ROOT.parent / "shared" / "oracles")
    missing = [name for name in SCRIPTS if not (folder / name).is_file()]
    if missing:
        sys.exit(
            f"{folder}: {', '.join(missing)} not there; name the folder that holds them with PLAIT_ORACLES"
        )
    return folder


def stream(folder: Path, scripts: Path, fusion: Path, seed: int) -> None:
    """The base and four experts."""
    run(fusion, scripts / "make_stream.py", "--out", str(folder / "input"), *SIZE, "--seed", str(seed))


def merged(folder: Path, scripts: Path, fusion: Path, mergekit: Path) -> None:
    """What the peers make of it."""
    tasks = [str(folder / "input" / f"task_{i}.safetensors") for i in range(4)]
    given = ["--base", str(folder / "input" / "base.safetensors"), "--tasks"]
    how = ["--threads", "1", "--leafify", "--merge-func", "mean", "--wudi-iters", "100", "--dop-steps", "20"]
    oracle, out = scripts / "fusion_oracle.py", str(folder / "fusionbench")
    run(fusion, oracle, *given, *tasks, "--out", out, *how, "--methods", *FUSION)
    run(fusion, oracle, *given, *tasks, "--out", f"{out}64", *how, "--dtype", "float64", "--methods", *FUSION)
    run(fusion, oracle, *given, tasks[0], "--out", str(folder / "alone"), *how, "--methods", "dare_ta")
    peft = scripts / "peft_mergekit_oracle.py"
    run(mergekit, peft, *given, *tasks, "--out", str(folder / "peft_mergekit"))
    recipes(folder, mergekit)


def recipes(folder: Path, mergekit: Path) -> None:
    """mergekit on each of the recipes in peers_recipes.py; its output lies beside the recipe."""
    from tests.conformance.peers_recipes import recipes as listed

    place = folder / "recipes"
    place.mkdir()
    given = listed(folder / "input")
    for name, recipe in given.items():
        (place / f"{name}.yml").write_text(yaml.safe_dump(recipe))
    subprocess.run([str(mergekit), "-c", MERGEKIT, *given], check=True, cwd=place, env=quiet())
    for name in given:
        (place / f"{name}.made" / "model.safetensors").rename(place / f"{name}.safetensors")


def run(python: Path, *words: str | Path) -> None:
    subprocess.run([str(python), *map(str, words)], check=True, cwd=ROOT, env=quiet(), stderr=subprocess.PIPE)


def quiet() -> dict[str, str]:
    """One thread: how sums are shared out among threads would show in the peers' last digits. No bars."""
    silent = {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "PYTHONWARNINGS": "ignore"}
    return {**os.environ, **silent, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1, help="of the input")
    seed = parser.parse_args().seed
    scripts = oracles()
    fusion, mergekit = environment("fusionbench"), environment("mergekit")
    cases = PEERS / "cases"
    shutil.rmtree(cases, ignore_errors=True)
    stream(cases / "conformance", scripts, fusion, seed)
    try:
        run(
            fusion,
            "-m",
            "tests.conformance.fusion_small",
            cases / "conformance" / "small",
            "--seed",
            str(seed),
        )
        merged(cases / "conformance", scripts, fusion, mergekit)
    except subprocess.CalledProcessError as error:
        words = (error.stderr or b"").decode(errors="replace").strip().splitlines()[-1:]
        sys.exit(f"{Path(error.cmd[1]).name} ended with {error.returncode}: {' '.join(words)}")
    tests = [sys.executable, "-m", "pytest", "-p", "no:xdist", "tests/conformance"]
    sys.exit(subprocess.run(tests, cwd=ROOT, env={**os.environ, "PLAIT_CASES": str(cases)}).returncode)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
