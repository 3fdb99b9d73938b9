"""From a base and a task to a folder: what is learnt, what is written, and that the same gives the same bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from plait.checkpoint import open_checkpoint, root_digest
from plait.problem.base import Network
from plait.problem.network import module_network
from plait.problem.task import load_tasks
from plait.training import Recipe, finetune
from plait.training.choice import chosen
from tests.line.models import differing, write_file
from tests.training.world import CLASSES, ROWS, TABLE, WIDTH, read, right, write_base, write_tasks

RECIPE = Recipe(epochs=30, rate=1e-2, batch=8)
LINEAR = {"kind": "linear", "weight": "head.weight", "bias": "head.bias"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, tasks.yaml, and the expert `expert`."""
    folder = tmp_path_factory.mktemp("world")
    g = torch.Generator().manual_seed(2)
    head = {"head.weight": torch.randn(3, WIDTH, generator=g), "head.bias": torch.randn(3, generator=g)}
    write_base(folder / "base")
    write_base(folder / "headed", more=head)
    write_tasks(folder, fitted={"head": "linear"}, stored={"head": LINEAR})
    finetune(folder / "base", task(folder), folder / "expert", RECIPE, threads=1)
    return folder


def task(folder: Path, name: str = "things") -> Any:
    return load_tasks(folder / "tasks.yaml")[name]


def record(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "plait_training.json").read_text())
    return found


def test_it_learns(world: Path) -> None:
    assert right(world / "base", world / "base", world / "tasks.yaml") <= 8
    assert right(world / "expert", world / "base", world / "tasks.yaml") == len(ROWS)
    assert right(world / "expert", world / "base", world / "tasks.yaml", split="test") >= len(ROWS) - 4


def test_the_folder_is_the_base_s_but_for_the_weights(world: Path) -> None:
    names = {"config.json", "tokenizer.json", "model.safetensors", "plait_training.json"}
    assert {p.name for p in (world / "expert").iterdir()} == names
    for name in ("config.json", "tokenizer.json"):
        assert (world / "expert" / name).read_bytes() == (world / "base" / name).read_bytes()
    before, after = read(world / "base"), read(world / "expert")
    moved = set(differing(before, after))
    assert before.keys() == after.keys()
    assert before.keys() - moved == {
        "pooler.dense.weight",
        "pooler.dense.bias",
    }  # what mean pooling does not use
    assert [p for p in world.iterdir() if p.name.startswith(".")] == []


def test_the_record_tells_all_that_decides_the_bytes(world: Path) -> None:
    found = record(world / "expert")
    base = root_digest(open_checkpoint(world / "base").digests())
    assert found["format"] == 1
    assert (found["task"], found["kind"], found["classes"]) == (
        "things",
        "text-classification",
        list(CLASSES),
    )
    assert found["head"]["kind"] == "zero-shot"
    assert found["base"] == {"name": "base", "digest": base}
    assert found["start"] == {"digest": base, "tasks": []}
    assert Recipe(**found["recipe"]) == RECIPE
    assert found["data"] == {
        "split": "train",
        "digest": task(world).examples("train").digest,
        "count": len(ROWS),
        "of": len(ROWS),
    }
    assert (found["device"], found["threads"], found["network"]) == ("cpu", 1, None)
    assert found["software"]["torch"] == torch.__version__
    assert {"plait", "python", "cpu", "numpy", "tokenizers"} <= found["software"].keys()
    assert "transformers" not in found["software"]
    assert found["steps"] == 90
    assert found["trained"] == {
        "tensors": 37,
        "elements": sum(t.numel() for t in read(world / "base").values()) - 272,
    }
    assert found["loss"]["every"] == 1
    assert len(found["loss"]["values"]) == 90
    assert found["loss"]["values"][-1] < 0.1 < found["loss"]["values"][0]
    assert found["digest"] == root_digest(open_checkpoint(world / "expert").digests())
    text = (world / "expert" / "plait_training.json").read_text()
    assert str(world) not in text


def test_the_same_again_gives_the_same_bytes(world: Path, tmp_path: Path) -> None:
    """In this process, and in another one from the record alone."""
    done = finetune(world / "base", task(world), tmp_path / "again", RECIPE, threads=1)
    assert {k: v for k, v in done.items() if k not in ("out", "seconds")} == record(world / "expert")
    recipe = record(world / "expert")["recipe"]
    words = [f"--{name}={recipe[name]}" for name in ("epochs", "rate", "batch", "warmup", "examples", "seed")]
    command = [
        "finetune",
        "things",
        tmp_path / "other",
        "--tasks",
        world / "tasks.yaml",
        "--base",
        world / "base",
    ]
    argv = [sys.executable, "-m", "plait.cli", *map(str, command), *words, "--threads", "1"]
    subprocess.run(argv, check=True, capture_output=True, env={**os.environ, "PYTHONHASHSEED": "7"})
    for name in ("model.safetensors", "plait_training.json"):
        wanted = (world / "expert" / name).read_bytes()
        assert (tmp_path / "again" / name).read_bytes() == wanted
        assert (tmp_path / "other" / name).read_bytes() == wanted


def quick(world: Path, out: Path, name: str = "things", base: str = "base", **words: Any) -> dict[str, Any]:
    """One epoch on a few examples."""
    return finetune(world / base, task(world, name), out, Recipe(epochs=1, rate=1e-2, batch=8, **words))


def test_the_seed_is_of_the_order(world: Path, tmp_path: Path) -> None:
    assert quick(world, tmp_path / "0")["digest"] != quick(world, tmp_path / "1", seed=1)["digest"]


def test_the_first_examples_are_taken(world: Path, tmp_path: Path) -> None:
    few = quick(world, tmp_path / "few", examples=5)
    assert (few["steps"], few["data"]["count"], few["data"]["of"]) == (1, 5, len(ROWS))
    whole = task(world).examples("train")

    class Few:
        """A task that has these alone."""

        name, kind, classes = "things", "text-classification", CLASSES
        head = task(world).head

        def examples(self, split: str) -> Any:
            return type(whole)(whole.inputs[:5], whole.labels[:5], "five")

    alone: Any = Few()
    other = finetune(
        world / "base", alone, tmp_path / "alone", Recipe(epochs=1, rate=1e-2, batch=8, examples=0)
    )
    assert other["data"] == {"split": "train", "digest": "five", "count": 5, "of": 5}
    assert other["digest"] == few["digest"]


def test_patterns_choose_what_is_trained(world: Path, tmp_path: Path) -> None:
    done = quick(world, tmp_path / "some", train=("encoder.layer.1.*",), freeze=("*.bias", "*.LayerNorm.*"))
    moved = differing(read(world / "base"), read(tmp_path / "some"))
    assert len(moved) == 6
    assert all(n.startswith("encoder.layer.1.") and n.endswith(".weight") for n in moved)
    assert done["trained"]["tensors"] == 6
    assert done["recipe"]["freeze"] == ["*.bias", "*.LayerNorm.*"]


def test_a_stored_head_is_frozen(world: Path, tmp_path: Path) -> None:
    done = finetune(world / "headed", task(world, "stored"), tmp_path / "out", RECIPE)
    moved = differing(read(world / "headed"), read(tmp_path / "out"))
    assert not {"head.weight", "head.bias"} & set(moved)
    assert TABLE in moved
    assert done["loss"]["values"][-1] < 0.5
    assert right(tmp_path / "out", world / "headed", world / "tasks.yaml", "stored") == len(ROWS)


def test_a_fitted_head_is_that_of_the_base(world: Path, tmp_path: Path) -> None:
    finetune(world / "base", task(world, "fitted"), tmp_path / "out", Recipe(epochs=10, rate=1e-2, batch=8))
    assert right(tmp_path / "out", world / "base", world / "tasks.yaml", "fitted") == len(ROWS)


def test_half_precision_is_trained_in_single_and_rounded_once(world: Path, tmp_path: Path) -> None:
    write_base(tmp_path / "half", torch.bfloat16)
    widened = {n: t.float() for n, t in read(tmp_path / "half").items()}
    write_base(tmp_path / "wide")
    write_file(tmp_path / "wide" / "model.safetensors", widened)
    finetune(tmp_path / "half", task(world), tmp_path / "half-expert", RECIPE)
    finetune(tmp_path / "wide", task(world), tmp_path / "wide-expert", RECIPE)
    half, wide = read(tmp_path / "half-expert"), read(tmp_path / "wide-expert")
    assert all(
        half[n].dtype == torch.bfloat16 and torch.equal(half[n], t.bfloat16()) for n, t in wide.items()
    )


def test_double_precision_stays(world: Path, tmp_path: Path) -> None:
    write_base(tmp_path / "double", torch.float64)
    quick(world, tmp_path / "out", base=str(tmp_path / "double"))
    found = read(tmp_path / "out")[TABLE]
    assert not torch.equal(found, found.float().double())


def test_shards_and_their_index_stay(world: Path, tmp_path: Path) -> None:
    write_base(tmp_path / "base")
    whole = read(tmp_path / "base")
    (tmp_path / "base" / "model.safetensors").unlink()
    names = sorted(whole)
    places = {name: f"model-0000{1 + (i % 2)}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(places.values()):
        write_file(tmp_path / "base" / file, {n: whole[n] for n in names if places[n] == file})
    (tmp_path / "base" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    quick(world, tmp_path / "sharded", base=str(tmp_path / "base"))
    quick(world, tmp_path / "plain")
    assert differing(read(tmp_path / "sharded"), read(tmp_path / "plain")) == []
    index = json.loads((tmp_path / "sharded" / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == places


class Tied(nn.Module):
    """Counts of letters in and out of one matrix, and a head of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 6, bias=False)
        self.lm_head = nn.Linear(6, 6, bias=False)
        self.lm_head.weight = self.embed.weight
        self.score = nn.Linear(6, 3)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.score(torch.tanh(self.lm_head(torch.tanh(self.embed(batch)))))
        return made


class Turned(Tied):
    """The network knows the tied matrix by the name of the output first."""

    def __init__(self) -> None:
        super().__init__()
        embed = self.embed
        del self.embed
        self.embed = embed


class Apart(Tied):
    def __init__(self) -> None:
        super().__init__()
        self.lm_head.weight = nn.Parameter(self.embed.weight.detach().clone())


def tied(kind: str = "Tied", **words: Any) -> Network:
    def count(texts: Any) -> list[torch.Tensor]:
        return [torch.tensor([float(text.count(letter)) for letter in "aeiouy"]) for text in texts]

    words.pop("folder")
    made = {"Tied": Tied, "Turned": Turned, "Apart": Apart}[kind]()
    return module_network(made, encode=count, **words)


def one_file(path: Path) -> Path:
    g = torch.Generator().manual_seed(0)
    matrix, score = torch.randn(6, 6, generator=g), torch.randn(3, 6, generator=g)
    tensors = {"embed.weight": matrix, "lm_head.weight": matrix.clone()}
    return write_file(path, {**tensors, "score.weight": score, "score.bias": torch.zeros(3)})


TIED = "python:tests.training.test_finetune:tied"


def test_a_head_of_the_network_s_own_and_a_base_of_one_file(world: Path, tmp_path: Path) -> None:
    """Everything is trained, tied weights stay tied, and the expert is a folder that can be merged."""
    base = one_file(tmp_path / "base.safetensors")
    write_tasks(tmp_path, head="model")
    done = finetune(base, task(tmp_path), tmp_path / "out", RECIPE, network=TIED)
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"base.safetensors", "plait_training.json"}
    found = read(tmp_path / "out")
    assert len(differing(read(base), found)) == 4
    assert torch.equal(found["embed.weight"], found["lm_head.weight"])
    assert done["trained"]["tensors"] == 3
    assert done["network"] == TIED
    assert done["loss"]["values"][-1] < done["loss"]["values"][0]
    turned = finetune(base, task(tmp_path), tmp_path / "turned", RECIPE, network=f"{TIED}?kind=Turned")
    assert turned["digest"] == done["digest"]
    from plait import Line

    line = Line.create(tmp_path / "line", base)
    assert line.merge(tmp_path / "out", "things")["accounting"]["merged"] == 3


def test_a_frozen_head_is_not_among_what_is_trained(tmp_path: Path) -> None:
    base = open_checkpoint(one_file(tmp_path / "base.safetensors"))
    head = {"kind": "linear", "weight": "score.weight", "bias": "score.bias"}
    write_tasks(tmp_path, head=head, own={"head": "model"})
    network = tied(folder=None)
    assert chosen(network, Recipe(), task(tmp_path), base) == ["embed.weight"]
    assert len(chosen(network, Recipe(), task(tmp_path, "own"), base)) == 3


def test_tied_weights_are_not_trained_apart(tmp_path: Path) -> None:
    from plait.errors import RefusedInput

    base = one_file(tmp_path / "base.safetensors")
    write_tasks(tmp_path, head="model")
    with pytest.raises(
        RefusedInput, match=r"^things: (embed|lm_head).weight and .* are one tensor in the base"
    ):
        finetune(base, task(tmp_path), tmp_path / "out", network=f"{TIED}?kind=Apart")
    finetune(
        base, task(tmp_path), tmp_path / "out", Recipe(freeze=("lm_head.*",)), network=f"{TIED}?kind=Apart"
    )
