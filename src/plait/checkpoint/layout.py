"""Checkpoints on disk: a bare file, or a Hugging Face folder with one file or shards and their index."""

from __future__ import annotations

import json
import os
import re
import shutil
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from plait.checkpoint.digest import root_digest, tensor_digests
from plait.checkpoint.header import Header, is_pickle, parse_json, read_header, read_small, show
from plait.checkpoint.names import canonical_names
from plait.checkpoint.sidecars import list_sidecars
from plait.checkpoint.ties import find_aliases
from plait.errors import FormatError
from plait.types import TensorRef

__all__ = ["Checkpoint", "Shard", "open_checkpoint", "root_digest"]

_STEMS = ("model", "diffusion_pytorch_model")
_PICKLES = ("pytorch_model.bin", "diffusion_pytorch_model.bin")
_INDEX = ".index.json"
_PART = re.compile(r"-\d{3,}-of-\d{3,}\.")
_CONFIG_LIMIT = 10_000_000
_SPARE = "plait-pickle-"


@dataclass(frozen=True)
class Shard:
    """One weight file of a checkpoint."""

    file: str  # where its bytes are
    names: tuple[str, ...]  # canonical names, in the order of their bytes
    metadata: dict[str, str]
    name: str  # what the file is called in an output with the same layout


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A checkpoint whose headers have been read and checked. Tensors go by their canonical names."""

    path: str
    kind: Literal["file", "folder"]
    tensors: dict[str, TensorRef]  # shard by shard, in the order of their bytes
    shards: tuple[Shard, ...]
    stored: dict[str, str]  # canonical name -> the name in the file
    config: dict[str, Any] | None = None  # config.json of a folder
    index: str | None = None  # name of the index file of an output with the same layout
    index_metadata: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @cached_property
    def aliases(self) -> dict[str, str]:
        """Tied weights that are stored twice: alias -> the name that is kept. Compares bytes."""
        return find_aliases(self.tensors, self.config)

    @property
    def kept(self) -> dict[str, TensorRef]:
        """The tensors without aliases: what a merge works on."""
        return {name: ref for name, ref in self.tensors.items() if name not in self.aliases}

    @cached_property
    def sidecars(self) -> list[str]:
        """Paths, relative to the folder, of the files beside the weights that an output takes along."""
        return list_sidecars(self.path) if self.kind == "folder" else []

    def digests(self, workers: int | None = None) -> dict[str, str]:
        """sha256 of dtype, shape and bytes of every tensor, by canonical name. Reads everything once."""
        found = tensor_digests(self.kept, workers)
        return {name: found[self.aliases.get(name, name)] for name in self.tensors}


def open_checkpoint(path: str | os.PathLike[str], *, allow_pickle: bool = False) -> Checkpoint:
    """Read and check all headers of a checkpoint. No tensor is read, nothing in it is run.

    path: a safetensors file, or a folder as `save_pretrained` writes it (also diffusers components).
    allow_pickle: read PyTorch pickles too; they are unpickled with `weights_only` in a child process, into
    temporary safetensors files that live as long as the returned object.
    Errors: FormatError.
    """
    path = os.fspath(path)
    spare: list[str] = []
    try:
        if os.path.isdir(path):
            checkpoint = _open_folder(path, allow_pickle, spare)
        else:
            if path.endswith(_INDEX):
                raise FormatError(f"{path}: is the index of a checkpoint; give the folder that it is in")
            headers = _read([path], allow_pickle, spare)
            checkpoint = _checkpoint(path, "file", [os.path.basename(path)], headers)
    except BaseException:
        for folder in spare:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    for folder in spare:
        weakref.finalize(checkpoint, shutil.rmtree, folder, True)
    return checkpoint


def _open_folder(path: str, allow_pickle: bool, spare: list[str]) -> Checkpoint:
    names = _list(path)
    if "adapter_config.json" in names:
        raise FormatError(
            f"{path}: is a PEFT adapter, not a full checkpoint; merge the adapter into its base first "
            "(merge_and_unload, then save_pretrained)"
        )
    config = _config(path) if "config.json" in names else None
    index = _find_index(path, names)
    if index is None:
        file = _find_single(path, names)
        headers = _read([os.path.join(path, file)], allow_pickle, spare)
        return _checkpoint(path, "folder", [file], headers, config)
    listed, metadata = _read_index(path, index)
    files = sorted(set(listed.values()))
    _check_files(path, index, files, names)
    headers = _read([os.path.join(path, file) for file in files], allow_pickle, spare)
    for file, header in zip(files, headers, strict=True):
        _check_shard(path, index, file, header, listed)
    return _checkpoint(path, "folder", files, headers, config, index, metadata)


def _checkpoint(
    path: str,
    kind: Literal["file", "folder"],
    files: Sequence[str],
    headers: Sequence[Header],
    config: dict[str, Any] | None = None,
    index: str | None = None,
    metadata: dict[str, Any] | None = None,
) -> Checkpoint:
    names = [name for header in headers for name in header.tensors]
    if not names:
        raise FormatError(f"{path}: holds no tensor; this is not a trained model, check the path")
    canonical, prefix = canonical_names(path, names)
    notes = [f"prefix {prefix!r} was removed from all names"] if prefix else []
    tensors: dict[str, TensorRef] = {}
    shards = []
    for name, header in zip(files, headers, strict=True):
        for stored, ref in header.tensors.items():
            tensors[canonical[stored]] = TensorRef(
                canonical[stored], ref.dtype, ref.shape, ref.file, ref.start, ref.end
            )
        known = tuple(canonical[stored] for stored in header.tensors)
        shards.append(Shard(header.path, known, header.metadata, _output_name(name)))
        if header.path != (path if kind == "file" else os.path.join(path, name)):
            notes.append(f"{name} is a pickle; it was read in a child process")
    return Checkpoint(
        path,
        kind,
        tensors,
        tuple(shards),
        {new: old for old, new in canonical.items()},
        config,
        None if index is None else _output_name(index.removesuffix(_INDEX)) + _INDEX,
        metadata or {},
        tuple(notes),
    )


def _list(path: str) -> set[str]:
    try:
        return {name for name in os.listdir(path) if not name.startswith(".")}
    except OSError as error:
        raise FormatError(f"{path}: cannot be listed ({error.strerror}); check its permissions") from None


def _find_index(path: str, names: set[str]) -> str | None:
    for ending in (".safetensors", ".bin"):
        found = sorted(name for name in names if name.endswith(ending + _INDEX))
        whole = [name for name in names if name.endswith(ending)]
        if len(found) > 1:
            raise FormatError(
                f"{path}: holds {len(found)} indexes ({_join(found)}), expected one; keep one of them"
            )
        if found and found[0].removesuffix(_INDEX) in whole:
            raise FormatError(
                f"{path}: holds both {found[0].removesuffix(_INDEX)} and {found[0]}; remove the old one"
            )
        if found:
            return found[0]
        if whole and ending == ".safetensors":
            return None
    return None


def _find_single(path: str, names: set[str]) -> str:
    files = sorted(name for name in names if name.endswith(".safetensors"))
    main = [name for name in files if name.removesuffix(".safetensors") in _STEMS]
    if len(files) > 1:
        stray = [name for name in files if name not in main[:1]]
        raise FormatError(
            f"{path}: {_join(stray)} beside {main[0] if main else 'no index'}; move stray weight files away, "
            "or give the path of one file"
        )
    if files:
        if _PART.search(files[0]):
            raise FormatError(
                f"{path}: {show(files[0])} is a shard without an index; fetch the whole checkpoint"
            )
        return files[0]
    for name in _PICKLES:
        if name in names:
            return name
    if "model_index.json" in names:
        raise FormatError(f"{path}: is a diffusers pipeline; give the folder of one component, such as unet")
    inner = sorted(name for name in names if re.match(r"\d+_", name))
    hint = f"is the model in {show(inner[0])}?" if "modules.json" in names and inner else "check the path"
    looked = ", ".join([f"{stem}.safetensors" for stem in _STEMS] + list(_PICKLES))
    raise FormatError(f"{path}: no weights here; looked for {looked}, or an index of shards; {hint}")


def _read_index(path: str, index: str) -> tuple[dict[str, str], dict[str, Any]]:
    file = os.path.join(path, index)
    table = parse_json(file, read_small(file), "index")
    listed = table.get("weight_map") if isinstance(table, dict) else None
    if not isinstance(listed, dict) or not listed:
        raise FormatError(f"{file}: has no weight_map; fetch the index again")
    ending = index.removesuffix(_INDEX)[index.removesuffix(_INDEX).rindex(".") :]
    for name, shard in listed.items():
        if not isinstance(shard, str) or os.path.basename(shard) != shard or shard in ("", ".", ".."):
            raise FormatError(
                f"{file}: {show(name)} is said to be in {show(shard)}, expected the bare name of a file"
            )
        if not shard.isprintable() or not shard.endswith(ending) or shard.startswith("."):
            raise FormatError(
                f"{file}: {show(name)} is said to be in {show(shard)}, expected a *{ending} file"
            )
    metadata = table.get("metadata")
    return listed, metadata if isinstance(metadata, dict) else {}


def _check_files(path: str, index: str, files: Sequence[str], names: set[str]) -> None:
    missing = [name for name in files if name not in names]
    if missing:
        raise FormatError(
            f"{path}: {index} names {_join(missing)}, which is not there; fetch the missing shards"
        )
    ending = os.path.splitext(files[0])[1]
    stray = sorted(name for name in names if name.endswith(".safetensors") and name not in files)
    if stray and ending == ".safetensors":
        raise FormatError(f"{path}: {_join(stray)} is not in {index}; move stray weight files away")


def _check_shard(path: str, index: str, file: str, header: Header, listed: dict[str, str]) -> None:
    promised = {name for name, shard in listed.items() if shard == file}
    absent = sorted(promised - header.tensors.keys())
    extra = sorted(header.tensors.keys() - promised)
    if absent:
        raise FormatError(
            f"{path}: {index} says that {file} holds {_join(absent)}, but it does not; fetch both again"
        )
    if extra:
        raise FormatError(
            f"{path}: {file} holds {_join(extra)}, which {index} does not place there; fetch both again"
        )


def _config(path: str) -> dict[str, Any]:
    file = os.path.join(path, "config.json")
    try:
        table = json.loads(read_small(file, _CONFIG_LIMIT))
    except (ValueError, RecursionError):
        table = None
    if not isinstance(table, dict):
        raise FormatError(f"{file}: is not a JSON object; fetch it again")
    return table


def _read(files: Sequence[str], allow_pickle: bool, spare: list[str]) -> list[Header]:
    """The headers of weight files. Pickles are converted first, into a new folder that is added to `spare`."""
    pickles = [file for file in files if is_pickle(file)] if allow_pickle else []
    if not pickles:
        return [read_header(file) for file in files]
    import tempfile

    from plait.checkpoint.pickled import convert

    spare.append(tempfile.mkdtemp(prefix=_SPARE))
    made = {file: os.path.join(spare[0], f"{number}.safetensors") for number, file in enumerate(pickles)}
    convert(list(made.items()))
    return [read_header(made.get(file, file)) for file in files]


def _output_name(name: str) -> str:
    stem, ending = os.path.splitext(name)
    if ending == ".safetensors":
        return name
    return re.sub(r"^pytorch_model", "model", stem) + ".safetensors"


def _join(names: Sequence[str], limit: int = 5) -> str:
    text = ", ".join(show(name) for name in names[:limit])
    return text if len(names) <= limit else f"{text} and {len(names) - limit} more"
