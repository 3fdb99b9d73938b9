"""Entry points are found as `importlib.metadata` finds them, without loading it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import OrderedDict
from importlib import metadata
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from plait.methods.installed import entry_points, load, version

GROUP = "some.group"
FACTS = "Metadata-Version: 2.1\nName: one\nVersion: 1.0\n"


def package(folder: Path, name: str, text: str | bytes | None) -> None:
    """Facts of a package as an installer leaves them; None: it has no entry points."""
    place = folder / name
    place.mkdir(parents=True)
    (place / ("METADATA" if name.endswith("dist-info") else "PKG-INFO")).write_text(FACTS)
    if text is not None:
        (place / "entry_points.txt").write_bytes(text.encode() if isinstance(text, str) else text)


def known(group: str = GROUP) -> dict[str, str]:
    return {point.name: point.value for point in metadata.entry_points(group=group)}


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two folders that come first on `sys.path`."""
    places = (tmp_path / "first", tmp_path / "second")
    for place in places:
        place.mkdir()
    monkeypatch.setattr(sys, "path", [*map(str, places), *sys.path])
    return places


@pytest.mark.parametrize("group", ["plait.methods", "console_scripts", "pytest11", "no such group"])
def test_what_this_environment_has(group: str) -> None:
    assert entry_points(group) == known(group)


def test_files_are_read_by_sections(folders: tuple[Path, Path]) -> None:
    text = f"[other]\nno = a:b\n\n[{GROUP}]\n# x = a:b\n  one =  a.b : C.d [e]\n\ntwo=a\n[last]\nno = a:b\n"
    package(folders[0], "one-1.0.dist-info", text)
    package(folders[0], "two.egg-info", f"[{GROUP}]\nthree = c:d")
    package(folders[1], "four-2.dist-info", f"[{GROUP}]\nfour = e")
    package(folders[1], "code", f"[{GROUP}]\nno = a:b")
    (folders[1] / "five-1.egg-info").write_text(f"[{GROUP}]\nno = a:b")
    wanted = {"one": "a.b : C.d [e]", "two": "a", "three": "c:d", "four": "e"}
    assert entry_points(GROUP) == known() == wanted


@pytest.mark.parametrize("text", [None, f"[{GROUP}]\none = first:A\n"], ids=["without", "with"])
def test_of_a_package_that_is_there_twice_the_first_counts(
    folders: tuple[Path, Path], text: str | None
) -> None:
    package(folders[0], "my_own.pkg-1.0.dist-info", text)
    package(folders[1], "My.Own_pkg-0.9.dist-info", f"[{GROUP}]\none = second:A\nold = second:B\n")
    assert entry_points(GROUP) == known() == ({} if text is None else {"one": "first:A"})


def test_of_two_packages_with_one_name_the_last_counts(folders: tuple[Path, Path]) -> None:
    package(folders[0], "z-1.dist-info", f"[{GROUP}]\none = first:A\n")
    package(folders[1], "a-1.dist-info", f"[{GROUP}]\none = second:A\n")
    assert entry_points(GROUP) == known() == {"one": "second:A"}


def test_a_broken_file_hides_no_other_package(folders: tuple[Path, Path]) -> None:
    package(folders[0], "bad-1.dist-info", b"[\xff]\nnonsense\n" + f"[{GROUP}]\nnonsense\n".encode())
    package(folders[0], "good-1.dist-info", f"[{GROUP}]\none = a:A\n")
    sys.path.insert(0, str(folders[0] / "not there"))
    assert entry_points(GROUP) == {"one": "a:A"}


def test_the_working_directory_counts(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    package(folders[0] / "here", "one-1.dist-info", f"[{GROUP}]\none = a:A\n")
    monkeypatch.chdir(folders[0] / "here")
    sys.path.insert(0, "")
    assert entry_points(GROUP) == known() == {"one": "a:A"}


def test_packages_in_archives_are_found_too(folders: tuple[Path, Path]) -> None:
    with ZipFile(folders[0] / "all.zip", "w") as archive:
        archive.writestr("one-1.dist-info/METADATA", FACTS)
        archive.writestr("one-1.dist-info/entry_points.txt", f"[{GROUP}]\none = a:A\n")
    sys.path.append(str(folders[0] / "all.zip"))
    assert entry_points(GROUP) == known() == {"one": "a:A"}


def test_packages_in_eggs_are_found_too(folders: tuple[Path, Path]) -> None:
    package(folders[0] / "one-1.egg", "EGG-INFO", f"[{GROUP}]\none = a:A\n")
    sys.path.append(str(folders[0] / "one-1.egg"))
    assert entry_points(GROUP) == known() == {"one": "a:A"}


def test_importers_that_know_of_packages_are_asked(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    package(folders[0] / "aside", "one-1.dist-info", f"[{GROUP}]\none = a:A\n")

    class Finder(metadata.DistributionFinder):
        def find_distributions(self, context: Any = None) -> list[metadata.Distribution]:
            return [metadata.Distribution.at(folders[0] / "aside" / "one-1.dist-info")]

        def find_spec(self, *_: object) -> None:
            return None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    assert entry_points(GROUP) == known() == {"one": "a:A"}


def test_a_version_is_that_of_importlib_metadata(folders: tuple[Path, Path]) -> None:
    package(folders[0], "my_own.pkg-1.0.dist-info", None)
    package(folders[1], "My.Own_pkg-0.9.dist-info", None)
    package(folders[1], "old.egg-info", None)
    package(folders[1], "silent-3.dist-info", None)
    (folders[1] / "silent-3.dist-info" / "METADATA").write_text("Name: silent\n\nVersion: 9\n")
    for name in ("my-own-pkg", "My_Own.pkg", "old", "plait", "pytest", "torch", "PyYAML"):
        assert version(name) == metadata.version(name), name
    assert version("no-such-package") == version("silent") == ""
    with ZipFile(folders[0] / "all.zip", "w") as archive:
        archive.writestr(
            "zipped-1.5.dist-info/METADATA", "Metadata-Version: 2.1\nName: zipped\nVersion: 1.5\n"
        )
    sys.path.append(str(folders[0] / "all.zip"))
    assert version("zipped") == metadata.version("zipped") == "1.5"
    assert version("no-such-package") == ""


def test_values_are_loaded() -> None:
    for value in ("collections", " collections ", "collections [extra]"):
        assert load(value) is sys.modules["collections"]
    for value in ("collections:OrderedDict", "collections : OrderedDict [one, two]"):
        assert load(value) is OrderedDict
    assert load("collections:OrderedDict.fromkeys") == OrderedDict.fromkeys
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        load("no_such_module:Class")
    with pytest.raises(AttributeError, match="no_such_class"):
        load("collections:no_such_class")


def test_a_package_of_somebody_else_adds_a_method(tmp_path: Path) -> None:
    package(
        tmp_path, "mine-1.dist-info", "[plait.methods]\nbroken = mine:Gone\nmine = mine:Mine\nodd = mine\n"
    )
    (tmp_path / "mine.py").write_text(
        "from plait.methods.average import Average\nclass Mine(Average): pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "plait.cli", "methods", "--json"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        check=True,
    )
    rows = {row["name"]: row for row in json.loads(done.stdout)["methods"]}
    assert rows["mine"]["family"] == "additive"
    assert rows["mine"]["problem"] is None
    assert rows["broken"]["problem"].startswith("cannot be loaded: module 'mine' has no attribute 'Gone'")
    assert "method 'odd' (mine) is not a plait method" in rows["odd"]["problem"]
