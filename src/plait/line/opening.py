"""Making a line's folder, and reading back what stays the same over its life."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from plait.checkpoint.format import fsync_folder
from plait.checkpoint.layout import Checkpoint, root_digest
from plait.errors import RefusedInput
from plait.line.build import Setting, open_version, software, version_digest, write_json
from plait.methods.base import TensorMethod
from plait.methods.registry import make
from plait.store import Store


def publish_base(path: Path, base: Checkpoint, name: str, settings: Mapping[str, Any]) -> Store:
    """Create the store with the base as its first version and its first ledger entry. All or nothing."""
    refuse_existing(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    digests = base.digests()
    digest = root_digest(digests)
    outer = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        store = Store.create(outer / "line", {**settings, "base": {"digest": digest, "name": name}})
        with store.lock("init"):
            work = store.workspace("init")
            folder = work / "base"
            folder.mkdir()
            _copy_base(base, folder)
            if version_digest(folder) != digest:
                raise RefusedInput(f"{base.path}: changed while it was being read; try again when it is at rest")
            store.versions.publish(folder, digest)
            tensors = store.objects.put_file(write_json(work / "tensors.json", digests))
            store.ledger.append(
                {
                    "verb": "init",
                    "task": None,
                    "method": settings["method"],
                    "options": settings["options"],
                    "seed": settings["seed"],
                    "members": [],
                    "version": digest,
                    "objects": {"tensors": tensors},
                    "state": None,
                    "snapshots": [],
                    "accounting": None,
                    "counts": {},
                    "notes": [],
                    "receipt": None,
                    "software": software(method_uses_torch=False),
                    "seconds": 0.0,
                }
            )
            store.clear_workspaces()
        refuse_existing(path)
        if path.exists():
            path.rmdir()
        os.rename(outer / "line", path)
        fsync_folder(path.parent)
    finally:
        shutil.rmtree(outer, ignore_errors=True)
    return Store.open(path)


def refuse_existing(path: Path) -> None:
    """A line is made where there is nothing, or an empty folder."""
    if (path / "plait.json").exists():
        raise RefusedInput(f"{path} is a line already; open it, or choose another place for a new one")
    if path.is_symlink() or (path.exists() and (not path.is_dir() or any(path.iterdir()))):
        raise RefusedInput(f"{path} exists and is not an empty folder; choose another place for the line")


def _copy_base(base: Checkpoint, folder: Path) -> None:
    """The base as it came: weights and the files beside them (code is left out, see docs/format.md)."""
    for shard in base.shards:
        shutil.copyfile(shard.file, folder / Path(shard.file).name)
    for name in base.sidecars:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(base.path / name, target)


def open_setting(
    store: Store, *, workers: int | None = None, chunk: int | None = None, quiet: bool = True
) -> Setting:
    """What the line was created with, its base opened."""
    settings = store.settings
    digest = settings["base"]["digest"]
    first = store.ledger.entries()[0]
    digests = json.loads(store.objects.path(first["objects"]["tensors"]).read_text(encoding="utf-8"))
    return Setting(
        store=store,
        base=open_version(store.versions.path(digest)),
        base_digests=digests,
        base_digest=digest,
        base_name=settings["base"]["name"],
        method=cast(TensorMethod, make(settings["method"], settings["options"])),
        seed=settings["seed"],
        private=tuple(settings["private"]),
        snapshots=settings["snapshots"],
        workers=workers,
        chunk=chunk,
        quiet=quiet,
    )
