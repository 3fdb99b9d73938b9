"""The example in docs/networks.md runs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent.parent / "docs" / "networks.md"


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 1
    (tmp_path / "networks_example.py").write_text(blocks[0], encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        __import__("networks_example")
    finally:
        sys.modules.pop("networks_example", None)


@pytest.mark.parametrize("spec", sorted(set(re.findall(r"python:plait\.[\w.]+:\w+", PAGE.read_text()))))
def test_functions_that_come_with_plait_exist(spec: str) -> None:
    from importlib import import_module

    _, module, function = spec.split(":")
    assert callable(getattr(import_module(module), function))
