"""One merge of files, without a line: what it counts, and whom its refusals name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from plait import Line, merge_files, merge_state_dicts
from plait.errors import NonFinite, RefusedInput, UsageError
from tests.line.models import base_tensors, expert_tensors, write_folder


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A base and three experts; b has three elements that are not finite, in two tensors and in its head."""
    base = base_tensors()
    write_folder(tmp_path / "base", base)
    for i, name in enumerate("abc"):
        expert = {**expert_tensors(base, i), "classifier.weight": torch.zeros(3, 12)}
        if name == "b":
            expert["embeddings.weight"][1, 2] = float("nan")
            expert["layer.1.dense.weight"][3, :2] = float("inf")
            expert["classifier.weight"][0, 0] = float("nan")  # private: it is not merged
        write_folder(tmp_path / name, expert)
    return tmp_path


def merge(world: Path, tasks: str, method: str = "average", **options: Any) -> dict[str, Any]:
    experts = [world / task for task in tasks]
    return merge_files(world / "base", experts, world / "out", method, private="classifier.*", **options)


def test_a_refusal_names_the_member_and_not_its_number(world: Path) -> None:
    with pytest.raises(NonFinite, match=r"^b: embeddings\.weight\[1, 2\] is nan"):
        merge(world, "abc")
    with pytest.raises(NonFinite, match=r"^bee: embeddings"):
        merge(world, "abc", names=["ay", "bee", "sea"])
    with pytest.raises(NonFinite, match=r"^expert 1 \(b\): embeddings"):
        merge(world, "abb")
    with pytest.raises(UsageError, match="2 names were given for 3 experts"):
        merge(world, "abc", names=["a", "b"])
    assert not (world / "out").exists()


def test_elements_that_are_replaced_are_counted(world: Path) -> None:
    done = merge(world, "abc", allow_nonfinite=True)
    assert [row["nonfinite"] for row in done["members"]] == [0, 3, 0]
    assert done["accounting"] == {"merged": 6, "private": 1, "buffer": 1, "tied": 0, "nonfinite": 3}
    clean = merge_files(world / "base", [world / "a"], world / "one", private=["classifier.*"])
    assert clean["accounting"]["nonfinite"] == 0


@pytest.mark.parametrize("chunk", [None, 1 << 16])
def test_a_sum_that_is_too_large_is_refused_by_name(tmp_path: Path, chunk: int | None) -> None:
    base = base_tensors()
    huge = expert_tensors(base, 1)
    huge["layer.1.dense.weight"][2, 3] = 1.5e30
    write_folder(tmp_path / "base", base)
    write_folder(tmp_path / "a", expert_tensors(base, 0))
    write_folder(tmp_path / "huge", huge)
    words = r"layer\.1\.dense\.weight: an element of a sum of task vectors reaches 1\.5e\+30"
    places = tmp_path / "base", [tmp_path / "a", tmp_path / "huge"], tmp_path / "out"
    with pytest.raises(RefusedInput, match=rf"^huge: {words}"):
        merge_files(*places, chunk=chunk)
    with pytest.raises(RefusedInput, match=rf"^expert 0: {words}"):
        merge_state_dicts(base, [huge, expert_tensors(base, 0)])
    line = Line.create(tmp_path / "line", tmp_path / "base")
    with pytest.raises(RefusedInput, match=rf"^giant: {words}"):
        line.merge(tmp_path / "huge", "giant", allow_distant=True)


def test_a_sum_that_grew_too_large_is_refused_by_its_tensor(tmp_path: Path) -> None:
    """Multiples of a large power of two are only found to be too large when the state is written."""
    base = {"w": torch.zeros(4, 4)}
    write_folder(tmp_path / "base", base)
    write_folder(tmp_path / "a", {"w": torch.full((4, 4), 2.0**60)})
    line = Line.create(tmp_path / "line", tmp_path / "base")
    with pytest.raises(RefusedInput, match=r"w: an element of a sum of task vectors reaches 1\.15e\+18"):
        line.merge(tmp_path / "a", allow_distant=True)
