"""`plait eval` and a short script with transformers give the same answers, example by example."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from plait import Line
from plait.evaluation.rows import Row
from plait.problem.task import load_tasks
from tests.problem.folders import WORDS, bert, library, saved, tokenizer

CLASSES = ["red", "green grass", "blue sky"]


def sentences(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        found[" ".join(rng.choices(WORDS[4:], k=rng.randrange(1, 12)))] = None
    return list(found)


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A base without a head, two classifiers with heads of 3 classes, and their tasks."""
    library()
    bert(tmp_path / "base", "BertModel")
    for i, name in enumerate(("one", "two")):
        model = bert(tmp_path / name, "BertForSequenceClassification", num_labels=3)
        g = torch.Generator().manual_seed(5 + i)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=g))
        model.save_pretrained(tmp_path / name)
    tasks: dict[str, Any] = {}
    for i, name in enumerate(("one", "two")):
        rng = random.Random(i)
        rows = [{"text": text, "label": rng.randrange(3)} for text in sentences(60, i)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        splits = {"test": {"count": 50}}
        words = {"kind": "text-classification", "classes": CLASSES, "head": "model", "splits": splits}
        tasks[name] = {**words, "data": f"{name}.jsonl"}
    (tmp_path / "tasks.yaml").write_text(json.dumps({"tasks": tasks}))
    line = Line.create(tmp_path / "line", tmp_path / "base", private=["classifier.*"])
    for name in ("one", "two"):
        line.merge(tmp_path / name, allow_distant=True)
    return tmp_path


def classes(folder: Path, texts: list[str]) -> list[int]:
    transformers = library()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        return [int(model(**tokenizer(text, return_tensors="pt")).logits.argmax()) for text in texts]


def test_the_models_own_head(world: Path) -> None:
    line = Line.open(world / "line")
    killed = line.store.workspace(f"eval-head-{line.members[0].digest[:16]}") / "folder"
    killed.mkdir()
    (killed / "config.json").write_text("half")
    found = line.evaluate(world / "tasks.yaml")
    rows = {(row["role"], row["task"]): Row.of(row) for row in found["rows"]}
    for name, task in load_tasks(world / "tasks.yaml").items():
        examples = task.examples("test")
        assert examples.labels is not None
        labels = examples.labels.tolist()
        for role, folder in (("version", world / "out"), ("expert", world / name)):
            if role == "version":
                line.export(folder, task=name, force=True)
            got = [a == b for a, b in zip(classes(folder, list(examples.inputs)), labels, strict=True)]
            assert rows[role, name].answers == got, (role, name)
            assert rows[role, name].count == 50
    assert len({row.bits for row in rows.values()}) == 6
    assert line.store.workspaces() == []
    assert line.verify()["ok"] is True


def test_a_zero_shot_head(world: Path) -> None:
    transformers = library()
    tasks = json.loads((world / "tasks.yaml").read_text())["tasks"]
    for row in tasks.values():
        row["head"] = {"kind": "zero-shot", "templates": ["{}", "a {}"]}
    (world / "tasks.yaml").write_text(json.dumps({"tasks": tasks}))
    line = Line.open(world / "line")
    found = line.evaluate(world / "tasks.yaml")
    shutil.rmtree(world / "out", ignore_errors=True)
    line.export(world / "out")

    def embed(model: Any, texts: list[str]) -> torch.Tensor:
        tokenizer = transformers.AutoTokenizer.from_pretrained(world / "base")
        with torch.no_grad():
            rows = [model(**tokenizer(t, return_tensors="pt")).last_hidden_state[0].mean(0) for t in texts]
        return torch.nn.functional.normalize(torch.stack(rows), dim=-1)

    base, merged = (transformers.AutoModel.from_pretrained(world / n).eval() for n in ("base", "out"))
    named = embed(base, CLASSES) + embed(base, [f"a {name}" for name in CLASSES])
    named = torch.nn.functional.normalize(named, dim=-1)
    for name, task in load_tasks(world / "tasks.yaml").items():
        examples = task.examples("test")
        assert examples.labels is not None
        for role, model in (("base", base), ("version", merged)):
            guess = (embed(model, list(examples.inputs)) @ named.T).argmax(-1)
            (row,) = [Row.of(r) for r in found["rows"] if (r["role"], r["task"]) == (role, name)]
            assert row.answers == (guess == examples.labels).tolist()


def test_a_model_that_continues_texts(tmp_path: Path) -> None:
    """Tied input and output embeddings, base and expert, and rows with several answers for a text."""
    transformers = library()
    shape = {"vocab_size": len(WORDS), "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}
    for i, name in enumerate(("base", "stories")):
        tokenizer(tmp_path / name, around=False)
        torch.manual_seed(i)
        model = saved(tmp_path / name, lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape)))
        g = torch.Generator().manual_seed(i)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.5 * i * torch.randn(parameter.shape, generator=g))
        model.save_pretrained(tmp_path / name)
    texts = sentences(30, 9)
    (tmp_path / "stories.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    words = {"kind": "causal-lm", "data": "stories.jsonl", "splits": {"test": {}}}
    (tmp_path / "tasks.yaml").write_text(json.dumps({"tasks": {"stories": words}}))
    line = Line.create(tmp_path / "line", tmp_path / "base")
    line.merge(tmp_path / "stories", allow_distant=True)
    found = line.evaluate(tmp_path / "tasks.yaml")
    inputs = list(load_tasks(tmp_path / "tasks.yaml")["stories"].examples("test").inputs)
    assert sorted(inputs) == sorted(texts)
    rows = {row["role"]: Row.of(row) for row in found["rows"]}
    line.export(tmp_path / "out")
    for role, folder in (("base", "base"), ("expert", "stories"), ("version", "out")):
        reader = transformers.AutoTokenizer.from_pretrained(tmp_path / folder)
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / folder).eval()
        answers, groups = [], []
        for text in inputs:
            tokens = reader(text, return_tensors="pt").input_ids
            with torch.no_grad():
                guess = model(tokens).logits[0].argmax(-1)
            right = [int(guess[i]) == int(tokens[0, i + 1]) for i in range(tokens.shape[1] - 1)]
            answers += right
            groups += [len(right)] if right else []
        assert rows[role].answers == answers, role
        assert rows[role].groups == tuple(groups)
        assert rows[role].metric == "token accuracy"
    assert rows["base"].bits != rows["expert"].bits
    again = line.evaluate(tmp_path / "tasks.yaml")
    assert again["rows"] == found["rows"]
    assert again["computed"] == 0
