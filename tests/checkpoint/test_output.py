"""Outputs: the base's layout, its tensors' places, its files beside the weights, and nothing that runs code."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file

from plait.checkpoint.digest import root_digest
from plait.checkpoint.extend import append_shard
from plait.checkpoint.format import read_header
from plait.checkpoint.layout import Checkpoint, open_checkpoint
from plait.checkpoint.output import Output, copy_bytes, plan_output
from plait.errors import FormatError, PlaitError, UsageError
from tests.checkpoint.files import file, folder, numbers, sharded

TABLE: dict[str, Any] = {
    "module.embed.weight": numbers(9, 4),
    "module.lm_head.weight": numbers(9, 4),  # equal, hence tied
    "module.layer.weight": numbers(4, 4, dtype="float16"),
    "module.steps": np.arange(3),
}


def fill(base: Checkpoint, output: Output) -> None:
    for name, place in output.places.items():
        copy_bytes(base.tensors[name], place)


def copied(base: Checkpoint, path: Path, card: str = "the card") -> Checkpoint:
    output = plan_output(base, path)
    fill(base, output)
    output.finish(card)
    return open_checkpoint(path)


def test_a_folder_comes_out_with_the_same_files_tensors_and_metadata(tmp_path: Path) -> None:
    base = open_checkpoint(folder(tmp_path / "b", TABLE, vocab__txt="a\nb", README__md="old"))
    out = copied(base, tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out")) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "vocab.txt",
    ]
    assert (tmp_path / "out" / "README.md").read_text() == "the card"
    loaded = load_file(tmp_path / "out" / "model.safetensors")
    assert {n: a.tobytes() for n, a in loaded.items()} == {n: a.tobytes() for n, a in TABLE.items()}
    assert base.aliases  # so the copy of a tied tensor was made by `finish`
    assert root_digest(out.digests()) == root_digest(base.digests())
    with safe_open(tmp_path / "out" / "model.safetensors", "np") as opened:
        assert opened.metadata() == {"format": "pt"}
    first, second = read_header(base.shards[0].file), read_header(out.shards[0].file)
    assert list(first.tensors) == list(second.tensors)  # in the same order
    assert Path(out.shards[0].file).read_bytes() == Path(base.shards[0].file).read_bytes()


def test_tied_tensors_follow_the_one_that_is_kept(tmp_path: Path) -> None:
    base = open_checkpoint(file(tmp_path / "b.safetensors", TABLE))
    output = plan_output(base, tmp_path / "out.safetensors")
    assert set(output.places) == {"embed.weight", "layer.weight", "steps"}
    fill(base, output)
    new = open_checkpoint(file(tmp_path / "new.safetensors", {"embed.weight": numbers(9, 4, seed=4)}))
    copy_bytes(new.tensors["embed.weight"], output.places["embed.weight"])
    output.finish()
    loaded = load_file(tmp_path / "out.safetensors")
    assert loaded["module.lm_head.weight"].tobytes() == numbers(9, 4, seed=4).tobytes()
    assert os.listdir(tmp_path).count("README.md") == 0


@pytest.mark.parametrize(
    "config",
    [{"tie_word_embeddings": True}, {"text_config": {"tie_word_embeddings": True, "n": 1}}, {"a": 1}],
)
def test_an_untied_tensor_is_a_place_of_its_own(tmp_path: Path, config: dict[str, Any]) -> None:
    base = open_checkpoint(folder(tmp_path / "b", TABLE, config))
    output = plan_output(base, tmp_path / "out", untie=frozenset({"lm_head.weight", "no such name"}))
    assert output.places.keys() == base.tensors.keys()
    assert output.aliases == {}
    fill(base, output)
    new = open_checkpoint(file(tmp_path / "new.safetensors", {"embed.weight": numbers(9, 4, seed=4)}))
    copy_bytes(new.tensors["embed.weight"], output.places["embed.weight"])
    output.finish()
    loaded = load_file(tmp_path / "out" / "model.safetensors")
    assert loaded["module.lm_head.weight"].tobytes() == TABLE["module.lm_head.weight"].tobytes()
    assert loaded["module.embed.weight"].tobytes() == numbers(9, 4, seed=4).tobytes()
    made = open_checkpoint(tmp_path / "out")
    assert made.config is not None
    assert made.config["tie_word_embeddings"] is False  # else a loader would take the embedding
    assert made.config.get("text_config", {}).get("tie_word_embeddings", False) is False
    assert made.config.keys() - {"tie_word_embeddings"} == config.keys() - {"tie_word_embeddings"}
    plan_output(base, tmp_path / "tied", untie=["layer.weight"]).finish()
    assert open_checkpoint(tmp_path / "tied").config == config


def test_shards_and_index_come_out_the_same(tmp_path: Path) -> None:
    parts = [{"a": numbers(4), "b": numbers(2, 3)}, {"c": numbers(5)}]
    path = sharded(tmp_path / "b", parts)
    index = path / "model.safetensors.index.json"
    table = json.loads(index.read_text())
    table["metadata"] |= {"total_size": 1, "total_parameters": 15}
    index.write_text(json.dumps(table))
    copied(open_checkpoint(path), tmp_path / "out")
    new = json.loads((tmp_path / "out" / index.name).read_text())
    assert new["weight_map"] == table["weight_map"]
    assert new["metadata"] == {"total_size": 60, "total_parameters": 15}
    assert sorted(os.listdir(tmp_path / "out")) == sorted([*os.listdir(path), "README.md"])


def test_a_pickled_base_comes_out_as_safetensors(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    torch.save({"w": torch.ones(3)}, tmp_path / "b" / "pytorch_model.bin")
    copied(open_checkpoint(tmp_path / "b", allow_pickle=True), tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out")) == ["README.md", "model.safetensors"]
    with safe_open(tmp_path / "out" / "model.safetensors", "np") as opened:
        assert opened.metadata() == {"format": "pt"}


def test_another_dtype_is_in_the_places_and_in_the_configuration(tmp_path: Path) -> None:
    config = {
        "torch_dtype": "float32",
        "text_config": {"dtype": "float32", "hidden": 3},
        "dtype": "something else",
        "list": [{"torch_dtype": "float16"}],
    }
    base = open_checkpoint(folder(tmp_path / "b", TABLE, config))
    output = plan_output(base, tmp_path / "out", "BF16")
    assert {n: r.dtype for n, r in output.places.items()} == {
        "embed.weight": "BF16",
        "layer.weight": "BF16",
        "steps": "I64",
    }
    output.finish("c")
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == {
        "torch_dtype": "bfloat16",
        "text_config": {"dtype": "bfloat16", "hidden": 3},
        "dtype": "something else",
        "list": [{"torch_dtype": "bfloat16"}],
    }
    assert (
        read_header(tmp_path / "out" / "model.safetensors").tensors["module.lm_head.weight"].dtype == "BF16"
    )
    for bad in ("I64", "F8_E4M3", "bf16"):
        with pytest.raises(UsageError, match="choose one of F64, F32, F16, BF16"):
            plan_output(base, tmp_path / "other", bad)


def test_nothing_that_can_run_code_is_copied(tmp_path: Path) -> None:
    auto = {"auto_map": {"AutoModel": "modeling.Evil"}}
    path = folder(tmp_path / "b", TABLE, {"x": 1, "text": auto, **auto})
    (path / "tokenizer_config.json").write_text(json.dumps({"t": 2, "custom_pipelines": {}, **auto}))
    dropped = (
        "a.py",
        "a.PY",
        "x.pkl",
        "a.bin",
        "a.pt",
        "a.pth",
        "a.ckpt",
        "a.h5",
        "a.msgpack",
        "a.onnx",
        "a.gguf",
    )
    indexes = ("pytorch_model.bin.index.json",)
    others = (".hidden", "a.so", *indexes, "ReadMe.md", "plait_training.json", "rng_state.pth")
    kept = ("vocab.txt", "merges.txt", "spiece.model", "generation_config.json", "LICENSE")
    for name in (*dropped, *others, *kept):
        (path / name).write_text("{}")
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(json.dumps({"p": 1, **auto}))
    (path / "1_Pooling" / "pool.py").write_text("evil")
    (path / "onnx").mkdir()
    (path / "onnx" / "model.onnx").write_text("x")
    (path / "onnx" / "config.json").write_text("{}")
    file(path / "checkpoint-5" / "model.safetensors", TABLE)
    (path / ".git").mkdir()
    (path / ".git" / "config").write_text("x")
    copied(open_checkpoint(path), tmp_path / "out")
    found = {p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert found == {
        *kept,
        "config.json",
        "tokenizer_config.json",
        "1_Pooling/config.json",
        "model.safetensors",
        "README.md",
    }
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == {"x": 1, "text": {}}
    assert json.loads((tmp_path / "out" / "tokenizer_config.json").read_text()) == {"t": 2}
    assert json.loads((tmp_path / "out" / "1_Pooling" / "config.json").read_text()) == {"p": 1}


def test_files_that_need_no_change_are_copied_byte_for_byte(tmp_path: Path) -> None:
    path = folder(tmp_path / "b", TABLE)
    odd = b'{ "a":1.0,\r\n "b" : [1e5, "\\u00e9"] }'
    (path / "config.json").write_bytes(odd)
    (path / "big.txt").write_bytes(bytes(range(256)) * 10_000)
    copied(open_checkpoint(path), tmp_path / "out")
    assert (tmp_path / "out" / "config.json").read_bytes() == odd
    assert (tmp_path / "out" / "big.txt").read_bytes() == (path / "big.txt").read_bytes()


def test_sidecars_that_are_not_what_they_seem(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")

    def refused(name: str, message: str) -> None:
        with pytest.raises(FormatError, match=message):
            open_checkpoint(tmp_path / name).sidecars  # noqa: B018

    (folder(tmp_path / "link", TABLE) / "notes.txt").symlink_to(secret)
    refused("link", "notes.txt: is a link that leaves the folder")
    os.mkfifo(folder(tmp_path / "fifo", TABLE) / "notes.txt")
    refused("fifo", "notes.txt: is neither a file nor a folder")
    (folder(tmp_path / "gone", TABLE) / "notes.txt").symlink_to("nothing")
    refused("gone", "notes.txt: is neither a file nor a folder")
    (folder(tmp_path / "name", TABLE) / "a\nb").write_text("x")
    refused("name", "cannot be printed")
    (folder(tmp_path / "deep", TABLE) / "1/2/3/4/5/6").mkdir(parents=True)
    refused("deep", "folders deep")
    inside = folder(tmp_path / "inside", TABLE, a__txt="x")
    (inside / "b.txt").symlink_to("a.txt")
    (inside / "loop").symlink_to(".")
    refused("inside", "loop: is (a link that leaves|neither)")
    (inside / "loop").unlink()
    assert open_checkpoint(inside).sidecars == ["a.txt", "b.txt", "config.json"]


def test_a_configuration_that_is_not_json(tmp_path: Path) -> None:
    path = folder(tmp_path / "b", TABLE)
    (path / "tokenizer_config.json").write_text("{auto_map")
    with pytest.raises(FormatError, match=r"tokenizer_config\.json: is not JSON"):
        copied(open_checkpoint(path), tmp_path / "out")


def test_an_output_goes_on_where_it_was_left(tmp_path: Path) -> None:
    base = open_checkpoint(folder(tmp_path / "b", TABLE))
    output = plan_output(base, tmp_path / "out")
    copy_bytes(base.tensors["steps"], output.places["steps"])
    again = plan_output(base, tmp_path / "out")
    assert again.places == output.places
    rest = {n: place for n, place in again.places.items() if n != "steps"}
    for name, place in rest.items():
        copy_bytes(base.tensors[name], place)
    again.finish("c")
    assert root_digest(open_checkpoint(tmp_path / "out").digests()) == root_digest(base.digests())


@pytest.mark.parametrize("call", ["posix_fallocate", "pwrite", "fsync", "makedirs"])
def test_a_failing_disk_is_an_error_at_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    base = open_checkpoint(folder(tmp_path / "b", TABLE))

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(PlaitError, match=r"No space left on device.*; nothing was published"):
        copied(base, tmp_path / "out")


def test_everything_is_brought_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder(tmp_path / "b", TABLE)
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text("{}")
    base = open_checkpoint(path)
    output = plan_output(base, tmp_path / "out")
    fill(base, output)
    synced: set[str] = set()
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    output.finish("c")
    out = tmp_path / "out"
    assert synced == {str(out), *map(str, out.rglob("*"))}


def test_copy_bytes_refuses_another_shape(tmp_path: Path) -> None:
    base = open_checkpoint(file(tmp_path / "b.safetensors", {"a": numbers(2), "b": numbers(3)}))
    output = plan_output(base, tmp_path / "o.safetensors")
    with pytest.raises(ValueError, match="comes in"):
        copy_bytes(base.tensors["a"], output.places["b"])


HEAD: dict[str, Any] = {"head.weight": numbers(2, 4, seed=8), "layer.weight": numbers(3, 4, seed=8)}


def test_a_task_s_tensors_join_one_file(tmp_path: Path) -> None:
    base = open_checkpoint(folder(tmp_path / "b", {"layer.weight": numbers(5, 4), "x": numbers(3)}))
    copied(base, tmp_path / "out")
    extra = open_checkpoint(file(tmp_path / "head.safetensors", HEAD)).tensors
    append_shard(tmp_path / "out", extra, {"x": "bert.x", "layer.weight": "bert.layer.weight"})
    assert sorted(os.listdir(tmp_path / "out")) == ["README.md", "config.json", "model.safetensors"]
    loaded = load_file(tmp_path / "out" / "model.safetensors")
    assert {n: a.tobytes() for n, a in loaded.items()} == {
        "bert.x": numbers(3).tobytes(),
        "head.weight": HEAD["head.weight"].tobytes(),
        "bert.layer.weight": HEAD["layer.weight"].tobytes(),
    }
    with safe_open(tmp_path / "out" / "model.safetensors", "np") as opened:
        assert opened.metadata() == {"format": "pt"}


def test_a_task_s_tensors_join_shards(tmp_path: Path) -> None:
    parts = [{"layer.weight": numbers(5, 4), "x": numbers(3)}, {"y": numbers(3)}]
    path = sharded(tmp_path / "b", parts)
    untouched = (path / "model-00002-of-00002.safetensors").stat().st_ino
    extra = open_checkpoint(file(tmp_path / "head.safetensors", HEAD)).tensors
    append_shard(path, extra)
    opened = open_checkpoint(path)  # the index is checked against the shards here
    assert opened.tensors["layer.weight"].shape == (3, 4)
    assert set(opened.tensors) == {"layer.weight", "x", "y", "head.weight"}
    assert (path / "model-00002-of-00002.safetensors").stat().st_ino == untouched
    table = json.loads((path / "model.safetensors.index.json").read_text())
    assert table["metadata"]["total_size"] == sum(ref.nbytes for ref in opened.tensors.values())
    append_shard(path, {"x": extra["head.weight"], "layer.weight": extra["layer.weight"]})
    assert open_checkpoint(path).tensors["x"].shape == (2, 4)  # a shard of which nothing stays is removed
