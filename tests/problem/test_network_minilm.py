"""The sentence encoder that is built in, against transformers and against itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from plait.checkpoint import open_checkpoint
from plait.problem.minilm import is_encoder
from plait.problem.module import ModuleNetwork
from plait.problem.network import open_network
from tests.problem.folders import SMALL, TEXTS, WORDS, bert, each, weights_of

EPS = torch.finfo(torch.float32).eps


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("bert")
    bert(made)
    return made


def opened(folder: Path, **options: Any) -> ModuleNetwork:
    network = open_network(folder, "text-classification", **options)
    assert isinstance(network, ModuleNetwork)
    return network


def test_it_is_built_in(folder: Path) -> None:
    network = opened(folder)
    assert type(network.module).__module__ == "plait.problem.minilm"
    assert all(name == target for name, target in network.names.items())
    assert set(weights_of(folder)) - set(network.names) == {"pooler.dense.weight", "pooler.dense.bias"}


def test_both_routes_agree(folder: Path) -> None:
    from plait.problem.hf import open_model

    other = open_model(
        open_checkpoint(folder),
        "text-classification",
        device=torch.device("cpu"),
        dtype=torch.float32,
        longest=512,
    )
    network, weights = opened(folder), weights_of(folder)
    assert network.encode(TEXTS) == other.encode(TEXTS)
    assert network.names == other.names
    found, wanted = each(network, weights, TEXTS), each(other, weights, TEXTS)
    # two layers of sums over at most 32 terms, in another order: a few dozen roundings of the largest number
    assert (found - wanted).abs().max() <= 100 * EPS * wanted.abs().max()


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_batches_do_not_show(batch: int, folder: Path) -> None:
    network, weights = opened(folder), weights_of(folder)
    wanted = each(network, weights, TEXTS)
    found = each(network, weights, TEXTS, batch=batch)
    assert (found - wanted).abs().max() <= 100 * EPS * wanted.abs().max()


def test_texts_are_cut_at_the_longest(folder: Path, tmp_path: Path) -> None:
    long = ["very " * 100]
    assert len(opened(folder).encode(long)[0]) == 32  # what the model can read
    assert len(opened(folder, longest=7).encode(long)[0]) == 7
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 5}')
    assert len(opened(tmp_path).encode(long)[0]) == 5


def test_a_prefix_is_found(tmp_path: Path) -> None:
    bert(tmp_path, "BertForMaskedLM")
    network = opened(tmp_path)
    assert type(network.module).__module__ == "plait.problem.minilm"
    assert all(name == f"bert.{target}" for name, target in network.names.items())


def test_it_can_be_differentiated_twice(folder: Path) -> None:
    network = opened(folder, dtype="float64")
    weights = {name: weight.double() for name, weight in weights_of(folder).items()}
    name = "encoder.layer.0.attention.self.query.bias"
    batch = network.collate(network.encode(TEXTS[:2]))

    def of(bias: Tensor) -> Tensor:
        return network.features({**weights, name: bias}, batch)

    bias = weights[name].clone().requires_grad_()
    assert torch.autograd.gradcheck(of, bias)
    assert torch.autograd.gradgradcheck(of, bias)


def test_examples_can_be_mapped(folder: Path) -> None:
    network, weights = opened(folder), weights_of(folder)
    batch = network.collate(network.encode(TEXTS))

    def one(row: dict[str, Tensor]) -> Tensor:
        return network.features(weights, {name: tensor[None] for name, tensor in row.items()})[0]

    found: Tensor = torch.func.vmap(one)(batch)
    wanted = each(network, weights, TEXTS)
    assert (found - wanted).abs().max() <= 100 * EPS * wanted.abs().max()


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "roberta"},
        {"hidden_act": "relu"},
        {"position_embedding_type": "relative_key"},
        {"is_decoder": True},
        {"architectures": ["BertForSequenceClassification"]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_it_is_not(change: dict[str, Any]) -> None:
    config = {"model_type": "bert", "hidden_act": "gelu", "architectures": ["BertModel"]}
    assert is_encoder(config)
    assert not is_encoder({**config, **change})


def test_only_the_configuration_decides(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    network = opened(folder)
    assert len(network.module.get_submodule("encoder.layer")._modules) == config["num_hidden_layers"]
    shapes = {name: tuple(weight.shape) for name, weight in weights_of(folder).items()}
    module = network.module.state_dict()
    assert all(tuple(module[target].shape) == shapes[name] for name, target in network.names.items())
    assert shapes["embeddings.word_embeddings.weight"] == (len(WORDS), SMALL["hidden_size"])
