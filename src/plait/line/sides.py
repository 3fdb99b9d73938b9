"""Statistics of a member's data that additive methods take in: second moments, or the diagonal of the Fisher
information, both under the member's own weights. Computed once, when the member arrives.

They lie in a safetensors file, one tensor for each tensor of the model that has one:

    moment/TENSOR    F32 (in, in): the mean of x x^T over all tokens, for a weight (out, in) of a linear layer;
                     over all patches, for a kernel of a convolution with in = channels * height * width
    fisher/TENSOR    F32, of the tensor's own shape: the mean over examples of squared gradients of log p(y|x)

Sums are made in fp64 and rounded once, to fp32: what the rounding moves is far below what another sample of examples
would, and the file is half as large. What is exact is what is done with these numbers afterwards: a method that adds
them up takes the very same numbers away again. Weights that lie as (in, out), as in GPT-2, have no moment here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from plait.checkpoint.format import FileWriter
from plait.checkpoint.header import read_header
from plait.line.build import Setting, mergeable
from plait.line.data import Need
from plait.line.member import Member
from plait.line.problem import networks_of, objective_of
from plait.methods.base import TensorMethod
from plait.tensors import Tensor, torch
from plait.types import TensorRef
from plait.words import plural

if TYPE_CHECKING:
    from plait.problem.base import Task
    from plait.problem.objective import Objective

FORMAT = "plait side 1"
ROOM = 1 << 30
"""Bytes of second moments that are in memory at a time; more than that take more passes over the examples."""


def write_side(
    setting: Setting,
    need: Need,
    member: Member,
    task: Task,
    refs: Mapping[str, TensorRef],
    private: Mapping[str, TensorRef],
    file: Path,
) -> tuple[str, ...]:
    """Compute what `need.wants` says for a member and write it. Returns notes.

    task: with the examples, as stored. refs: the member's changed tensors; private: its own ones. What the method's
    `sides` does not ask for is left out.
    """
    kind = _KEYS[need.wants]
    asked = _asked(setting, kind)
    networks = networks_of(setting)
    base = setting.base
    every = {name: refs.get(base.aliases.get(name, name), ref) for name, ref in base.tensors.items()}
    split = need.splits[0]
    with setting.compute.running():
        objective = objective_of(setting, networks, member, task, split, private=private, head=need.head)
        weights = networks.load({name: every[name] for name in mergeable(base, setting.private)})
        if need.wants == "moments":
            return _write(file, kind, _moments(objective, weights, asked))
        return _write(file, kind, iter(objective.fisher(weights, sorted(asked)).items()))


_KEYS = {"moments": "moment", "fisher": "fisher"}


def _asked(setting: Setting, kind: str) -> dict[str, tuple[int, ...]]:
    """The merged tensors for which the method asks for statistics, with their shapes."""
    method = setting.method
    if not isinstance(method, TensorMethod):
        raise TypeError(f"{method.name} sees whole models; it takes no statistics of tensors")
    found = {}
    for name, ref in mergeable(setting.base, setting.private).items():
        sides = method.sides(ref.shape, name, ref.dtype) if ref.numel else {}
        if kind in sides:
            found[name] = tuple(sides[kind])
    return found


TURNED, GROUPED = "stored as (in, out)", "whose channels form groups"
"""Weights that have no second moments, as their note says."""


def _moments(
    objective: Objective, weights: Mapping[str, Tensor], asked: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, Tensor | str]]:
    """Weight name -> mean of x x^T, or why there is none."""
    from plait.problem.moments import each_second_moment

    kernels = any(len(weights[name].shape) == 4 for name in asked)
    widest = max((prod(weights[name].shape[1:]) for name in asked), default=1)
    at_once = max(1, ROOM // (8 * widest**2))
    for moment in each_second_moment(
        objective, weights, asked, convolutions=kernels, at_once=at_once, strict=False
    ):
        if moment.inputs_first:
            yield moment.name, TURNED
        elif moment.matrix.dim() == 3:
            yield moment.name, GROUPED
        elif asked[moment.name] == tuple(moment.matrix.shape):
            yield moment.name, moment.matrix / moment.count


def _write(file: Path, kind: str, found: Iterator[tuple[str, Tensor | str]]) -> tuple[str, ...]:
    """Write tensors in the order of their names. They come one after the other, and are laid down beside `file` until
    all names are known: the header comes first. Returns notes on those that there are none of."""
    lacking: Counter[str] = Counter()
    places: dict[str, tuple[tuple[int, ...], int]] = {}
    spill = file.with_name(f"{file.name}.spill")
    with spill.open("wb") as handle:
        for name, tensor in found:
            if isinstance(tensor, str):
                lacking[tensor] += 1
                continue
            places[name] = (tuple(tensor.shape), handle.tell())
            handle.write(_bytes(tensor))
    entries = [(f"{kind}/{name}", "F32", shape) for name, (shape, _) in sorted(places.items())]
    with FileWriter(file, entries, {"format": FORMAT}) as writer, spill.open("rb") as handle:
        for name, (_, place) in sorted(places.items()):
            handle.seek(place)
            writer.write(f"{kind}/{name}", 0, handle.read(writer.places[f"{kind}/{name}"].nbytes))
    spill.unlink()
    return tuple(
        f"averaged, for want of second moments: {plural(count, 'weight')} {which}"
        for which, count in lacking.items()
    )


def _bytes(tensor: Tensor) -> bytes:
    data: bytes = tensor.detach().to("cpu", torch.float32).contiguous().numpy().tobytes()
    return data


def side_refs(file: Path) -> dict[str, TensorRef]:
    """The tensors of such a file, by `moment/TENSOR` or `fisher/TENSOR`."""
    return read_header(file).tensors
