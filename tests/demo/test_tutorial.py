"""The tutorial, done: every command and every line of Python in it, in order, in a folder made by the demo."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from plait import Line
from plait.cli import main
from plait.demo.minilm import WEIGHTS
from tests.demo.conftest import Run

PAGE = Path(__file__).parent.parent.parent / "docs" / "tutorial.md"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def run(row: str) -> int:
    """Exit code of one `plait` line."""
    try:
        return int(main(shlex.split(row, comments=True)[1:]) or 0)
    except SystemExit as leave:
        return int(leave.code or 0)


def test_every_step_does_what_the_tutorial_says(
    quick: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "demo").symlink_to(quick.out)
    (recipe,) = blocks("yaml")
    (tmp_path / "out" / "recipe.yaml").write_text(recipe, encoding="utf-8")
    rows = [row for block in blocks("sh") for row in block.splitlines()]
    assert len(rows) > 20
    for row in rows:
        assert run(row) == (5 if "# refused" in row else 0), (row, capsys.readouterr())
    assert "task colour is a member already" in capsys.readouterr().err
    assert not (tmp_path / "out" / "model" / "README.md").read_text(encoding="utf-8").count("language")

    log = Line.open("out/line").log()
    (unmerged,) = [entry for entry in log if entry["verb"] == "unmerge"]
    assert unmerged["receipt"]["never_merged"] == Line.open("out/never").digest == unmerged["version"]
    sums = Line.open("out/sums")
    assert [member.task for member in sums.members] == ["language"]
    assert sums.digest == sums.members[0].digest
    assert (sums.model / WEIGHTS).read_bytes() == (quick.out / "experts" / "language" / WEIGHTS).read_bytes()
    assert (tmp_path / "out" / "ties" / WEIGHTS).exists()

    space: dict[str, object] = {}
    for block in blocks("python"):
        exec(block, space)
    printed = capsys.readouterr().out
    assert "subtraction True True" in printed
    assert re.search(r"entity: \d+ of 250", printed)
    assert (tmp_path / "out" / "python-model" / WEIGHTS).exists()
