"""Reading back what a line was created with."""

from __future__ import annotations

import json

from plait.errors import UsageError
from plait.line.build import (
    Setting,
    open_version,
)
from plait.line.data import need_of
from plait.line.surroundings import Compute
from plait.methods.base import Method, ModelMethod, TensorMethod
from plait.methods.registry import make
from plait.store import Store


def driving(method: Method) -> TensorMethod | ModelMethod:
    """The method as one that a line can be driven by. UsageError where it is of neither kind."""
    if not isinstance(method, (TensorMethod, ModelMethod)):
        raise UsageError(f"method {method.name} sees neither tensors nor models; it cannot drive a line")
    return method


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
