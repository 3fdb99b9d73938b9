"""The CLIP suites on small towers with random weights, against a plain forward pass of transformers."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from plait.bench import clip, experts, worker
from plait.bench.results import Score
from plait.bench.suites import Sources, find
from plait.bench.worker import Model, Setup, World
from plait.checkpoint import open_checkpoint
from plait.errors import RefusedInput
from plait.line import Line
from tests.line.models import read
from tests.problem.folders import SMALL, library, saved

TASKS = ("eurosat", "mnist")
COUNT = 12


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """Both folders as the suite wants them: checkpoints and packed images."""
    root = tmp_path_factory.mktemp("clip")
    models, data = root / "models", root / "data"
    whole = whole_model(models / clip.BASE)
    for number, task in enumerate(clip.CLIP8):
        tower(whole, models / clip.expert_name(task), number)
    data.mkdir()
    for number, task in enumerate(clip.CLIP8):
        pack(data / f"{task}.npz", len(clip.PROMPTS[task][0]), number)
    return Sources(data, models)


def whole_model(folder: Path) -> Any:
    transformers = library()
    text = {
        **SMALL,
        "vocab_size": write_tokenizer(folder),
        "max_position_embeddings": 32,
        "eos_token_id": 1,
        "pad_token_id": 0,
    }
    vision = {**SMALL, "image_size": 16, "patch_size": 8, "projection_dim": 8}
    size = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}
    transformers.CLIPImageProcessor(**size).save_pretrained(folder)
    shape = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)
    return saved(folder, lambda: transformers.CLIPModel(shape))


def write_tokenizer(folder: Path) -> int:
    """Whole words of the prompts of TASKS, so that no two classes read alike. Returns how many there are."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    split = pre_tokenizers.Whitespace()
    texts = [
        t.format(name) for task in TASKS for name in clip.PROMPTS[task][0] for t in clip.PROMPTS[task][1]
    ]
    found = {word for text in texts for word, _ in split.pre_tokenize_str(text)}
    known = {word: number for number, word in enumerate(["[PAD]", "[END]", "[UNK]", *sorted(found)])}
    made = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    made.pre_tokenizer = split
    made.post_processor = processors.TemplateProcessing(single="$A [END]", special_tokens=[("[END]", 1)])
    library().PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", eos_token="[END]", unk_token="[UNK]", model_max_length=32,
        model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(folder)  # fmt: skip
    return len(known)


def tower(whole: Any, folder: Path, seed: int) -> None:
    """An expert as they are published: the vision tower alone, moved a little."""
    made = library().CLIPVisionModel(whole.config.vision_config)
    torch.manual_seed(seed)
    with torch.no_grad():
        ours = {name.removeprefix("vision_model."): p for name, p in whole.named_parameters()}
        for name, parameter in made.named_parameters():
            start = ours[name.removeprefix("vision_model.")]
            parameter.copy_(start + 0.3 * start.std().nan_to_num(0.1) * torch.randn_like(start))
    made.save_pretrained(folder)


def pack(file: Path, classes: int, seed: int) -> None:
    """Images of different sizes in one file, as docs/benchmarks-suites.md packs them."""
    from PIL import Image

    draw = np.random.default_rng(seed)
    arrays: dict[str, Any] = {}
    for split, count in (("test", COUNT), ("validation", 5)):
        parts = []
        for number in range(count):
            pixels = draw.integers(0, 256, (20 + number % 3, 24, 3), dtype=np.uint8)
            stream = io.BytesIO()
            Image.fromarray(pixels).save(stream, "PNG")
            parts.append(stream.getvalue())
        arrays[f"jpeg_{split}"] = np.frombuffer(b"".join(parts), dtype=np.uint8)
        arrays[f"off_{split}"] = np.cumsum([0, *map(len, parts)])
        arrays[f"y_{split}"] = draw.integers(0, classes, count)
    np.savez(file, **arrays)


@pytest.fixture
def setup(sources: Sources, tmp_path: Path) -> Setup:
    find("clip8").lay_base(sources, tmp_path / "base")
    return Setup("clip8", sources, tmp_path / "base", None)


def plainly(sources: Sources, expert: Path | None, task: str) -> Score:
    """Accuracy by transformers alone, one image after the other, the text prompts one by one."""
    transformers = library()
    assert sources.models is not None
    folder = sources.models / clip.BASE
    model = transformers.CLIPModel.from_pretrained(folder).eval()
    if expert is not None:
        own = transformers.CLIPVisionModel.from_pretrained(expert)
        inner = getattr(own, "vision_model", own)
        model.vision_model.load_state_dict(inner.state_dict())
    words = transformers.AutoTokenizer.from_pretrained(folder)
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    classes, templates = clip.PROMPTS[task]
    examples = find("clip8").load(sources, None)[task].examples("test")
    assert examples.labels is not None
    right = 0

    def embed(text: str) -> torch.Tensor:
        made: torch.Tensor = model.text_model(**words(text, return_tensors="pt")).pooler_output
        return model.text_projection(made)  # type: ignore[no-any-return]

    with torch.no_grad():
        rows = []
        for name in classes:
            found = [embed(template.format(name)) for template in templates]
            rows.append(torch.cat([f / f.norm(dim=-1, keepdim=True) for f in found]).mean(0))
        head = torch.stack(rows)
        head = head / head.norm(dim=-1, keepdim=True)
        for image, label in zip(examples.inputs, examples.labels.tolist(), strict=True):
            pixels = processor(images=image, return_tensors="pt", input_data_format="channels_last")
            seen = model.visual_projection(model.vision_model(**pixels).pooler_output)
            right += int((seen @ head.T).argmax()) == label
    return Score(right, len(examples))


def test_the_base_is_the_vision_tower(setup: Setup, sources: Sources) -> None:
    assert sources.models is not None
    names = set(open_checkpoint(setup.base).tensors)
    assert names
    assert all(name.startswith("vision_model.") for name in names)
    whole = read(sources.models / clip.BASE)
    assert {n for n in whole if n.startswith("vision_model.") and whole[n].is_floating_point()} == names
    assert all(torch.equal(whole[name], tensor) for name, tensor in read(setup.base).items())


@pytest.mark.parametrize("task", TASKS)
def test_accuracies_are_those_of_transformers(setup: Setup, sources: Sources, task: str) -> None:
    assert sources.models is not None
    assert worker.measure(setup, Model(setup.base), task, "test") == plainly(sources, None, task)
    own = sources.models / clip.expert_name(task)
    assert worker.measure(setup, Model(own, expert=True), task, "test") == plainly(sources, own, task)


def test_experts_make_a_stream(setup: Setup, sources: Sources, tmp_path: Path) -> None:
    suite = find("clip8")
    assert sources.models is not None
    folders, rows = experts.given(suite, sources.models)
    assert list(rows) == list(suite.tasks)
    line = Line.create(tmp_path / "line", setup.base, "average", private=suite.private, keep=3)
    models = []
    for task in TASKS:
        line.merge(folders[task], task)
        models.append(Model(line.model))
    first, second = World(setup), World(setup)
    one = first.weights(models[0])
    expert = second.weights(Model(folders[TASKS[0]], expert=True))
    assert one.keys() == expert.keys()
    assert all(torch.equal(one[name], expert[name]) for name in one), (
        "one member's average is not that member"
    )
    assert worker.measure(setup, models[1], "mnist", "test").count == COUNT


def test_images_of_any_size_are_made_square(sources: Sources) -> None:
    examples = find("clip8").load(sources, None)["eurosat"].examples("validation")
    assert {image.shape for image in examples.inputs} == {(clip.SIZE, clip.SIZE, 3)}
    assert len(examples) == 5


def test_a_base_without_towers_is_refused(sources: Sources, tmp_path: Path) -> None:
    from tests.line.models import base_tensors, write_folder

    write_folder(tmp_path / clip.BASE, base_tensors())
    with pytest.raises(RefusedInput, match=r"has no tensor vision_model\.\*; expected CLIP with both towers"):
        find("clip8").lay_base(Sources(sources.data, tmp_path), tmp_path / "base")


def test_files_that_the_suite_needs_are_all_there(sources: Sources) -> None:
    find("clip8").check(sources)
    with pytest.raises(RefusedInput, match="the expert of oxford_flowers102"):
        find("clip20").check(sources)
