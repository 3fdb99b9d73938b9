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
from plait.errors import RefusedInput
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


class Grouped(torch.nn.Module):
    """Two groups of channels, and a layer whose weight is not what it multiplies with."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = torch.nn.Conv2d(4, WIDTH, (2, 1), groups=2)
        self.odd = Doubled(WIDTH, WIDTH, 1)

    def forward(self, counts: Tensor) -> Tensor:
        found: Tensor = self.odd(self.mix(counts[:, :8].view(-1, 4, 2, 1))).flatten(1)
        return found


class Doubled(torch.nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def grouped(folder: str | None, device: Any, dtype: Any) -> Network:
    return module_network(
        Grouped(), encode=count, features=lambda module, batch: module(batch), device=device, dtype=dtype
    )


def test_layers_without_moments_are_told_and_can_be_left_out(tmp_path: Path) -> None:
    torch.manual_seed(0)
    base = Grouped().state_dict()
    write_folder(tmp_path / "base", base)
    moved = {name: tensor + 0.1 * torch.randn(tensor.shape) for name, tensor in base.items()}
    write_folder(tmp_path / "a", {**moved, "classifier.weight": torch.randn(3, WIDTH)})
    write_tasks(tmp_path, "a", STORED, a={"splits": SPLITS})
    how: dict[str, Any] = {
        "network": "python:tests.line.test_convolutions:grouped",
        "private": "classifier.*",
    }
    line = Line.create(tmp_path / "line", tmp_path / "base", "regmean", convolutions=True, **how)
    with pytest.raises(
        RefusedInput, match=r"odd\.weight \(Doubled\) does not put out .* option `tables` of a line"
    ):
        line.merge(tmp_path / "a", "a", tasks=tmp_path / "tasks.yaml")
    line = Line.create(
        tmp_path / "left", tmp_path / "base", "regmean", convolutions=True, tables="^odd", **how
    )
    told = line.merge(tmp_path / "a", "a", tasks=tmp_path / "tasks.yaml")
    assert "averaged, for want of second moments: 1 weight whose channels form groups" in told["notes"]


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
