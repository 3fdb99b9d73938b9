"""Small checkpoints for tests, written by the safetensors library, not by plait."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

SHAPES: dict[str, tuple[int, ...]] = {
    "embeddings.weight": (40, 12),
    "layer.0.dense.weight": (12, 12),
    "layer.0.dense.bias": (12,),
    "layer.1.dense.weight": (24, 12),
    "layer.1.norm.weight": (24,),
    "pooler.scale": (),
}


def base_tensors(dtype: torch.dtype = torch.float32, seed: int = 0) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    tensors = {n: (torch.randn(s, generator=g) * 0.05).to(dtype) for n, s in SHAPES.items()}
    tensors["layer.1.norm.weight"] = torch.ones(24, dtype=dtype)
    tensors["position_ids"] = torch.arange(16)
    return tensors


def expert_tensors(base: Mapping[str, Tensor], seed: int, step: float = 5e-3) -> dict[str, Tensor]:
    """A checkpoint near the base; one tensor stays as it is, one element becomes tiny, one minus zero."""
    g = torch.Generator().manual_seed(1000 + seed)
    made = {}
    for name, tensor in base.items():
        if not tensor.is_floating_point() or name == "layer.0.dense.bias":
            made[name] = tensor.clone()
            continue
        moved = tensor.double() + step * torch.randn(tensor.shape, generator=g, dtype=torch.float64)
        made[name] = moved.to(tensor.dtype)
    flat = made["embeddings.weight"].view(-1)
    flat[seed % flat.numel()] = 1e-30 if tensor_is_wide(flat) else 0.0
    flat[(seed + 7) % flat.numel()] = -0.0
    return made


def tensor_is_wide(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.float32, torch.float64, torch.bfloat16)


def write_file(path: Path, tensors: Mapping[str, Tensor]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({n: t.contiguous() for n, t in tensors.items()}, path, metadata={"format": "pt"})
    return path


def write_folder(path: Path, tensors: Mapping[str, Tensor], shards: int = 1) -> Path:
    """A Hugging Face folder, with config, tokenizer and a piece of code that must not travel."""
    path.mkdir(parents=True, exist_ok=True)
    config = {"architectures": ["Toy"], "model_type": "toy", "auto_map": {"AutoModel": "modeling_toy.Toy"}}
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer.json").write_text("{}")
    (path / "modeling_toy.py").write_text("raise SystemExit('code was run')\n")
    if shards == 1:
        write_file(path / "model.safetensors", tensors)
        return path
    names = sorted(tensors)
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = {n: tensors[n] for n in names[i::shards]}
        write_file(path / file, part)
        weight_map.update(dict.fromkeys(part, file))
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


def read(path: Path) -> dict[str, Tensor]:
    """All tensors of a file or folder."""
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    return {n: t for f in files for n, t in load_file(f).items()}


def differing(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> list[str]:
    """Names of tensors whose dtype, shape or bits differ."""
    names = sorted(a.keys() ^ b.keys())
    for name in a.keys() & b.keys():
        x, y = a[name], b[name]
        if (x.dtype, x.shape) != (y.dtype, y.shape) or not torch.equal(bits(x), bits(y)):
            names.append(name)
    return names


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
