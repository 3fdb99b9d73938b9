"""One merge without a line: files to a file, or mappings to a mapping. Nothing is kept, nothing can be undone."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.checkpoint.card import card, card_facts_of_base
from plait.checkpoint.digest import tensor_digests
from plait.checkpoint.format import fsync_folder, hash_buffers, read_header
from plait.checkpoint.keys import Accounting, account, untied
from plait.checkpoint.layout import Checkpoint, open_checkpoint, root_digest
from plait.checkpoint.output import plan_output
from plait.errors import RefusedInput, UsageError
from plait.line.build import engine_settings, mergeable, overflow, version_place
from plait.line.exporting import put_in_place, refuse_place, staging
from plait.line.member import identity, patterns, seed_of
from plait.methods.base import Method, ModelMethod, TensorMethod, Weight
from plait.methods.registry import make
from plait.methods.varied import member_weight

if TYPE_CHECKING:
    from torch import Tensor

    from plait.engine import Folded, Incoming, Settings


def merge_state_dicts(
    base: Mapping[str, Tensor],
    experts: Sequence[Mapping[str, Tensor]],
    method: str = "average",
    weights: Sequence[Weight] | None = None,
    *,
    seed: int = 0,
    sides: Sequence[Mapping[str, Tensor]] | None = None,
    problem: Any = None,
    tie_word_embeddings: bool = True,
    **options: Any,
) -> dict[str, Tensor]:
    """Merge state dicts in memory; for notebooks. The bytes are those of `merge_files` on the same tensors.

    base, experts: mappings from names to tensors of any float dtype, same names and shapes. weights: one per
    expert, 1.0 by default, or rules that give one for each tensor (see `plait.methods.rules`). seed: for sparsifiers.
    sides: what the method asks for beside the weights, one mapping per expert: "moment/NAME" for `regmean`,
    "fisher/NAME" for `fisher`, fp32 or fp64; of tied names the one that is kept.
    problem: the losses of the experts' tasks, in their order (a `plait.problem.Problem`), for methods that ask for
    losses; its examples are taken as they are.
    tie_word_embeddings: what config.json says under this name. Embeddings and output layers that are equal in the
    base are tied: they are merged once, and experts must have them equal too, or leave the second name out. False:
    output layers are tensors of their own. No other tensors are tied, whether or not they share memory.
    Returns a new mapping in the base's dtypes, a tensor of its own for each name; no input is written to.
    Integer and boolean tensors must equal the base's and are copied. Raises RefusedInput or UsageError.
    """
    from plait.line.tied import tied_names, without
    from plait.methods.memory import apply

    chosen = make(method, options)
    chosen = chosen.over(base)
    shares = _weights(weights, len(experts), chosen, base)
    if experts and not any(sides or ()):
        refuse_without_moments(
            chosen,
            ((n, tuple(t.shape)) for n, t in base.items() if t.is_floating_point()),
            "hand them in as `sides`",
        )
    if sides is not None and len(sides) != len(experts):
        raise UsageError(f"{len(sides)} mappings of sides for {len(experts)} experts; give one for each")
    if not isinstance(chosen, TensorMethod):  # it sees the whole model, second names included
        return apply(chosen, base, experts, shares, problem=problem)
    seeds = None
    if chosen.draws():
        seeds = [seed_of(seed, state_dict_digest(expert)) for expert in experts]
    tied = tied_names(base, tie_word_embeddings)
    others = [without(expert, tied, f"expert {i}") for i, expert in enumerate(experts)]
    merged = apply(
        chosen, without(base, tied, "base"), others, shares, problem=problem, seeds=seeds, sides=sides
    )
    return {name: merged[tied[name]].clone() if name in tied else merged[name] for name in base}


def refuse_without_moments(
    method: Method, tensors: Iterable[tuple[str, tuple[int, ...]]], instead: str
) -> None:
    """UsageError where a method that takes second moments would average all that it takes them for."""
    if not isinstance(method, TensorMethod) or method.wants != "moments":
        return
    if any(method.sides(shape, name, "F32") for name, shape in tensors):
        raise UsageError(
            f"method {method.name} takes second moments of the members' inputs, and there are none, so that it would "
            f"be the average; {instead}"
        )


def state_dict_digest(tensors: Mapping[str, Tensor]) -> str:
    """The root digest that these tensors have as a checkpoint, so that random numbers are the same for both."""
    import torch

    from plait.methods.pieces import dtype_name

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
    weights: Sequence[Weight] | None = None,
    *,
    names: Sequence[str] | None = None,
    private: Sequence[str] | str = (),
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

    base, experts: bare safetensors files or Hugging Face folders. `out` gets the base's layout: a folder, or one
    file where the base is a bare file.
    names: what messages call the experts, one each; the last parts of their paths by default.
    private: patterns of tensors that are left out of the merge (the base's are copied where it has them).
    dtype: of the output ("F32", "BF16", "F16", "F64"); the base's by default. seed: for sparsifiers.
    chunk: elements of a piece of work, a multiple of 65536; changes no byte. workers: threads, likewise.
    allow_nonfinite: take the base's value where an expert holds NaN or infinity, and say how often (one more read of
    all inputs).
    digest: also hash the output (one more read of it). Returns what was done, as plain values.
    """
    chosen = make(method, options)
    if not isinstance(chosen, TensorMethod) or chosen.wants == "problem":
        how = "" if isinstance(chosen, ModelMethod) else " with a fit"
        raise UsageError(
            f"method {method}{how} asks for losses of the members, and plain files have none; make a line (plait "
            "init) and hand in --tasks with each merge"
        )
    if not experts:
        raise UsageError("no experts were given; at least one is needed")
    target = Path(out)
    refuse_place(target, [Path(p) for p in (base, *experts)], force=force)
    began = time.monotonic()
    opened = open_checkpoint(base, allow_pickle=allow_pickle)
    chosen = chosen.over(opened.tensors)
    shares = _weights(weights, len(experts), chosen, opened.tensors)
    asked = ((name, ref.shape) for name, ref in mergeable(opened, patterns(private)).items())
    refuse_without_moments(chosen, asked, "make a line (plait init) and hand in --tasks with each merge")
    others = [open_checkpoint(path, allow_pickle=allow_pickle) for path in experts]
    found = [account(opened, other, patterns(private)) for other in others]
    settings = engine_settings(workers, chunk, allow_nonfinite)
    called = _called(names, experts)
    job = _Job(chosen, opened, others, found, shares, called, patterns(private), seed)
    replaced = [_nonfinite(opened, one, settings) if allow_nonfinite else 0 for one in found]
    staged = staging(target, "once")
    staged.mkdir()
    try:
        folded, root = job.run(staged, dtype, settings, digest, progress)
        _place(opened, staged, target)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return {
        "out": str(target),
        "method": method,
        "options": chosen.options(),
        "members": [
            {
                "source": str(p),
                "weight": w,
                "private": sorted(f.private),
                "nonfinite": n,
                "notes": list(f.notes),
            }
            for p, w, f, n in zip(experts, shares, found, replaced, strict=True)
        ],
        "accounting": _accounting(found, replaced),
        "counts": dict(folded.counts),
        "notes": [
            *overflow(folded.overflowed),
            *chosen.idle({n: r.shape for n, r in mergeable(opened, patterns(private)).items()}),
        ],
        "version": root,
        "seconds": round(time.monotonic() - began, 3),
    }


@dataclass(frozen=True)
class _Job:
    """A merge whose inputs are open and accounted for."""

    method: TensorMethod
    base: Checkpoint
    others: Sequence[Checkpoint]
    found: Sequence[Accounting]
    weights: Sequence[Weight]
    names: Sequence[str]
    private: Sequence[str]
    seed: int

    def run(
        self, staged: Path, dtype: str | None, settings: Settings, digest: bool, progress: Any
    ) -> tuple[Folded, str | None]:
        """Write the merged checkpoint into `staged`; returns what the engine says, and the root digest."""
        from plait import engine

        base = self.base
        names = mergeable(base, self.private)
        apart = untied(base, self.private)
        output = plan_output(base, version_place(base, staged), dtype=dtype, untie=apart)
        members = self.members()
        out = {n: output.places[n] for n in names}
        folded = engine.fold(
            self.method,
            names,
            members,
            enter=members,
            state=None,
            new_state=None,
            out=out,
            settings=settings,
            progress=progress,
        )
        rest = [n for n in output.places if n not in names]
        engine.copy([(base.tensors[n], output.places[n]) for n in rest], settings)
        root = None
        if digest:
            rows = tensor_digests(output.places)
            tied = {alias: kept for alias, kept in base.aliases.items() if alias not in apart}
            root = root_digest(rows | {alias: rows[kept] for alias, kept in tied.items()})
        output.finish(card(self.facts(root)))
        return folded, root

    def members(self) -> list[Incoming]:
        from plait import engine

        draws = self.method.draws()  # only then is the digest needed: it costs one more read of every input
        return [
            engine.Incoming(
                task=name,
                weight=weight,
                refs=dict(found.merge),
                seed=seed_of(self.seed, identity(found)) if draws else b"",
            )
            for name, weight, found in zip(self.names, self.weights, self.found, strict=True)
        ]

    def facts(self, root: str | None) -> dict[str, Any]:
        """What the model card says."""
        names = [Path(other.path).resolve().name for other in self.others]
        return {
            **card_facts_of_base(self.base.path),
            "base": Path(self.base.path).resolve().name,
            "base_digest": None,
            "method": self.method.name,
            "options": self.method.options(),
            "members": [
                {"task": n, "weight": w, "digest": None} for n, w in zip(names, self.weights, strict=True)
            ],
            "digest": root,
        }


def _nonfinite(base: Checkpoint, found: Accounting, settings: Settings) -> int:
    """How many elements of an expert's merged tensors are NaN or infinite."""
    from plait import engine

    refs = {n: r for n, r in found.merge.items() if r.numel}
    return engine.intake({n: base.tensors[n] for n in refs}, refs, settings).elements_nonfinite


def _accounting(found: Sequence[Accounting], replaced: Sequence[int]) -> dict[str, int]:
    """How many tensors there are of each class over all experts, and how many elements are not finite."""
    return {
        "merged": len({n for one in found for n in one.merge}),
        "private": len({n for one in found for n in one.private}),
        "buffer": len({n for one in found for n in one.buffers}),
        "tied": len({n for one in found for n in one.tied}),
        "nonfinite": sum(replaced),
    }


def _called(names: Sequence[str] | None, experts: Sequence[str | Path]) -> list[str]:
    """A name for each expert, none twice."""
    if names is None:
        names = [Path(path).resolve().name for path in experts]
    if len(names) != len(experts):
        raise UsageError(f"{len(names)} names were given for {len(experts)} experts; one each is needed")
    if len(set(names)) == len(names):
        return list(names)
    return [f"expert {i} ({name})" for i, name in enumerate(names)]


def _place(base: Checkpoint, staged: Path, target: Path) -> None:
    """Put what was staged under its name: a folder for a folder, one file for a bare file."""
    if base.kind == "folder":
        os.chmod(staged, 0o755)
        put_in_place(staged, target)
        return
    if target.is_dir():
        raise RefusedInput(
            f"{target} is a folder, the result is one file; give a path that ends in .safetensors"
        )
    if os.path.lexists(target):
        read_header(target)  # only a file of tensors is replaced
    os.replace(next(staged.glob("*.safetensors")), target)
    fsync_folder(target.parent)


def _weights(
    weights: Sequence[Weight] | None, count: int, method: Method, names: Iterable[str]
) -> list[Weight]:
    if weights is None:
        return [1.0] * count
    if len(weights) != count:
        raise UsageError(f"{len(weights)} weights were given for {count} experts; one each is needed")
    return [member_weight(w, method, names) for w in weights]
