"""Members, and where the pieces of base and members come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from plait.engine.desk import Desk, refuse_nonfinite
from plait.methods.base import Known, Part, Weight, Where
from plait.methods.varied import weight_at
from plait.tensors import Tensor, torch
from plait.tensors.exact import Scan, scan
from plait.types import TensorRef


@dataclass(frozen=True)
class Incoming:
    """A member as the engine sees it.

    weight: a number, or rules that give one for each tensor.
    refs: the mergeable tensors in which it differs from the base; others are taken to be the base's. known:
    what the method's `prepare` found, None where it must still be found. seed: root of its random numbers.
    identity: the member's digest; where given, it stands for the bytes in the files when an interrupted merge
    goes on, so that these may be moved or written again. side: what the method's `sides` asks for, by
    "side/tensor"; F32 or F64, finite. side_identity: the digest of these, for the same use.
    """

    task: str
    weight: Weight = 1.0
    refs: Mapping[str, TensorRef] = field(default_factory=dict)
    known: Known | None = None
    seed: bytes = b""
    identity: str = ""
    side: Mapping[str, TensorRef] = field(default_factory=dict)
    side_identity: str = ""

    @property
    def touched(self) -> set[str]:
        """The tensors with elements in which it takes part."""
        mine = {name for name, ref in self.refs.items() if ref.numel}
        return mine | {key.split("/", 1)[1] for key, ref in self.side.items() if ref.numel}

    @property
    def nbytes(self) -> int:
        return sum(ref.nbytes for ref in (*self.refs.values(), *self.side.values()))

    def present(self) -> Incoming:
        """The member without the tensors in which its weight is 0."""
        if not isinstance(self.weight, str):
            return self
        refs = {n: ref for n, ref in self.refs.items() if weight_at(self.weight, n)}
        side = {k: ref for k, ref in self.side.items() if weight_at(self.weight, k.split("/", 1)[1])}
        return replace(self, refs=refs, side=side)

    def has(self, name: str, sides: Iterable[str]) -> bool:
        """Whether it takes part in a tensor, which has these sides."""
        return name in self.refs or any(f"{side}/{name}" in self.side for side in sides)


@dataclass(frozen=True)
class Loaded:
    """A piece of the base. `hole`: where the file holds NaN or infinity (None if nowhere); `values` are 0
    there."""

    where: Where
    values: Tensor
    scan: Scan
    hole: Tensor | None


@dataclass(frozen=True)
class Source:
    """Reads pieces, checked to be finite.

    allow_nonfinite: an expert's NaN or infinity is taken as the base's value. Where the base holds one, base
    and experts are taken as 0, and the merged tensor keeps the base's value.
    """

    base: Mapping[str, TensorRef]
    allow_nonfinite: bool

    def load(self, desk: Desk, where: Where) -> Loaded:
        """A piece of the base; holds until the desk loads the next one."""
        ref = self.base[where.name]
        values = desk.read(ref, where.first, where.count, "base")
        seen = scan(values)
        if seen.finite:
            return Loaded(where, values, seen, None)
        if not self.allow_nonfinite:
            refuse_nonfinite(values, ref, where.first, "base")
        hole = torch.isfinite(values).logical_not()
        values.masked_fill_(hole, 0.0)
        return Loaded(where, values, scan(values), hole)

    def part(self, desk: Desk, piece: Loaded, member: Incoming, sides: Iterable[str] = ()) -> Part:
        """The same piece of a member; of the base itself where the member does not change the tensor. sides: the
        names of those to be read with it."""
        expert, seen = piece.values, piece.scan
        ref = member.refs.get(piece.where.name)
        if ref is not None:
            expert = desk.read(ref, piece.where.first, piece.where.count, "expert")
            if ref.dtype == "F64":
                expert = expert.clone()  # a sum may refer to it while the buffer holds the next member
            seen = scan(expert)
            if piece.hole is not None or not seen.finite:
                expert = self._filled(expert, piece, ref, member, seen)
                seen = scan(expert)
        scans = (seen, piece.scan)
        name = piece.where.name
        side = {s: self._side(desk, piece.where, member, s) for s in sides if f"{s}/{name}" in member.side}
        return Part(
            piece.where, piece.values, expert, member.weight, member.known or {}, member.seed, scans, side
        )

    def _side(self, desk: Desk, where: Where, member: Incoming, side: str) -> Tensor:
        """A side of a piece; holds until that of the next member is read. NonFinite where it is not finite."""
        ref = member.side[f"{side}/{where.name}"]
        if ref.shape == where.shape:
            values, first = desk.read(ref, where.first, where.count, f"side/{side}"), where.first
        else:
            values, first = desk.read(ref, 0, ref.numel, f"side/{side}").view(ref.shape), 0
        if not bool(torch.isfinite(values).all()):
            refuse_nonfinite(values.reshape(-1), ref, first, f"{member.task}: {side}")
        return values

    def keep(self, desk: Desk, piece: Loaded, merged: Tensor) -> Tensor:
        """The merged piece, with what the base has where it is NaN or infinite. Overwrites the loaded
        piece."""
        if piece.hole is None:
            return merged
        where = piece.where
        original = desk.read(self.base[where.name], where.first, where.count, "base")
        return torch.where(piece.hole, original.to(merged.dtype), merged)

    def _filled(self, expert: Tensor, piece: Loaded, ref: TensorRef, member: Incoming, seen: Scan) -> Tensor:
        """The expert with the base's values where one of the two is not finite."""
        missing = torch.zeros(expert.numel(), dtype=torch.bool) if piece.hole is None else piece.hole
        if not seen.finite:
            if not self.allow_nonfinite:
                refuse_nonfinite(expert, ref, piece.where.first, member.task)
            missing = missing | torch.isfinite(expert).logical_not()
        if expert.dtype == piece.values.dtype:
            return torch.where(missing, piece.values, expert)
        return torch.where(missing, piece.values.double(), expert.double())
