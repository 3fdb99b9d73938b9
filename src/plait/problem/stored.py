"""A task in one file: examples that a line keeps, so that they are there when the user's own data files are not.

The file is a safetensors file. For each split that is in it:

    SPLIT/labels    I64 (n,); left out where the examples have none
    SPLIT/images    U8 (n, height, width, 3), or
    SPLIT/texts     U8: the texts in UTF-8, one after the other, and SPLIT/ends I64 (n,): where each ends in it
    head/weight, head/bias    of a linear head that was fitted; left out otherwise

and, in its metadata, JSON under `task`: name, kind, classes, head, and by split the number and the digest of the
examples and how many there were to draw from. Equal examples of equal tasks give equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any, get_args

from plait.checkpoint.format import FileWriter, read_bytes
from plait.checkpoint.header import Header, read_header
from plait.errors import RefusedInput, VerificationError
from plait.problem.base import Examples, Head, HeadSpec, Kind, Network, Split, Task, Weights
from plait.problem.content import make_examples
from plait.problem.feed import take
from plait.problem.heads import Linear, make_head
from plait.tensors import Tensor, torch
from plait.types import TensorRef

FORMAT = "plait task 1"
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

Array = tuple[str, tuple[int, ...], bytes]
"""dtype, shape and bytes of one array of the file."""


@dataclass(frozen=True)
class Drawn:
    """Examples of one split. of: how many the split has in all."""

    examples: Examples
    of: int


def draw(task: Task, split: Split, samples: int | None, seed: int) -> Drawn:
    """At most `samples` of a split's examples, in their order, drawn without replacement by `seed`; None for all.

    Their digest is that of `make_examples`, whatever the task's own is. RefusedInput for examples that are neither
    texts nor images: these cannot be stored.
    """
    found = task.examples(split)
    total = len(found)
    few = samples is not None and samples < total
    rows = sorted(Random(seed).sample(range(total), samples or 0)) if few else list(range(total))
    inputs = take(found.inputs, rows)
    labels = None if found.labels is None else found.labels[rows].tolist()
    _form(task.name, split, inputs)
    return Drawn(make_examples(inputs, labels), total)


def write_stored(
    file: Path, task: Task, drawn: Mapping[Split, Drawn], fitted: Linear | None = None
) -> dict[str, Any]:
    """Write the file. fitted: the task's head, where it is a linear one that was fitted. Returns its description."""
    words = {
        "name": task.name,
        "kind": task.kind,
        "classes": list(task.classes),
        "head": asdict(task.head),
        "splits": {
            split: {"count": len(one.examples), "of": one.of, "digest": one.examples.digest}
            for split, one in sorted(drawn.items())
        },
    }
    arrays: dict[str, Array] = {}
    for split, one in sorted(drawn.items()):
        arrays |= _arrays(task.name, split, one.examples)
    if fitted is not None:
        arrays["head/weight"], arrays["head/bias"] = _plain(fitted.weight), _plain(fitted.bias)
    entries = [(name, dtype, shape) for name, (dtype, shape, _) in arrays.items()]
    text = json.dumps(words, sort_keys=True, ensure_ascii=False)
    with FileWriter(file, entries, {"format": FORMAT, "task": text}) as writer:
        for name, (_, _, data) in arrays.items():
            writer.write(name, 0, data)
    return words


def _form(task: str, split: Split, inputs: Any) -> str:
    """`texts` or `images`; RefusedInput for anything else."""
    if getattr(inputs, "shape", None) is None and all(isinstance(one, str) for one in inputs):
        return "texts"
    shape, dtype = tuple(getattr(inputs, "shape", ())), str(getattr(inputs, "dtype", ""))
    if len(shape) == 4 and shape[3] == 3 and dtype == "uint8":
        return "images"
    found = f"{dtype} {shape}" if shape else f"a list of {type(inputs[0]).__name__}"
    raise RefusedInput(
        f"{task}: its {split} examples are {found}; a line can store texts, and images as a uint8 array "
        "(n, height, width, 3): let the task give one of these, and its network encode them"
    )


def _arrays(task: str, split: Split, examples: Examples) -> dict[str, Array]:
    found: dict[str, Array] = {}
    if examples.labels is not None:
        found[f"{split}/labels"] = _whole(examples.labels)
    if _form(task, split, examples.inputs) == "images":
        shape = tuple(examples.inputs.shape)
        return found | {f"{split}/images": ("U8", shape, examples.inputs.tobytes())}
    parts = [text.encode("utf-8") for text in examples.inputs]
    data = b"".join(parts)
    ends = torch.tensor([len(part) for part in parts], dtype=torch.int64).cumsum(0)
    return found | {f"{split}/ends": _whole(ends), f"{split}/texts": ("U8", (len(data),), data)}


def _whole(numbers: Tensor) -> Array:
    return "I64", tuple(numbers.shape), numbers.to(torch.int64).contiguous().numpy().tobytes()


def _plain(tensor: Tensor) -> Array:
    held = tensor.detach().cpu().contiguous()
    return _NAMES[held.dtype], tuple(held.shape), held.view(torch.uint8).numpy().tobytes()


@dataclass(frozen=True, eq=False)
class StoredTask:
    """A task (see `base.Task`) as the file has it. splits: number and digest of the examples of each, and `of`."""

    name: str
    kind: Kind
    classes: tuple[str, ...]
    head: HeadSpec
    splits: Mapping[Split, Mapping[str, Any]]
    file: Path
    refs: Mapping[str, TensorRef] = field(repr=False, default_factory=dict)
    _kept: dict[Split, Examples] = field(default_factory=dict, repr=False)

    def examples(self, split: Split) -> Examples:
        """Read once, then kept. RefusedInput for a split that is not stored; VerificationError where the bytes do
        not give the digest."""
        if split not in self.splits:
            raise RefusedInput(
                f"{self.name}: no {split} examples are stored with the line, only {', '.join(self.splits)}; hand "
                "the task in again with --tasks, through replace"
            )
        if split not in self._kept:
            found = self._read(split)
            if found.digest != self.splits[split]["digest"]:
                raise VerificationError(
                    f"{self.file}: the {split} examples of {self.name} do not give their digest; the file is "
                    "damaged, restore it from a backup"
                )
            self._kept[split] = found
        return self._kept[split]

    @property
    def fitted(self) -> Linear | None:
        """The linear head that was fitted, where there is one."""
        if "head/weight" not in self.refs:
            return None
        weight, bias = (self._tensor(name) for name in ("head/weight", "head/bias"))
        return Linear(weight, bias, self.name)

    def _read(self, split: Split) -> Examples:
        labels = self.refs.get(f"{split}/labels")
        numbers = None if labels is None else self._numbers(f"{split}/labels")
        images = self.refs.get(f"{split}/images")
        if images is not None:
            import numpy

            pixels = numpy.frombuffer(read_bytes(images), dtype=numpy.uint8).reshape(images.shape)
            return make_examples(pixels, numbers)
        data, ends = read_bytes(self.refs[f"{split}/texts"]), self._numbers(f"{split}/ends")
        places = zip([0, *ends], ends, strict=False)
        return make_examples([data[first:end].decode("utf-8") for first, end in places], numbers)

    def _numbers(self, name: str) -> list[int]:
        found: list[int] = _tensor(self.refs[name], torch.int64).tolist()
        return found

    def _tensor(self, name: str) -> Tensor:
        return _tensor(self.refs[name], _DTYPES[self.refs[name].dtype])


def _tensor(ref: TensorRef, dtype: torch.dtype) -> Tensor:
    return torch.frombuffer(bytearray(read_bytes(ref)), dtype=dtype).view(ref.shape)


def read_stored(file: Path) -> StoredTask:
    """The task of a file; its examples are read when they are asked for. VerificationError for another file."""
    header = read_header(file)
    words = _words(file, header)
    head = {**words["head"], "templates": tuple(words["head"]["templates"])}
    return StoredTask(
        words["name"],
        words["kind"],
        tuple(words["classes"]),
        HeadSpec(**head),
        words["splits"],
        Path(file),
        header.tensors,
    )


def _words(file: Path, header: Header) -> dict[str, Any]:
    try:
        words: dict[str, Any] = json.loads(header.metadata["task"])
        known = header.metadata["format"] == FORMAT and set(words["splits"]) <= set(get_args(Split))
    except (KeyError, ValueError, TypeError):
        known = False
    if not known:
        raise VerificationError(
            f"{file}: holds no task of format {FORMAT!r}; it was written by a newer plait, or is damaged"
        )
    return words


def head_of(task: Task, network: Network, base_weights: Weights) -> Head:
    """The head of a task: the fitted one of a stored task as it was stored, any other as `make_head` makes it."""
    fitted = task.fitted if isinstance(task, StoredTask) else None
    return make_head(task, network, base_weights) if fitted is None else fitted
