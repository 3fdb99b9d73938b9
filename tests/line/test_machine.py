"""Random operations on a line against a model that rebuilds it from its member list."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from plait import Line, merge_files
from tests.line.models import base_tensors, expert_tensors, write_file

POOL = 5
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "average": [{}, {"sparsify": {"name": "dare", "density": 0.6}}],
    "task_arithmetic": [{"scale": 0.4}],
    "ties": [{"density": 0.3}, {"density": 0.5, "trim": "model", "disjoint": "sum"}],
    "model_stock": [{}],
    "covariance": [{}, {"ridge": 0.0, "side": "smaller"}],
    "magmax": [{"scale": 1.0}],
    "opcm": [{}, {"variant": "diagonal"}],
    "mdm_oc": [{"dependent": "skip"}, {"granularity": "layer", "dependent": "skip"}],
}


class LineMachine(RuleBasedStateMachine):
    """`expected` is the list of (task, checkpoint, weight); every invariant rebuilds from it alone."""

    @initialize(
        method=st.sampled_from(sorted(OPTIONS)),
        pick=st.integers(0, 1),
        dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
        snapshots=st.integers(0, 2),
        statistics=st.booleans(),
    )
    def begin(self, method: str, pick: int, dtype: torch.dtype, snapshots: int, statistics: bool) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="plait-machine-"))
        base = base_tensors(dtype)
        self.base = write_file(self.folder / "base.safetensors", base)
        self.pool = [
            write_file(self.folder / f"e{i}.safetensors", expert_tensors(base, i)) for i in range(POOL)
        ]
        self.method, options = method, OPTIONS[method]
        self.options = options[pick % len(options)]
        retention: Literal["vectors", "statistics"] = "vectors"
        if statistics and method not in ("magmax", "opcm", "mdm_oc"):
            retention = "statistics"
        self.retention = retention
        self.line = Line.create(
            self.folder / "line",
            self.base,
            method,
            retention=retention,
            snapshots=0 if method == "mdm_oc" else snapshots,
            **self.options,
        )
        self.expected: list[tuple[str, int, float]] = []
        self.count = 0

    @rule(which=st.integers(0, POOL - 1), weight=st.sampled_from([1.0, 1.0, 2.0, 0.3]))
    def merge(self, which: int, weight: float) -> None:
        task = f"t{self.count}"
        self.count += 1
        self.line.merge(self.pool[which], task, weight=weight)
        self.expected.append((task, which, weight))

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def unmerge(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(self.expected))
        checkpoint = self.pool[row[1]] if self.retention == "statistics" else None
        self.line.unmerge(row[0], checkpoint=checkpoint)
        self.expected.remove(row)

    @precondition(lambda self: self.expected)
    @rule(data=st.data(), weight=st.sampled_from([1.0, 0.25, 1.7]))
    def reweight(self, data: st.DataObject, weight: float) -> None:
        index = data.draw(st.integers(0, len(self.expected) - 1))
        task, which, _ = self.expected[index]
        checkpoint = self.pool[which] if self.retention == "statistics" else None
        self.line.reweight(task, weight, checkpoint=checkpoint)
        self.expected[index] = (task, which, weight)

    @precondition(lambda self: self.expected)
    @rule(data=st.data(), new=st.integers(0, POOL - 1))
    def replace(self, data: st.DataObject, new: int) -> None:
        index = data.draw(st.integers(0, len(self.expected) - 1))
        task, which, weight = self.expected[index]
        old = self.pool[which] if self.retention == "statistics" else None
        self.line.replace(task, self.pool[new], old_checkpoint=old)
        self.expected[index] = (task, new, weight)

    @rule()
    def reopen_and_collect(self) -> None:
        self.line = Line.open(self.folder / "line")
        self.line.gc(grace=0.0)

    @invariant()
    def bytes_are_those_of_the_member_list(self) -> None:
        if not hasattr(self, "line"):
            return
        assert [(m.task, m.weight) for m in self.line.members] == [(t, w) for t, _, w in self.expected]
        if not self.expected:
            assert self.line.digest == self.line.status()["base"]["digest"]
            return
        out = self.folder / "fresh.safetensors"
        row = merge_files(
            self.base,
            [self.pool[which] for _, which, _ in self.expected],
            out,
            self.method,
            [weight for _, _, weight in self.expected],
            force=True,
            **self.options,
        )
        assert row["version"] == self.line.digest

    def teardown(self) -> None:
        if hasattr(self, "line"):
            report = self.line.verify(replay=self.retention == "vectors")
            shutil.rmtree(self.folder)
            assert report["problems"] == []
            assert report["replay"] in (None, "equal")


TestLine = LineMachine.TestCase
TestLine.settings = settings(
    max_examples=12,
    stateful_step_count=8,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # a failing run is short enough as it is
)


@pytest.mark.slow
def test_line_long() -> None:
    long = settings(
        max_examples=25, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(LineMachine, settings=long)
