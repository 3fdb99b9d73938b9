"""How a line begins: what it is created with is checked, and the base becomes its first version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from plait.checkpoint.card import card_facts_of_base
from plait.checkpoint.layout import Checkpoint, open_checkpoint, root_digest
from plait.checkpoint.output import plan_output
from plait.errors import RefusedInput, UsageError
from plait.line.build import (
    check_kept,
    keeps_no_state,
    mergeable,
    software,
    version_digest,
    version_place,
    write_json,
)
from plait.line.data import check_retention, need_of
from plait.line.descent import DESCENTS
from plait.line.member import patterns, refuse_nonfinite
from plait.line.opening import driving
from plait.methods.base import Method, ModelMethod, TensorMethod
from plait.methods.registry import find, make
from plait.store import Store


def start(
    path: Path,
    base: str | Path,
    method: str,
    options: Mapping[str, Any],
    *,
    private: Sequence[str] | str,
    retention: str,
    seed: int,
    keep: int,
    snapshots: int,
    descent: str,
    allow_nonfinite: bool,
    allow_pickle: bool,
    network: str | None,
    device: str | None,
    dtype: str | None,
) -> Store:
    """See `Line.create`."""
    chosen = driving(make(method, seeded(method, options, seed)))
    _check_retention(chosen, retention)
    if descent not in DESCENTS:
        raise UsageError(f"descent is {descent!r}, expected {' or '.join(DESCENTS)}")
    check_kept(chosen, retention, snapshots)
    compute = chosen_compute(chosen, network, device, dtype)
    for name, value, least in (("seed", seed, None), ("keep", keep, 1), ("snapshots", snapshots, 0)):
        if type(value) is not int or (least is not None and value < least):
            atleast = "" if least is None else f" of at least {least}"
            raise UsageError(f"{name} is {value!r}, expected a whole number{atleast}")
    from plait.engine import size_of

    checkpoint = open_checkpoint(base, allow_pickle=allow_pickle)
    chosen = driving(chosen.over(checkpoint.tensors))
    check_described(compute, checkpoint)
    own = patterns(private)
    settings = {
        "method": method,
        "options": chosen.options(),
        "private": list(own),
        "retention": retention,
        "seed": seed,
        "keep": keep,
        "snapshots": snapshots,
        **compute,
        **({} if descent == "any" else {"descent": descent}),
        "state_bytes": 0 if keeps_no_state(chosen) else size_of(chosen, mergeable(checkpoint, own)),
    }
    notes = chosen.idle({name: ref.shape for name, ref in mergeable(checkpoint, own).items()})
    return publish_base(path, checkpoint, Path(base).resolve().name, settings, allow_nonfinite, notes)


def _check_retention(method: TensorMethod | ModelMethod, retention: str) -> None:
    """UsageError where the method cannot do with what is kept."""
    if retention not in ("vectors", "statistics", "none"):
        raise UsageError(f"retention is {retention!r}, expected vectors, statistics or none")
    check_retention(method, retention)
    if retention == "statistics" and method.facts.family != "additive" and not keeps_no_state(method):
        raise UsageError(
            f"retention statistics needs an additive method, {method.name} is a {method.facts.family}; use vectors, "
            "or none if nothing will ever be removed"
        )


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
            f"{base.path}: has no config.json, which says what network it is, and the method looks at data; "
            "hand in a folder that has one, or name the network as python:module:function (--network)"
        )


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
