"""Memory of losses and gradients: bounded by the micro-batch, and none of it kept."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from plait.problem.moments import each_second_moment, second_moments
from plait.problem.objective import Objective
from plait.problem.probes import drift, representations
from tests.problem.nets import Matrix, Texts, Transformer, draw, sentences

HEAD = Matrix(torch.linspace(-1, 1, 24, dtype=torch.float64).view(3, 8).sin())


class Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all storages that operations make and that something still holds; not those of `given`."""

    def __init__(self, given: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self.known = {tensor.data_ptr() for tensor in given}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (list, tuple)) else [made]:
            if isinstance(tensor, Tensor) and tensor.device.type == "cpu":
                self._take(tensor.untyped_storage())
        return made

    def _take(self, storage: torch.UntypedStorage) -> None:
        place, size = storage.data_ptr(), storage.nbytes()
        if place in self.known or not size:
            return
        self.known.add(place)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._drop, place, size)

    def _drop(self, place: int, size: int) -> None:
        self.known.discard(place)
        self.now -= size


def texts(n: int, micro: int, longest: int = 30) -> tuple[Objective, dict[str, Tensor]]:
    network = Texts(Transformer)
    objective = Objective(network, HEAD, sentences(n, longest=longest), batch=micro)
    return objective, draw(network, 2)


CALLS: dict[str, Callable[[Objective, dict[str, Tensor]], Any]] = {
    "loss": lambda o, w: o.loss(w),
    "gradient": lambda o, w: o.loss_and_gradient(w),
    "hvp": lambda o, w: o.hvp(w, w),
    "fisher by vmap": lambda o, w: o.fisher(w, how="vmap"),
    "fisher one by one": lambda o, w: o.fisher(w, how="loop"),
    "fisher, all labels": lambda o, w: o.fisher(w, how="loop", labels="model"),
    "drift": lambda o, w: drift(o, w, [w]),
    "moments": lambda o, w: second_moments(o, w),
}
every = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


def peak(call: Callable[..., Any], n: int, micro: int) -> int:
    objective, weights = texts(n, micro)
    objective.loss(weights)  # encodes
    gc.collect()
    live = Live([*weights.values(), HEAD.matrix])
    with live:
        call(objective, weights)
    return live.peak


def test_the_count_sees_graphs() -> None:
    """A chain of 50 products whose graph is held counts 50 tensors, one that is not counts two or three."""

    def chain(asking: bool) -> int:
        x = torch.ones(1000, requires_grad=asking)
        live = Live()
        with live:
            y = x
            for _ in range(50):
                y = (y * x).tanh()
        return live.peak // x.nbytes

    assert chain(True) >= 50
    assert chain(False) <= 4


@every
def test_memory_is_that_of_a_micro_batch(call: Callable[..., Any]) -> None:
    few, many = peak(call, 8, 4), peak(call, 80, 4)
    assert many <= 1.3 * few, (few, many)  # batches of other lengths, no more


@pytest.mark.parametrize("name", ["gradient", "hvp", "loss"])
def test_larger_micro_batches_take_more(name: str) -> None:
    """That the count above could fail: in one batch, the activations of ten times as many texts are held."""
    assert peak(CALLS[name], 80, 80) > 4 * peak(CALLS[name], 80, 4)


@every
def test_nothing_of_a_call_is_kept(call: Callable[..., Any]) -> None:
    objective, weights = texts(12, 4)
    call(objective, weights)
    gc.collect()
    gc.disable()  # what is let go must not wait for the collector
    try:
        live = Live([*weights.values(), HEAD.matrix])
        with live:
            for _ in range(3):
                call(objective, weights)
                assert live.now == 0
    finally:
        gc.enable()


def test_representations_hold_one_vector_for_each_example() -> None:
    objective, weights = texts(40, 4)
    live = Live([*weights.values(), HEAD.matrix])
    with live:
        found = representations(objective, weights)
    assert live.now == sum(tensor.nbytes for tensor in found.values()) == 2 * 40 * 8 * 8


def test_moments_one_layer_at_a_time_hold_one_matrix() -> None:
    objective, weights = texts(12, 1, longest=2)
    size = 16 * 16 * 8  # of the widest layer

    def largest(at_once: int | None) -> int:
        live = Live([*weights.values(), HEAD.matrix])
        with live:
            for moment in each_second_moment(objective, weights, at_once=at_once):
                del moment
        return live.peak

    assert largest(1) + 6 * size < largest(None)
