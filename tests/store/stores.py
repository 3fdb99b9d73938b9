"""Small stores for the tests. A "model" here is a folder with a file `weights`; its digest is that file's sha256."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from plait.errors import RefusedInput
from plait.store import Store

SETTINGS: dict[str, Any] = {"method": "average", "seed": 0, "options": {"scale": 0.3}}


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def model_digest(folder: Path) -> str:
    """Stands for the root digest of a checkpoint."""
    weights = folder / "weights"
    if not weights.is_file():
        raise RefusedInput(f"{folder}: no weights")
    return sha(weights.read_bytes())


def fill(folder: Path, weights: bytes) -> Path:
    """A model folder with files beside the weights, some of them in a folder of their own."""
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(weights)
    (folder / "config.json").write_text('{"layers": 2}\n')
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "vocab.txt").write_text("a\nb\n")
    return folder


def publish(store: Store, weights: bytes, work: str = "work") -> str:
    digest = sha(weights)
    store.versions.publish(fill(store.workspace(work) / "model", weights), digest)
    return digest


def put(store: Store, data: bytes, work: str = "work") -> str:
    file = store.workspace(work) / "file"
    file.write_bytes(data)
    return store.objects.put_file(file)


def merge(store: Store, task: str) -> dict[str, Any]:
    """What a merge does to a store: objects, then the version, then the ledger entry."""
    store.clear_workspaces()
    head = store.ledger.head()
    members = [
        *(head["members"] if head else []),
        {"task": task, "object": put(store, b"object " + task.encode())},
    ]
    state = {"dense": put(store, b"state " + task.encode())}
    weights = ("base+" + "+".join(m["task"] for m in members)).encode()
    version = publish(store, weights)
    return store.ledger.append(
        {"verb": "merge", "task": task, "members": members, "state": state, "version": version, "weight": 1.5}
    )


def new_store(path: Path, *tasks: str) -> Store:
    """A line with a base and these tasks merged."""
    with Store.creating(path, SETTINGS) as store:
        store.ledger.append({"verb": "init", "members": [], "version": publish(store, b"base")})
        store.clear_workspaces()
    store = Store.open(path)
    for task in tasks:
        merge(store, task)
    store.clear_workspaces()
    return store
