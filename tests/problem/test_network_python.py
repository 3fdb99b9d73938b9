"""Networks of users, `python:module:function`, and torch modules as networks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from plait.errors import RefusedInput, UsageError
from plait.problem.module import ModuleNetwork, strip, without_weights
from plait.problem.network import module_network, open_network

SOURCE = """
import torch
from plait.errors import UsageError
from plait.problem.network import module_network

def small(*, folder, device, dtype, width="3", **others):
    module = torch.nn.Sequential(torch.nn.Linear(2, int(width)), torch.nn.Tanh(), torch.nn.Linear(int(width), 2))
    network = module_network(module, features=lambda m, batch: m[:2](batch), device=device, dtype=dtype)
    network.module.told = (folder, others)
    return network

def broken(*, folder, device, dtype):
    raise ValueError("two\\nlines")

def refusing(*, folder, device, dtype):
    raise UsageError("no such digits")

def failing(*, folder, device, dtype):
    def encode(images):
        return [image.no_such for image in images]
    return module_network(torch.nn.Linear(2, 2), encode=encode, device=device, dtype=dtype)

def nothing(*, folder, device, dtype):
    return 3
"""


@pytest.fixture(autouse=True)
def user_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "users_networks.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("users_networks", None)


def test_a_function_makes_the_network(tmp_path: Path) -> None:
    spec = "python:users_networks:small?width=5&note=a%20b"
    network: Any = open_network(spec, "python", dtype="float64", folder=tmp_path)
    assert network.dtype == torch.float64
    assert network.module[0].out_features == 5
    assert network.module.told == (str(tmp_path), {"note": "a b"})
    plain: Any = open_network("python:users_networks:small", "image-classification")
    assert plain.module[0].out_features == 3
    assert plain.module.told == (None, {})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("python:users_networks", "expected python:module:function"),
        ("python:no_such_module:small", "cannot be imported .*no_such_module"),
        ("python:users_networks:no_such", "cannot be imported .*no_such"),
        ("python:users_networks:broken", r"failed \(ValueError: two\); expected a function"),
        ("python:users_networks:broken?width=2", r"failed \(TypeError: .*width"),
        ("python:users_networks:nothing", "gives a int without module, names, dtype, encode, size, "),
    ],
)
def test_what_is_no_network(spec: str, message: str) -> None:
    with pytest.raises(RefusedInput, match=message) as caught:
        open_network(spec, "python")
    assert "\n" not in str(caught.value)


def test_errors_of_plait_pass_through() -> None:
    with pytest.raises(UsageError, match=r"^no such digits$"):
        open_network("python:users_networks:refusing", "python")


def test_a_folder_is_no_network_for_a_python_task(tmp_path: Path) -> None:
    with pytest.raises(RefusedInput, match="needs its network as python:module:function"):
        open_network(tmp_path, "python")


class Small(nn.Module):
    """With all that a module can hold: parameters, tied ones, buffers that are stored and buffers that are not."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.last = nn.Linear(3, 4, bias=False)
        self.last.weight = self.first.weight
        self.register_buffer("shift", torch.arange(4.0), persistent=False)
        self.register_buffer("kept", torch.arange(4))
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.drop(self.norm(self.first(x) + self.shift)) @ self.last.weight
        return made


def small() -> tuple[Small, dict[str, Tensor]]:
    torch.manual_seed(0)
    module = Small()
    with torch.no_grad():
        for tensor in (*module.parameters(), module.norm.running_mean, module.norm.running_var):
            assert isinstance(tensor, Tensor)
            tensor.add_(torch.rand_like(tensor))
    return module.eval(), {name: tensor.clone() for name, tensor in module.state_dict().items()}


def test_any_module_is_a_network() -> None:
    module, weights = small()
    inputs = torch.randn(5, 3)
    wanted = module(inputs).detach()
    network = module_network(module)
    assert network.module is module
    batch = network.collate(network.encode(inputs))
    assert torch.equal(network.outputs(weights, batch), wanted)
    counted = {"kept", "norm.num_batches_tracked", "last.weight"}  # integers, and a second name
    assert set(network.names) == set(weights) - counted
    with pytest.raises(RefusedInput, match="Small has no features"):
        network.features(weights, batch)


def test_weights_go_in_for_a_call_and_are_not_kept() -> None:
    module, weights = small()
    network = module_network(module)
    batch = network.collate(network.encode(torch.randn(5, 3)))
    network.outputs(weights, batch)
    assert {tensor.device.type for tensor in module.parameters()} == {"meta"}
    other = {**weights, "first.weight": weights["first.weight"] * 2}
    assert not torch.equal(network.outputs(other, batch), network.outputs(weights, batch))


def test_a_module_that_fails_loses_its_weights_too() -> None:
    module, weights = small()
    network = module_network(module)
    with pytest.raises(RuntimeError):
        network.outputs(weights, torch.zeros(5, 7))
    assert {tensor.device.type for tensor in module.parameters()} == {"meta"}


def test_names_may_differ() -> None:
    module, weights = small()
    inputs = torch.randn(5, 3)
    wanted = module(inputs).detach()
    own = [name for name, tensor in weights.items() if tensor.is_floating_point() and name != "last.weight"]
    network = module_network(module, names={f"net.{name}": name for name in own})
    found = network.outputs({f"net.{name}": weights[name] for name in own}, inputs)
    assert torch.equal(found, wanted)  # the tied last.weight came along


def test_ready_converts_once_and_copies_nothing_that_fits() -> None:
    module, weights = small()
    network = module_network(module)
    ready = network.ready(weights)
    assert all(ready[name] is weights[name] for name in network.names)
    double = module_network(small()[0], dtype="float64").ready(weights)
    assert {tensor.dtype for tensor in double.values()} == {torch.float64}


def test_stripping_keeps_what_no_checkpoint_holds() -> None:
    module, _ = small()
    strip(module, torch.device("cpu"), torch.float64)
    assert module.last.weight is module.first.weight
    assert module.first.weight.is_meta
    assert module.first.weight.dtype == torch.float64
    assert module.norm.running_mean is not None
    assert module.norm.running_mean.is_meta
    assert torch.equal(module.get_buffer("shift"), torch.arange(4.0))
    assert torch.equal(module.get_buffer("kept"), torch.arange(4))


def test_layers_are_built_without_memory_or_random_numbers() -> None:
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    with without_weights():
        huge = nn.Linear(1 << 20, 1 << 20)  # 4 TB
        torch.rand(3)
        places = torch.arange(3)
    assert huge.weight.is_meta
    assert places.tolist() == [0, 1, 2]
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not torch.empty(1).is_meta


def test_a_network_meets_the_protocol() -> None:
    from plait.problem.base import Network

    made: Network = module_network(small()[0])  # for mypy
    assert isinstance(made, ModuleNetwork)


def test_a_function_of_the_users_that_fails_is_named() -> None:
    network = open_network("python:users_networks:failing", "python")
    with pytest.raises(RefusedInput, match="its encode failed"):
        network.encode([3])
    good = open_network("python:users_networks:small", "python")
    with pytest.raises(RefusedInput, match="its features failed"):
        good.features(
            {
                "0.weight": torch.ones(3, 2),
                "0.bias": torch.ones(3),
                "2.weight": torch.ones(2, 3),
                "2.bias": torch.ones(2),
            },
            torch.ones(1, 7),
        )
