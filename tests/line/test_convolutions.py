"""Kernels of convolutions as matrices, where a member's inputs are looked at: a convolution that sees all of its
input at one place is a linear layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from plait import Line
from plait.problem.base import Network
from plait.problem.network import module_network
from tests.evaluation.world import (
    LETTERS,
    NETWORK,
    STORED,
    WIDTH,
    base_weights,
    count,
    expert_weights,
    write_models,
    write_tasks,
)
from tests.line.calibrated import SPLITS
from tests.line.models import write_folder

KERNEL = (WIDTH, 2, 5, 1)


class Kernel(torch.nn.Module):
    """What `world.Letters` computes, as a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = torch.nn.Conv2d(2, WIDTH, (5, 1))

    def forward(self, counts: Tensor) -> Tensor:
        return torch.tanh(self.mix(counts.view(len(counts), 2, 5, 1)).flatten(1))


def kernel(folder: str | None, device: Any, dtype: Any) -> Network:
    return module_network(
        Kernel(), encode=count, features=lambda module, batch: module(batch), device=device, dtype=dtype
    )


def as_kernels(model: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**model, "mix.weight": model["mix.weight"].view(KERNEL)}


def merged(world: Path, name: str, network: str, folders: str, **options: Any) -> dict[str, Tensor]:
    line = Line.create(
        world / name, world / f"{folders}base", "regmean", network=network, private="classifier.*", **options
    )
    for task in "ab":
        line.merge(world / f"{folders}{task}", task, tasks=world / "tasks.yaml")
    if options.get("convolutions"):
        side = load_file(line.store.objects.path(line.members[0].side or ""))
        assert side["moment/mix.weight"].shape == (len(LETTERS), len(LETTERS))
    line.export(world / f"{name}.out")
    return load_file(world / f"{name}.out" / "model.safetensors")


@pytest.mark.parametrize("convolutions", [True, False])
def test_regmean_of_a_kernel_is_that_of_its_matrix(tmp_path: Path, convolutions: bool) -> None:
    write_models(tmp_path, "ab")
    write_folder(tmp_path / "as_base", as_kernels(base_weights()))
    for i, name in enumerate("ab"):
        write_folder(tmp_path / f"as_{name}", as_kernels(expert_weights(i)))
    write_tasks(tmp_path, "ab", STORED, **{n: {"splits": SPLITS} for n in "ab"})
    want = merged(tmp_path, "linear", NETWORK, "")
    got = merged(
        tmp_path, "kernel", "python:tests.line.test_convolutions:kernel", "as_", convolutions=convolutions
    )
    assert got["mix.weight"].shape == KERNEL
    if convolutions:
        assert torch.equal(got["mix.weight"].flatten(1), want["mix.weight"])
    else:
        average = (expert_weights(0)["mix.weight"] + expert_weights(1)["mix.weight"]) / 2
        assert torch.allclose(got["mix.weight"].flatten(1), average, atol=1e-6)
        assert (got["mix.weight"].flatten(1) - want["mix.weight"]).abs().max() > 1e-3
