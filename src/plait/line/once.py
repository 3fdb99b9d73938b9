"""One merge without a line: files to a file, or mappings to a mapping. Nothing is kept, nothing can be undone."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.checkpoint.card import card
from plait.checkpoint.digest import tensor_digests
from plait.checkpoint.format import fsync_folder, hash_buffers
from plait.checkpoint.keys import Accounting, account
from plait.checkpoint.layout import Checkpoint, open_checkpoint, root_digest
from plait.checkpoint.output import plan_output
from plait.errors import RefusedInput, UsageError
from plait.line.build import version_place
from plait.line.member import check_weight, identity, seed_of
from plait.methods.base import TensorMethod
from plait.methods.registry import make

if TYPE_CHECKING:
    from torch import Tensor


def merge_state_dicts(
    base: Mapping[str, Tensor],
    experts: Sequence[Mapping[str, Tensor]],
    method: str = "average",
    weights: Sequence[float] | None = None,
    *,
    seed: int = 0,
    **options: Any,
) -> dict[str, Tensor]:
    """Merge state dicts in memory; for notebooks.

    base, experts: mappings from names to tensors of any float dtype, same names and shapes. weights: one per
    expert, 1.0 by default. Returns a new mapping in the base's dtypes; no input is written to.
    Integer and boolean tensors must equal the base's and are copied. Raises RefusedInput or UsageError.
    """
    from plait.methods.memory import apply

    chosen = make(method, options)
    seeds = None
    if isinstance(chosen, TensorMethod) and chosen.draws():
        seeds = [seed_of(seed, state_dict_digest(expert)) for expert in experts]
    return apply(chosen, base, experts, _weights(weights, len(experts)), seeds=seeds)


def state_dict_digest(tensors: Mapping[str, Tensor]) -> str:
    """The root digest that these tensors have as a checkpoint, so that random numbers are the same for both."""
    import torch

    from plait.methods.memory import dtype_name

    rows = {}
    for name, tensor in tensors.items():
        raw = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
        rows[name] = hash_buffers(dtype_name(tensor), tensor.shape, [raw.data])
    return root_digest(rows)


def merge_files(
    base: str | Path,
    experts: Sequence[str | Path],
    out: str | Path,
    method: str = "average",
    weights: Sequence[float] | None = None,
    *,
    private: Sequence[str] = (),
    dtype: str | None = None,
    seed: int = 0,
    workers: int | None = None,
    chunk: int | None = None,
    allow_nonfinite: bool = False,
    allow_pickle: bool = False,
    force: bool = False,
    digest: bool = True,
    progress: Any = None,
    **options: Any,
) -> dict[str, Any]:
    """Merge checkpoints on disk into `out`, streaming: memory depends on neither model size nor their number.

    base, experts: bare safetensors files or Hugging Face folders. `out` gets the base's layout.
    private: patterns of tensors that are left out of the merge (the base's are copied where it has them).
    dtype: of the output ("F32", "BF16", "F16", "F64"); the base's by default. seed: for sparsifiers.
    digest: also hash the output (one more read of it). Returns what was done, as plain values.
    """
    chosen = make(method, options)
    if not isinstance(chosen, TensorMethod):
        raise UsageError(f"method {method} needs a problem with losses; it cannot merge plain files")
    if not experts:
        raise UsageError("no experts were given; at least one is needed")
    shares = _weights(weights, len(experts))
    target = Path(out)
    if target.exists() and not force:
        raise RefusedInput(f"{target} exists; give another place, or --force to replace it")
    began = time.monotonic()
    opened = open_checkpoint(base, allow_pickle=allow_pickle)
    others = [open_checkpoint(path, allow_pickle=allow_pickle) for path in experts]
    found = [account(opened, other, private) for other in others]
    target.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        folded, root = _fold(
            chosen, opened, others, found, shares, staged,
            private=private, dtype=dtype, seed=seed, workers=workers, chunk=chunk,
            allow_nonfinite=allow_nonfinite, digest=digest, progress=progress,
        )  # fmt: skip
        _place(opened, staged, target)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return {
        "out": str(target),
        "method": method,
        "options": chosen.options(),
        "members": [
            {"source": str(p), "weight": w, "private": sorted(f.private), "notes": list(f.notes)}
            for p, w, f in zip(experts, shares, found, strict=True)
        ],
        "counts": dict(folded.counts),
        "version": root,
        "seconds": round(time.monotonic() - began, 3),
    }


def _fold(
    method: TensorMethod,
    base: Checkpoint,
    others: Sequence[Checkpoint],
    found: Sequence[Accounting],
    weights: Sequence[float],
    staged: Path,
    *,
    private: Sequence[str],
    dtype: str | None,
    seed: int,
    workers: int | None,
    chunk: int | None,
    allow_nonfinite: bool,
    digest: bool,
    progress: Any,
) -> tuple[Any, str | None]:
    from plait import engine

    chosen = {"workers": workers, "chunk": chunk}
    settings = engine.Settings(
        **{k: v for k, v in chosen.items() if v is not None}, allow_nonfinite=allow_nonfinite
    )
    mergeable = {
        n: r
        for n, r in base.tensors.items()
        if r.mergeable and n not in base.aliases and not any(fnmatchcase(n, p) for p in private)
    }
    draws = method.draws()  # the digest costs one more read of every input
    members = [
        engine.Incoming(
            task=f"{i:04d}",
            weight=weight,
            refs=dict(f.merge),
            known=None,
            seed=seed_of(seed, identity(f)) if draws else b"",
        )
        for i, (weight, f) in enumerate(zip(weights, found, strict=True))
    ]
    output = plan_output(base, version_place(base, staged), dtype=dtype)
    folded = engine.fold(
        method,
        mergeable,
        members,
        enter=members,
        state=None,
        new_state=None,
        out={n: output.places[n] for n in mergeable},
        settings=settings,
        progress=progress,
    )
    rest = [n for n in output.places if n not in mergeable]
    engine.copy([(base.tensors[n], output.places[n]) for n in rest], settings)
    root = None
    if digest:
        rows = tensor_digests(output.places)
        root = root_digest(rows | {alias: rows[kept] for alias, kept in base.aliases.items()})
    facts = {
        "base": Path(base.path).resolve().name,
        "base_digest": None,
        "method": method.name,
        "options": method.options(),
        "members": [
            {"task": Path(other.path).resolve().name, "weight": w, "digest": None}
            for other, w in zip(others, weights, strict=True)
        ],
        "digest": root,
    }
    output.finish(card(facts))
    return folded, root


def _place(base: Checkpoint, staged: Path, target: Path) -> None:
    """Put what was staged under its name: a folder for a folder, one file for a bare file."""
    if base.kind == "file":
        made = next(staged.glob("*.safetensors"))
        os.replace(made, target)
    else:
        if target.exists():
            shutil.rmtree(target)
        os.chmod(staged, 0o755)
        os.rename(staged, target)
    fsync_folder(target.parent)


def _weights(weights: Sequence[float] | None, count: int) -> list[float]:
    if weights is None:
        return [1.0] * count
    if len(weights) != count:
        raise UsageError(f"{len(weights)} weights were given for {count} experts; one each is needed")
    return [check_weight(w) for w in weights]
