"""A network that does not fit is refused in one line, with exit code 5."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from plait.errors import PlaitError, RefusedInput, UsageError
from plait.problem.base import Kind
from plait.problem.network import open_network
from tests.problem.folders import TEXTS, bert, weights_of
from tests.problem.test_network_hf import gpt2, vit


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    bert(tmp_path)
    return tmp_path


def refused(folder: Path, kind: Kind = "text-classification") -> str:
    """The message; one line."""
    with pytest.raises(RefusedInput) as caught:
        open_network(folder, kind)
    assert caught.value.exit_code == 5
    assert "\n" not in str(caught.value)
    return str(caught.value)


def configure(folder: Path, **change: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))


def test_more_layers_in_the_configuration(folder: Path) -> None:
    configure(folder, num_hidden_layers=3)
    assert "the weights lack 16 of the 53 tensors" in (text := refused(folder))
    assert "encoder.layer.2." in text


def test_fewer_layers_in_the_configuration(folder: Path) -> None:
    configure(folder, num_hidden_layers=1)
    assert "encoder.layer.1." in (text := refused(folder))
    assert "belongs to a layer that config.json does not describe" in text


def test_fewer_layers_for_transformers(tmp_path: Path) -> None:
    gpt2(tmp_path)
    configure(tmp_path, n_layer=1)
    assert "transformer.h.1." in refused(tmp_path, "causal-lm")


def test_numbers_that_transformers_cannot_build_with(tmp_path: Path) -> None:
    gpt2(tmp_path)
    configure(tmp_path, n_head=3)
    assert "cannot build the gpt2 that config.json describes (" in refused(tmp_path, "causal-lm")


def test_another_width(folder: Path) -> None:
    configure(folder, intermediate_size=25)
    assert "is (24, 16), and the network that config.json describes has (25, 16)" in refused(folder)


@pytest.mark.parametrize("value", [None, 0, "2", True, 2.0])
def test_numbers_that_are_none(folder: Path, value: Any) -> None:
    configure(folder, num_attention_heads=value)
    assert f"num_attention_heads {value!r}, expected a number of at least 1" in refused(folder)


def test_heads_that_do_not_divide_the_width(folder: Path) -> None:
    configure(folder, num_attention_heads=3)
    assert "heads that divide the width" in refused(folder)


def test_no_configuration(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert "has no config.json" in refused(folder)


def test_no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert "tokenizer.json: is not there" in refused(folder)


def test_a_broken_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")
    assert "is no tokenizer" in refused(folder)


@pytest.mark.parametrize("kind", ["text-classification", "image-classification", "causal-lm"])
def test_an_unknown_architecture(folder: Path, kind: Kind) -> None:
    configure(folder, model_type="no-such-model")
    assert "no-such-model" in (text := refused(folder, kind))
    assert "python:module:function" in text


def test_code_of_a_checkpoint_is_not_run(folder: Path) -> None:
    (folder / "modeling_evil.py").write_text("raise SystemExit('ran')\n")
    configure(folder, model_type="evil", auto_map={"AutoConfig": "modeling_evil.Evil"})
    assert "cannot read config.json" in refused(folder)


def test_a_network_of_another_kind_of_task(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert "describes bert" in (text := refused(folder, "image-classification"))
    assert "no network for image-classification" in text
    other = tmp_path_factory.mktemp("vit")
    vit(other)
    for kind in ("text-classification", "causal-lm"):
        assert "describes vit" in refused(other, kind)


def test_no_image_processor(tmp_path: Path) -> None:
    vit(tmp_path)
    (tmp_path / "preprocessor_config.json").unlink()
    assert "preprocessor_config.json" in refused(tmp_path, "image-classification")


def test_tied_weights_that_differ(tmp_path: Path) -> None:
    gpt2(tmp_path)
    weights = weights_of(tmp_path)
    twice = {**weights, "lm_head.weight": weights["transformer.wte.weight"].clone()}
    save_file(twice, tmp_path / "model.safetensors", metadata={"format": "pt"})
    names = open_network(tmp_path, "causal-lm").names  # stored twice, and equal
    assert "transformer.wte.weight" in names
    assert "lm_head.weight" not in names
    twice["lm_head.weight"] += 1
    save_file(twice, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert "set tie_word_embeddings to false" in refused(tmp_path, "causal-lm")


def test_weights_of_another_model(folder: Path) -> None:
    network: Any = open_network(folder, "text-classification")
    weights = weights_of(folder)
    batch = network.collate(network.encode(TEXTS))
    lacking = {name: weight for name, weight in weights.items() if ".layer.1." not in name}
    with pytest.raises(RefusedInput, match="weights lack 16 of the 37 tensors of the bert encoder of"):
        network.features(lacking, batch)
    name = "encoder.layer.0.output.dense.weight"
    with pytest.raises(RefusedInput, match=rf"needs {name} of shape \(16, 24\), the weights have \(3, 24\)"):
        network.ready({**weights, name: torch.zeros(3, 24)})


def test_an_empty_text(tmp_path: Path) -> None:
    gpt2(tmp_path)
    network = open_network(tmp_path, "causal-lm")
    with pytest.raises(RefusedInput, match="text 1 of 2 has no token"):
        network.encode(["red", ""])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, "expected cpu or cuda"),
        ({"device": "mps"}, "expected cpu or cuda"),
        ({"dtype": "int8"}, "expected one of float64, float32"),
        ({"dtype": torch.int64}, "expected one of float64, float32"),
    ],
)
def test_words_that_make_no_sense(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        open_network(folder, "text-classification", **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there(folder: Path) -> None:
    with pytest.raises(UsageError, match="finds no GPU on this machine; use cpu"):
        open_network(folder, "text-classification", device="cuda")


@pytest.mark.parametrize(
    ("package", "kind"), [("tokenizers", "text-classification"), ("transformers", "causal-lm")]
)
def test_an_extra_that_is_not_installed(
    folder: Path, package: str, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == package:
            raise ImportError(name)
        return plain(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(PlaitError, match=f"package {package} is not installed.*pip install") as caught:
        open_network(folder, kind)
    assert caught.value.exit_code == 1
