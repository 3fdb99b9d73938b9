"""Fine-tuning: it learns, it repeats, and it touches only what has a gradient."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from plait.demo.minilm import WEIGHTS, Encoder, load
from plait.demo.tasks import Task
from plait.demo.training import fine_tune, score_folder, score_scale
from plait.training.recipe import Recipe

PAIRS = (("cat", 0), ("carrot", 1), ("dog", 0), ("onion", 1), ("horse", 0), ("leek", 1))
SWAPPED = Task("swapped", "made up", ("plants", "animals"), PAIRS, PAIRS, PAIRS)
"""Labels that are wrong under the class names, so that only training can get them right."""


@pytest.fixture(scope="module")
def expert(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("expert") / "one"
    fine_tune(base, SWAPPED, Recipe(epochs=8, rate=2e-4, batch=3), 0, out)
    return out


def test_it_learns(base: Path, expert: Path) -> None:
    assert score_folder(base, base, [SWAPPED])[0].right == 0
    assert score_folder(base, expert, [SWAPPED])[0].right == len(PAIRS)


def test_the_same_seed_gives_the_same_bytes(base: Path, expert: Path, tmp_path: Path) -> None:
    for seed, same in ((0, True), (1, False)):
        fine_tune(base, SWAPPED, Recipe(epochs=8, rate=2e-4, batch=3), seed, tmp_path / str(seed))
        found = (tmp_path / str(seed) / WEIGHTS).read_bytes() == (expert / WEIGHTS).read_bytes()
        assert found is same


def test_only_words_that_occur_are_moved(base: Path, expert: Path) -> None:
    name = "embeddings.word_embeddings.weight"
    before, after = load(base), load(expert)
    moved = (before[name] != after[name]).any(dim=1).nonzero().flatten().tolist()
    tokens = Encoder.of(base).tokens([text for text, _ in PAIRS])
    assert moved == sorted({t for text in tokens for t in text})
    unused = [n for n in before if torch.equal(before[n], after[n])]
    assert all(n.startswith("pooler.") for n in unused)


def test_scale_zero_is_the_base_and_scale_one_the_expert(base: Path, expert: Path) -> None:
    assert score_scale(base, [expert], 0.0, [SWAPPED])[0].right == 0
    assert score_scale(base, [expert], 1.0, [SWAPPED])[0].right == len(PAIRS)
