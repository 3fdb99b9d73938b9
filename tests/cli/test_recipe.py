"""Recipes in plait's own words, and the YAML they are written in."""

from __future__ import annotations

from pathlib import Path

import pytest

from plait.errors import RefusedInput
from plait.recipe import Member, Recipe, parse_recipe, read_recipe


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("base", "a", "b", "deep/a"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "c.safetensors").write_bytes(b"")
    return tmp_path


def refused(text: str, folder: Path) -> str:
    """The one line that a recipe is refused with."""
    with pytest.raises(RefusedInput) as caught:
        parse_recipe(text, "r.yaml", folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


GOOD = "base: base\nmethod: ties\nmembers: [{checkpoint: a}]\n"


def test_all_keys(folder: Path) -> None:
    text = """
base: base
method: ties
options: {density: 0.2, sparsify: {name: dare, density: 1e-1}}
members:
  - checkpoint: a
  - {checkpoint: c.safetensors, task: sea, weight: 1e-3}
  - checkpoint: deep/a
private: ['classifier.*']
dtype: float16
seed: 7
"""
    assert parse_recipe(text, "r.yaml", folder) == Recipe(
        base=str(folder / "base"),
        method="ties",
        options={"density": 0.2, "sparsify": {"name": "dare", "density": "1e-1"}},
        members=(
            Member(str(folder / "a"), "a", 1.0),
            Member(str(folder / "c.safetensors"), "sea", 0.001),
            Member(str(folder / "deep/a"), "a-2", 1.0),
        ),
        dtype="F16",
        private=("classifier.*",),
        seed=7,
    )


def test_paths_start_at_the_recipe(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "deep" / "r.yaml").write_text("base: ../base\nmethod: average\nmembers: [{checkpoint: a}]\n")
    monkeypatch.chdir("/")
    made = read_recipe(folder / "deep" / "r.yaml")
    assert Path(made.members[0].checkpoint) == folder / "deep" / "a"
    assert Path(made.base).resolve() == folder / "base"
    assert made.dtype is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "base: base",
            "bass: base",
            "'bass' is not known; expected base, method, options, members, private, dtype",
        ),
        ("base: base", "bass: base", "seed: remove it or correct it to base"),
        ("base: base", "qqq: base", "seed: remove it or correct it; (2) base is missing"),
        ("base: base", "base: 3", "base is 3, expected text"),
        ("base: base", "base: elsewhere", "base: 'elsewhere' does not exist (relative paths start at "),
        (
            "base: base",
            "base: org/model",
            "'org/model' is not here; plait fetches nothing; if it is a name on a model",
        ),
        ("method: ties", "method: [ties]", "method is ['ties'], expected text"),
        ("[{checkpoint: a}]", "[]", "members is [], expected a list of at least one model"),
        ("[{checkpoint: a}]", "[a]", "members[0] is 'a', expected names and values"),
        (
            "{checkpoint: a}",
            "{checkpoint: a, wieght: 2}",
            "members[0].'wieght' is not known; expected checkpoint,",
        ),
        (
            "{checkpoint: a}",
            "{checkpoint: a, weight: 0}",
            "members[0].weight is 0, expected a number above 0",
        ),
        (
            "{checkpoint: a}",
            "{checkpoint: a, weight: .nan}",
            "members[0].weight is nan, expected a finite number",
        ),
        (
            "{checkpoint: a}",
            "{checkpoint: a, weight: yes}",
            "members[0].weight is True, expected a finite number",
        ),
        (
            "{checkpoint: a}",
            "{checkpoint: a, weight: 1.2.3}",
            "members[0].weight is '1.2.3', expected a finite",
        ),
        (
            "{checkpoint: a}",
            "{checkpoint: a, task: t}, {checkpoint: b, task: t}",
            "task 't' is given 2 times",
        ),
        ("method: ties", "method: ties\nprivate: head", "private is 'head', expected a list of patterns"),
        (
            "method: ties",
            "method: ties\ndtype: float8",
            "dtype is 'float8', expected float32, bfloat16, float16",
        ),
        ("method: ties", "method: ties\nseed: -1", "seed is -1, expected a whole number of at least 0"),
        ("method: ties", "method: ties\noptions: [1]", "options is [1], expected names and values"),
        (
            "method: ties",
            "method: ties\noptions: {a: [x]}",
            "options.a has 'x' where a number is expected",
        ),
        ("method: ties", "method: ties\noptions: {a: .inf}", "options.a is inf, expected a finite number"),
        (
            "method: ties",
            "method: ties\noptions: {a: {b: {c: 1}}}",
            "options.a has {'c': 1} where a number is expected",
        ),
        (
            "method: ties",
            "method: ties\nmethod: average",
            "r.yaml, line 3: 'method' is given twice; give it once",
        ),
        ("method: ties", "<<: {method: ties}", "<< (merging keys) is not read; write the keys out"),
        (
            "method: ties",
            "method: ties: no",
            "r.yaml, line 2: is not YAML: mapping values are not allowed here",
        ),
        (
            "method: ties",
            "method: !!python/object/apply:os.getcwd []",
            "is not YAML: could not determine a constructor",
        ),
        ("method: ties", "? [1, 2]\n: 3", "is not YAML: found unhashable key"),
    ],
)
def test_refusals(folder: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    parse_recipe(GOOD, "r.yaml", folder)
    assert message in refused(GOOD.replace(old, new), folder)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ("[a]", "members[0] is 'a', expected names and values, such as {checkpoint: a}"),
        ("[{checkpoint: a}, 3]", "members[1] is 3, expected names and values, checkpoint among them"),
        ("[null]", "members[0] is None, expected names and values, checkpoint among them"),
    ],
)
def test_a_member_that_is_no_mapping_is_one_fault(folder: Path, members: str, words: str) -> None:
    text = GOOD.replace("[{checkpoint: a}]", members)
    assert refused(text, folder) == f"r.yaml: {words}"


def test_all_faults_are_listed_at_once(folder: Path) -> None:
    message = refused("base: no\nmethod: 3\nmembers: []\nx: 1\n", folder)
    assert message.startswith("r.yaml: 4 things cannot be honoured: (1) 'x' is not known")
    assert "; (4) members is [], " in message


@pytest.mark.parametrize("text", ["", "3", "[a]", "a", "1: 2"])
def test_what_is_no_mapping_is_no_recipe(folder: Path, text: str) -> None:
    assert "expected the keys of a recipe, such as base, method, members" in refused(text, folder)


def test_endless_aliases_are_short_messages(folder: Path) -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    for name, before in zip("bcdefghijkl", "abcdefghijk", strict=True):
        bomb += f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    assert len(refused(bomb + "options: {x: *l}\n" + GOOD, folder)) < 5000
    assert "expected names" in refused("options: &o [*o]\n" + GOOD, folder)
    assert "is not" in refused("[" * 2000, folder)


def test_files_that_are_no_recipes(folder: Path) -> None:
    for name, data, message in (
        ("long.yaml", b"# " + b"x" * (1 << 20), "is larger than 1 MB; expected a recipe in YAML"),
        ("bytes.yaml", b"\xff\xfe\x00", "is not UTF-8 text; expected a recipe in YAML"),
    ):
        (folder / name).write_bytes(data)
        with pytest.raises(RefusedInput, match=message):
            read_recipe(folder / name)
    with pytest.raises(RefusedInput, match="is no file; expected a YAML file"):
        read_recipe(folder / "a")
    with pytest.raises(RefusedInput, match="there is no such recipe"):
        read_recipe(folder / "none.yaml")
