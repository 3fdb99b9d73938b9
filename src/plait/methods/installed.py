"""Entry points and versions of installed packages, read as `importlib.metadata` reads them. That module would take a
quarter of the time of `plait methods`; it is asked only where packages do not lie in plain folders."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from functools import reduce
from importlib import import_module
from importlib.machinery import PathFinder
from typing import Any


def entry_points(group: str) -> dict[str, str]:
    """Every entry point of `group`: name -> value, such as "package.module:Class".

    Of a package that is installed twice the first on `sys.path` counts, of two packages that give one name the
    last, both as in `importlib.metadata`. Files that cannot be read are passed over.
    """
    folders = _folders()
    if folders is None:
        from importlib import metadata

        return {point.name: point.value for point in metadata.entry_points(group=group)}
    first: dict[str, str] = {}
    for package, place in _packages(folders):
        first.setdefault(package, place)
    return {name: value for place in first.values() for name, value in _section(place, group)}


def version(name: str) -> str:
    """The version of an installed package, the first on `sys.path`; "" where there is none or it does not say."""
    folders = _folders()
    if folders is None:
        from importlib import metadata

        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return ""
    wanted = _normal(name)
    place = next((place for package, place in _packages(folders) if package == wanted), "")
    for file in ("METADATA", "PKG-INFO"):
        for line in _lines(os.path.join(place, file)) if place else ():
            if not line:
                break  # the description follows
            key, _, value = line.partition(":")
            if key.lower() == "version":
                return value.strip()
    return ""


def load(value: str) -> Any:
    """What an entry point's value names: a module, or an attribute of one. Raises what importing it raises."""
    module, _, attributes = value.partition("[")[0].partition(":")
    return reduce(getattr, filter(None, attributes.strip().split(".")), import_module(module.strip()))


def _folders() -> list[str] | None:
    """The folders of `sys.path`; None where packages may lie in another way than as folders beside their facts."""
    folders = [str(place) or os.curdir for place in sys.path]
    if any(map(_packed, folders)) or any(map(_finds_packages, sys.meta_path)):
        return None
    return folders


def _normal(name: str) -> str:
    """A package's name in its one normal form."""
    return re.sub("[-_.]+", "_", name.lower())


def _packed(place: str) -> bool:
    """Whether packages may lie in it in another way than as folders beside their `.dist-info`."""
    return place.endswith(".egg") or os.path.isfile(place)


def _finds_packages(finder: Any) -> bool:
    """Whether an importer knows of packages that are not on `sys.path`."""
    return finder is not PathFinder and hasattr(finder, "find_distributions")


def _packages(folders: list[str]) -> Iterator[tuple[str, str]]:
    """Name, in its one normal form, and folder of facts of every package that is installed."""
    for folder in folders:
        try:
            found = os.listdir(folder)
        except OSError:
            continue
        for item in found:
            stem, ending = os.path.splitext(item.lower())
            if ending in (".dist-info", ".egg-info"):
                yield _normal(stem.partition("-")[0]), os.path.join(folder, item)


def _section(place: str, group: str) -> Iterator[tuple[str, str]]:
    """Names and values of one group of a package's `entry_points.txt`."""
    here = ""
    for line in _lines(os.path.join(place, "entry_points.txt")):  # most packages have none
        if line.startswith("[") and line.endswith("]"):
            here = line.strip("[]")
        elif here == group and "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            yield name.strip(), value.strip()


def _lines(file: str) -> list[str]:
    """The lines of a text file without the blanks around them; none where it cannot be read."""
    try:
        with open(file, encoding="utf-8", errors="replace") as text:
            return [line.strip() for line in text]
    except OSError:
        return []
