"""Folders and files: what is read, and every way in which a folder can lie."""

from __future__ import annotations

import json
import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from plait.checkpoint.format import read_bytes
from plait.checkpoint.layout import open_checkpoint
from plait.checkpoint.pickled import main
from plait.errors import FormatError
from tests.checkpoint.files import file, folder, numbers, raw, sharded

PARTS: list[dict[str, Any]] = [{"a": numbers(3), "b": numbers(2, 2)}, {"c": numbers(5)}]
INDEX = "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def test_file_folder_and_shards_hold_the_same(tmp_path: Path) -> None:
    whole = PARTS[0] | PARTS[1]
    bare = open_checkpoint(file(tmp_path / "x.safetensors", whole))
    one = open_checkpoint(folder(tmp_path / "one", whole, {"hidden_size": 4}))
    many = open_checkpoint(sharded(tmp_path / "many", PARTS))
    assert (bare.kind, one.kind, many.kind) == ("file", "folder", "folder")
    for checkpoint in (bare, one, many):
        assert {n: read_bytes(r) for n, r in checkpoint.tensors.items()} == {
            n: a.tobytes() for n, a in whole.items()
        }
    assert one.config == {"hidden_size": 4}
    assert bare.config is None
    assert [shard.name for shard in many.shards] == list(SHARDS)
    assert [shard.names for shard in many.shards] == [("b", "a"), ("c",)] or [
        set(shard.names) for shard in many.shards
    ] == [{"a", "b"}, {"c"}]
    assert (bare.index, one.index, many.index) == (None, None, INDEX)


def test_other_names_of_weight_files(tmp_path: Path) -> None:
    file(tmp_path / "unet" / "diffusion_pytorch_model.safetensors", PARTS[0])
    file(tmp_path / "timm" / "open_clip_model.safetensors", PARTS[0])
    sharded(tmp_path / "big", PARTS, "diffusion_pytorch_model")
    for name in ("unet", "timm", "big"):
        assert "a" in open_checkpoint(tmp_path / name).tensors


def test_pickles_beside_safetensors_are_not_read(tmp_path: Path) -> None:
    folder(tmp_path / "m", PARTS[0])
    (tmp_path / "m" / "pytorch_model.bin").write_bytes(b"junk")
    (tmp_path / "m" / "training_args.bin").write_bytes(b"junk")
    assert set(open_checkpoint(tmp_path / "m").tensors) == {"a", "b"}


def test_a_model_cache_of_links_is_read(tmp_path: Path) -> None:
    blob = file(tmp_path / "models--x" / "blobs" / "0123", PARTS[0])
    snapshot = tmp_path / "models--x" / "snapshots" / "rev"
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to(os.path.relpath(blob, snapshot))
    config = tmp_path / "models--x" / "blobs" / "4567"
    config.write_text("{}")
    (snapshot / "config.json").symlink_to(os.path.relpath(config, snapshot))
    opened = open_checkpoint(snapshot)
    assert set(opened.tensors) == {"a", "b"}
    assert opened.sidecars == ["config.json"]


def rewrite_index(path: Path, **changes: Any) -> None:
    table = json.loads((path / INDEX).read_text())
    table["weight_map"] |= changes
    table["weight_map"] = {k: v for k, v in table["weight_map"].items() if v is not None}
    (path / INDEX).write_text(json.dumps(table))


def instead(make: Callable[[Path], None], path: Path) -> None:
    path.unlink()
    make(path)


def gone(*paths: Path) -> None:
    for path in paths:
        path.unlink()


def lies(action: Callable[[Path], object], message: str, name: str) -> Any:
    return pytest.param(action, message, id=name)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        lies(lambda p: (p / SHARDS[1]).unlink(), f"names {SHARDS[1]}, which is not there", "missing shard"),
        lies(
            lambda p: file(p / "stray.safetensors", {"z": numbers(1)}),
            f"stray.safetensors is not in {INDEX}",
            "stray",
        ),
        lies(lambda p: file(p / "model.safetensors", PARTS[0]), "holds both model.safetensors and", "both"),
        lies(lambda p: (p / "x.safetensors.index.json").write_text("{}"), "holds 2 indexes", "two indexes"),
        lies(
            lambda p: rewrite_index(p, z=SHARDS[0]),
            f"{SHARDS[0]} holds z, but it does not",
            "key not in shard",
        ),
        lies(lambda p: rewrite_index(p, a=SHARDS[1]), f"{SHARDS[0]} holds a, which", "key in another shard"),
        lies(
            lambda p: rewrite_index(p, a=None),
            f"{SHARDS[0]} holds a, which .* does not place there",
            "not in index",
        ),
        lies(
            lambda p: rewrite_index(p, a="../x.safetensors"),
            "expected the bare name of a file",
            "leaves the folder",
        ),
        lies(
            lambda p: rewrite_index(p, a="/etc/x.safetensors"), "expected the bare name of a file", "absolute"
        ),
        lies(
            lambda p: rewrite_index(p, a="sub/x.safetensors"),
            "expected the bare name of a file",
            "sub-folder",
        ),
        lies(lambda p: rewrite_index(p, a=".."), "expected the bare name of a file", "parent"),
        lies(lambda p: rewrite_index(p, a=""), "expected the bare name of a file", "empty"),
        lies(lambda p: rewrite_index(p, a=7), "expected the bare name of a file", "number"),
        lies(lambda p: rewrite_index(p, a="a\nb.safetensors"), "expected a \\*.safetensors file", "newline"),
        lies(lambda p: rewrite_index(p, a="config.json"), "expected a \\*.safetensors file", "other file"),
        lies(lambda p: rewrite_index(p, a="x\0.safetensors"), "expected a \\*.safetensors file", "zero"),
        lies(lambda p: rewrite_index(p, a=".x.safetensors"), "expected a \\*.safetensors file", "hidden"),
        lies(lambda p: (p / INDEX).write_text("[]"), "has no weight_map", "no table"),
        lies(lambda p: (p / INDEX).write_text('{"weight_map": {}}'), "has no weight_map", "empty map"),
        lies(lambda p: (p / INDEX).write_text("{"), "the index is not JSON", "not JSON"),
        lies(
            lambda p: (p / INDEX).write_text('{"weight_map": {"a": "x", "a": "y"}}'),
            "names a twice",
            "double key",
        ),
        lies(lambda p: instead(os.mkfifo, p / SHARDS[1]), "is a FIFO", "FIFO shard"),
        lies(lambda p: instead(os.mkdir, p / SHARDS[1]), "is a folder", "folder as shard"),
        lies(lambda p: instead(os.mkfifo, p / INDEX), "is a FIFO", "FIFO index"),
        lies(lambda p: (p / INDEX).unlink(), "stray weight files", "no index"),
        lies(
            lambda p: gone(p / INDEX, p / SHARDS[1]),
            "is a shard without an index",
            "lone shard",
        ),
        lies(
            lambda p: (p / "adapter_config.json").write_text("{}"),
            "merge the adapter into its base first",
            "PEFT",
        ),
        lies(lambda p: (p / "config.json").write_text("{"), "is not a JSON object", "config"),
        lies(lambda p: instead(os.mkfifo, p / "config.json"), "is a FIFO", "FIFO config"),
        lies(
            lambda p: (p / SHARDS[0]).write_bytes(pickle.dumps({"a": 1}) + bytes(99)),
            "a Python pickle",
            "pickle",
        ),
        lies(lambda p: torch.save({}, p / SHARDS[0]), "a PyTorch pickle", "torch pickle"),
    ],
)
def test_a_folder_that_lies_is_refused(
    tmp_path: Path, action: Callable[[Path], object], message: str
) -> None:
    path = sharded(tmp_path / "m", PARTS)
    open_checkpoint(path)  # all is well before
    action(path)
    with pytest.raises(FormatError, match=message) as caught:
        open_checkpoint(path)
    assert str(caught.value).isprintable()
    assert caught.value.exit_code == 5


def test_a_stray_file_beside_a_single_one(tmp_path: Path) -> None:
    file(folder(tmp_path / "m", PARTS[0]) / "other.safetensors", PARTS[1])
    with pytest.raises(FormatError, match=r"other.safetensors beside model.safetensors; move stray"):
        open_checkpoint(tmp_path / "m")


def test_folders_without_weights_say_what_was_looked_for(tmp_path: Path) -> None:
    cases = {
        "empty": ([], "looked for model.safetensors, diffusion_pytorch_model.safetensors, pytorch_model.bin"),
        "pipeline": (["model_index.json"], "is a diffusers pipeline; give the folder of one component"),
        "sentence": (["modules.json", "0_Transformer"], "is the model in 0_Transformer?"),
        "adapter": (["adapter_config.json"], "is a PEFT adapter, not a full checkpoint"),
        "hidden": ([".model.safetensors", "._model.safetensors"], "no weights here"),
    }
    for name, (files, message) in cases.items():
        (tmp_path / name).mkdir()
        for one in files:
            (tmp_path / name / one).write_text("{}")
        with pytest.raises(FormatError) as caught:
            open_checkpoint(tmp_path / name)
        assert message in str(caught.value)
    with pytest.raises(FormatError, match="holds no tensor"):
        open_checkpoint(raw(tmp_path / "none.safetensors", {}))
    with pytest.raises(FormatError, match="is the index of a checkpoint; give the folder"):
        open_checkpoint(sharded(tmp_path / "sharded", PARTS) / INDEX)
    with pytest.raises(FormatError, match="does not exist; check the path"):
        open_checkpoint(tmp_path / "nowhere")


def test_prefixes_of_wrappers_are_removed_when_all_names_have_them(tmp_path: Path) -> None:
    def names(*stored: str) -> tuple[list[str], tuple[str, ...]]:
        opened = open_checkpoint(file(tmp_path / "a.safetensors", {n: numbers(1) for n in stored}))
        assert {opened.stored[n] for n in opened.tensors} == set(stored)
        assert all(ref.name == n for n, ref in opened.tensors.items())
        return sorted(opened.tensors), opened.notes

    assert names("module.a", "module.b") == (["a", "b"], ("prefix 'module.' was removed from all names",))
    assert names("module._orig_mod.module.a")[0] == ["a"]
    assert names("_orig_mod.base_model.model.x.y")[0] == ["x.y"]
    assert names("module.a", "b") == (["b", "module.a"], ())
    assert names("module.")[0] == ["module."]
    assert names("modules.a")[0] == ["modules.a"]


def test_a_pickle_is_read_only_when_allowed_and_equals_its_safetensors(tmp_path: Path) -> None:
    tensors = {
        "w": torch.randn(3, 4),
        "h": torch.randn(5).bfloat16(),
        "n": torch.tensor(3),
        "mask": torch.tensor([True, False]),
        "view": torch.arange(12.0).reshape(3, 4).t(),
        "none": torch.zeros(0, 2),
        "param": torch.nn.Parameter(torch.ones(2)),
    }
    path = tmp_path / "m"
    path.mkdir()
    around: list[Callable[[dict[str, Any]], Any]] = [
        lambda table: table,
        lambda table: {"state_dict": table, "epoch": 3},
        lambda table: {"model": table},
        lambda table: table,
    ]
    names = [f"pytorch_model-0000{i}-of-00004.bin" for i in range(1, 5)]
    for number, (name, wrap) in enumerate(zip(names, around, strict=True)):
        table = wrap({f"{number}.{n}": t for n, t in tensors.items()})
        torch.save(table, path / name, _use_new_zipfile_serialization=number == 0)
    index = {"weight_map": {f"{i}.{n}": name for i, name in enumerate(names) for n in tensors}}
    (path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with pytest.raises(FormatError, match="--allow-pickle"):
        open_checkpoint(path)
    opened = open_checkpoint(path, allow_pickle=True)
    assert len(opened.tensors) == 4 * len(tensors)
    for name, ref in opened.tensors.items():
        tensor = tensors[name.partition(".")[2]]
        assert ref.shape == tuple(tensor.shape)
        flat = tensor.detach().contiguous().reshape(-1)
        assert read_bytes(ref) == flat.view(torch.uint8).numpy().tobytes()
    assert opened.notes == tuple(f"{name} is a pickle; it was read in a child process" for name in names)
    assert [shard.name for shard in opened.shards] == [
        f"model-0000{i}-of-00004.safetensors" for i in range(1, 5)
    ]
    assert opened.index == INDEX
    kept = Path(opened.shards[0].file)
    assert kept.exists()
    del opened, ref
    assert not kept.parent.exists()  # nothing is left behind


def test_a_pickle_under_any_extension(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", {})
    torch.save({"w": torch.ones(2)}, path / "model.safetensors")
    with pytest.raises(FormatError, match=r"model.safetensors: this is a PyTorch pickle .* --allow-pickle"):
        open_checkpoint(path)
    assert list(open_checkpoint(path, allow_pickle=True).tensors) == ["w"]


class Bomb:
    def __init__(self, target: str) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (f"touch {self.target}",))


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_pickle_that_runs_code_does_not_run_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"w": torch.ones(1), "x": Bomb(str(tmp_path / "ran"))}, tmp_path / "bomb.bin")
    with (tmp_path / "plain.bin").open("wb") as stream:
        pickle.dump(Bomb(str(tmp_path / "ran")), stream)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    with pytest.raises(FormatError, match="cannot be read as a pickle of weights") as caught:
        open_checkpoint(tmp_path / "bomb.bin", allow_pickle=True)
    assert str(caught.value).isprintable()
    assert main([str(tmp_path / "plain.bin"), str(tmp_path / "a.safetensors")]) == 1
    assert not (tmp_path / "ran").exists()
    assert os.listdir(tmp_path / "temporary") == []
    bomb = pickle.loads((tmp_path / "plain.bin").read_bytes())  # the bomb is real
    assert bomb == 0
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "holds a list, expected a table of tensors"),
        ({"w": torch.ones(1), "epoch": 3}, "epoch is a int, expected a plain tensor"),
        ({"w": torch.ones(2, 2).to_sparse()}, "w is a Tensor, expected a plain tensor"),
        ({"w": torch.ones(2, device="meta")}, "w has no bytes"),
        ({"w\n": torch.ones(1)}, "is empty or holds control characters"),
        ({3: torch.ones(1)}, "is empty or holds control characters"),
        ({"state_dict": {"w": torch.ones(1)}, "model": {"w": torch.ones(1)}}, "state_dict is a dict"),
    ],
)
def test_pickles_that_are_no_tables_of_tensors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: object, message: str
) -> None:
    """In this process, as the child does it: starting one for each case would take long."""
    torch.save(content, tmp_path / "a.bin")
    assert main([str(tmp_path / "a.bin"), str(tmp_path / "a.safetensors")]) == 1
    word = json.loads(capsys.readouterr().out)
    assert message in word["text"]
    assert not word["disk"]
