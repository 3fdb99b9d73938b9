"""Networks of transformers against a plain forward pass of transformers, one example at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from plait.errors import RefusedInput
from plait.problem.base import Kind
from plait.problem.network import exact_attention, open_network
from tests.problem.folders import (
    SMALL,
    TEXTS,
    WORDS,
    bert,
    each,
    images,
    library,
    saved,
    tokenizer,
    weights_of,
)

EPS = torch.finfo(torch.float32).eps
DECODER: dict[str, Any] = {
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 32,
    "vocab_size": len(WORDS),
}


def close(found: Tensor, wanted: Tensor) -> None:
    # two layers of sums over at most 32 terms, in another order: a few dozen roundings of the largest number
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() <= 100 * EPS * wanted.abs().max()


def alone(model: Any, folder: Path, what: Callable[[Any], Tensor]) -> Tensor:
    """What transformers gives for every text, each in a batch of its own, without padding."""
    whole = library().AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        return torch.cat([what(model(**whole(text, return_tensors="pt"))) for text in TEXTS])


def pictures_alone(model: Any, folder: Path, what: Callable[[Any], Tensor]) -> Tensor:
    processor = image_processor(folder)
    with torch.no_grad():
        return torch.cat([what(model(**processor(images=one, return_tensors="pt"))) for one in images()])


def image_processor(folder: Path) -> Any:
    """That of PIL: where torchvision is installed, transformers prefers one that resizes in another way."""
    newer = int(library().__version__.split(".")[0]) >= 5
    option = {"backend": "pil"} if newer else {"use_fast": False}
    return library().AutoImageProcessor.from_pretrained(folder, **option)


def no_padding(seen: Any) -> Tensor:
    mean: Tensor = seen.last_hidden_state.mean(1)
    return mean


def logits(seen: Any) -> Tensor:
    made: Tensor = seen.logits
    return made


def roberta(folder: Path) -> Any:
    transformers = library()
    shape = transformers.RobertaConfig(
        **SMALL, vocab_size=len(WORDS), max_position_embeddings=34, pad_token_id=0, type_vocab_size=1
    )
    tokenizer(folder)
    return saved(folder, lambda: transformers.RobertaModel(shape))


def vit(folder: Path, architecture: str = "ViTForImageClassification") -> Any:
    transformers = library()
    shape = transformers.ViTConfig(**SMALL, image_size=12, patch_size=4, num_labels=3)
    transformers.ViTImageProcessor(size={"height": 12, "width": 12}).save_pretrained(folder)
    return saved(folder, lambda: getattr(transformers, architecture)(shape))


def clip(folder: Path, architecture: str = "CLIPModel") -> Any:
    transformers = library()
    text = {
        **SMALL,
        "vocab_size": len(WORDS),
        "max_position_embeddings": 32,
        "eos_token_id": 3,
        "pad_token_id": 0,
    }
    vision = {**SMALL, "image_size": 12, "patch_size": 4, "projection_dim": 8}
    transformers.CLIPImageProcessor(
        size={"shortest_edge": 12}, crop_size={"height": 12, "width": 12}
    ).save_pretrained(folder)
    tokenizer(folder, eos_token="[SEP]")
    if architecture != "CLIPModel":
        return saved(
            folder, lambda: getattr(transformers, architecture)(transformers.CLIPVisionConfig(**vision))
        )
    shape = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)
    return saved(folder, lambda: transformers.CLIPModel(shape))


def gpt2(folder: Path, architecture: str = "GPT2LMHeadModel", **config: Any) -> Any:
    transformers = library()
    tokenizer(folder, around=False)
    shape = transformers.GPT2Config(**DECODER, bos_token_id=2, eos_token_id=3, **config)
    return saved(folder, lambda: getattr(transformers, architecture)(shape))


def llama(folder: Path, **config: Any) -> Any:
    transformers = library()
    tokenizer(folder, around=False)
    shape = transformers.LlamaConfig(
        **SMALL,
        vocab_size=len(WORDS),
        max_position_embeddings=32,
        num_key_value_heads=1,
        eos_token_id=3,
        **config,
    )
    return saved(folder, lambda: transformers.LlamaForCausalLM(shape))


@pytest.mark.parametrize("make", [roberta, bert], ids=["roberta", "bert"])
def test_a_text_encoder_gives_the_mean_of_the_last_hidden_states(make: Any, tmp_path: Path) -> None:
    model = make(tmp_path)
    network = open_network(tmp_path, "text-classification")
    close(each(network, weights_of(tmp_path), TEXTS), alone(model, tmp_path, no_padding))


def test_a_decoder_embeds_texts_too(tmp_path: Path) -> None:
    model = gpt2(tmp_path)
    network = open_network(tmp_path, "text-classification")
    close(each(network, weights_of(tmp_path), TEXTS), alone(model.transformer, tmp_path, no_padding))


@pytest.mark.parametrize("architecture", ["BertForSequenceClassification", "GPT2ForSequenceClassification"])
def test_a_text_classifier_has_its_own_logits(architecture: str, tmp_path: Path) -> None:
    model = (bert if architecture.startswith("Bert") else gpt2)(tmp_path, architecture, num_labels=3)
    network, weights = open_network(tmp_path, "text-classification"), weights_of(tmp_path)
    wanted = alone(model, tmp_path, logits)
    close(each(network, weights, TEXTS, "outputs"), wanted)
    close(each(network, weights, TEXTS, "outputs", batch=2), wanted)


def test_features_of_a_classifier_are_what_its_last_layer_sees(tmp_path: Path) -> None:
    model = bert(tmp_path, "BertForSequenceClassification", num_labels=3)
    network, weights = open_network(tmp_path, "text-classification"), weights_of(tmp_path)
    seen = each(network, weights, TEXTS)
    close(seen @ weights["classifier.weight"].T + weights["classifier.bias"], alone(model, tmp_path, logits))
    close(
        each(network, weights, TEXTS, "outputs"), alone(model, tmp_path, logits)
    )  # the layer is in its place again


def test_vit_classifies_images(tmp_path: Path) -> None:
    model = vit(tmp_path)
    network, weights = open_network(tmp_path, "image-classification"), weights_of(tmp_path)
    wanted = pictures_alone(model, tmp_path, logits)
    close(each(network, weights, images(), "outputs"), wanted)
    close(
        each(network, weights, images()) @ weights["classifier.weight"].T + weights["classifier.bias"], wanted
    )


def test_vit_without_a_head_has_features_and_says_that_it_has_no_outputs(tmp_path: Path) -> None:
    model = vit(tmp_path, "ViTModel")
    network, weights = open_network(tmp_path, "image-classification"), weights_of(tmp_path)
    wanted = pictures_alone(model, tmp_path, lambda seen: seen.last_hidden_state[:, 0])
    close(each(network, weights, images()), wanted)
    with pytest.raises(RefusedInput, match="has no head of its own; use the head `zero-shot` or `linear`"):
        each(network, weights, images(), "outputs")


def test_clip_embeds_images_and_texts_in_one_space(tmp_path: Path) -> None:
    model = clip(tmp_path)
    network: Any = open_network(tmp_path, "image-classification")
    weights = weights_of(tmp_path)
    processor, whole = image_processor(tmp_path), library().AutoTokenizer.from_pretrained(tmp_path)
    pictures = [processor(images=one, return_tensors="pt") for one in images()]
    texts = [whole(text, return_tensors="pt") for text in TEXTS]
    with torch.no_grad():
        seen = [model(**picture, **text) for picture, text in zip(pictures, texts, strict=True)]
    found = each(network, weights, images())
    close(found / found.norm(dim=-1, keepdim=True), torch.cat([one.image_embeds for one in seen]))
    found = each(network.text, weights, TEXTS)
    close(found / found.norm(dim=-1, keepdim=True), torch.cat([one.text_embeds for one in seen]))
    assert all(name.startswith(("vision_model.", "visual_projection.")) for name in network.names)
    assert all(name.startswith(("text_model.", "text_projection.")) for name in network.text.names)
    close(each(open_network(tmp_path, "text-classification"), weights, TEXTS), found)


@pytest.mark.parametrize("architecture", ["CLIPVisionModel", "CLIPVisionModelWithProjection"])
def test_a_vision_tower_alone_has_features_and_no_texts(architecture: str, tmp_path: Path) -> None:
    model = clip(tmp_path, architecture)
    network: Any = open_network(tmp_path, "image-classification")

    def what(seen: Any) -> Tensor:
        made: Tensor = seen.image_embeds if architecture.endswith("Projection") else seen.pooler_output
        return made

    close(each(network, weights_of(tmp_path), images()), pictures_alone(model, tmp_path, what))
    assert network.text is None


@pytest.mark.parametrize(
    ("make", "tied"),
    [(gpt2, True), (llama, True), (llama, False)],
    ids=["gpt2", "llama", "llama-untied"],
)
def test_a_causal_model_predicts_tokens(make: Any, tied: bool, tmp_path: Path) -> None:
    model = make(tmp_path, tie_word_embeddings=tied)
    network: Any = open_network(tmp_path, "causal-lm")
    weights = weights_of(tmp_path)
    assert ("lm_head.weight" in weights) is not tied
    whole = library().AutoTokenizer.from_pretrained(tmp_path)
    encoded = network.encode(TEXTS)
    batch = network.collate(encoded)
    assert batch["attention_mask"].sum(1).tolist() == [len(one) for one in encoded]
    with torch.no_grad():
        found = network.outputs(weights, batch)
        for row, text in enumerate(TEXTS):
            wanted = model(**whole(text, return_tensors="pt")).logits[0]
            close(found[row, : len(wanted)], wanted)


def test_tied_weights_have_one_gradient(tmp_path: Path) -> None:
    gpt2(tmp_path)
    network: Any = open_network(tmp_path, "causal-lm")
    weights = {name: weight.requires_grad_() for name, weight in weights_of(tmp_path).items()}
    network.outputs(weights, network.collate(network.encode(TEXTS))).square().sum().backward()
    model = library().GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    model(**network.collate(network.encode(TEXTS))).logits.square().sum().backward()
    found = weights["transformer.wte.weight"].grad
    assert found is not None
    close(found, model.transformer.wte.weight.grad)


def test_a_checkpoint_of_another_head_is_an_encoder(tmp_path: Path) -> None:
    model = bert(tmp_path, "BertForMaskedLM", hidden_act="relu")  # relu: not the built-in one
    network = open_network(tmp_path, "text-classification")
    assert all(
        name.startswith("bert.") and not target.startswith("bert.") for name, target in network.names.items()
    )
    close(each(network, weights_of(tmp_path), TEXTS), alone(model.bert, tmp_path, no_padding))


@pytest.mark.parametrize(("longest", "count"), [(512, 33), (9, 9)])
def test_texts_are_cut_at_what_the_model_can_read(longest: int, count: int, tmp_path: Path) -> None:
    roberta(tmp_path)
    tokenizer(tmp_path, length=1000)
    network, weights = open_network(tmp_path, "text-classification", longest=longest), weights_of(tmp_path)
    long = ["very " * 100]
    assert len(network.encode(long)[0]) == count  # RoBERTa has 34 places, and counts from behind the padding
    assert each(network, weights, long).isfinite().all()


@pytest.mark.parametrize(
    ("prefixes", "kind", "other"),
    [
        (("vision_model.", "visual_"), "image-classification", "text-classification"),
        (("text_model.", "text_"), "text-classification", "image-classification"),
    ],
    ids=["vision", "text"],
)
def test_clip_with_one_tower(prefixes: tuple[str, ...], kind: Kind, other: Kind, tmp_path: Path) -> None:
    clip(tmp_path)
    tower = {name: weight for name, weight in weights_of(tmp_path).items() if name.startswith(prefixes)}
    save_file(tower, tmp_path / "model.safetensors", metadata={"format": "pt"})
    network: Any = open_network(tmp_path, kind)
    assert set(network.names) == set(tower)
    assert network.text is None
    with pytest.raises(RefusedInput, match="the weights lack"):
        open_network(tmp_path, other)


def test_a_model_without_classes_is_no_classifier(tmp_path: Path) -> None:
    transformers = library()
    shape = transformers.ViTConfig(**SMALL, image_size=12, patch_size=4, num_labels=0)
    transformers.ViTImageProcessor(size={"height": 12, "width": 12}).save_pretrained(tmp_path)
    saved(tmp_path, lambda: transformers.ViTForImageClassification(shape))
    with pytest.raises(RefusedInput, match="no network for image-classification"):
        open_network(tmp_path, "image-classification")


def test_batches_do_not_show(tmp_path: Path) -> None:
    roberta(tmp_path)
    network, weights = open_network(tmp_path, "text-classification"), weights_of(tmp_path)
    close(each(network, weights, TEXTS, batch=1), each(network, weights, TEXTS))


@pytest.mark.parametrize("kind", ["text-classification", "causal-lm"])
def test_the_module_holds_no_weights(kind: Kind, tmp_path: Path) -> None:
    gpt2(tmp_path)
    before = torch.random.get_rng_state()
    network: Any = open_network(tmp_path, kind)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert {parameter.device.type for parameter in network.module.parameters()} == {"meta"}
    assert set(network.names) <= set(weights_of(tmp_path))


def test_buffers_that_no_checkpoint_holds_have_their_values(tmp_path: Path) -> None:
    model = llama(tmp_path, tie_word_embeddings=False)
    network: Any = open_network(tmp_path, "causal-lm")
    found, wanted = dict(network.module.named_buffers()), dict(model.named_buffers())
    assert found
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_exact_attention_has_a_second_derivative(tmp_path: Path) -> None:
    gpt2(tmp_path)
    network: Any = open_network(tmp_path, "causal-lm", dtype="float64")
    assert network.module.config._attn_implementation == "sdpa"
    name = "transformer.h.0.attn.c_attn.weight"
    weights = {n: w.double() for n, w in weights_of(tmp_path).items()}
    batch = network.collate(network.encode(TEXTS[1:2]))

    def loss(weight: Tensor) -> Tensor:
        made: Tensor = network.outputs({**weights, name: weight}, batch).square().mean()
        return made

    ahead = torch.randn(weights[name].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with exact_attention():
        _, found = torch.autograd.functional.hvp(loss, weights[name], ahead)  # type: ignore[no-untyped-call]
    step = 1e-5
    up, down = (torch.func.grad(loss)(weights[name] + sign * step * ahead) for sign in (1, -1))
    # a central difference of gradients: off by step^2, and by eps / step
    assert (found - (up - down) / (2 * step)).abs().max() < 1e-6 * found.abs().max()


def test_dtypes(tmp_path: Path) -> None:
    model = bert(tmp_path, hidden_act="relu")
    weights = weights_of(tmp_path)
    wanted = alone(model, tmp_path, no_padding)
    for dtype in ("float64", "bfloat16"):
        network = open_network(tmp_path, "text-classification", dtype=dtype)
        found = each(network, weights, TEXTS)
        assert found.dtype == network.dtype == getattr(torch, dtype)
        # fp32 weights: fp64 rounds nothing more; bf16 rounds every number to 8 bits, in a few layers
        slack = {"float64": 100 * EPS, "bfloat16": 0.1}[dtype]
        assert (found.float() - wanted).abs().max() < slack * wanted.abs().max()
