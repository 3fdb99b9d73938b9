"""Making a line's folder, and reading back what stays the same over its life."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from plait.checkpoint.layout import Checkpoint, root_digest
from plait.line.build import Setting, open_version, software, write_json
from plait.methods.base import TensorMethod
from plait.methods.registry import make
from plait.store import Store


def publish_base(path: Path, base: Checkpoint, name: str, settings: Mapping[str, Any]) -> Store:
    """Create the store with the base as its first version and its first ledger entry. All or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    digests = base.digests()
    digest = root_digest(digests)
    row = {**settings, "base": {"digest": digest, "name": name}}
    with Store.creating(path, row) as store:
        folder = Path(tempfile.mkdtemp(dir=store.workspace("base")))
        _copy_base(base, folder)
        store.versions.publish(folder, digest)
        tensors = store.objects.put_file(write_json(store.workspace("base") / "tensors.json", digests))
        store.ledger.append(
            {
                "verb": "init",
                "task": None,
                "method": settings["method"],
                "options": settings["options"],
                "seed": settings["seed"],
                "members": [],
                "version": digest,
                "tensors": tensors,
                "state": None,
                "snapshots": {},
                "accounting": None,
                "counts": {},
                "notes": [],
                "receipt": None,
                "software": software(method_uses_torch=False),
                "seconds": 0.0,
            }
        )
        store.clear_workspaces()
    return Store.open(path)


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
    import json

    settings = store.settings
    digest = settings["base"]["digest"]
    first = store.ledger.entries()[0]
    digests = json.loads(store.objects.path(first["tensors"]).read_text(encoding="utf-8"))
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
