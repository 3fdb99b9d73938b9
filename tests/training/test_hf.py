"""Networks of transformers: their own heads are trained, and what is tied stays tied."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from plait.problem.task import load_tasks
from plait.training import Recipe, finetune
from tests.line.models import differing
from tests.problem.folders import LABELS, SMALL, TEXTS, WORDS, bert, library, saved, tokenizer, weights_of

RECIPE = Recipe(epochs=40, rate=1e-2, batch=5)


def write_tasks(folder: Path, **words: object) -> Path:
    rows = [{"text": text, "label": i % len(LABELS), "split": "train"} for i, text in enumerate(TEXTS)]
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {"data": "texts.jsonl", "splits": {"train": {}}, **words}
    (folder / "tasks.yaml").write_text(json.dumps({"tasks": {"t": task}}))
    return folder / "tasks.yaml"


def test_a_classifier_of_its_own_is_trained_with_the_rest(tmp_path: Path) -> None:
    from plait.problem.heads import make_head, predict
    from plait.problem.network import open_network

    bert(tmp_path / "base", "BertForSequenceClassification", num_labels=3)
    tasks = write_tasks(tmp_path, kind="text-classification", classes=list(LABELS), head="model")
    task = load_tasks(tasks)["t"]
    done = finetune(tmp_path / "base", task, tmp_path / "out", RECIPE)
    before, after = weights_of(tmp_path / "base"), weights_of(tmp_path / "out")
    assert {"classifier.weight", "classifier.bias", "bert.pooler.dense.weight"} <= set(
        differing(before, after)
    )
    assert done["loss"]["values"][-1] < 0.5 < done["loss"]["values"][0]
    assert "transformers" in done["software"]
    examples = task.examples("train")
    network = open_network(tmp_path / "out", task.kind)
    logits = predict(make_head(task, network, after), network, after, examples)
    assert examples.labels is not None
    assert torch.equal(logits.argmax(-1), examples.labels)


def test_a_language_model_stays_tied(tmp_path: Path) -> None:
    transformers = library()
    tokenizer(tmp_path / "base", around=False)
    words = {"vocab_size": len(WORDS), "bos_token_id": 2, "eos_token_id": 3}
    shape = transformers.GPT2Config(n_embd=SMALL["hidden_size"], n_layer=1, n_head=2, **words)
    saved(tmp_path / "base", lambda: transformers.GPT2LMHeadModel(shape))
    task = load_tasks(write_tasks(tmp_path, kind="causal-lm"))["t"]
    done = finetune(tmp_path / "base", task, tmp_path / "out", RECIPE)
    assert done["loss"]["values"][-1] < done["loss"]["values"][0] / 2
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(info.values())
    assert model.lm_head.weight is model.transformer.wte.weight
    assert differing(weights_of(tmp_path / "base"), weights_of(tmp_path / "out"))
