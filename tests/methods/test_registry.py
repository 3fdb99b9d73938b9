"""Names and options of methods: found, filled from text, refused with a message that says what to do."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest

from plait.errors import UsageError
from plait.methods.average import Average
from plait.methods.base import TensorMethod
from plait.methods.registry import fill, find, make, name_of, names
from plait.methods.ties import Ties

OURS = {"average", "magmax", "model_stock", "opcm", "task_arithmetic", "ties"}


@dataclass(frozen=True)
class Sample:
    steps: int = 3
    rate: float = 0.5
    deep: bool = False
    mode: str = "a"
    made: int = field(default=1, init=False)


def test_our_methods_are_registered_under_their_names() -> None:
    assert set(names()) >= OURS
    for name in OURS:
        assert find(name).facts.summary
        assert name_of(find(name)) == make(name).name == name
    assert name_of(TensorMethod) == "TensorMethod"


def test_text_becomes_what_the_default_is() -> None:
    assert fill(Sample, "sample", {"steps": "4", "rate": "1", "deep": "yes", "mode": "3"}) == Sample(
        4, 1.0, True, "3"
    )
    assert isinstance(fill(Sample, "sample", {"rate": 1}).rate, float)
    assert make("ties", {"density": "0.5", "trim": "model"}) == Ties(0.5, "model")
    assert make("model_stock", {"clamp": "false"}).options() == {"sparsify": None, "clamp": False}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": "2.5"}, "steps is '2.5', expected a whole number"),
        ({"steps": "inf"}, "steps is 'inf', expected a whole number"),
        ({"steps": "two"}, "steps is 'two', expected a number"),
        ({"deep": "perhaps"}, "deep is 'perhaps', expected true or false"),
        ({"depth": 1}, "sample has no option depth; its options are: steps, rate, deep, mode"),
        ({"made": 1}, "sample has no option made"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fill(Sample, "sample", options)


def test_wrong_names_and_ranges_are_refused() -> None:
    with pytest.raises(UsageError, match=r"method 'tie' is not known; choose one of: average, .*ties"):
        make("tie")
    with pytest.raises(UsageError, match="method average has no option density; its options are: sparsify"):
        make("average", {"density": 1})
    with pytest.raises(UsageError, match="scale is inf, expected a finite number"):
        make("task_arithmetic", {"scale": "inf"})


def test_options_are_complete_and_make_an_equal_method() -> None:
    assert Average().options() == {"sparsify": None}
    for name in OURS:
        assert make(name, make(name).options()) == make(name)


def test_naming_a_method_imports_neither_torch_nor_numpy() -> None:
    code = (
        "import sys; from plait.methods.registry import names, make;"
        "names(); make('ties'); make('opcm'); print(sorted(sys.modules))"
    )
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "'plait.methods.ties'" in seen
    assert "'torch'" not in seen
    assert "'numpy'" not in seen
