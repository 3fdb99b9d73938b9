"""Making a line's folder, and reading back what stays the same over its life."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from plait.checkpoint.card import card_facts_of_base
from plait.checkpoint.layout import Checkpoint, root_digest
from plait.checkpoint.output import plan_output
from plait.errors import RefusedInput, UsageError
from plait.line.build import (
    Setting,
    open_version,
    software,
    version_digest,
    version_place,
    write_json,
)
from plait.line.data import need_of
from plait.line.member import refuse_nonfinite
from plait.line.surroundings import Compute
from plait.methods.base import Method, ModelMethod, TensorMethod
from plait.methods.registry import find, make
from plait.store import Store


def publish_base(
    path: Path,
    base: Checkpoint,
    name: str,
    settings: Mapping[str, Any],
    allow_nonfinite: bool,
    notes: Sequence[str] = (),
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
                "notes": [*base.notes, *notes],
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


def driving(method: Method) -> TensorMethod | ModelMethod:
    """The method as one that a line can be driven by. UsageError where it is of neither kind."""
    if not isinstance(method, (TensorMethod, ModelMethod)):
        raise UsageError(f"method {method.name} sees neither tensors nor models; it cannot drive a line")
    return method


def seeded(method: str, options: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """The options with the line's seed, where the method has an option of that name: a line has one seed."""
    own = any(field.name == "seed" for field in fields(find(method)))
    return {**options, "seed": seed} if own else dict(options)


def chosen_compute(
    method: Method, network: str | None, device: str | None, dtype: str | None
) -> dict[str, Any]:
    """How networks are to run, for the settings of a new line: nothing where the method looks at no data.

    UsageError for words without a meaning, or where no network would run; RefusedInput for a network that is none."""
    given = {"network": network, "device": device, "dtype": dtype}
    named = {name: word for name, word in given.items() if word is not None}
    if need_of(method) is None:
        if named:
            raise UsageError(
                f"{', '.join(named)} was given, and method {method.name} looks at no data, so that no network runs; "
                "leave it out"
            )
        return {}
    from plait.problem.module import parse_device, parse_dtype
    from plait.problem.network import function_of

    words = {"network": None, "device": "cpu", "dtype": "float32", **named}
    parse_device(words["device"] or "")
    parse_dtype(words["dtype"] or "")
    if network is not None:
        function_of(network)
    return {"compute": words}


def check_described(compute: Mapping[str, Any], base: Checkpoint) -> None:
    """RefusedInput where a network must run and nothing says which. compute: what `chosen_compute` returned."""
    if compute and compute["compute"]["network"] is None and base.config is None:
        raise RefusedInput(
            f"{base.path}: has no config.json, which says what network it is, and the method looks at data; put it "
            "there, or name the network as python:module:function (--network)"
        )


def compute_of(
    store: Store, method: Method, device: str | None = None, threads: int | None = None
) -> Compute:
    """How networks run: with as many threads as at the last merge, so that what a merge added can be taken away again
    to the bit; as many as torch takes for the first one."""
    if need_of(method) is None and not isinstance(method, ModelMethod):
        return Compute()
    words = dict(store.settings.get("compute") or {})
    if device is not None:
        words["device"] = device
    if threads is None:
        found = (e.get("software", {}).get("threads") for e in reversed(store.ledger.entries()))
        threads = next(filter(None, found), None)
    if threads is None:
        import torch

        threads = torch.get_num_threads()
    return Compute(**words, threads=threads)


def open_setting(
    store: Store,
    *,
    workers: int | None = None,
    chunk: int | None = None,
    quiet: bool = True,
    device: str | None = None,
) -> Setting:
    """What the line was created with, its base opened. device: where networks run, where that is another one than
    the line's."""
    settings = store.settings
    method = driving(make(settings["method"], settings["options"]))
    digest = settings["base"]["digest"]
    first = store.ledger.entry(0)
    digests = json.loads(store.objects.path(first["tensors"]).read_text(encoding="utf-8"))
    return Setting(
        store=store,
        base=open_version(store.versions.path(digest)),
        base_digests=digests,
        base_digest=digest,
        base_name=settings["base"]["name"],
        method=method,
        seed=settings["seed"],
        private=tuple(settings["private"]),
        snapshots=settings["snapshots"],
        workers=workers,
        chunk=chunk,
        quiet=quiet,
        compute=compute_of(store, method, device),
    )
