"""What the commands tell of numbers that differ from tensor to tensor."""

from __future__ import annotations

import json
from pathlib import Path

from plait import Line
from tests.cli.conftest import Plait
from tests.line.models import base_tensors, expert_tensors, write_file


def test_rules_are_told_where_options_and_weights_are(tmp_path: Path, plait: Plait) -> None:
    base = base_tensors()
    write_file(tmp_path / "base.safetensors", base)
    write_file(tmp_path / "a.safetensors", expert_tensors(base, 0))
    made = plait("init", tmp_path / "line", "--base", tmp_path / "base.safetensors", "--method", "ties", "--set",
                 "density=typo:0.1; 0.2..0.8", "--json")  # fmt: skip
    assert made.code == 0, made.err
    text = "typo:0.1; 0.2..0.8@layer=2"
    assert json.loads(made.out)["options"]["density"] == text
    done = plait("merge", tmp_path / "line", tmp_path / "a.safetensors", "--weight", "layer.*:2; 1")
    assert done.code == 0, done.err
    assert "merged a (weight layer.*:2; 1)" in done.out + done.err
    shown = plait("status", tmp_path / "line").out
    assert text in shown
    assert "layer.*:2; 1" in shown
    line = Line.open(tmp_path / "line")
    first = line.log()[0]
    assert first["notes"] == ["density: no tensor is left for pattern typo"]
    assert line.show("0")["options"]["density"] == text
    receipt = line.unmerge("a")["receipt"]
    assert receipt["weight"] == "layer.*:2; 1"
    listed = plait("methods", "ties")
    assert "by tensor" in listed.out
    assert "density, scale" in listed.out
