"""The expert on disk: the base's layout, the files beside its weights, and how it came to be."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plait.checkpoint import Checkpoint, open_checkpoint, plan_output, root_digest
from plait.checkpoint.format import write_all, write_failed
from plait.checkpoint.sidecars import TRAINING, write_file
from plait.errors import RefusedInput
from plait.tensors import Tensor, torch
from plait.types import DTYPES, TensorRef


def check_place(out: Path, inputs: tuple[Path, ...]) -> None:
    """RefusedInput where no expert can be written at `out`: something is there, or it lies in an input."""
    from plait.line.exporting import refuse_place

    _is_free(out)
    refuse_place(out, inputs, force=True)
    above = next(folder for folder in (*out.absolute().parents, Path("/")) if os.path.lexists(folder))
    if not above.is_dir():
        raise RefusedInput(f"{out}: {above} is no folder; give another place")
    if not os.access(above, os.W_OK | os.X_OK):
        raise RefusedInput(
            f"{out}: nothing can be written in {above}; check its permissions, or give another place"
        )


def _is_free(out: Path) -> None:
    if os.path.lexists(out):
        raise RefusedInput(f"{out} exists; give another place, or remove it")


def write_expert(
    base: Checkpoint, tensors: Mapping[str, Tensor], out: Path, record: Mapping[str, Any]
) -> dict[str, Any]:
    """Write a checkpoint folder, complete or not at all. Returns the record with the root digest of what was written.

    tensors: one for every name of the base that is not tied to another; they are converted to the base's dtypes.
    A base that is one file gives a folder with one file.
    """
    from plait.line.build import version_place
    from plait.line.exporting import put_in_place, staging

    staged = staging(out, "finetune")
    try:
        output = plan_output(base, version_place(base, staged))
        for name, place in output.places.items():
            _write(place, tensors[name])
        output.finish()
        done = {**record, "digest": root_digest(open_checkpoint(staged).digests())}
        text = json.dumps(done, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        write_file(os.path.join(staged, TRAINING), text.encode())
        os.chmod(staged, 0o755)
        _is_free(out)  # somebody else may have made it meanwhile
        put_in_place(staged, out)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return done


def _write(place: TensorRef, tensor: Tensor) -> None:
    """Write a tensor over the bytes of its place, in the place's dtype."""
    if not place.nbytes:
        return
    stored = tensor.detach().to(device="cpu", dtype=getattr(torch, DTYPES[place.dtype].torch))
    raw = stored.contiguous().reshape(-1).view(torch.uint8).numpy()
    try:
        descriptor = os.open(place.file, os.O_WRONLY | os.O_CLOEXEC)
    except OSError as error:
        write_failed(place.file, error)
    try:
        write_all(descriptor, raw.data, place.start, place.file)
    finally:
        os.close(descriptor)
