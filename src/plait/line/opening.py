"""Making a line's folder, and reading back what stays the same over its life."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from plait.checkpoint.card import card_facts_of_base
from plait.checkpoint.layout import Checkpoint, root_digest
from plait.checkpoint.output import plan_output
from plait.errors import RefusedInput
from plait.line.build import (
    Setting,
    open_version,
    software,
    version_digest,
    version_place,
    write_json,
)
from plait.line.member import refuse_nonfinite
from plait.methods.base import TensorMethod
from plait.methods.registry import make
from plait.store import Store


def publish_base(
    path: Path, base: Checkpoint, name: str, settings: Mapping[str, Any], allow_nonfinite: bool
) -> Store:
    """Create the store with the base as its first version and its first ledger entry. All or nothing."""
    from plait import engine

    if not allow_nonfinite:
        refs = {n: r for n, r in base.tensors.items() if r.mergeable and r.numel}
        refuse_nonfinite("the base", engine.intake(refs, refs, engine.Settings()).base_nonfinite)
    digests = base.digests()
    digest = root_digest(digests)
    with Store.creating(
        path, {**settings, "base": {"digest": digest, "name": name, "card": card_facts_of_base(base.path)}}
    ) as store:
        work = store.workspace("init")
        _copy_base(base, work / "base")
        if version_digest(work / "base") != digest:
            raise RefusedInput(f"{base.path}: changed while it was being read; try again when it is at rest")
        store.versions.publish(work / "base", digest)
        store.ledger.append(
            {
                "verb": "init",
                "task": None,
                "method": settings["method"],
                "options": settings["options"],
                "seed": settings["seed"],
                "members": [],
                "version": digest,
                "tensors": store.objects.put_file(write_json(work / "tensors.json", digests)),
                "state": None,
                "snapshots": {},
                "stack": [],
                "accounting": None,
                "counts": {},
                "notes": list(base.notes),
                "receipt": None,
                "software": software(method_uses_torch=False),
                "seconds": 0.0,
            }
        )
        store.clear_workspaces()
    return Store.open(path)


def _copy_base(base: Checkpoint, folder: Path) -> None:
    """The base in its own layout: weights and the files beside them (no code, see docs/format-checkpoints.md)."""
    from plait import engine

    output = plan_output(base, version_place(base, folder))
    engine.copy([(base.tensors[n], place) for n, place in output.places.items()], engine.Settings())
    output.finish()


def open_setting(
    store: Store, *, workers: int | None = None, chunk: int | None = None, quiet: bool = True
) -> Setting:
    """What the line was created with, its base opened."""
    settings = store.settings
    digest = settings["base"]["digest"]
    first = store.ledger.entry(0)
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
