"""Image classification tasks of the suite vision8, and the base that it starts from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TASKS = (
    "cifar10", "gtsrb", "flowers5", "mnist", "fashion_mnist", "intel_scenes", "sign_digits", "trashnet",
)  # fmt: skip
SIDE = 96
"""Pixels a side that images are resized to. 224 is what the base was trained with, and takes five times as long."""

NETWORK = f"python:plait.problem.vision:efficientnet_lite0?side={SIDE}"
HEAD = "_fc."
"""The base's own head, for the 1,000 classes of ImageNet: no task uses it, so it is left out of the base."""


def row(name: str) -> dict[str, Any]:
    """What tasks.yaml would say of a task, but for its splits."""
    return {
        "kind": "image-classification",
        "data": f"$PLAIT_DATA/{name}.npz",
        "head": "linear",
        "overlap": "drop",
    }


def lay_base(folder: Path) -> None:
    """Write EfficientNet-Lite0, BatchNorm folded into the convolutions, as a checkpoint folder."""
    from plait.bench.writing import write_tensors
    from plait.problem.vision import efficientnet_lite0_weights

    tensors = {n: t for n, t in efficientnet_lite0_weights().items() if not n.startswith(HEAD)}
    folder.mkdir(parents=True)
    write_tensors(folder / "model.safetensors", tensors)
    config = {"architecture": "efficientnet-lite0", "batchnorm": "folded", "side": SIDE}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
