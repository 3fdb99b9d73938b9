"""Running commands in this process, on a fake line or on a real one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from plait.cli import main
from tests.cli import fake


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The only line of stdout, read as JSON."""
        (line,) = self.out.splitlines()
        found: dict[str, Any] = json.loads(line)
        return found

    @property
    def error(self) -> str:
        """The only line of stderr."""
        (line,) = self.err.splitlines()
        assert line.startswith("plait: error: ")
        return line.removeprefix("plait: error: ")


Plait = Callable[..., Done]


@pytest.fixture
def plait(capsys: pytest.CaptureFixture[str]) -> Plait:
    """Run `plait WORDS…` in this process."""

    def run(*words: object) -> Done:
        capsys.readouterr()
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return Done(code, out, err)

    return run


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A folder on which the fake line answers."""
    fake.FakeLine.reset()
    monkeypatch.setitem(sys.modules, "plait.line", fake.module())
    folder = tmp_path / "line"
    folder.mkdir()
    yield folder
    fake.FakeLine.reset()
