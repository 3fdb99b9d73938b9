"""Files for the tests of the engine, written and read by the safetensors library, a stranger to the code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from plait import engine
from plait.checkpoint.format import FileWriter, read_header
from plait.methods.base import TensorMethod
from plait.tensors import BLOCK
from plait.types import TensorRef

Tensors = dict[str, Tensor]


def save(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, TensorRef]:
    """Write a file; what its header says."""
    save_file(dict(tensors), path)
    return read_header(path).tensors


def places(path: Path, like: Mapping[str, TensorRef], dtype: str | None = None) -> dict[str, TensorRef]:
    """An empty output file in the layout of `like`."""
    entries = [(n, (dtype if r.mergeable else None) or r.dtype, r.shape) for n, r in like.items()]
    writer = FileWriter(path, entries)
    writer.close(sync=False)
    return writer.places


def base_tensors(dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Tensors:
    """Tensors of many kinds: several chunks with a ragged end, rows, a scalar, nothing, one that nobody changes."""
    torch.manual_seed(seed)
    tensors = {
        "long": torch.randn(3 * BLOCK + 1234),
        "rows": torch.randn(700, 301),
        "small": torch.randn(5),
        "scalar": torch.tensor(0.75),
        "empty": torch.zeros(0, 4),
        "frozen": torch.randn(100),
    }
    tensors = {name: t.to(dtype) for name, t in tensors.items()}
    for row in (3, 650):  # in the first block and in the last
        tensors["rows"][row, :9] = 0.0
        tensors["rows"][row, 4] = -0.0
    return tensors


def expert_of(base: Mapping[str, Tensor], seed: int, leave: Sequence[str] = ("frozen",)) -> Tensors:
    """A fine-tuned base: most elements moved a little, some not at all, some tiny, some to the other zero."""
    torch.manual_seed(1000 + seed)
    expert: Tensors = {}
    for name, t in base.items():
        expert[name] = t.clone()
        if name in leave or not t.dtype.is_floating_point or not t.numel():
            continue
        moved = (t.double() + 0.02 * torch.randn(t.shape, dtype=torch.float64)).to(t.dtype)
        kept = torch.rand(t.shape) < 0.1
        expert[name] = torch.where(kept, t, moved)
    for row in (r for r in (3, 650) if r < len(base["rows"])):
        expert["rows"][row, 2 + seed % 3] = -0.0
        expert["rows"][row, 6] = 1e-30
    return expert


class Bench:
    """A base and experts in files, and merges of them."""

    def __init__(self, folder: Path, base: Tensors, experts: Sequence[Tensors]) -> None:
        self.folder, self.tensors, self.experts = folder, base, list(experts)
        self.base = save(folder / "base.safetensors", base)
        self.members: list[engine.Incoming] = []
        self.count = 0
        for number, expert in enumerate(experts):
            refs = save(folder / f"expert-{number}.safetensors", expert)
            changed = {n: r for n, r in refs.items() if not same(expert[n], base[n])}
            self.members.append(engine.Incoming(f"t{number}", 1.0, changed, None, bytes([number]) * 32))

    def merge(
        self,
        method: TensorMethod,
        members: Sequence[engine.Incoming] | None = None,
        *,
        enter: Sequence[engine.Incoming] | None = None,
        leave: Sequence[engine.Incoming] = (),
        state: Path | None = None,
        new_state: Path | None = None,
        dtype: str | None = None,
        settings: engine.Settings | None = None,
        journal: Path | None = None,
        output: bool = True,
    ) -> tuple[Tensors, engine.Folded]:
        """The merged tensors, read back by the safetensors library."""
        members = self.members if members is None else members
        self.count += 1
        out = places(self.folder / f"out-{self.count}.safetensors", self.base, dtype) if output else {}
        folded = engine.fold(
            method,
            self.base,
            members,
            enter=members if enter is None else enter,
            leave=leave,
            state=state,
            new_state=new_state,
            out=out,
            settings=settings or engine.Settings(workers=2),
            journal=journal,
        )
        return (load_file(self.folder / f"out-{self.count}.safetensors") if output else {}), folded


def same(one: Tensor, other: Tensor) -> bool:
    """Equal dtype, shape and bits: the sign of zero and NaN payloads count."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(
        one.contiguous().view(-1).view(torch.uint8), other.contiguous().view(-1).view(torch.uint8)
    )


def all_same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return set(one) == set(other) and all(same(one[n], other[n]) for n in one)


def state_bytes(folder: Path) -> dict[str, bytes]:
    """Every file of a state folder."""
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}
