"""The merged chunk: base + shift, rounded once."""

from __future__ import annotations

from plait.tensors import Tensor, torch
from plait.tensors.real import Exact, Piece, fits, negative_zero
from plait.tensors.rounding import normal, round_once, scan, two_sum


def settle(base: Tensor, shift: Exact | Tensor, dtype: torch.dtype) -> Tensor:
    """base + shift rounded once to `dtype`, to nearest with ties to even. A Tensor `shift` holds merged values in
    fp64, to which the base is not added.

    A result whose exact value is 0 is -0.0 where the base is -0.0 and z is 0, or the base is not -0.0 and z > 0.
    """
    if not isinstance(shift, Exact):
        return _own(round_once(shift.to(torch.float64), dtype), shift)
    total = _plain(base, shift)
    if total is not None:
        out = _own(round_once(total, dtype), total)
    else:
        total, out = _wide(base, shift, dtype)
        out = _own(out, total)
    return _sign_zeros(base, shift, total, out)


def _own(out: Tensor, source: Tensor) -> Tensor:
    """`out`, as a copy where it is `source` itself."""
    return out.clone() if out.data_ptr() == source.data_ptr() else out


def _plain(base: Tensor, shift: Exact) -> Tensor | None:
    """base + shift in fp64 where that is exact for certain."""
    pieces = [p for p in shift.pieces if p.tensor is not base]
    coef = 1.0 + sum(p.coef for p in shift.pieces if p.tensor is base)
    if shift.tail is not None or (not shift.pieces and not _exact(shift)):
        return None
    if not shift.pieces:
        pieces = [Piece(shift.main, 1.0, *shift.claims())]
    if coef != 0.0:
        seen = scan(base)
        low, bound = shift.claims()
        if not (seen.finite and fits(min(low, seen.low), bound + seen.bound)):
            return None
        pieces.append(Piece(base, coef, min(low, seen.low), bound + seen.bound))
    if not pieces:
        return torch.zeros(len(base), dtype=torch.float64)
    return Exact(pieces=tuple(pieces)).main


def _exact(shift: Exact) -> bool:
    """Whether the range of the shift's values is known without looking at them."""
    return shift._low is not None


def _wide(base: Tensor, shift: Exact, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """base + shift as rounded to fp64, and as rounded once to `dtype`, for any ranges."""
    double, main, tail = base.to(torch.float64), shift.main, shift.tail
    total = double + main
    if tail is None:
        return total, round_once(total, dtype, lambda i: two_sum(double[i], main[i])[1])
    index = tail.index
    parts = normal([double[index], main[index], *tail.terms])
    total[index] = parts[0]
    lacking = two_sum(double, main)[1]
    lacking[index] = parts[1] if len(parts) > 1 else 0.0
    return total, round_once(total, dtype, lambda i: lacking[i])


def _sign_zeros(base: Tensor, shift: Exact, total: Tensor, out: Tensor) -> Tensor:
    """Give every exact 0 of `total` its sign in `out`, in place."""
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[out.element_size()]
    bits = out.view(whole)
    magnitudes = (bits & torch.iinfo(whole).max).numpy()
    if not len(magnitudes) or magnitudes.min() > 0:
        return out
    index = (magnitudes == 0).nonzero()[0]
    index = index[total.numpy()[index] == 0]
    minus = negative_zero(base[torch.from_numpy(index)]).numpy()
    if shift.z is not None:
        z = shift.z.numpy()[index]
        minus = (minus & (z == 0)) | (~minus & (z > 0))
    bits.numpy()[index] = minus * bits.numpy().dtype.type(torch.iinfo(whole).min)
    return out
