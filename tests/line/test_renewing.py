"""Exports with BatchNorm statistics computed anew: what is written, what is told of it, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from plait import Line
from plait.cli.schema import SCHEMA
from plait.errors import RefusedInput, UsageError
from plait.problem.base import Network
from plait.problem.network import module_network
from tests.cli.conftest import Plait
from tests.cli.conftest import plait as plait
from tests.line.models import differing, read, write_folder

NETWORK = "python:tests.line.test_renewing:small"
PLAIN = "python:tests.line.test_renewing:without"
STATISTICS = ["1.running_mean", "1.running_var", "4.running_mean", "4.running_var"]


def module(norms: bool = True) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8) if norms else nn.Identity(),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, bias=False),
        nn.BatchNorm2d(8) if norms else nn.Identity(),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )


def small(*, folder: Any, device: Any, dtype: Any, norms: bool = True) -> Network:
    return module_network(
        module(norms),
        encode=lambda images: list(encode(images)),
        features=lambda m, batch: m[:-1](batch),
        device=device,
        dtype=dtype,
    )


def without(*, folder: Any, device: Any, dtype: Any) -> Network:
    return small(folder=folder, device=device, dtype=dtype, norms=False)


def encode(images: Any) -> Tensor:
    return torch.tensor(np.asarray(images)).permute(0, 3, 1, 2).float() / 255


def pixels(task: str, number: int) -> Any:
    """The tasks differ in brightness and contrast."""
    rng = np.random.default_rng(ord(task))
    low, high = {"a": (0, 120), "b": (60, 256), "z": (0, 256)}[task]
    return rng.integers(low, high, (number, 9, 9, 3)).astype(np.uint8)


def trained(weights: dict[str, Tensor], images: Tensor) -> dict[str, Tensor]:
    """The weights with the statistics that torch finds, in training mode, for one batch of these images: the biased
    variance. The second layer sees what the first one normalised by the same batch."""
    model = module()
    model.load_state_dict(weights)
    norms = [part for part in model if isinstance(part, nn.BatchNorm2d)]
    for part in norms:
        part.momentum = 1.0
    with torch.no_grad():
        model.train()(images)
        for part, side in zip(norms, (7, 5), strict=True):
            places = len(images) * side**2
            assert part.running_var is not None
            part.running_var.mul_((places - 1) / places)
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def outputs(weights: dict[str, Tensor], images: Tensor) -> Tensor:
    model = module()
    model.load_state_dict(weights)
    with torch.no_grad():
        made: Tensor = model.eval()(images)
    return made


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Experts to the two sides of the base: their mean is the base's convolutions, with statistics of neither."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(5)
    start = {n: t.clone() for n, t in module().state_dict().items()}
    start["8.weight"] = start["8.weight"] * 8
    both = encode(np.concatenate([pixels("a", 24), pixels("b", 24)]))
    write_folder(tmp_path / "base", trained(start, both))
    apart = {
        n: 0.8 * t.norm() / t.numel() ** 0.5 * torch.randn_like(t) for n, t in start.items() if t.dim() == 4
    }
    for task, sign, count in (("a", 1, 17), ("b", -1, 5)):
        moved = {n: t + sign * apart[n] if n in apart else t for n, t in start.items()}
        own = trained(moved, encode(pixels(task, 24)))
        for name in ("1.num_batches_tracked", "4.num_batches_tracked"):
            own[name] = torch.tensor(count)
        write_folder(tmp_path / task, own)
    tasks: dict[str, Any] = {}
    for task in "abz":
        arrays: dict[str, Any] = {f"x_{split}": pixels(task, 24)[rows] for split, rows in SPLITS.items()}
        arrays |= {f"y_{split}": np.arange(24)[rows] % 3 for split, rows in SPLITS.items()}
        np.savez(tmp_path / f"{task}.npz", **arrays)
        tasks[task] = {
            "kind": "image-classification",
            "data": f"{task}.npz",
            "classes": ["x", "y", "z"],
            "head": "model",
            "splits": {split: {} for split in SPLITS},
        }
    (tmp_path / "tasks.yaml").write_text(json.dumps({"tasks": tasks}))
    return tmp_path


SPLITS = {"calibration": slice(0, 20), "test": slice(20, 24)}


def line_of(world: Path, order: str = "ab", name: str = "line", **words: Any) -> Line:
    line = Line.create(world / name, world / "base", **words)
    for task in order:
        line.merge(world / task)
    return line


def test_counts_of_batches_stay_the_base_s(world: Path) -> None:
    line = line_of(world, "a")
    told = line.merge(world / "b")
    assert told["accounting"]["buffer"] == 2
    (note,) = [note for note in told["notes"] if "num_batches_tracked" in note]
    assert "2 tensors differ in the expert; the base's stay" in note
    assert read(line.model)["1.num_batches_tracked"] == read(world / "base")["1.num_batches_tracked"] == 1
    line.unmerge("b")
    assert differing(read(line.model), read(line_of(world, "a", "other").model)) == []


def test_the_copy_has_the_statistics_of_its_own_activations(world: Path) -> None:
    line = line_of(world)
    before = read(line.model)
    done = line.export(world / "out", batchnorm=True, tasks=world / "tasks.yaml", network=NETWORK)
    made = read(world / "out")
    assert sorted(differing(made, before)) == done["batchnorm"]["tensors"] == STATISTICS
    assert differing(read(line.model), before) == []
    images = encode(np.concatenate([pixels("a", 24)[:20], pixels("b", 24)[:20]]))
    wanted = trained(before, images)
    for name in STATISTICS:  # both run in fp32 and differ by the order of their sums
        torch.testing.assert_close(made[name], wanted[name], rtol=1e-4, atol=1e-5)
    # the base has these convolutions, and statistics of these images: it says what is right
    right = outputs(read(world / "base"), images).argmax(1)

    def loss(weights: dict[str, Tensor]) -> float:
        return float(nn.functional.cross_entropy(outputs(weights, images), right))

    assert loss(read(world / "base")) < 0.9
    assert loss(made) < loss(before) / 2
    assert abs(loss(made) - loss(read(world / "base"))) < 0.05
    assert line.verify()["problems"] == []


def test_the_receipt_and_the_card_say_so(world: Path) -> None:
    line = line_of(world)
    how: dict[str, Any] = {"batchnorm": True, "tasks": world / "tasks.yaml", "network": NETWORK}
    done = line.export(world / "out", samples=7, **how)
    receipt = line.log()[-1]["receipt"]
    assert receipt["batchnorm"] == done["batchnorm"]
    assert receipt["version"] == done["version"] == line.digest
    used = done["batchnorm"]["tasks"]
    assert {task: (one["count"], one["of"]) for task, one in used.items()} == {"a": (7, 20), "b": (7, 20)}
    assert len({one["digest"] for one in used.values()}) == 2
    assert done["batchnorm"]["split"] == "calibration"
    assert done["batchnorm"]["software"]["device"] == "cpu"
    card = (world / "out" / "README.md").read_text()
    assert f"- this model: {done['batchnorm']['digest']}" in card
    assert "running statistics of 2 BatchNorm layers were computed anew from unlabelled calibration" in card
    assert f"a \\(7 of 20 examples, sha256 {used['a']['digest']}\\)" in card
    assert f"merged model of digest {line.digest}" in card
    again = line.export(world / "again", samples=7, **how)
    assert again["batchnorm"] == done["batchnorm"]
    assert differing(read(world / "again"), read(world / "out")) == []
    assert line.export(world / "plain")["batchnorm"] is None
    assert "batchnorm" not in line.log()[-1]["receipt"]
    assert "BatchNorm" not in (world / "plain" / "README.md").read_text()


def test_only_tasks_of_members_are_looked_at(world: Path) -> None:
    line = line_of(world, keep=4)
    line.unmerge("a")
    how: dict[str, Any] = {"batchnorm": True, "tasks": world / "tasks.yaml", "network": NETWORK}
    done = line.export(world / "out", **how)
    assert list(done["batchnorm"]["tasks"]) == ["b"]
    line_of(world, "b", "other").export(world / "never", **how)
    assert differing(read(world / "out"), read(world / "never")) == []
    with pytest.raises(UsageError, match=r"is not the current one, .* leave --version out"):
        line.export(world / "old", version="1", **how)
    assert not (world / "old").exists()
    line.unmerge("b")
    with pytest.raises(RefusedInput, match="the line has no members: its model is the base"):
        line.export(world / "none", **how)


def test_heads_of_a_task_s_own_and_16_bits(world: Path) -> None:
    """Each task's network has its private head; statistics are written in the dtype of the file."""
    for name in ("base", "a", "b"):
        held = read(world / name)
        write_folder(world / name, {n: t.bfloat16() if t.is_floating_point() else t for n, t in held.items()})
    line = line_of(world, private="8.*")
    how: dict[str, Any] = {"batchnorm": True, "tasks": world / "tasks.yaml", "network": NETWORK}
    line.export(world / "out", task="b", **how)
    made, before = read(world / "out"), read(line.model)
    assert {made[name].dtype for name in STATISTICS} == {torch.bfloat16}
    assert torch.equal(made["8.weight"], read(world / "b")["8.weight"])
    whole = {n: t.float() if t.is_floating_point() else t for n, t in before.items()}
    wanted = trained(whole, encode(np.concatenate([pixels("a", 24)[:20], pixels("b", 24)[:20]])))
    for name in STATISTICS:  # bf16 has 8 bits, and the second layer runs on the first one's as rounded
        torch.testing.assert_close(made[name].float(), wanted[name], rtol=2**-6, atol=2**-7)


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        ({"tasks": None}, UsageError, "hand in a tasks.yaml with --tasks FILE"),
        (
            {"batchnorm": False, "samples": 3},
            UsageError,
            "tasks, samples, network were given, .* add --batchnorm",
        ),
        ({"samples": 0}, UsageError, "samples is 0, expected a whole number of at least 1"),
        ({"device": "tpu"}, UsageError, "device is tpu, expected cpu or cuda"),
        ({"network": PLAIN}, RefusedInput, "a: the network runs no BatchNorm layer"),
        ({"network": None}, RefusedInput, "toy"),
        ({"tasks": {"b": None}}, RefusedInput, "the tasks that were handed in lack a; there are b:"),
    ],
)
def test_what_is_refused(world: Path, words: dict[str, Any], error: type[Exception], message: str) -> None:
    line = line_of(world)
    how = {"batchnorm": True, "tasks": world / "tasks.yaml", "network": NETWORK, **words}
    with pytest.raises(error, match=message) as caught:
        line.export(world / "out", **how)
    assert "\n" not in str(caught.value)
    assert not (world / "out").exists()
    assert line.log()[-1]["verb"] == "merge"
    assert [p.name for p in world.iterdir() if p.name.startswith(".out")] == []


def test_on_the_command_line(world: Path, plait: Plait) -> None:
    line_of(world)
    words = ("export", "line", "out", "--batchnorm", "--tasks", "tasks.yaml", "--network", NETWORK)
    done = plait(*words, "--json")
    assert (done.code, done.err) == (0, "")
    assert list(done.json) == ["command", *SCHEMA["export"]]
    assert done.json["batchnorm"]["tensors"] == STATISTICS
    told = plait(*words, "--force", "--samples", "5")
    assert "2 layers computed anew from calibration examples: 5 of a, 5 of b" in told.out
    refused = plait("export", "line", "more", "--batchnorm")
    assert refused.code == 2
    assert "tasks.yaml with --tasks FILE" in refused.err
