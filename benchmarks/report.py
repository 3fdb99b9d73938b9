"""Write docs/benchmarks.md from the results that the other benchmarks left in benchmarks/results.

python benchmarks/report.py
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

from ode_path import HEAD, table

from plait.bench.cil_table import markdown as cil
from plait.bench.removal_table import markdown as removal
from plait.bench.results import CIL, PATH, REMOVAL
from plait.bench.results import SCHEMA as SUITE
from plait.bench.table import markdown as suite
from plait.bench.table import markdown_table

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def speed(found: dict[str, Any]) -> list[str]:
    io = found["rows"]["io"]
    rows = [
        "## Merging files",
        "",
        f"`python benchmarks/speed.py --gigabytes 1 --repeats {found['repeats']} --json`: a base and four experts in "
        f"bf16, {found['input_bytes'] / 1e9:.2f} GB in all, {found['cores']} cores. *Time* is wall time over the "
        "time to read all inputs once and write the output once (a plain loop in one thread), medians of interleaved "
        "rounds in one run. *By CPU* is what the ratio would be with the work shared evenly among the cores. *Peak* "
        "is memory above the interpreter with torch and plait loaded; about 85 MB of it are the compiler's.",
        "",
        f"Reading and writing took {io['seconds']:.2f} s here, from and to memory that the system keeps of files: "
        f"{(found['input_bytes'] + found['output_bytes']) / io['seconds'] / 1e9:.1f} GB/s. "
        "What the ratios mean depends on that, so there is a second yardstick: *loop* reads chunks on two threads, "
        "averages them in fp32 with four torch operations, checks nothing, and writes them.",
        "",
        "| method | time | target | by CPU | times `loop`, by CPU | peak MB |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in found["rows"].items():
        if name == "io":
            continue
        target = f"{row['target']:.1f}" if row["target"] else "–"
        peak = f"{row['peak_mb']:.0f}" if row["peak_mb"] else "–"
        loops = row["cpu"] / found["rows"]["loop"]["cpu"]
        rows.append(
            f"| {name if name == 'loop' else f'`{name}`'} | {row['ratio']:.2f} | {target} | {row['cpu_ratio']:.2f} "
            f"| {loops:.1f} | {peak} |"
        )
    over = [n for n, r in found["rows"].items() if r["target"] and r["ratio"] > r["target"]]
    if over:
        rows += ["", f"Over their target: {', '.join(over)}."]
    rows += [
        "",
        "Adding and removing one small member, seconds in the engine alone, by the number of members:",
        "",
    ]
    rows += ["| members | add | remove |", "|---|---|---|"]
    rows += [f"| {n} | {r['add']:.3f} | {r['remove']:.3f} |" for n, r in found["growth"].items()]
    return rows


def members(found: dict[str, Any]) -> list[str]:
    rows = [
        "## Lines that grow",
        "",
        f"`python benchmarks/members.py --members 200`: whole commands on a line of {found['parameters']:,} "
        "parameters in bf16, checks, hashes and fsync included. *Unmerge* takes the first member out. Seconds on the "
        "clock hold waiting for the disk; the processor's tell what grows.",
        "",
        "| method | members | merge s | of it CPU | unmerge s | of it CPU | line MB |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        rows.append(
            f"| `{row['method']}` | {row['members']} | {row['merge_seconds']:.3f} | {row['merge_cpu']:.3f} "
            f"| {row['unmerge_seconds']:.3f} | {row['unmerge_cpu']:.3f} | {row['line_bytes'] / 1e6:.1f} |"
        )
    return rows


def peers(found: dict[str, Any]) -> list[str]:
    size = found["arguments"]
    rows = [
        "## Against FusionBench and mergekit",
        "",
        f"`python benchmarks/peers.py`: {size['tasks']} experts of {found['parameters'] / 1e6:.0f} million "
        f"parameters in fp32, {size['layers']} layers of width {size['dim']}, one thread. Processor seconds, "
        f"medians of {size['repeat']} runs in turns. All programs read the files, merge and write a file, and have "
        "merged by the method before; *call* is FusionBench's merging call alone, on modules in memory. `wudi` makes "
        f"{size['wudi']} steps, `dop` {size['dop']} a member.",
        "",
        "| program | its method | plait's seconds | its seconds | call | its over plait's |",
        "|---|---|---|---|---|---|",
    ]
    slower = []
    for row in found["rows"]:
        ours, theirs = median(row["ours"]), median(row["theirs"]["whole"])
        call = f"{median(row['theirs']['alone']):.2f}" if "alone" in row["theirs"] else "–"
        rows.append(
            f"| {row['program']} | `{row['name']}` | {ours:.2f} | {theirs:.2f} | {call} | {theirs / ours:.1f} |"
        )
        slower += [f"{row['program']}'s `{row['name']}`"] if theirs < ours else []
    versions = ", ".join(f"{name} {version}" for name, version in found["peers"].items())
    words = f"plait is slower than {', '.join(slower)}." if slower else "plait is slower nowhere."
    return [
        *rows,
        "",
        f"{words} {versions}; plait with torch {found['software']['torch']}. How near the results are to each other: "
        "[conformance](conformance.md).",
    ]


def peers_data(found: dict[str, Any]) -> list[str]:
    size = found["arguments"]
    rows = [
        "### Methods that look at data",
        "",
        f"`python benchmarks/peers_data.py`: a network of an embedding, two layers of width {size['WIDE']} and a "
        f"head, {size['TASKS']} experts in fp32, {size['EXAMPLES']} examples of {size['LENGTH']} tokens each, one "
        "thread. Processor seconds for the statistics of all experts and the merge, in memory, medians of "
        f"{size['repeat']} runs in turns.",
        "",
        "| FusionBench's method | plait's seconds | its seconds | its over plait's | models apart |",
        "|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        ours, theirs = median(row["ours"]), median(row["theirs"])
        apart = f"{row['distance']:.0e}" if "distance" in row else "–"
        rows.append(f"| `{row['name']}` | {ours:.2f} | {theirs:.2f} | {theirs / ours:.1f} | {apart} |")
    return [
        *rows,
        "",
        "`regmean`: plait adds second moments up in fp64 and keeps the merge's sums exactly, so that a member can be "
        "taken out again; FusionBench does both in fp32 and inverts. *Models apart*: the largest difference as a "
        "share of a tensor's largest element. `fisher`: squares of single examples' gradients on both sides.",
    ]


def mdm_oc(found: dict[str, Any]) -> list[str]:
    rows = [
        "## MDM-OC as members arrive",
        "",
        f"`python benchmarks/mdm_oc.py`: members of {found['parameters'] / 1e6:.0f} million parameters in "
        f"{found['dtype'].lower()}, granularity {found['options']['granularity']}, each merge and each removal in a "
        "process of its own. *CPU s* are processor seconds (wall time is that of the disk), *peak* memory above the "
        "interpreter with torch and plait loaded.",
        "",
        "| members | merge, CPU s | peak MB | unmerge, CPU s | peak MB |",
        "|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        merge, gone = row["merge"], row["unmerge"]
        rows.append(
            f"| {row['members']} | {merge['cpu']:.1f} | {merge['peak_mb']:.0f} | {gone['cpu']:.1f} "
            f"| {gone['peak_mb']:.0f} |"
        )
    return rows


def ode_step(found: dict[str, Any]) -> list[str]:
    return [
        "## A step of ODE-M",
        "",
        f"`python benchmarks/ode_step.py --data DIR`: MiniLM ({found['parameters'] / 1e6:.1f} million weights), "
        f"{found['samples']} texts, one thread. A gradient takes {found['gradient']:.2f} processor seconds, the "
        f"arithmetic around it {1000 * found['arithmetic']:.0f} ms: {found['share']:.1%} of a step. A path holds "
        f"{found['memory']:.1f} times the weights in fp32, and {found['activations']:.1f} times more for the "
        "gradient's activations.",
    ]


def ode_gamma(found: dict[str, Any]) -> list[str]:
    rows = [
        "## When ODE-M holds a path back",
        "",
        "`python benchmarks/ode_gamma.py …`: paths from the expert of one task all the way to that of another, "
        f"{found['samples']} calibration examples of both together, h = 0.05: 20 steps, of which a merge of two "
        "makes the first 10. *Held back* counts steps with γ < 1, and tells the least γ. *Loss*: the "
        "mean over the calibration examples, with `new` over those of the second task alone, at t = 0.9 and at the "
        "end; in brackets that of the straight way.",
        "",
        "| experts | cosine | path | held back, t < ½ | t ≥ ½ | loss at 0.9 | at 1 |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        cosine = f"{row['cosine']:.3f}" if "cosine" in row else ""
        way = row["granularity"] + (", new" if row.get("calibration") == "new" else "")
        way += "" if row.get("given_budget") is None else f", budget {row['given_budget']:g}"
        halves = [
            f"{half['held_back']} of {half['of']}" + (f", {half['least']:.2f}" if half["held_back"] else "")
            for half in (row["early"], row["late"])
        ]
        late, end = (_loss(row["losses"], row["t"], t) for t in (0.9, 1.0))
        line = "" if row["line"] is None else f" ({_loss(row['line']['losses'], row['line']['t'], 0.9):.3f})"
        rows.append(
            f"| {row['condition']} | {cosine} | {way} | {halves[0]} | {halves[1]} | {late:.3f}{line} | {end:.3f} |"
        )
    return rows


def _loss(losses: dict[str, list[float]], marks: list[float], t: float) -> float:
    """The mean of the tasks' losses at the mark nearest to t."""
    place = min(range(len(marks)), key=lambda at: abs(marks[at] - t))
    return sum(each[place] for each in losses.values()) / len(losses)


def sketch(found: dict[str, Any]) -> list[str]:
    head = (
        "method",
        "matrix",
        "fall",
        "rank",
        "full, s",
        "found, s",
        "mass",
        "merge, s",
        "with sketch",
        "model",
    )
    return [
        "## Leading directions from random vectors",
        "",
        "`python benchmarks/sketch.py`: option `sketch` of `nufilt` and `tsv_m` against the full "
        "decomposition, 8 random task vectors with singular values 1 / j^*fall* (*16 lead*: 16 of 1, the "
        "others 0.001), one thread, processor seconds. *Mass*: the share of the exact directions' squared "
        "values that is missed. *Model*: by how much the update differs, over its norm. The directions are "
        "as good as the exact ones by what they hold, and yet others where values near the cut are close: "
        "both methods then make another model.",
        "",
        *markdown_table([head, *found["rows"]]),
    ]


def path(found: dict[str, Any]) -> list[str]:
    cell = found["cells"][-1]
    return [
        f"## Along a path (suite {found['suite']})",
        "",
        f"`python benchmarks/ode_path.py {found['suite']} …`: {cell['members'] - 1} tasks are merged, and the "
        f"path of `{cell['method']}` is followed all the way to the expert of the last one ("
        f"{cell['order'][-1]}, order {cell['seed']}); a merge stops at t = 1/{cell['members']}. Accuracies, in "
        "percent, on the tasks before (old), the last one (new) and all; the mean loss of all; beside them what the "
        "straight line has at the same t.",
        "",
        *markdown_table([HEAD, *table([cell])]),
        "",
        f"![Accuracy on the old tasks over that on the new one](figures/{found['suite']}-path.svg)",
    ]


def main() -> None:
    page = [
        "# Benchmarks",
        "",
        "Made by `python benchmarks/report.py` from `benchmarks/results`. Times are of one machine with 2 cores; "
        "ratios within one run are what to compare.",
    ]
    sections = (speed, members, peers, peers_data, mdm_oc, sketch, ode_step, ode_gamma)
    for name, section in ((section.__name__, section) for section in sections):
        file = RESULTS / f"{name}.json"
        if file.exists():
            page += ["", *section(json.loads(file.read_text()))]
    for schema, section_of in ((SUITE, suite), (PATH, path), (REMOVAL, removal), (CIL, cil)):
        for file in sorted(RESULTS.glob("*.json")):
            found = json.loads(file.read_text())
            if isinstance(found, dict) and found.get("schema") == schema:
                head, *rest = section_of(found)
                page += ["", head, "", f"From `benchmarks/results/{file.name}`.", *rest]
    (ROOT / "docs" / "benchmarks.md").write_text("\n".join(page) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
