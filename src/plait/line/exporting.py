"""Handing a version out as an ordinary checkpoint."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from plait.checkpoint.card import card
from plait.checkpoint.extend import append_shard
from plait.checkpoint.format import fsync_folder
from plait.errors import RefusedInput
from plait.line import views
from plait.line.removal import carried
from plait.store import Store

Renew = Callable[[Mapping[str, Any], Path], dict[str, Any]]
"""(ledger entry, a copy of its version) -> what was changed in the copy: its `digest` from then on, `notes` for the
model card, and what else the receipt is to say."""


def export(
    store: Store, out: Path, *, version: str | None, task: str | None, force: bool, renew: Renew | None = None
) -> dict[str, Any]:
    """Copy a version to `out`, with its model card, and record the export in the ledger.

    renew: changes the copy before it appears; the version in the line stays as it is.
    The folder appears under its name complete or not at all, after the ledger tells of it: an export that is on
    disk is always on record. Raises RefusedInput where `out` exists and is not to be replaced, where the version
    is not on disk any more, or where `task` has no private tensors; LockedError before anything is written.
    """
    with store.lock("export"):
        entry = views.last(store) if version is None else views.find(store, version)
        digest = entry["version"]
        if not store.versions.has(digest):
            raise RefusedInput(
                f"version {digest[:12]} is not on disk any more (this line keeps {store.settings['keep']}); "
                "export the current one, or make a line with a larger --keep"
            )
        refuse_place(out, [store.path], force=force)
        staged = staging(out, str(store.path))
        try:
            shutil.copytree(store.versions.path(digest), staged, copy_function=_copy)
            renewed = renew(entry, staged) if renew else None
            facts = _facts(store, entry)
            if renewed is not None:
                facts |= {"digest": renewed["digest"], "notes": renewed.pop("notes")}
            (staged / "README.md").write_text(card(facts), encoding="utf-8")
            if task is not None:
                _add_private(store, entry, task, staged)
            os.chmod(staged, 0o755)
            _sync(staged)
            written = store.ledger.append(
                {
                    **carried(views.last(store)),
                    "verb": "export",
                    "task": task,
                    "receipt": {
                        "out": str(out),
                        "version": digest,
                        "tasks": sorted(views.holds(entry)),
                        **({} if renewed is None else {"batchnorm": renewed}),
                    },
                }
            )
            put_in_place(staged, out)
        except BaseException:
            shutil.rmtree(staged, ignore_errors=True)
            raise
    files = sorted(p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file())
    return {
        "out": str(out),
        "version": digest,
        "task": task,
        "batchnorm": renewed,
        "files": files,
        "sequence": written["sequence"],
    }


def refuse_place(out: Path, inputs: Sequence[Path], *, force: bool) -> None:
    """RefusedInput where something may not be written at `out`: it is, holds or lies in one of `inputs`, or it
    exists and is not to be replaced. Only what plait wrote itself, and weights, are ever replaced."""
    place = Path(os.path.realpath(out))
    for path in (Path(os.path.realpath(p)) for p in inputs):
        if place == path or place in path.parents or (path.is_dir() and path in place.parents):
            raise RefusedInput(f"{out} is, holds or lies inside {path}, which is needed; give another place")
    if not os.path.lexists(out):
        return
    if not force:
        raise RefusedInput(f"{out} exists; give another place, or --force (force=True) to replace it")
    if out.is_symlink() or not out.is_dir():
        return
    others = sorted(p.name for p in out.iterdir() if not _of_a_model(p))
    card_ = out / "README.md"
    ours = card_.is_file() and "This model was made by plait" in card_.read_text(
        encoding="utf-8", errors="replace"
    )
    if others or (any(out.iterdir()) and not ours):
        why = f"it holds {others[0]}" if others else "its README.md is no model card of plait"
        raise RefusedInput(
            f"{out} is not a folder that plait wrote ({why}); it is not replaced, even with --force"
        )


def _of_a_model(path: Path) -> bool:
    if path.is_dir():
        return re.match(r"\d+_\w+$", path.name) is not None and all(map(_of_a_model, path.iterdir()))
    return path.suffix in (".safetensors", ".json", ".model", ".jinja") or path.name in (
        *(
            "README.md",
            "vocab.txt",
            "merges.txt",
            "LICENSE",
            "LICENSE.txt",
            "NOTICE",
            "sentencepiece.bpe.model",
        ),
    )


def staging(out: Path, owner: str) -> Path:
    """A free place beside `out` for what will be put there; what a killed command of this owner left is removed."""
    mark = sha256(owner.encode()).hexdigest()[:8]
    out.parent.mkdir(parents=True, exist_ok=True)
    staged = out.parent / f".{out.name}.{mark}.new"
    shutil.rmtree(staged, ignore_errors=True)
    return staged


def put_in_place(staged: Path, out: Path) -> None:
    """Give a finished folder its name. One that is there already is set aside first, and removed last."""
    aside = staged.with_suffix(".old")
    shutil.rmtree(aside, ignore_errors=True)
    if os.path.lexists(out):
        if out.is_symlink() or not out.is_dir():
            raise RefusedInput(f"{out} is no folder, the result is one; give another place")
        os.rename(out, aside)
    os.rename(staged, out)
    fsync_folder(out.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _facts(store: Store, entry: dict[str, Any]) -> dict[str, Any]:
    from plait import __version__

    settings = store.settings
    return {
        **settings["base"]["card"],
        "base": settings["base"]["name"],
        "base_digest": settings["base"]["digest"],
        "method": settings["method"],
        "options": settings["options"],
        "members": [{k: m[k] for k in ("task", "weight", "digest")} for m in entry["members"]],
        "digest": entry["version"],
        "plait": __version__,
    }


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
    put_private(store, row, folder)


def put_private(store: Store, row: Mapping[str, Any], folder: Path) -> None:
    """Put the private tensors of a member that the line keeps into a checkpoint folder, and its config in place of
    the one there. Weight files are replaced, never written into."""
    from plait.line.member import private_refs

    own = json.loads(store.objects.get(row["config"])) if row["config"] else {}
    append_shard(folder, private_refs(store.objects.path(row["object"])), own.get("names"))
    if own.get("config") and (folder / "config.json").exists():
        config = {k: v for k, v in own["config"].items() if k != "auto_map"}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
