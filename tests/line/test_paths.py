"""Lines of `ode_m`: what it keeps beside the model, and that members leave without a trace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plait.methods import registry
from tests.line.calibrated import make, register, write_world
from tests.line.models import read, same_bits

SHORT: dict[str, Any] = {"h": 0.25, "samples": 12}
WAYS: dict[str, dict[str, Any]] = {
    "paper": {},
    "new": {"calibration": "new"},
    "merged": {"target": "merged"},
    "released": {"variant": "released", "refine": 2},
    "refined average": {"variant": "control_refine", "refine": 2},
}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    register(tmp_path, monkeypatch)
    write_world(tmp_path)
    yield tmp_path
    registry._points.cache_clear()


@pytest.mark.parametrize("snapshots", [0, 1])
@pytest.mark.parametrize("way", WAYS)
def test_unmerge_gives_the_bytes_of_never_having_merged(world: Path, way: str, snapshots: int) -> None:
    options = {**SHORT, **WAYS[way], "snapshots": snapshots}
    line = make(world, "line", "abc", "ode_m", **options)
    never = make(world, "never", "ac", "ode_m", **options)
    (world / "tasks.yaml").unlink()
    assert line.verify(replay=True)["replay"] == "equal"
    receipt = line.unmerge("b")["receipt"]
    assert receipt["exact"]
    assert line.digest == never.digest == receipt["never_merged"]
    assert line._head()["state"] == never._head()["state"]


def test_the_first_member_is_the_model_and_weights_say_how_far_a_path_goes(world: Path) -> None:
    line = make(world, "line", "a", "ode_m", **SHORT)
    made, held = read(line.model), read(world / "a")
    assert not same_bits(made, {n: held[n] if "classifier" not in n else t for n, t in made.items()})
    line.merge(world / "b", weight=3.0, tasks=world / "tasks.yaml")
    assert line.show("b")["known"]["t_end"] == pytest.approx(0.75)
    line.reweight("b", 1.0)
    assert line.show("b")["known"]["t_end"] == pytest.approx(0.5)
