"""Networks: what turns weights and examples into outputs. Opened from a checkpoint folder, or made by a function.

What is built in, and what a function must give, is in docs/networks.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from plait.checkpoint import open_checkpoint
from plait.errors import PlaitError, RefusedInput
from plait.problem.base import Kind, Network
from plait.tensors import Tensor, torch

if TYPE_CHECKING:
    from plait.problem.module import ModuleNetwork

LONGEST = 512
"""Tokens of a text that a network reads at most, unless told otherwise."""

PYTHON = "python:"

_MEMBERS = ("module", "names", "dtype", "encode", "size", "collate", "features", "outputs")


def open_network(
    where: str | os.PathLike[str],
    kind: Kind,
    *,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype = "float32",
    longest: int = LONGEST,
    folder: str | os.PathLike[str] | None = None,
) -> Network:
    """The network of a checkpoint folder, by its config.json; or that of `python:module:function`.

    where: a folder as `save_pretrained` writes it, whose weights are not loaded: only their names and shapes are
    compared. BERT encoders with mean pooling, such as MiniLM, are built in; others need the extra `hf`. Or
    `python:module:function?option=value&...`: function(folder=..., device=..., dtype=..., option="value") gives the
    network; folder is what is given here, for a function that reads its configuration there.
    longest: tokens of a text beyond this, or beyond what the network can read, are cut off.
    Errors: RefusedInput where the network is unknown, is not for this kind of task, or does not fit the weights;
    UsageError for a device or dtype that there is not; PlaitError where an extra is not installed.
    """
    from plait.problem.module import parse_device, parse_dtype

    placed, computed = parse_device(device), parse_dtype(dtype)
    text = os.fspath(where)
    if text.startswith(PYTHON):
        return _by_function(text, folder, placed, computed)
    if kind == "python":
        raise RefusedInput(f"{text}: a task of kind python needs its network as python:module:function")
    checkpoint = open_checkpoint(text)
    if checkpoint.config is None:
        raise RefusedInput(
            f"{text}: has no config.json, which says what network it is; put it there, or name the network as "
            "python:module:function"
        )
    from plait.problem import minilm

    if kind == "text-classification" and minilm.is_encoder(checkpoint.config):
        return minilm.open_encoder(checkpoint, device=placed, dtype=computed, longest=longest)
    from plait.problem.hf import open_model

    return open_model(checkpoint, kind, device=placed, dtype=computed, longest=longest)


def _by_function(
    spec: str, folder: str | os.PathLike[str] | None, device: torch.device, dtype: torch.dtype
) -> Network:
    function, options = function_of(spec)
    place = None if folder is None else os.fspath(folder)
    try:
        made = function(folder=place, device=device, dtype=dtype, **options)
    except PlaitError:
        raise
    except Exception as error:  # whatever the user's function raises
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        raise RefusedInput(
            f"{spec}: failed ({type(error).__name__}: {reason}); expected a function of folder, device, dtype and "
            "the options behind `?` that returns a network"
        ) from error
    lacking = [word for word in _MEMBERS if not hasattr(made, word)]
    if lacking:
        raise RefusedInput(
            f"{spec}: gives a {type(made).__name__} without {', '.join(lacking)}, expected a network; "
            "see plait.problem.network.module_network"
        )
    network: Network = made
    return _guarded(network, spec)


def function_of(spec: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The function that `python:module:function?option=value&...` names, and its options. Nothing is called.

    Errors: RefusedInput for text of another form, and where there is no such function."""
    path, _, query = spec.removeprefix(PYTHON).partition("?")
    module, _, name = path.partition(":")
    if not spec.startswith(PYTHON) or not module or not name:
        raise RefusedInput(
            f"{spec}: expected python:module:function, such as python:my_package.networks:small"
        )
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise RefusedInput(
            f"{spec}: cannot be imported ({error}); correct the name, or install it"
        ) from error
    return function, dict(parse_qsl(query, keep_blank_values=True))


_FAULTS = (AssertionError, AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError)
"""What faults in a user's function raise; others, such as those by which we end a pass early, go through."""


def _guarded(network: Network, spec: str) -> Network:
    """The network, whose own functions name it where they fail."""
    from dataclasses import replace

    from plait.problem.module import ModuleNetwork

    if not isinstance(network, ModuleNetwork):
        return network

    def named(what: str, function: Any) -> Any:
        def run(*words: Any) -> Any:
            try:
                return function(*words)
            except _FAULTS as error:
                if isinstance(error, PlaitError):
                    raise
                reason = (str(error).strip() or repr(error)).splitlines()[0]
                raise RefusedInput(
                    f"{spec}: its {what} failed ({type(error).__name__}: {reason}); correct it (--debug shows where)"
                ) from error

        return function and run

    return replace(
        network,
        encoder=named("encode", network.encoder),
        collator=named("collate", network.collator),
        to_features=named("features", network.to_features),
        to_outputs=named("outputs", network.to_outputs),
        length=named("size", network.length),
    )


def module_network(
    module: torch.nn.Module,
    *,
    encode: Callable[[Any], Sequence[Any]] = list,
    collate: Callable[[Sequence[Any]], Any] | None = None,
    features: Callable[[Any, Any], Tensor] | None = None,
    outputs: Callable[[Any, Any], Tensor] | None = None,
    names: Mapping[str, str] | None = None,
    size: Callable[[Any], int] = lambda encoded: 0,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype = "float32",
) -> ModuleNetwork:
    """Any torch module as a network.

    module: its weights are dropped (its parameters move to the meta device), and it is set to evaluation, so that
    dropout and running statistics stand still. encode: inputs -> a sequence with one entry an example. collate:
    some entries -> a batch on `device`; by default they are stacked, floating-point ones in `dtype`. features and
    outputs: (module, batch) -> (rows, width) and (rows, classes); by default there are no features, and outputs are
    module(batch). names: tensor name in the checkpoint -> name of a parameter or buffer; by default all, under their
    own names. size: the length of an encoded example, where batches are padded.
    """
    from plait.problem.fitting import own_names
    from plait.problem.module import ModuleNetwork, parse_device, parse_dtype, strip

    placed, computed = parse_device(device), parse_dtype(dtype)

    def stack(encoded: Sequence[Any]) -> Tensor:
        batch = torch.stack([torch.as_tensor(one) for one in encoded]).to(placed)
        return batch.to(computed) if batch.is_floating_point() else batch

    strip(module, placed, computed)
    return ModuleNetwork(
        module,
        own_names(module) if names is None else dict(names),
        placed,
        computed,
        encoder=encode,
        collator=collate or stack,
        to_features=features,
        to_outputs=outputs or (lambda module, batch: module(batch)),
        length=size,
        about=type(module).__name__,
    )


@contextmanager
def exact_attention() -> Iterator[None]:
    """In this block attention is computed by its plain formula, not by fused kernels: these have no second
    derivative on CPU, which Hessian-vector products need."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):
        yield
