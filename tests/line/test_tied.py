"""Tied weights that are stored twice: in memory they are merged as in files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from plait import Line, merge_files, merge_state_dicts
from plait.checkpoint.layout import open_checkpoint
from plait.errors import KeyMismatch
from tests.line.models import differing, read, write_file

Model = dict[str, Tensor]

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
METHODS: list[tuple[str, dict[str, Any]]] = [
    ("average", {"sparsify": "dare"}),
    ("average", {"sparsify": "della"}),
    ("ties", {"density": 0.5, "sparsify": {"name": "dare", "density": 0.7}}),
    ("ties", {"density": 0.3, "trim": "model"}),
    ("model_stock", {}),
    ("magmax", {}),
    ("opcm", {}),
]


def model(dtype: torch.dtype, names: Sequence[str] = (EMBEDDING, HEAD)) -> Model:
    """A base whose `names` are one tensor, in the order of no file."""
    draw = torch.Generator().manual_seed(3)
    tied = (torch.randn(37, 16, generator=draw) * 0.05).to(dtype)
    rest = {
        "layer.weight": torch.randn(16, 16, generator=draw).to(dtype),
        "layer.bias": torch.ones(16).to(dtype),
    }
    return {**dict.fromkeys(reversed(names), tied), **rest, "steps": torch.tensor([7])}


def moved(base: Mapping[str, Tensor], seed: int, own: Sequence[str] = ()) -> Model:
    """An expert of it, tied where the base is but for the names in `own`."""
    draw = torch.Generator().manual_seed(seed)
    made: dict[int, Tensor] = {}
    out: Model = {}
    for name in sorted(base):
        tensor, key = base[name], base[name].data_ptr()
        if not tensor.is_floating_point():
            out[name] = tensor
            continue
        if key not in made or name in own:
            step = 0.01 * torch.randn(tensor.shape, generator=draw, dtype=torch.float64)
            made[key] = (tensor.double() + step).to(tensor.dtype)
        out[name] = made[key]
    return out


def loose(tensors: Mapping[str, Tensor]) -> Model:
    """The same tensors, none of which shares memory with another."""
    return {name: tensor.clone() for name, tensor in tensors.items()}


def in_files(
    folder: Path,
    base: Mapping[str, Tensor],
    experts: Sequence[Mapping[str, Tensor]],
    method: str,
    **words: Any,
) -> Model:
    folder.mkdir()
    paths = [write_file(folder / f"{i}.safetensors", loose(m)) for i, m in enumerate([base, *experts])]
    merge_files(paths[0], paths[1:], folder / "out.safetensors", method, **words)
    return read(folder / "out.safetensors")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("method", "options"), METHODS, ids=lambda o: str(o))
def test_memory_gives_the_bytes_of_files(
    tmp_path: Path, method: str, options: dict[str, Any], shared: bool, dtype: torch.dtype
) -> None:
    base = model(dtype)
    experts = [moved(base, seed) for seed in (1, 2)]
    want = in_files(tmp_path / "files", base, experts, method, seed=5, **options)
    assert torch.equal(want[HEAD], want[EMBEDDING])
    given = [base, *experts] if shared else [loose(m) for m in (base, *experts)]
    got = merge_state_dicts(given[0], given[1:], method, seed=5, **options)
    assert list(got) == list(base)
    assert not differing(got, want)
    assert got[HEAD].data_ptr() != got[EMBEDDING].data_ptr()


def test_an_expert_may_leave_the_second_name_out(tmp_path: Path) -> None:
    base = model(torch.float32)
    experts = [moved(base, 1), moved(base, 2)]
    del experts[1][HEAD]
    want = in_files(tmp_path / "files", base, experts, "average", sparsify="dare")
    assert not differing(merge_state_dicts(base, experts, sparsify="dare"), want)
    with pytest.raises(KeyMismatch, match=f"{EMBEDDING} is missing"):
        merge_state_dicts(base, [{n: t for n, t in experts[0].items() if n != EMBEDDING}])


def test_heads_that_are_not_tied_are_tensors_of_their_own(tmp_path: Path) -> None:
    base = model(torch.float32)
    experts = [moved(base, seed, own=[EMBEDDING]) for seed in (1, 2)]
    words: dict[str, Any] = {"method": "average", "sparsify": "dare"}
    with pytest.raises(KeyMismatch, match=f"expert 0 does not fit the base: {HEAD} differs from {EMBEDDING}"):
        merge_state_dicts(base, experts, **words)
    with pytest.raises(KeyMismatch, match=f"{HEAD}: untied: differs from {EMBEDDING}"):
        in_files(tmp_path / "files", base, experts, **words)
    paths = [tmp_path / name for name in ("base", "a", "b")]
    for path, tensors in zip(paths, (base, *experts), strict=True):
        write_file(path / "model.safetensors", loose(tensors))
        (path / "config.json").write_text(json.dumps({"tie_word_embeddings": False}))
    merge_files(paths[0], paths[1:], tmp_path / "out", **words)
    got = merge_state_dicts(base, experts, tie_word_embeddings=False, **words)
    assert not torch.equal(got[HEAD], got[EMBEDDING])
    assert not differing(got, read(tmp_path / "out"))


@pytest.mark.parametrize("value", [0.0, None])
@pytest.mark.parametrize("names", [(EMBEDDING, HEAD), ("a.weight", "b.weight"), (EMBEDDING, "b.weight")])
def test_what_is_no_tie_in_files_is_none_in_memory(
    tmp_path: Path, names: tuple[str, str], value: float | None
) -> None:
    """Layers with other names, even where they share memory, and tensors of one repeated value."""
    base = model(torch.float32, names)
    if value is not None:
        base.update(dict.fromkeys(names, torch.full((37, 16), value)))
    elif names == (EMBEDDING, HEAD):
        base[HEAD] = base[HEAD].clone()
        base[HEAD][36, 15] += 1
    experts = [moved(base, seed, own=names) for seed in (1, 2)]
    want = in_files(tmp_path / "files", base, experts, "average", sparsify="dare")
    assert not torch.equal(want[names[0]], want[names[1]])
    assert not differing(merge_state_dicts(base, experts, sparsify="dare"), want)


def test_of_several_names_the_first_is_kept_however_the_files_are_cut(tmp_path: Path) -> None:
    names = ("decoder.embed_tokens.weight", "encoder.embed_tokens.weight", "shared.weight", HEAD)
    base = model(torch.float32, names)
    expert = write_file(tmp_path / "expert.safetensors", loose(moved(base, 1)))
    rest = [n for n in base if n not in names]
    whole = write_file(tmp_path / "whole" / "model.safetensors", loose(base)).parent
    cut = tmp_path / "cut"
    weight_map = {}
    for i, part in enumerate(([names[3], names[2]], [names[1], *rest], [names[0]])):
        file = f"model-{i + 1:05d}-of-00003.safetensors"
        write_file(cut / file, loose({n: base[n] for n in part}))
        weight_map.update(dict.fromkeys(part, file))
    (cut / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    assert (
        open_checkpoint(cut).aliases == open_checkpoint(whole).aliases == dict.fromkeys(names[1:], names[0])
    )
    memory = merge_state_dicts(base, [moved(base, 1)], sparsify="dare")
    for path in (whole, cut):
        merge_files(path, [expert], tmp_path / f"{path.name}-out", sparsify="dare")
        assert not differing(read(tmp_path / f"{path.name}-out"), memory)
        line = Line.create(tmp_path / f"{path.name}-line", path, sparsify="dare")
        line.merge(expert)
        assert not differing(read(line.model), memory)
