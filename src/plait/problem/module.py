"""Torch modules without weights as networks: weights are put in for the time of one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from plait.errors import RefusedInput, UsageError
from plait.problem.base import Network, Weights

Compute = Callable[[Any, Any], Tensor]
"""(module, batch) -> (rows, width)."""

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True, eq=False)
class ModuleNetwork:
    """A network (see `base.Network`) that runs a torch module. `plait.problem.network.module_network` makes one.

    The module is swapped weights for the time of a call, so two threads must not use it at the same time.
    """

    module: nn.Module
    names: Mapping[str, str]
    device: torch.device
    dtype: torch.dtype
    encoder: Callable[[Any], Sequence[Any]]
    collator: Callable[[Sequence[Any]], Any]
    to_features: Compute | None = None
    to_outputs: Compute | None = None
    length: Callable[[Any], int] = len
    text: Network | None = None  # for zero-shot heads, where this network itself takes no texts
    about: str = "the network"  # for messages

    def encode(self, inputs: Any) -> Sequence[Any]:
        return self.encoder(inputs)

    def size(self, encoded: Any) -> int:
        return self.length(encoded)

    def collate(self, encoded: Sequence[Any]) -> Any:
        return self.collator(encoded)

    def features(self, weights: Weights, batch: Any) -> Tensor:
        if self.to_features is None:
            raise RefusedInput(f"{self.about} has no features for a head of the task; use the head `model`")
        return self._run(weights, self.to_features, batch)

    def outputs(self, weights: Weights, batch: Any) -> Tensor:
        if self.to_outputs is None:
            raise RefusedInput(f"{self.about} has no head of its own; use the head `zero-shot` or `linear`")
        return self._run(weights, self.to_outputs, batch)

    def ready(self, weights: Weights) -> dict[str, Tensor]:
        """The tensors that the network uses, on its device and in its dtype: converted once for many batches. Those
        that are so already are not copied.

        Errors: RefusedInput for a tensor that is missing or has another shape than the network's.
        """
        targets = self.module.state_dict(keep_vars=True)
        for name, target in self.names.items():
            if name in weights and weights[name].shape != targets[target].shape:
                raise RefusedInput(
                    f"{self.about} needs {name} of shape {tuple(targets[target].shape)}, the weights have "
                    f"{tuple(weights[name].shape)}; are they of the model that the network was opened for?"
                )
        return {name: self._taken(weights, name) for name in self.names}

    def _run(self, weights: Weights, function: Compute, batch: Any) -> Tensor:
        tensors = {target: self._taken(weights, name) for name, target in self.names.items()}
        made: Tensor = run(self.module, tensors, function, batch)
        return made

    def _taken(self, weights: Weights, name: str) -> Tensor:
        if name not in weights:
            missing = [n for n in self.names if n not in weights]
            raise RefusedInput(
                f"the weights lack {len(missing)} of the {len(self.names)} tensors of {self.about}, {missing[0]} "
                "first; are they of the model that the network was opened for?"
            )
        return weights[name].to(device=self.device, dtype=self.dtype)


class _Program(nn.Module):
    """A module whose call is any function of it: `functional_call` puts weights in for a call only."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(self.module, *arguments)


def run(module: nn.Module, tensors: Weights, function: Callable[..., Any], *arguments: Any) -> Any:
    """function(module, *arguments), with `tensors` in the place of the parameters and buffers of these names."""
    inside = {f"module.{name}": tensor for name, tensor in tensors.items()}
    return functional_call(_Program(module), inside, (function, *arguments))


@contextmanager
def without_weights() -> Iterator[None]:
    """In this block torch.empty, which layers allocate their weights with, makes tensors on the meta device, and the
    global random numbers are afterwards what they were before. Tensors that have a value, such as those that
    positions are counted with, are made as ever."""
    with torch.random.fork_rng(devices=[]), _EmptyOnMeta():
        yield


def hollow(make: Callable[[], Any]) -> Any:
    """The module that `make` builds, without weights. One that computes what no checkpoint holds (such as the numbers
    of relative places) in tensors that were empty at first would lose these: it is built with weights."""
    with without_weights():
        module = make()
    stored = set(module.state_dict())
    if not any(buffer.is_meta for name, buffer in module.named_buffers() if name not in stored):
        return module
    with torch.random.fork_rng(devices=[]):
        return make()


class _EmptyOnMeta(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func is torch.empty:
            return func(*args, **{**given, "device": "meta"})
        filled = args[0] if args else given.get("tensor")
        if getattr(func, "__name__", "") in _FILLING and isinstance(filled, Tensor) and filled.is_meta:
            return filled  # it has no values; and the first such call would load a large part of torch
        return func(*args, **given)


_FILLING = {"normal_", "uniform_", "fill_", "zero_", "copy_", "erfinv_", "mul_", "add_", "clamp_"}
"""What layers fill new weights with."""


def strip(module: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """Move the module's parameters and its floating-point buffers that checkpoints hold to the meta device, in
    `dtype`, other buffers to `device`. Tied parameters stay tied. Returns the module, set to evaluation."""
    moved: dict[int, nn.Parameter] = {}
    stored = set(module.state_dict())
    for path, part in list(module.named_modules()):
        for name, parameter in list(part.named_parameters(recurse=False, remove_duplicate=False)):
            if id(parameter) not in moved:
                moved[id(parameter)] = nn.Parameter(
                    parameter.detach().to("meta", dtype), parameter.requires_grad
                )
            setattr(part, name, moved[id(parameter)])
        for name, buffer in list(part.named_buffers(recurse=False)):
            held = f"{path}.{name}".lstrip(".") in stored and buffer.is_floating_point()
            setattr(part, name, buffer.to("meta", dtype) if held else buffer.to(device))
    return module.eval()


def parse_device(device: str | torch.device) -> torch.device:
    """UsageError where this machine has no such device."""
    try:
        found = torch.device(device)
    except RuntimeError:
        raise UsageError(f"device is {device}, expected cpu or cuda") from None
    if found.type not in ("cpu", "cuda"):
        raise UsageError(f"device is {device}, expected cpu or cuda")
    if found.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device is {device}, and torch finds no GPU on this machine; use cpu")
    return found


def parse_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """UsageError for what is no floating-point type that networks compute in."""
    found = dtype if isinstance(dtype, torch.dtype) else DTYPES.get(dtype)
    if found is None or found not in DTYPES.values():
        raise UsageError(f"dtype is {dtype}, expected one of {', '.join(DTYPES)}")
    return found
