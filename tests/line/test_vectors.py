"""Cosines and norms of a line's members, and what is kept of them."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plait import Line
from plait.line import vectors
from plait.line.vectors import compare
from plait.methods.groups import layer_of
from tests.line.models import base_tensors, expert_tensors, write_folder


@pytest.fixture
def line(tmp_path: Path) -> Line:
    base = base_tensors()
    write_folder(tmp_path / "base", base)
    made = Line.create(tmp_path / "line", tmp_path / "base")
    for number, task in enumerate("abc"):
        made.merge(write_folder(tmp_path / task, expert_tensors(base, number)), weight=1 + number)
    return made


def flat(tensors: dict[str, Any], start: str = "") -> Any:
    names = sorted(n for n, t in tensors.items() if t.is_floating_point() and n.startswith(start))
    return np.concatenate([tensors[n].double().numpy().ravel() for n in names])


def test_numbers_are_those_of_numpy(line: Line) -> None:
    base = base_tensors()
    deltas = [flat(expert_tensors(base, number)) - flat(base) for number in range(3)]
    found = compare(line.store)
    assert found is not None
    assert found["tasks"] == ["a", "b", "c"]
    assert found["layers"] == ["embeddings", "layer.0", "layer.1", "pooler"]
    for i in range(3):
        assert found["norms"][i] == pytest.approx(np.linalg.norm(deltas[i]), rel=2e-6)  # six digits are told
        for j in range(3):
            scale = np.linalg.norm(deltas[i]) * np.linalg.norm(deltas[j])
            assert found["cosines"][i][j] == pytest.approx(deltas[i] @ deltas[j] / scale, rel=2e-6)
    for place, layer in enumerate(found["layers"]):
        apart = flat(expert_tensors(base, 1), layer) - flat(base, layer)
        assert found["layer_norms"][1][place] == pytest.approx(np.linalg.norm(apart), rel=2e-6)
        assert found["base_norms"][place] == pytest.approx(np.linalg.norm(flat(base, layer)), rel=2e-6)


def test_a_member_without_a_task_vector_has_no_direction(line: Line, tmp_path: Path) -> None:
    line.merge(write_folder(tmp_path / "same", base_tensors()))
    found = compare(line.store)
    assert found is not None
    assert found["norms"][3] == 0.0
    assert found["cosines"][3] == [None] * 4
    assert found["cosines"][0][3] is None


def test_the_result_is_kept_until_the_line_changes(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compare(line.store, read=False) is None
    first = compare(line.store)
    with monkeypatch.context() as patch:
        patch.setattr(vectors, "_measure", lambda *_: pytest.fail("tensors were read again"))
        assert compare(line.store) == first
        assert compare(line.store, read=False) == first
    line.unmerge("b")
    assert compare(line.store, read=False) is None
    again = compare(line.store)
    assert again is not None
    assert again["tasks"] == ["a", "c"]


def test_nothing_is_kept_of_a_member_that_went_meanwhile(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = vectors._measure

    def slowly(*words: Any) -> dict[str, Any]:
        found = measure(*words)
        line.unmerge("b")
        line.purge("b")
        return found

    monkeypatch.setattr(vectors, "_measure", slowly)
    assert compare(line.store) is not None
    assert line.store.workspaces() == []


def test_a_locked_line_is_measured_and_nothing_kept(line: Line) -> None:
    with (line.path / "lock").open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert compare(line.store) is not None
    assert compare(line.store, read=False) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"key": 1}', '{"found": {}}'])
def test_a_damaged_note_is_not_used(line: Line, text: str) -> None:
    first = compare(line.store)
    file = line.store.scratch / "report" / "vectors.json"
    file.write_text(text)
    assert compare(line.store, read=False) is None
    assert compare(line.store) == first


def test_a_line_that_keeps_no_members_has_no_vectors(tmp_path: Path) -> None:
    write_folder(tmp_path / "base", base_tensors())
    made = Line.create(tmp_path / "line", tmp_path / "base", retention="statistics")
    made.merge(write_folder(tmp_path / "a", expert_tensors(base_tensors(), 0)))
    assert compare(made.store) is None


def test_the_line_stays_sound(line: Line) -> None:
    compare(line.store)
    assert line.verify(replay=True)["ok"]


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("encoder.layer.3.attention.weight", "encoder.layer.3"),
        ("h.10.mlp", "h.10"),
        ("blocks.0.1.conv.weight", "blocks.0"),
        ("embeddings.word.weight", "embeddings.word"),
        ("conv1.weight", "conv1"),
        ("scale", "scale"),
        ("0", "0"),
    ],
)
def test_layers_by_name(name: str, layer: str) -> None:
    assert layer_of(name) == layer
