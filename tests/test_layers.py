"""The map of DESIGN is the building: imports point down, each heavy library is imported in one place."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "plait"

ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "words": set(),
    "types": {"errors"},
    "tensors": {"types", "errors"},
    "checkpoint": {"types", "errors"},
    "methods": {"tensors", "types", "errors"},
    "problem": {"recipe", "methods", "checkpoint", "tensors", "types", "errors"},
    "engine": {"problem", "methods", "checkpoint", "tensors", "types", "errors"},
    "store": {"types", "errors"},
    "evaluation": {"engine", "store", "problem", "methods", "checkpoint", "tensors", "types", "errors"},
    "line": {
        "evaluation",
        "engine",
        "store",
        "problem",
        "methods",
        "checkpoint",
        "tensors",
        "types",
        "errors",
    },
    "training": {"line", "problem", "checkpoint", "tensors", "types", "errors"},
    "report": {"line", "evaluation", "store", "types", "errors"},
    "recipe": {"checkpoint", "methods", "types", "errors"},
    "testing": {"line", "engine", "store", "methods", "checkpoint", "tensors", "types", "errors"},
}
for _above in ("checkpoint", "line", "training", "report", "recipe"):
    ALLOWED[_above] = ALLOWED[_above] | {"words"}
ALLOWED["cli"] = ALLOWED["bench"] = ALLOWED["demo"] = set(ALLOWED) - {"testing"}
ALLOWED["bench"] = ALLOWED["bench"] | {"demo"}  # the encoder that the demo unpacks
for _above in ("checkpoint", "line", "training", "report", "recipe"):
    ALLOWED[_above] = ALLOWED[_above] | {"words"}
ALLOWED["cli"] = ALLOWED["cli"] | {"bench"}
FACE = {"Line", "merge_files", "merge_state_dicts"}  # what `plait` itself hands out
TORCH_FREE = {
    *(
        "errors",
        "types",
        "words",
        "checkpoint",
        "store",
        "methods",
        "line",
        "cli",
        "recipe",
        "tensors",
        "training",
    ),
}
EXEMPT = {
    "checkpoint/convert.py",  # run in a child process only
    "tensors/loops.py",  # loaded by `compiled.loops` only
}


def layer(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(tree: ast.AST, *, top_only: bool) -> set[str]:
    """Modules that a file imports; with `top_only` those that loading the file imports."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if top_only and isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                if not top_only:
                    visit(child)
                for rest in child.orelse:
                    visit(rest)
                continue
            if isinstance(child, ast.Import):
                found.update(a.name for a in child.names)
            elif isinstance(child, ast.ImportFrom) and child.module:
                found.add(child.module)
                found.update(f"{child.module}.{a.name}" for a in child.names)
            visit(child)

    visit(tree)
    return found


FILES = sorted(p for p in SOURCE.rglob("*.py") if p.parent != SOURCE or p.name != "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(SOURCE).as_posix())
def test_imports_point_down(path: Path) -> None:
    own = layer(path)
    names = imported(ast.parse(path.read_text(encoding="utf-8")), top_only=False)
    layers = {n.split(".")[1] for n in names if n.startswith("plait.")} - {own}
    layers = {"line" if n in FACE else n for n in layers} - {"__version__"}
    assert layers <= ALLOWED[own], f"{own} may not import {sorted(layers - ALLOWED[own])}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(SOURCE).as_posix())
def test_torch_is_not_loaded_by_naming_a_module(path: Path) -> None:
    if layer(path) not in TORCH_FREE or path.relative_to(SOURCE).as_posix() in EXEMPT:
        return
    names = {n.split(".")[0] for n in imported(ast.parse(path.read_text(encoding="utf-8")), top_only=True)}
    assert not names & {"torch", "numpy", "numba", "llvmlite"}


def test_heavy_libraries_are_imported_in_one_file_each() -> None:
    heavy = (
        "transformers",
        "peft",
        "timm",
        "ray",
        "obstore",
        "matplotlib",
        "safetensors",
        "cma",
        "scipy",
        "PIL",
        "pyarrow",
    )
    where: dict[str, set[str]] = {}
    for path in FILES:
        for name in imported(ast.parse(path.read_text(encoding="utf-8")), top_only=False):
            head = name.split(".")[0]
            if head in heavy:
                where.setdefault(head, set()).add(path.relative_to(SOURCE).as_posix())
    assert all(len(files) == 1 for files in where.values()), where
    assert "safetensors" not in where, "the format has a reader of its own"


def test_loading_plait_loads_no_tensor_library() -> None:
    code = (
        "import plait, plait.line, plait.store, plait.cli, sys; "
        "print([m for m in ('torch', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
