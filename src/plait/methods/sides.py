"""Side tensors: what a member brings beside its weights, checked before a tensor is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from plait.errors import RefusedInput, UsageError
from plait.methods.base import TensorMethod, Where

DTYPES = ("F32", "F64")


def check_sides(
    method: TensorMethod, owner: str, places: Iterable[Where], held: Mapping[str, tuple[str, Any]]
) -> None:
    """RefusedInput where a side is missing that the method needs of a tensor, or is of another shape or dtype;
    UsageError for one that it does not ask for.

    owner: the member, for messages. places: the tensors that are merged. held: "side/tensor" -> (dtype, shape).
    """
    asked = {
        f"{side}/{place.name}": tuple(shape)
        for place in places
        if place.count
        for side, shape in method.sides(place.shape, place.name, place.dtype).items()
    }
    for key, (dtype, shape) in held.items():
        if key not in asked:
            raise UsageError(f"{owner}: method {method.name} asks for no side {key}; leave it out")
        if tuple(shape) != asked[key] or dtype not in DTYPES:
            raise RefusedInput(
                f"{owner}: {key} is {dtype} {tuple(shape)}, expected F32 or F64 {asked[key]}; compute it again for "
                "this base"
            )
    missing = sorted(set(asked) - set(held)) if method.sides_needed else []
    if missing:
        side, name = missing[0].split("/", 1)
        raise RefusedInput(
            f"{owner}: {side} of tensor {name} is missing ({len(missing)} of {len(asked)} tensors lack it), which "
            f"{method.name} needs of every member; compute it from the member's data"
        )
