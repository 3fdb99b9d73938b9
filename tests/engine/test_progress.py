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
