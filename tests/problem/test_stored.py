"""Tasks in one file: what was written comes back, and damage is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from plait.errors import PlaitError, RefusedInput, VerificationError
from plait.problem.base import Examples, HeadSpec, Kind, Split
from plait.problem.content import make_examples
from plait.problem.heads import Linear, make_head
from plait.problem.network import module_network
from plait.problem.stored import Drawn, draw, head_of, read_stored, write_stored

TEXTS = ["a red sky", "", "Grün 🌱 <s>", "line\nbreak", "a red sky "]


@dataclass
class Made:
    """A task whose examples are at hand."""

    held: dict[Split, Examples]
    kind: Kind = "text-classification"
    head: HeadSpec = field(default_factory=lambda: HeadSpec("zero-shot", ("{}!", "a {}"), 3.5))
    classes: tuple[str, ...] = ("rot", "grün")
    name: str = "toy"

    def examples(self, split: Split) -> Examples:
        return self.held[split]


def stored(task: Any, file: Path, *splits: Split, samples: int | None = None, **more: Any) -> Any:
    drawn: dict[Split, Drawn] = {split: draw(task, split, samples, 0) for split in splits}
    return write_stored(file, task, drawn, **more)


def test_texts_come_back(tmp_path: Path) -> None:
    task = Made(
        {"calibration": make_examples(TEXTS, [0, 1, 1, 0, 1]), "validation": make_examples(["x"], [0])}
    )
    words = stored(task, tmp_path / "t", "calibration", "validation")
    found = read_stored(tmp_path / "t")
    assert (found.name, found.kind, found.classes, found.head) == (
        task.name,
        task.kind,
        task.classes,
        task.head,
    )
    assert found.examples("calibration").inputs == TEXTS
    labels = found.examples("calibration").labels
    assert labels is not None
    assert labels.tolist() == [0, 1, 1, 0, 1]
    assert found.examples("validation").inputs == ["x"]
    digest = task.held["calibration"].digest
    assert found.examples("calibration").digest == digest
    assert (
        words["splits"]["calibration"]
        == {"count": 5, "of": 5, "digest": digest}
        == found.splits["calibration"]
    )
    with pytest.raises(RefusedInput, match=r"no test examples are stored .*, only calibration, validation"):
        found.examples("test")


def test_texts_without_labels_come_back(tmp_path: Path) -> None:
    task = Made({"calibration": make_examples(TEXTS)}, "causal-lm", HeadSpec(), ())
    stored(task, tmp_path / "t", "calibration")
    found = read_stored(tmp_path / "t").examples("calibration")
    assert found.inputs == TEXTS
    assert found.labels is None
    assert found.digest == task.held["calibration"].digest


def test_images_come_back(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), dtype=np.uint8)
    task = Made({"calibration": make_examples(pixels, [0, 1, 1, 0])}, "image-classification")
    stored(task, tmp_path / "t", "calibration")
    found = read_stored(tmp_path / "t").examples("calibration")
    assert np.array_equal(found.inputs, pixels)
    assert found.digest == task.held["calibration"].digest
    assert torch.equal(load_file(tmp_path / "t")["calibration/images"], torch.from_numpy(pixels))


def test_a_sample_is_a_function_of_its_seed_and_keeps_the_order(tmp_path: Path) -> None:
    texts = [f"text {i}" for i in range(50)]
    task = Made({"calibration": make_examples(texts, [i % 2 for i in range(50)])})
    one, again, other = (draw(task, "calibration", 20, seed) for seed in (0, 0, 1))
    assert one.examples.inputs == again.examples.inputs != other.examples.inputs
    assert one.examples.inputs == sorted(one.examples.inputs, key=texts.index)
    assert (len(set(one.examples.inputs)), one.of) == (20, 50)
    assert one.examples.labels is not None
    assert one.examples.labels.tolist() == [texts.index(text) % 2 for text in one.examples.inputs]
    assert draw(task, "calibration", 50, 3).examples.digest == task.held["calibration"].digest
    assert draw(task, "calibration", None, 3).examples.digest == task.held["calibration"].digest


def test_equal_tasks_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        task = Made({"calibration": make_examples(list(TEXTS), [0, 1, 1, 0, 1])})
        stored(task, tmp_path / name, "calibration", samples=3)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.parametrize(
    ("inputs", "found"),
    [
        ([[1, 2], [3]], "a list of list"),
        (torch.zeros(2, 3), r"torch.float32 \(2, 3\)"),
        (np.zeros((2, 4, 4, 1), dtype=np.uint8), r"uint8 \(2, 4, 4, 1\)"),
        (np.zeros((2, 4, 4, 3), dtype=np.float32), r"float32 \(2, 4, 4, 3\)"),
    ],
    ids=["tokens", "tensor", "grey", "float"],
)
def test_other_inputs_are_refused(inputs: Any, found: str) -> None:
    task = Made({"calibration": Examples(inputs, torch.tensor([0, 1]), "x")})
    with pytest.raises(
        RefusedInput, match=f"toy: its calibration examples are {found}; a line can store texts"
    ):
        draw(task, "calibration", None, 0)


def test_a_fitted_head_is_stored_and_others_are_made_again(tmp_path: Path) -> None:
    network = module_network(
        torch.nn.Linear(2, 3),
        encode=lambda texts: [torch.tensor([float(len(t)), 1.0]) for t in texts],
        features=lambda module, batch: module(batch),
    )
    g = torch.Generator().manual_seed(0)
    weights = {"weight": torch.randn(3, 2, generator=g), "bias": torch.randn(3, generator=g)}
    examples = make_examples(TEXTS, [0, 1, 1, 0, 1])
    task = Made({"calibration": examples, "train": examples}, head=HeadSpec("linear"))
    made = make_head(task, network, weights)
    assert isinstance(made, Linear)
    stored(task, tmp_path / "t", "calibration", fitted=made)
    found = head_of(read_stored(tmp_path / "t"), network, weights)
    assert isinstance(found, Linear)
    assert torch.equal(found.weight, made.weight)
    assert torch.equal(found.bias, made.bias)
    shot = Made({"calibration": examples})
    stored(shot, tmp_path / "z", "calibration")
    batch = network.collate(network.encode(TEXTS))
    logits = [
        head_of(one, network, weights).logits(network, weights, batch)
        for one in (shot, read_stored(tmp_path / "z"))
    ]
    assert torch.equal(*logits)


def test_damage_is_told(tmp_path: Path) -> None:
    task = Made({"calibration": make_examples(TEXTS, [0, 1, 1, 0, 1])})
    file = tmp_path / "t"
    stored(task, file, "calibration")
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"a red sky", b"a bed sky"))
    with pytest.raises(VerificationError, match="calibration examples of toy do not give their digest"):
        read_stored(file).examples("calibration")
    file.write_bytes(whole.replace(b"plait task 1", b"plait task 9"))
    with pytest.raises(VerificationError, match="holds no task of format 'plait task 1'"):
        read_stored(file)
    file.write_bytes(whole[:-3])
    with pytest.raises(PlaitError):
        read_stored(file)
