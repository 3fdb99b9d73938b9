"""Generated parts of documents are what the code and the recorded figures give now."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def methods() -> ModuleType:
    spec = importlib.util.spec_from_file_location("methods_page", ROOT / "benchmarks" / "methods.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_methods_is_up_to_date(methods: ModuleType) -> None:
    text = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    assert methods.page(text) == text, "docs/methods.md is out of date: run `make pages`"


def test_generated_parts_are_made_anew_and_the_rest_stays(methods: ModuleType) -> None:
    text = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    changed = text.replace("| `average` | additive |", "| `average` | fold |")
    assert changed != text
    assert methods.page(changed) == text
    own = text.replace("# Methods", "# Methods, by hand", 1)
    assert methods.page(own) == own


def test_a_page_without_a_place_for_a_part_is_refused(methods: ModuleType) -> None:
    with pytest.raises(ValueError, match="facts"):
        methods.page("# Methods")
