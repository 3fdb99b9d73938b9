"""What a person sees while a plan runs."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from plait import engine
from plait.engine import Progress
from plait.engine.progress import clock, size
from tests.engine.files import places, save


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_text_tells_bytes_speed_and_time_left() -> None:
    bar = Progress(io.StringIO())
    bar.begin("fold", 4_000_000_000)
    bar.advance(1_000_000_000)
    assert bar.text(2.0) == "fold  25%  1 GB of 4 GB  500 MB/s  6s left"
    bar.begin("copy", 0)
    assert bar.text(0.0).startswith("copy 100%  0 B of 0 B")


def test_a_terminal_gets_one_line_and_a_log_gets_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("plait.engine.progress.time.monotonic", lambda: now[0])
    terminal, log = Terminal(), io.StringIO()
    for stream in (terminal, log):
        bar = Progress(stream)
        bar.begin("fold", 100)
        for _ in range(20):
            now[0] += 1
            bar.advance(5)
        bar.end()
    assert terminal.getvalue().count("\n") == 0
    assert terminal.getvalue().count("\r\x1b[Kfold") == 20
    assert terminal.getvalue().endswith("\r\x1b[K")
    assert log.getvalue().splitlines() == [
        "fold  50%  50 B of 100 B  5 B/s  10s left",
        "fold 100%  100 B of 100 B  5 B/s  0s left",
    ]


def test_steps_are_told_with_what_they_found(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("plait.engine.progress.time.monotonic", lambda: now[0])
    terminal, log = Terminal(), io.StringIO()
    for stream in (terminal, log):
        bar = Progress(stream)
        for done in range(3, 9):  # it goes on after a stop
            bar.step("cola", done, 8, f"loss {1 / done:.2f}")
            now[0] += 4
        bar.step("cola", 1, 2, "loss 9")  # another run of steps
        bar.end()
    lines = terminal.getvalue().split("\r\x1b[K")
    assert lines[1] == "cola  3 of 8 steps  loss 0.33"
    assert lines[2] == "cola  4 of 8 steps  loss 0.25  16s left"
    assert lines[6:] == ["cola  8 of 8 steps  loss 0.12  0s left", "cola  1 of 2 steps  loss 9", ""]
    assert log.getvalue().splitlines() == [
        "cola  6 of 8 steps  loss 0.17  8s left",
        "cola  1 of 2 steps  loss 9",
    ]


def test_a_plan_reports_all_its_bytes(tmp_path: Path) -> None:
    import torch

    class Gauge:
        def __init__(self) -> None:
            self.begun: list[tuple[str, int]] = []
            self.seen = self.ended = 0

        def begin(self, label: str, total: int) -> None:
            self.begun.append((label, total))

        def advance(self, count: int) -> None:
            self.seen += count

        def step(self, label: str, done: int, total: int, words: str) -> None:
            raise AssertionError("a plan has no steps")

        def end(self) -> None:
            self.ended += 1

    refs = save(tmp_path / "in", {"a": torch.zeros(3_000_000)})
    gauge = Gauge()
    engine.copy([(refs["a"], places(tmp_path / "out", refs)["a"])], engine.Settings(2), gauge)
    assert gauge.begun == [("copy", 24_000_000)]
    assert (gauge.seen, gauge.ended) == (24_000_000, 1)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (999_600, "1 MB"), (1_234_000_000, "1.23 GB")],
)
def test_size(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0s"), (59.4, "59s"), (185, "3m05s"), (7830, "2h10m")])
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text
