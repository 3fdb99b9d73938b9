"""A call that waits for ever on a FIFO fails its test instead of hanging the run."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _no_waiting() -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError("the test waited for 300 seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(300)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
