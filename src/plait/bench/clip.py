"""The suites clip8, clip14 and clip20: FusionBench's CLIP ViT-B/32 checkpoints and the tasks that they were tuned on.

The eight tasks are those of Ilharco et al. 2023 (arXiv 2212.04089), fourteen and twenty those of Wang et al. 2024
(arXiv 2405.07813); the order in which they stand here is FusionBench's, and the one that seeds shuffle. Prompts are
those of CLIP (Radford et al. 2021, arXiv 2103.00020), as FusionBench has them.

Nothing is fetched. A folder of models holds the base, with both towers, and an expert's vision tower for each task;
a folder of data holds a file TASK.npz for each: see docs/benchmarks-suites.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from plait.bench import clip_names as names
from plait.errors import RefusedInput

CLIP8 = ("sun397", "stanford-cars", "resisc45", "eurosat", "svhn", "gtsrb", "mnist", "dtd")
CLIP14 = (*CLIP8, "oxford_flowers102", "pcam", "fer2013", "oxford-iiit-pet", "stl10", "cifar100")
CLIP20 = (*CLIP14, "cifar10", "food101", "fashion_mnist", "emnist_letters", "kmnist", "rendered-sst2")

BASE = "clip-vit-base-patch32"
SIZE = 224
SCALE = 100.0
TOWER = "vision_model."
"""What the experts have of the base, and what is merged. The projection and the text tower stay the base's."""

PRIVATE = ("*position_ids",)
"""Numbers of positions, which some versions of transformers stored and others do not: no weights."""

_DIGITS = tuple("0123456789")
_PHOTO = ("a photo of a {}.", "a photo of the {}.")
_CIFAR = tuple(
    f"a {look}photo of {article} {size}{{}}."
    for article in ("a", "the")
    for look, size in (
        ("", ""), ("blurry ", ""), ("black and white ", ""), ("low contrast ", ""), ("high contrast ", ""),
        ("bad ", ""), ("good ", ""), ("", "small "), ("", "big "),
    )
)  # fmt: skip
_FROM_ABOVE = tuple(
    f"{way} {article}{{}}."
    for article in ("", "a ", "the ")
    for way in (
        "satellite imagery of", "aerial imagery of", "satellite photo of", "aerial photo of", "satellite view of",
        "aerial view of",
    )
)  # fmt: skip
_CARS = (
    *_PHOTO, "a photo of my {}.", "i love my {}!", "a photo of my dirty {}.", "a photo of my clean {}.",
    "a photo of my new {}.", "a photo of my old {}.",
)  # fmt: skip
_FACES = (
    "a photo of a {} looking face.", "a photo of a face showing the emotion: {}.", "a photo of a face looking {}.",
    "a face that looks {}.", "they look {}.", "look at how {} they are.",
)  # fmt: skip
_SIGNS = tuple(f'a {way} photo of a "{{}}" traffic sign.' for way in ("zoomed in", "centered", "close up"))
_SATELLITE = tuple(f"a centered satellite photo of {article}{{}}." for article in ("", "a ", "the "))
_TEXTURES = tuple(
    f"a photo of {article} {{}} {thing}."
    for article in ("a", "the")
    for thing in ("texture", "pattern", "thing", "object")
)
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_STL10 = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
_CLOTHES = (
    "T - shirt / top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
_EMOTIONS = ("angry", "disgusted", "fearful", "happy", "neutral", "sad", "surprised")
_CELLS = ("lymph node", "lymph node containing metastatic tumor tissue")

PROMPTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "sun397": (names.SUN397, _PHOTO),
    "stanford-cars": (names.CARS, _CARS),
    "resisc45": (names.RESISC45, _FROM_ABOVE),
    "eurosat": (names.EUROSAT, _SATELLITE),
    "svhn": (_DIGITS, ('a photo of the number: "{}".',)),
    "gtsrb": (names.GTSRB, _SIGNS),
    "mnist": (_DIGITS, ('a photo of the number: "{}".',)),
    "dtd": (names.DTD, _TEXTURES),
    "oxford_flowers102": (names.FLOWERS102, ("a photo of a {}, a type of flower.",)),
    "pcam": (_CELLS, ("this is a photo of {}",)),
    "fer2013": (_EMOTIONS, _FACES),
    "oxford-iiit-pet": (names.PETS, ("a photo of a {}, a type of pet.",)),
    "stl10": (_STL10, _PHOTO),
    "cifar100": (names.CIFAR100, _CIFAR),
    "cifar10": (_CIFAR10, _CIFAR),
    "food101": (names.FOOD101, ("a photo of {}, a type of food.",)),
    "fashion_mnist": (_CLOTHES, _PHOTO),
    "emnist_letters": (tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ"), ('a photo of the digit character: "{}".',)),
    "kmnist": (tuple("おきすつなはまやれを"), ("a photo of the character {}.",)),
    "rendered-sst2": (("negative", "positive"), ("a {} review of a movie.",)),
}
"""Task -> (class names in the order of their labels, templates)."""


def row(name: str) -> dict[str, Any]:
    """What tasks.yaml would say of a task, but for its splits."""
    classes, templates = PROMPTS[name]
    return {
        "kind": "image-classification",
        "data": f"$PLAIT_DATA/{name}.npz",
        "classes": list(classes),
        "head": {"kind": "zero-shot", "templates": list(templates), "scale": SCALE},
        "overlap": "drop",
        "size": SIZE,
    }


def expert_name(task: str) -> str:
    """The name of the folder of a task's expert."""
    return f"{BASE}_{task}"


def lay_base(models: Path, folder: Path) -> None:
    """Write the base's vision tower as a checkpoint folder: what the experts have, and what is merged."""
    from plait.bench.writing import write_tensors
    from plait.checkpoint import open_checkpoint
    from plait.line.subjects import load

    opened = open_checkpoint(models / BASE)
    tower = {n: ref for n, ref in opened.tensors.items() if n.startswith(TOWER) and ref.mergeable}
    if not tower:
        raise RefusedInput(
            f"{opened.path}: has no tensor {TOWER}*; expected CLIP with both towers, as openai/{BASE} is saved"
        )
    folder.mkdir(parents=True)
    write_tensors(folder / "model.safetensors", load(tower, "cpu", None))
    config = {**((opened.config or {}).get("vision_config") or {}), "architectures": ["CLIPVisionModel"]}
    text = json.dumps({**config, "model_type": "clip_vision_model"}, indent=1)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")
