"""PyTorch pickles, read with `weights_only` in a child process and written as safetensors.

The parent never unpickles. It reads the child's safetensors file as strictly as any other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from plait.checkpoint.format import FileWriter
from plait.checkpoint.header import show
from plait.errors import FormatError, PlaitError
from plait.types import DTYPES

_INNER = ("state_dict", "model_state_dict", "model", "module")


def convert(pairs: Sequence[tuple[str, str]]) -> None:
    """Write the tensors of pickles into new safetensors files, all in one child process.

    pairs: (source, target). A source is a file of `torch.save`: a table of tensors, or one with such a table under
    `state_dict`, `model_state_dict`, `model` or `module`.
    Errors: FormatError if it holds anything else, or code; PlaitError if the disk is full.
    """
    words = []
    for source, target in pairs:
        link = target + ".pickle"  # torch would take a file that is called .safetensors for one
        os.symlink(os.path.abspath(source), link)
        words += [link, target]
    paths = os.pathsep.join(os.path.abspath(path) for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "plait.checkpoint.pickled", *words],
        env={**os.environ, "PYTHONPATH": paths, "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode == 0:
        return
    try:
        word = json.loads(done.stdout.splitlines()[-1])
        source = dict(zip(words[::2], (source for source, _ in pairs), strict=True))[word["link"]]
    except (ValueError, KeyError, IndexError):
        source, word = pairs[0][0], {"text": f"the process that read it ended with status {done.returncode}"}
    if word.get("disk"):
        raise PlaitError(word["text"])
    raise FormatError(
        f"{source}: cannot be read as a pickle of weights ({word['text']}); convert it to safetensors"
    )


def main(words: Sequence[str]) -> int:
    """The child: source, target, source, target, ... If that fails, the last line printed is JSON and says why."""
    for link, target in zip(words[::2], words[1::2], strict=True):
        try:
            _write(_tensors(_load(link)), target)
        except PlaitError as error:
            disk = not isinstance(error, FormatError)
            print(json.dumps({"link": link, "text": str(error), "disk": disk}))
            return 1
    return 0


def _load(source: str) -> Any:
    import torch

    torch.set_num_threads(1)
    last: Exception | None = None
    for mapped in (True, False):  # files from before torch 1.6 cannot be memory-mapped
        try:
            return torch.load(source, map_location="cpu", weights_only=True, mmap=mapped)
        except Exception as error:  # a damaged pickle may raise anything
            last = error
    raise FormatError(show(" ".join(str(last).split()), 200))


def _tensors(found: Any) -> dict[str, Any]:
    import torch

    if isinstance(found, Mapping) and not any(isinstance(value, torch.Tensor) for value in found.values()):
        inner = [found[key] for key in _INNER if isinstance(found.get(key), Mapping)]
        if len(inner) == 1:
            found = inner[0]
    if not isinstance(found, Mapping):
        raise FormatError(f"it holds a {type(found).__name__}, expected a table of tensors")
    for name, value in found.items():
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_quantized:
            raise FormatError(f"{show(name)} is a {type(value).__name__}, expected a plain tensor")
        if value.is_meta:
            raise FormatError(f"{show(name)} has no bytes (meta tensor)")
    return dict(found)


def _write(tensors: Mapping[str, Any], target: str) -> None:
    import torch

    names = {
        getattr(torch, dtype.torch): name for name, dtype in DTYPES.items() if hasattr(torch, dtype.torch)
    }
    for name, tensor in tensors.items():
        if tensor.dtype not in names:
            raise FormatError(f"{show(name)} has dtype {tensor.dtype}, expected one of {', '.join(DTYPES)}")
    entries = [(name, names[tensor.dtype], tuple(tensor.shape)) for name, tensor in tensors.items()]
    with FileWriter(target, entries, {"format": "pt"}) as writer:
        for name, tensor in tensors.items():
            flat = tensor.detach().contiguous().reshape(-1)
            writer.write(name, 0, memoryview(flat.view(torch.uint8).numpy()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
