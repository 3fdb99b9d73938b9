"""Names of methods. Methods are found through the entry points of group `plait.methods`, plait's own
among them, so that a package of yours adds one with a line in its `pyproject.toml`. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from functools import cache
from typing import Any, TypeVar

from plait.errors import UsageError
from plait.methods.base import Method
from plait.methods.installed import entry_points, load

GROUP = "plait.methods"
COMPARED = "plait.methods.compared"
"""Entry points of what nobody should deploy, such as another program's way to run a method, for comparisons: found by
name, listed nowhere."""
T = TypeVar("T")


@cache
def _points() -> dict[str, str]:
    return dict(sorted(entry_points(GROUP).items()))


@cache
def _compared() -> dict[str, str]:
    return entry_points(COMPARED)


def names() -> list[str]:
    """Names of all registered methods, sorted."""
    return list(_points())


def find(name: str) -> type[Method]:
    """The class that is registered under `name`; UsageError lists the names where there is none."""
    value = _points().get(name) or _compared().get(name)
    if value is None:
        raise UsageError(f"method {name!r} is not known; choose one of: {', '.join(names())}")
    found = load(value)
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UsageError(f"method {name!r} ({value}) is not a plait method; it must derive from Method")
    return found


def name_of(method: type[Method]) -> str:
    """The registered name of a method's class, its class name where it is not registered."""
    value = f"{method.__module__}:{method.__qualname__}"
    every = {**_compared(), **_points()}
    return next((name for name, held in every.items() if held == value), method.__qualname__)


def make(name: str, options: Mapping[str, Any] | None = None) -> Method:
    """The method `name` with `options`, checked. Numbers may come as text, as they do from a command line.

    An option that has options of its own takes a mapping with "name", or dotted words:
    {"sparsify": "dare", "sparsify.density": "0.5"} is {"sparsify": {"name": "dare", "density": 0.5}}.
    A number may be given by rules, for each tensor another, where the method merges every tensor by itself: see
    `methods.rules`.
    """
    from plait.methods.varied import varied

    kind = find(name)
    given = _undotted(dict(options or {}), kind)
    by_rules = varied(name, kind, given)
    if by_rules is not None:
        return by_rules
    method = fill(kind, f"method {name}", given)
    method.check()
    return method.resolved()


def fill(kind: type[T], label: str, options: Mapping[str, Any]) -> T:
    """An instance of dataclass `kind`; values become of the types that the fields declare. UsageError names what
    is unknown or of another type.

    label: what the message calls it, such as "method ties". Nothing is checked but words, numbers and truth
    values.
    """
    known = {f.name: f for f in fields(kind) if f.init}  # type: ignore[arg-type]
    unknown = sorted(set(options) - set(known))
    if unknown:
        offered = ", ".join(known) or "none"
        raise UsageError(f"{label} has no option {', '.join(unknown)}; its options are: {offered}")
    defaults = kind()
    given = {key: getattr(defaults, key) for key in known} | dict(options)
    return kind(**{key: plain_option(f, given[key], getattr(defaults, key)) for key, f in known.items()})


def _undotted(given: dict[str, Any], kind: type[Method]) -> dict[str, Any]:
    plain = {key: value for key, value in given.items() if "." not in key}
    for key, value in given.items():
        if "." not in key:
            continue
        option, _, inner = key.partition(".")
        held = plain.get(option, getattr(kind, option, None))
        if not isinstance(held, (str, Mapping)) or held in ("", "none"):
            raise UsageError(f"{key} is given but {option} is not; name one first, as in {option}=NAME")
        plain[option] = {**({"name": held} if isinstance(held, str) else held), inner: value}
    return plain


def plain_option(field: Field[Any], value: Any, default: Any = MISSING) -> Any:
    """`value` as what the option `field` declares: bool, int, float or str, so that equal options are equal in
    JSON; None where the field takes it. Text may stand for each. UsageError for any other type; options of
    other types come back as they are. default: the field's, where it is known."""
    declared = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", str(field.type))
    words = {word.strip() for word in declared.split("|")}
    if value is None and (default is None or field.default is None or "None" in words):
        return None
    for word, read in _READERS.items():
        if words - {"None"} == {word}:
            if getattr(value, "shape", None) == () and hasattr(value, "item"):
                value = value.item()  # a number of numpy or torch
            return read(field.name, value)
    return value


def _truth(key: str, value: Any) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if not isinstance(value, (bool, int, str)) or str(value).lower() not in words:
        raise UsageError(f"{key} is {value!r}, expected true or false")
    return words[str(value).lower()]


def _number(key: str, value: Any) -> float:
    try:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ValueError
        return float(value) + 0.0  # never -0.0
    except (ValueError, OverflowError):
        raise UsageError(f"{key} is {value!r}, expected a number") from None


def _whole(key: str, value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    number = _number(key, value)
    if not number.is_integer():
        raise UsageError(f"{key} is {value!r}, expected a whole number")
    return int(number)


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{key} is {value!r}, expected text")
    return str(value)


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "bool": _truth,
    "int": _whole,
    "float": _number,
    "str": _text,
}
