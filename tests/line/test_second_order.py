"""Lines of the method that estimates second moments from task vectors: members leave by subtraction of matrices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from plait import Line, merge_files, merge_state_dicts
from plait.errors import RefusedInput, UsageError
from tests.line.models import base_tensors, expert_tensors, write_file


@pytest.fixture
def world(tmp_path: Path) -> Path:
    base = base_tensors()
    write_file(tmp_path / "base.safetensors", base)
    for number, task in enumerate("abc"):
        write_file(tmp_path / f"{task}.safetensors", expert_tensors(base, number))
    return tmp_path


def line(world: Path, name: str, tasks: str, **options: Any) -> Line:
    made = Line.create(
        world / name, world / "base.safetensors", "covariance", retention="statistics", **options
    )
    for task in tasks:
        made.merge(world / f"{task}.safetensors", task)
    return made


@pytest.mark.parametrize("side", ["in", "smaller"])
def test_statistics_alone_give_the_bytes_of_never_having_merged(world: Path, side: str) -> None:
    here, never = line(world, "here", "abc", side=side), line(world, "never", "ca", side=side)
    with pytest.raises(RefusedInput, match="hand in that very checkpoint"):
        here.unmerge("b", checkpoint=world / "c.safetensors")
    here.unmerge("b", checkpoint=world / "b.safetensors")
    assert here.digest == never.digest
    assert here._head()["state"] == never._head()["state"]
    assert all(m.object is None for m in here.members)
    here.unmerge("a", checkpoint=world / "a.safetensors")
    here.unmerge("c", checkpoint=world / "c.safetensors")
    assert here.digest == Line.create(world / "new", world / "base.safetensors", "covariance").digest


def test_files_memory_and_line_agree(world: Path) -> None:
    base = base_tensors()
    experts = [expert_tensors(base, n) for n in range(3)]
    merged = merge_state_dicts(base, experts, "covariance", ridge=0.1)
    merge_files(
        world / "base.safetensors",
        [world / f"{task}.safetensors" for task in "abc"],
        world / "out.safetensors",
        "covariance",
        ridge=0.1,
    )
    found = load_file(world / "out.safetensors")
    assert all(torch.equal(found[n], merged[n]) for n in base)
    average = merge_state_dicts(base, experts, "average")
    assert torch.equal(merged["embeddings.weight"], average["embeddings.weight"])
    assert not torch.equal(merged["layer.1.dense.weight"], average["layer.1.dense.weight"])


def test_moments_that_nobody_has_are_asked_for(world: Path) -> None:
    files = [world / f"{task}.safetensors" for task in "ab"]
    with pytest.raises(
        UsageError, match=r"regmean takes second moments .* it would be the average; make a line"
    ):
        merge_files(world / "base.safetensors", files, world / "out", "regmean")
    assert not (world / "out").exists()
    base = base_tensors()
    experts = [expert_tensors(base, n) for n in range(2)]
    none: list[dict[str, torch.Tensor]] = [{}, {}]
    for sides in (None, none):
        with pytest.raises(UsageError, match=r"regmean takes second moments .* hand them in as `sides`"):
            merge_state_dicts(base, experts, "regmean", sides=sides)
    average = merge_state_dicts(base, experts, "average")
    found = merge_state_dicts(base, experts, "regmean", widest=0)  # it takes none then
    assert all(torch.equal(found[n], average[n]) for n in base)
    flat = {
        "bias": torch.zeros(3),
        "places": torch.zeros(2, 3, dtype=torch.int64),
    }  # no matrix that is merged
    assert torch.equal(merge_state_dicts(flat, [flat], "regmean")["bias"], flat["bias"])
