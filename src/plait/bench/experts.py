"""The experts of a suite: made once, kept by a digest of all that decides them, or given."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from plait.bench import worker
from plait.bench.pool import Pool
from plait.bench.suites import Suite
from plait.bench.writing import write_json
from plait.errors import RefusedInput

Say = Callable[[str], None]


def digest_of(folder: Path) -> str:
    """Root digest of what lies in a checkpoint folder now: every tensor is read and hashed."""
    from plait.checkpoint import open_checkpoint, root_digest

    return root_digest(open_checkpoint(folder).digests())


def beside(folder: Path) -> str:
    """sha256 over the names and bytes of the files beside the weights: configuration, tokenizer."""
    whole = sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix != ".safetensors":
            data = path.read_bytes()
            whole.update(f"{path.name} {len(data)}\n".encode() + data)
    return whole.hexdigest()


def given(suite: Suite, models: Path) -> tuple[dict[str, Path], dict[str, Any]]:
    """Folders of experts that are given, by task, and what the results say of them."""
    assert suite.expert is not None
    folders = {task: suite.expert(models, task) for task in suite.tasks}
    return folders, {task: {"digest": digest_of(folder), "recipe": None} for task, folder in folders.items()}


def trained(
    suite: Suite,
    pool: Pool,
    tasks: Mapping[str, Any],
    base: str,
    software: Mapping[str, Any],
    cache: Path,
    say: Say,
) -> tuple[dict[str, Path], dict[str, Any]]:
    """Folders of experts by task, those trained that are not in the cache; and what the results say of them.

    tasks: what `worker.describe` says of each. base: digest of the base. software: versions that decide the bytes.
    """
    files = beside(pool.setup.base)
    names = {task: recipe_digest(suite, tasks[task], base, files, software) for task in suite.tasks}
    folders = {task: cache / "experts" / f"{task}-{name[:16]}" for task, name in names.items()}
    missing = [task for task, folder in folders.items() if not folder.exists()]
    if missing:
        say(f"training {len(missing)} of {len(folders)} experts")
        (cache / "experts").mkdir(parents=True, exist_ok=True)
    jobs = {task: pool.submit(worker.train, task, folders[task]) for task in missing}
    for number, (task, job) in enumerate(jobs.items(), 1):
        done = job.result()
        write_json(_beside(folders[task]), {"seconds": done["seconds"]})
        say(f"expert {task}: {done['seconds']:.0f} s, {number} of {len(jobs)}")
    return folders, {task: _row(folder, names[task]) for task, folder in folders.items()}


def recipe_digest(
    suite: Suite, task: Mapping[str, Any], base: str, files: str, software: Mapping[str, Any]
) -> str:
    """sha256 of all that decides the bytes of an expert: base, data, head, network, recipe, versions of software.

    files: digest of the files beside the base's weights.
    """
    from plait.training import Recipe

    words = {
        "base": base,
        "beside": files,
        "network": suite.network,
        "train": task["train"],
        "head": task["head_digest"],
        "recipe": Recipe(**suite.recipe).plain(),
        "software": dict(software),
    }
    return sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()


def _beside(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.json")


def _row(folder: Path, recipe: str) -> dict[str, Any]:
    """What the results say of a trained expert. RefusedInput where its bytes are not those that were written."""
    from plait.checkpoint.sidecars import TRAINING

    digest = digest_of(folder)
    record = json.loads((folder / TRAINING).read_text(encoding="utf-8"))
    if record["digest"] != digest:
        raise RefusedInput(f"{folder}: its bytes are not those that were trained; remove it and run again")
    return {"digest": digest, "recipe": recipe}
