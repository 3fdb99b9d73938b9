"""Names of methods. Methods are found through the entry points of group `plait.methods`, plait's own
among them, so that a package of yours adds one with a line in its `pyproject.toml`. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from plait.errors import UsageError
from plait.methods.base import Method

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "plait.methods"
T = TypeVar("T")


@cache
def _points() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # late: a third of the time of commands that name no method

    return {p.name: p for p in sorted(entry_points(group=GROUP), key=lambda p: p.name)}


def names() -> list[str]:
    """Names of all registered methods, sorted."""
    return list(_points())


def find(name: str) -> type[Method]:
    """The class that is registered under `name`; UsageError lists the names where there is none."""
    point = _points().get(name)
    if point is None:
        raise UsageError(f"method {name!r} is not known; choose one of: {', '.join(names())}")
    found = point.load()
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UsageError(f"method {name!r} ({point.value}) is not a plait method; it must derive from Method")
    return found


def name_of(method: type[Method]) -> str:
    """The registered name of a method's class, its class name where it is not registered."""
    value = f"{method.__module__}:{method.__qualname__}"
    return next((p.name for p in _points().values() if p.value == value), method.__qualname__)


def make(name: str, options: Mapping[str, Any] | None = None) -> Method:
    """The method `name` with `options`, checked. Numbers may come as text, as they do from a command line.

    An option that has options of its own takes a mapping with "name", or dotted words:
    {"sparsify": "dare", "sparsify.density": "0.5"} is {"sparsify": {"name": "dare", "density": 0.5}}.
    """
    method = fill(find(name), f"method {name}", _undotted(dict(options or {})))
    method.check()
    return method


def fill(kind: type[T], label: str, options: Mapping[str, Any]) -> T:
    """An instance of dataclass `kind`; text becomes what the default of the field is. UsageError names what
    is unknown.

    label: what the message calls it, such as "method ties". Nothing is checked but words, numbers and truth
    values.
    """
    known = {f.name: f for f in fields(kind) if f.init}  # type: ignore[arg-type]
    unknown = sorted(set(options) - set(known))
    if unknown:
        offered = ", ".join(known) or "none"
        raise UsageError(f"{label} has no option {', '.join(unknown)}; its options are: {offered}")
    defaults = kind()
    return kind(**{key: _cast(key, value, getattr(defaults, key)) for key, value in options.items()})


def _undotted(given: dict[str, Any]) -> dict[str, Any]:
    plain = {key: value for key, value in given.items() if "." not in key}
    for key, value in given.items():
        if "." not in key:
            continue
        option, _, inner = key.partition(".")
        held = plain.get(option)
        if not isinstance(held, (str, Mapping)) or held in ("", "none"):
            raise UsageError(f"{key} is given but {option} is not; name one first, as in {option}=NAME")
        plain[option] = {**({"name": held} if isinstance(held, str) else held), inner: value}
    return plain


def _cast(key: str, value: Any, default: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return value
    if isinstance(default, bool):
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if str(value).lower() not in words:
            raise UsageError(f"{key} is {value!r}, expected true or false")
        return words[str(value).lower()]
    if isinstance(default, (int, float)):
        try:
            number = float(value)
        except ValueError:
            raise UsageError(f"{key} is {value!r}, expected a number") from None
        if isinstance(default, int):
            if not number.is_integer():
                raise UsageError(f"{key} is {value!r}, expected a whole number")
            return int(number)
        return number
    return value
