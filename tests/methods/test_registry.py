"""Names and options of methods: found, filled from text, refused with a message that says what to do."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from plait.errors import UsageError
from plait.methods.average import Average
from plait.methods.base import Method, TensorMethod
from plait.methods.model_stock import ModelStock
from plait.methods.opcm import Opcm
from plait.methods.registry import fill, find, make, name_of, names
from plait.methods.sparsify import Dare, Della
from plait.methods.ties import Ties

OURS = {"average", "magmax", "model_stock", "opcm", "task_arithmetic", "ties"}


@dataclass(frozen=True)
class Sample:
    steps: int = 3
    rate: float = 0.5
    deep: bool = False
    mode: str = "a"
    limit: float | None = None
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
        ({"depth": 1}, "sample has no option depth; its options are: steps, rate, deep, mode, limit"),
        ({"made": 1}, "sample has no option made"),
        ({"rate": True}, "rate is True, expected a number"),
        ({"rate": None}, "rate is None, expected a number"),
        ({"rate": [0.5]}, r"rate is \[0.5\], expected a number"),
        ({"rate": 10**400}, "rate is 10+, expected a number"),
        ({"rate": np.bool_(True)}, "rate is True, expected a number"),
        ({"steps": float("inf")}, "steps is inf, expected a whole number"),
        ({"steps": False}, "steps is False, expected a number"),
        ({"steps": None}, "steps is None, expected a number"),
        ({"deep": None}, "deep is None, expected true or false"),
        ({"deep": 0.0}, "deep is 0.0, expected true or false"),
        ({"mode": None}, "mode is None, expected text"),
        ({"mode": 3}, "mode is 3, expected text"),
        ({"limit": "x"}, "limit is 'x', expected a number"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fill(Sample, "sample", options)


@pytest.mark.parametrize(
    ("options", "plain"),
    [
        ({"rate": 0}, 0.0),
        ({"rate": -0.0}, 0.0),
        ({"rate": np.float32(0.5)}, 0.5),
        ({"rate": np.int64(2)}, 2.0),
        ({"steps": 2.0}, 2),
        ({"steps": np.int32(2)}, 2),
        ({"steps": 2**60 + 1}, 2**60 + 1),
        ({"deep": 1}, True),
        ({"deep": np.bool_(False)}, False),
        ({"limit": 1}, 1.0),
        ({"limit": None}, None),
    ],
)
def test_values_become_what_the_option_declares(options: dict[str, Any], plain: Any) -> None:
    (name,) = options
    assert json.dumps(getattr(fill(Sample, "sample", options), name)) == json.dumps(plain)


def test_a_method_has_one_form_of_its_options() -> None:
    forms = {json.dumps(m.options()) for m in (Ties(1, scale=0), make("ties", {"density": 1, "scale": "-0"}))}
    inner = {"sparsify": {"name": "dare", "density": 1}}
    forms |= {json.dumps(m.options()) for m in (make("average", inner), Average(sparsify=Dare(1.0)))}
    assert len(forms) == 2


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (Ties(density=True), "density is True, expected a number"),
        (Ties(scale=None), "scale is None, expected a number"),  # type: ignore[arg-type]
        (Opcm(share=None), "share is None, expected a number"),  # type: ignore[arg-type]
        (Opcm(tables=None), "tables is None, expected text"),  # type: ignore[arg-type]
        (ModelStock(clamp=1), "clamp is 1, expected true or false"),  # type: ignore[arg-type]
        (Average(sparsify=Della(0.5, True)), "sparsify.spread is True, expected a number"),
    ],
)
def test_types_of_options_are_checked_without_names_too(method: Method, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        method.check()


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
