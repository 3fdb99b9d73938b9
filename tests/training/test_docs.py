"""docs/training.md, done: its files written, its commands and its Python run, in order, on a small part of MiniLM."""

from __future__ import annotations

import json
import re
import shlex
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from plait import Line
from plait.cli import main
from plait.training import Recipe

PAGE = Path(__file__).parents[2] / "docs" / "training.md"
TEXT = PAGE.read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", TEXT, re.DOTALL)


def test_the_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from plait.demo import minilm
    from plait.errors import PlaitError

    try:
        minilm.packaged_model()
    except PlaitError as error:
        pytest.skip(str(error))
    monkeypatch.chdir(tmp_path)
    for file, kind in (("tasks.yaml", "yaml"), ("films.csv", "csv")):
        (block,) = blocks(kind)
        Path(file).write_text(block, encoding="utf-8")
    first, second = blocks("python")
    exec(first, {})
    (commands,) = blocks("sh")
    for row in commands.splitlines():
        assert main([*shlex.split(row)[1:], "--quiet"]) == 0, (row, capsys.readouterr())
    line = json.loads(_out(capsys, "log", "line", "--json"))
    merged, unmerged = line["entries"][2], line["entries"][3]
    assert merged["members"][1]["descends"]["tasks"] == ["films"]
    assert unmerged["receipt"]["exact"] is False
    exec(second, {})
    loss, digest = capsys.readouterr().out.split()
    record = json.loads(Path("films/plait_training.json").read_text(encoding="utf-8"))
    assert record["digest"] == digest
    assert record["loss"]["values"][0] > 0.3 > record["loss"]["values"][-1] == float(loss)
    keys = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`[^|]*) \|", TEXT, re.M)))
    assert keys == list(record)
    (row,) = re.findall(r"^\| `recipe` \| (.*) \|$", TEXT, re.M)
    assert row.split(", ") == [field.name for field in fields(Recipe)]


def test_a_loop_of_your_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run of two tasks; a second run finds nothing to do."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for kind, name, text in re.findall(r"```(python|yaml) file=(\S+)\n(.*?)```", TEXT, re.DOTALL):
        assert name.endswith({"python": ".py", "yaml": ".yaml"}[kind])
        Path(name).write_text(text, encoding="utf-8")
    steps = dict(re.findall(r"```python step=(\S+)\n(.*?)```", TEXT, re.DOTALL))
    assert len([row for row in steps["loop"].splitlines() if row]) <= 12
    space: dict[str, object] = {}
    exec(steps["make"], space)
    exec(steps["loop"], space)
    rows = [row.split() for row in capsys.readouterr().out.splitlines()]
    assert [name for name, _ in rows] == ["first", "second"]
    assert all(float(loss) < 0.7 for _, loss in rows)
    line = Line.open("steps")
    assert [m.task for m in line.members] == ["first", "second"]
    assert line.members[1].descends == {"version": line.log()[1]["version"], "tasks": ["first"]}
    exec(steps["loop"], space)
    assert capsys.readouterr().out == ""
    del sys.modules["nets"]


def _out(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(words) == 0
    return capsys.readouterr().out
