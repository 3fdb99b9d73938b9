"""NaN and infinity in the inputs of a merge in memory: refused, or replaced as the engine replaces them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from plait.errors import NonFinite
from plait.tensors import Tensor, torch


def _holed(tensors: Mapping[str, Tensor], names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
    """Those of the tensors that hold NaN or infinity."""
    return ((n, tensors[n]) for n in names if not bool(torch.isfinite(tensors[n]).all()))


def zeroed(base: Mapping[str, Tensor], names: Iterable[str]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The base with 0 where it is not finite, and the masks of these places: nothing is merged there."""
    holes = {name: ~torch.isfinite(tensor) for name, tensor in _holed(base, names)}
    return {**base, **{name: base[name].masked_fill(hole, 0.0) for name, hole in holes.items()}}, holes


def filled(
    expert: Mapping[str, Tensor],
    base: Mapping[str, Tensor],
    names: Iterable[str],
    holes: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """The expert with the values of the (finite) base where it is not finite, and in `holes`; of the expert's
    dtype where that is the base's, else in fp64."""
    out = dict(expert)
    wanted = dict(holes)
    for name, tensor in _holed(expert, names):
        missing = ~torch.isfinite(tensor)
        wanted[name] = missing | wanted[name] if name in wanted else missing
    for name, missing in wanted.items():
        ours, theirs = base[name], expert[name]
        if ours.dtype != theirs.dtype:
            ours, theirs = ours.double(), theirs.double()
        out[name] = torch.where(missing, ours, theirs)
    return out


def require_finite(owner: str, tensors: Mapping[str, Tensor], names: Iterable[str]) -> None:
    """NonFinite names the first of the tensors that holds NaN or infinity, and where."""
    for name in names:
        finite = torch.isfinite(tensors[name].view(-1))
        if not bool(finite.all()):
            at = int((~finite).nonzero()[0, 0])
            raise NonFinite(
                f"{owner}: tensor {name} holds {float(tensors[name].view(-1)[at])} at flat index {at}, "
                "expected finite numbers; repair the checkpoint, or allow it with allow_nonfinite"
            )
