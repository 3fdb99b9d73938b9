"""Handing a version out as an ordinary checkpoint."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from plait.checkpoint.card import card
from plait.checkpoint.extend import append_shard
from plait.checkpoint.format import fsync_folder
from plait.errors import RefusedInput
from plait.line import views
from plait.line.removal import carried
from plait.store import Store


def export(store: Store, out: Path, *, version: str | None, task: str | None, force: bool) -> dict[str, Any]:
    """Copy a version to `out`, with its model card, and record the export in the ledger.

    The folder appears under its name complete or not at all. Raises RefusedInput where `out` exists and is
    not to be replaced, where the version is not on disk any more, or where `task` has no private tensors.
    """
    head = views.last(store)
    entry = head if version is None else views.find(store, version)
    digest = entry["version"]
    if not store.versions.has(digest):
        raise RefusedInput(
            f"version {digest[:12]} is not on disk any more (this line keeps {store.settings['keep']}); "
            "export the current one, or make a line with a larger --keep"
        )
    if out.exists() and not force:
        raise RefusedInput(f"{out} exists; give another place, or --force to replace it")
    if out.exists() and not (out.is_dir() and _looks_like_model(out)):
        raise RefusedInput(f"{out} exists and is no model folder; it will not be replaced, even with --force")
    out.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        shutil.copytree(store.versions.path(digest), staged, dirs_exist_ok=True, copy_function=_copy)
        (staged / "README.md").write_text(card(_facts(store, entry)), encoding="utf-8")
        if task is not None:
            _add_private(store, entry, task, staged)
        os.chmod(staged, 0o755)
        _sync(staged)
        if out.exists():
            shutil.rmtree(out)
        os.rename(staged, out)
        fsync_folder(out.parent)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    with store.lock("export"):
        now = views.last(store)
        written = store.ledger.append(
            {
                **carried(now),
                "verb": "export",
                "task": task,
                "receipt": {
                    "out": str(out),
                    "version": digest,
                    "tasks": [m["task"] for m in entry["members"]],
                },
            }
        )
    files = sorted(p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file())
    return {"out": str(out), "version": digest, "task": task, "files": files, "sequence": written["sequence"]}


def _facts(store: Store, entry: dict[str, Any]) -> dict[str, Any]:
    from plait import __version__

    settings = store.settings
    return {
        "base": settings["base"]["name"],
        "base_digest": settings["base"]["digest"],
        "method": settings["method"],
        "options": settings["options"],
        "members": [{k: m[k] for k in ("task", "weight", "digest")} for m in entry["members"]],
        "digest": entry["version"],
        "plait": __version__,
    }


def _looks_like_model(folder: Path) -> bool:
    names = {p.name for p in folder.iterdir()}
    return not names or any(n.endswith(".safetensors") for n in names)


def _copy(source: str, target: str) -> str:
    shutil.copyfile(source, target)
    return target


def _sync(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        if path.is_dir():
            fsync_folder(path)
        else:
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def _add_private(store: Store, entry: dict[str, Any], task: str, folder: Path) -> None:
    """Put a member's own tensors beside the merged ones, and its config in place of the base's."""
    from plait.line.member import private_refs

    rows = [m for m in entry["members"] if m["task"] == task]
    if not rows:
        raise RefusedInput(f"task {task!r} is not a member of version {entry['version'][:12]}")
    row = rows[0]
    if not row["private"]:
        raise RefusedInput(f"task {task} has no private tensors; export without --task gives the whole model")
    if row["object"] is None or not store.objects.has(row["object"]):
        raise RefusedInput(
            f"the private tensors of {task} are not kept by this line (retention vectors keeps them)"
        )
    own = json.loads(store.objects.get(row["config"])) if row["config"] else {}
    append_shard(folder, private_refs(store.objects.path(row["object"])), own.get("names"))
    if own.get("config") and (folder / "config.json").exists():
        config = {k: v for k, v in own["config"].items() if k != "auto_map"}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
