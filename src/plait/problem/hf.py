"""Networks of transformers (extra `hf`), by a folder's config.json. Nothing is downloaded, no code of it is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from plait.checkpoint import Checkpoint
from plait.errors import PlaitError, RefusedInput
from plait.problem import hf_outputs as outputs
from plait.problem.base import Kind
from plait.problem.batching import pad
from plait.problem.fitting import fit
from plait.problem.module import ModuleNetwork, strip, without_weights

_VISION = ("vision_model.", "visual_projection.")
_TEXT = ("text_model.", "text_projection.")
"""How names of CLIP's two towers begin."""


def open_model(
    checkpoint: Checkpoint, kind: Kind, *, device: torch.device, dtype: torch.dtype, longest: int
) -> ModuleNetwork:
    """The network that transformers has for a folder's config.json and this kind of task.

    Features: of CLIP the projected embeddings; of a model with a head for classes, and of every other one for images,
    what its last linear layer sees; of other texts the mean over tokens of the last hidden states. Outputs: logits,
    where the checkpoint has the head's weights.
    Errors: RefusedInput, PlaitError; see `network.open_network`.
    """
    opening = _Opening(_library(), checkpoint, device, dtype, longest)
    if kind == "causal-lm":
        return opening.causal()
    if kind == "image-classification":
        return opening.images()
    return opening.texts()


def _library() -> Any:
    try:
        import transformers
    except ImportError:
        raise PlaitError(
            "package transformers is not installed, and this network is built with it; run `pip install 'plait[hf]'`"
        ) from None
    return transformers


def callback_class() -> Any:
    """The class of callbacks of transformers' `Trainer`. PlaitError where transformers is not installed."""
    return _library().TrainerCallback


@dataclass(frozen=True)
class _Opening:
    """Makes the network of one folder."""

    library: Any
    checkpoint: Checkpoint
    device: torch.device
    dtype: torch.dtype
    longest: int

    # by kind of task
    def texts(self) -> ModuleNetwork:
        config = self.config()
        if self.type == "clip":
            return self._text_tower(*self._towers(config, _TEXT))
        if getattr(config, "is_encoder_decoder", False):
            raise self._unknown("text-classification")
        if self.architecture.endswith("ForSequenceClassification"):
            module = self._build("AutoModelForSequenceClassification", "text-classification", config)
            return self._classifier(module, "text-classification", self._text_parts(module))
        module = self._build("AutoModel", "text-classification", config)
        if module.main_input_name != "input_ids":
            raise self._unknown("text-classification")
        if getattr(module, "pooler", None) is not None:
            module.pooler = None  # not part of the mean over tokens, and not in every checkpoint
        return self._network(
            module, self._text_parts(module), self.fit(module), features=outputs.mean_of_last
        )

    def images(self) -> ModuleNetwork:
        config = self.config()
        if self.type == "clip" and self.architecture != "CLIPForImageClassification":
            return self._image_tower(*self._towers(config, _VISION))
        if self.type == "clip_vision_model":
            module = self._build(self.architecture or "CLIPVisionModel", "image-classification", config)
            return self._network(module, self._image_parts(), self.fit(module), features=outputs.tower_alone)
        module = self._build("AutoModelForImageClassification", "image-classification", config)
        return self._classifier(module, "image-classification", self._image_parts())

    def causal(self) -> ModuleNetwork:
        module = self._build("AutoModelForCausalLM", "causal-lm", self.config())
        return self._network(module, self._text_parts(module), self.fit(module), outputs=outputs.next_tokens)

    # what they are made of
    @property
    def path(self) -> str:
        return self.checkpoint.path

    @property
    def type(self) -> str:
        return str((self.checkpoint.config or {}).get("model_type", "an unnamed model"))

    @property
    def architecture(self) -> str:
        names = (self.checkpoint.config or {}).get("architectures") or [""]
        return str(names[0])

    def config(self) -> Any:
        return self._read(self.library.AutoConfig, "config.json")

    def _read(self, auto: Any, what: str, **options: Any) -> Any:
        """auto.from_pretrained of the folder, with whatever goes wrong restated in one line."""
        try:
            return auto.from_pretrained(self.path, local_files_only=True, trust_remote_code=False, **options)
        except Exception as error:  # transformers raises whatever the library below it raised
            raise RefusedInput(
                f"{self.path}: transformers {self.library.__version__} cannot read {what} ({_first_line(error)}); "
                "put a complete one there, or name the network as python:module:function"
            ) from error

    def _unknown(self, kind: str) -> RefusedInput:
        return RefusedInput(
            f"{self.path}: config.json describes {self.type}, of which transformers {self.library.__version__} has "
            f"no network for {kind}; name one as python:module:function"
        )

    def _build(self, name: str, kind: str, config: Any) -> Any:
        made = getattr(self.library, name, None)
        if made is None:
            raise self._unknown(kind)
        make = made.from_config if name.startswith("Auto") else made
        try:
            with without_weights():
                module = make(config)
        except Exception as error:  # whatever the numbers in config.json lead to
            if str(error).startswith("Unrecognized configuration class"):
                raise self._unknown(kind) from error
            raise RefusedInput(
                f"{self.path}: transformers {self.library.__version__} cannot build the {self.type} that config.json "
                f"describes ({_first_line(error)}); put the model's own config.json there"
            ) from error
        return strip(module, self.device, self.dtype)

    def fit(self, module: Any, optional: Callable[[str], bool] = lambda name: False) -> dict[str, str]:
        return fit(module, self.checkpoint, rename=_renaming(module), optional=optional)

    def _network(self, module: Any, parts: _Parts, names: Mapping[str, str], **options: Any) -> ModuleNetwork:
        return ModuleNetwork(
            module,
            names,
            self.device,
            self.dtype,
            encoder=parts.encode,
            collator=parts.collate,
            length=parts.length,
            to_features=options.get("features"),
            to_outputs=options.get("outputs"),
            text=options.get("text"),
            about=f"the {self.type} of {self.path}",
        )

    def _classifier(self, module: Any, kind: str, parts: _Parts) -> ModuleNetwork:
        """A model that ends in a linear layer; where the checkpoint lacks that layer, it has features only."""
        linear = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]
        last = linear[-1] if linear else ""
        if not last or module.get_submodule(last).out_features != module.config.num_labels:
            raise self._unknown(kind)
        names = self.fit(module, lambda name: name.startswith(f"{last}."))
        whole = set(module.state_dict()) == set(names.values())
        made = outputs.logits if whole else None
        return self._network(module, parts, names, features=outputs.before(last), outputs=made)

    # CLIP
    def _towers(self, config: Any, needed: tuple[str, ...]) -> tuple[Any, dict[str, str]]:
        """Both towers; the folder must have the weights of the one whose names begin with `needed`."""
        module = self._build("CLIPModel", "image-classification", config)
        return module, self.fit(module, lambda name: not name.startswith(needed))

    def _image_tower(self, module: Any, names: Mapping[str, str]) -> ModuleNetwork:
        needed = {name for name in module.state_dict() if name.startswith(_TEXT)}
        text = self._text_tower(module, names) if needed <= set(names.values()) else None
        own = {name: target for name, target in names.items() if target.startswith(_VISION)}
        return self._network(module, self._image_parts(), own, features=outputs.image_embeddings, text=text)

    def _text_tower(self, module: Any, names: Mapping[str, str]) -> ModuleNetwork:
        own = {name: target for name, target in names.items() if target.startswith(_TEXT)}
        return self._network(module, self._text_parts(module), own, features=outputs.text_embeddings)

    # from examples to batches
    def _text_parts(self, module: Any) -> _Parts:
        tokenizer = self._read(self.library.AutoTokenizer, "the tokenizer")
        config = getattr(module.config, "text_config", None) or module.config
        choices = (config.pad_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
        filler = next(int(choice) for choice in choices if choice is not None)
        config.pad_token_id = filler  # models that look for the last token compare with it
        limit = min(self.longest, tokenizer.model_max_length, _places(module))

        def encode(texts: Sequence[str]) -> list[list[int]]:
            if not len(texts):
                return []
            tokens: list[list[int]] = tokenizer(list(texts), truncation=True, max_length=limit)["input_ids"]
            for number, text in enumerate(tokens):
                if not text:
                    raise RefusedInput(
                        f"text {number} of {len(tokens)} has no token; leave empty texts out of the task"
                    )
            return tokens

        return _Parts(encode, lambda encoded: pad(encoded, filler, self.device), len)

    def _image_parts(self) -> _Parts:
        processor = self._read(
            self.library.AutoImageProcessor, "preprocessor_config.json", **_in_numpy(self.library)
        )

        def collate(images: Sequence[Any]) -> dict[str, Tensor]:
            made = processor(images=list(images), return_tensors="pt", input_data_format="channels_last")
            return {"pixel_values": made["pixel_values"].to(device=self.device, dtype=self.dtype)}

        return _Parts(list, collate, lambda image: 0)


@dataclass(frozen=True)
class _Parts:
    encode: Callable[[Any], Sequence[Any]]
    collate: Callable[[Sequence[Any]], Any]
    length: Callable[[Any], int]


def _first_line(error: Exception) -> str:
    return (str(error).strip() or repr(error)).splitlines()[0]


def _in_numpy(library: Any) -> dict[str, Any]:
    """The option for image processors that do not depend on whether torchvision is installed."""
    return {"backend": "pil"} if int(library.__version__.split(".")[0]) >= 5 else {"use_fast": False}


def _places(module: Any) -> int:
    """How many tokens a model can tell the places of."""
    config = getattr(module.config, "text_config", None) or module.config
    for name, part in module.named_modules():
        if name.endswith("position_embeddings") and getattr(part, "padding_idx", None) is not None:
            return int(part.num_embeddings - part.padding_idx - 1)  # RoBERTa counts from behind the padding
    return int(getattr(config, "max_position_embeddings", None) or 1 << 30)


def _renaming(module: Any) -> Callable[[str], str]:
    """From names in checkpoints to those that this version of transformers gives its layers."""
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightRenaming, rename_source_key
    except ImportError:  # before version 5 layers kept their names
        return lambda name: name
    renamings = [step for step in get_model_conversion_mapping(module) if isinstance(step, WeightRenaming)]
    there = dict.fromkeys(module.state_dict(), True)

    def rename(name: str) -> str:
        renamed: str = rename_source_key(name, renamings, [], module.base_model_prefix, there)[0]
        return renamed if renamed in there else name

    return rename
