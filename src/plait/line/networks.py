"""Networks for the tasks of a line, and the tensors that a task's own head brings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.errors import RefusedInput
from plait.line import subjects
from plait.line.build import Setting
from plait.problem.base import Network, Task, Weights
from plait.store import Store
from plait.tensors import Tensor
from plait.types import TensorRef

Row = Mapping[str, Any]
"""A member as the ledger has it."""


@dataclass
class Networks:
    """Each network is opened once: one for each kind of task, and one for each checkpoint whose head is its own.

    spec: python:module:function, or None for what the base's config.json describes. device, dtype: where and in what
    networks compute.
    """

    setting: Setting
    spec: str | None = None
    device: str = "cpu"
    dtype: str = "float32"

    def __post_init__(self) -> None:
        self._open: dict[tuple[str, str], Network] = {}

    def of(self, task: Task, head_of: Row | None = None) -> Network:
        """The network for a task. head_of: the member whose private tensors are put in place, if any."""
        from plait.problem.network import open_network

        own = _own_network(task, head_of)
        place = (task.kind, own["digest"] if own else "")
        if place not in self._open:
            with subjects.folder(self.setting, own) as folder:
                if self.spec is None and task.kind != "python":
                    _described(self.setting.store, folder)
                self._open[place] = open_network(
                    self.spec or folder, task.kind, folder=folder, device=self.device, dtype=self.dtype
                )
        return self._open[place]

    def load(self, refs: Mapping[str, TensorRef]) -> dict[str, Tensor]:
        """Tensors in memory, on the device; in the dtype of the networks where all that are open have one."""
        dtypes = {network.dtype for network in self._open.values()}
        return subjects.load(refs, self.device, dtypes.pop() if len(dtypes) == 1 else None)

    def with_private(
        self, task: Task, head_of: Row | None, weights: Weights, refs: Mapping[str, TensorRef] | None = None
    ) -> Weights:
        """The weights with a member's private tensors, by the names that the task's network knows.

        refs: where these lie; None for the store. Gone where the line does not keep them.
        """
        if head_of is None:
            return weights
        own = subjects.private(self.setting, head_of) if refs is None else refs
        whole = {**weights, **self.load(own)}
        if _own_network(task, head_of) is None or self.spec is not None:
            return whole
        names = subjects.own_names(self.setting.store, head_of)
        return {names.get(name, name): tensor for name, tensor in whole.items()}


def _own_network(task: Task, head_of: Row | None) -> Row | None:
    """The member whose checkpoint describes the network: only a head that is the network's own needs that."""
    return head_of if task.head.kind == "model" else None


def _described(store: Store, folder: Path) -> None:
    """RefusedInput where no config.json says what network the base is: in a line none can be added later."""
    if not (folder / "config.json").is_file():
        raise RefusedInput(
            f"base {store.settings['base']['name']}: the line has no config.json of it, which says what network it "
            "is; start the line again from a folder with a config.json, or name the network with "
            "--network python:module:function"
        )
