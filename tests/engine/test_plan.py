"""Cutting tensors into pieces and jobs."""

from __future__ import annotations

import os
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.engine import Settings
from plait.engine.plan import jobs, pieces
from plait.errors import UsageError
from plait.methods.base import Grain, Where
from plait.tensors import BLOCK


def tensor(*shape: int, name: str = "w") -> Where:
    count = 1
    for axis in shape:
        count *= axis
    return Where(name, shape, "F32", 0, count)


@given(
    st.lists(st.integers(0, 3 * BLOCK), min_size=0, max_size=1)
    | st.lists(st.integers(0, 500), min_size=2, max_size=3),
    st.sampled_from(["element", "row", "matrix"]),
    st.integers(1, 5),
)
def test_pieces_tile_the_tensor(shape: list[int], grain: Grain, blocks: int) -> None:
    whole = tensor(*shape)
    place = 0
    for piece in pieces(whole, grain, blocks * BLOCK):
        assert piece.first == place
        assert piece.count > 0
        if grain == "element":
            assert piece.first % BLOCK == 0
            assert piece.count <= blocks * BLOCK
        if grain == "row" and shape:
            assert piece.first % shape[-1] == 0
            assert piece.count % shape[-1] == 0
        place += piece.count
    assert place == whole.count


def test_long_rows_and_matrices_stay_whole() -> None:
    assert [p.count for p in pieces(tensor(2, 3 * BLOCK), "row", BLOCK)] == [3 * BLOCK, 3 * BLOCK]
    assert [p.count for p in pieces(tensor(2, 3 * BLOCK), "matrix", BLOCK)] == [6 * BLOCK]
    assert list(pieces(tensor(0, 4), "matrix", BLOCK)) == []
    assert [p.count for p in pieces(tensor(), "row", BLOCK)] == [1]


def test_jobs_gather_small_tensors_and_begin_with_large_matrices() -> None:
    def grain(shape: tuple[int, ...], name: str) -> Grain:
        return "matrix" if len(shape) == 2 else "element"

    tensors = [
        tensor(10, name="a"),
        tensor(3, 4, name="m"),
        tensor(20, 30, name="n"),
        tensor(2 * BLOCK + 1, name="b"),
        tensor(7, name="c"),
    ]
    plan = jobs(tensors, grain, BLOCK, batch=BLOCK)
    assert [[(p.name, p.first) for p in job.pieces] for job in plan] == [
        [("n", 0)],
        [("m", 0)],
        [("a", 0), ("b", 0)],
        [("b", BLOCK)],
        [("b", 2 * BLOCK), ("c", 0)],
    ]
    assert [job.index for job in plan] == list(range(5))
    assert pickle.loads(pickle.dumps(plan)) == plan


@pytest.mark.parametrize("bad", [{"workers": 0}, {"chunk": 1000}, {"chunk": 0}, {"chunk": BLOCK + 1}])
def test_settings_are_checked(bad: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=r"expected a multiple|at least 1"):
        Settings(**bad)  # type: ignore[arg-type]


def test_cores_are_counted_on_a_system_that_does_not_tell_which_are_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    for cores, workers in ((3, 3), (64, 8), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        assert Settings().workers == workers
