"""Methods as a benchmark's command line names them: `ties`, or `mdm_oc fit=gradient granularity=layer`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from plait.errors import UsageError
from plait.methods.base import Method, ModelMethod
from plait.methods.registry import find, make


@dataclass(frozen=True)
class Spec:
    """A method with some of its options.

    label: what results call it; equal words in another order have one label. given: the options that were named, as
    text.
    """

    label: str
    name: str
    given: dict[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> type[Method]:
        return find(self.name)

    def made(self, **more: Any) -> Method:
        """The method with its options and `more`."""
        return make(self.name, {**self.given, **more})

    def words(self, **more: Any) -> dict[str, Any]:
        """Its options, complete, as plain values."""
        return self.made(**more).options()

    @property
    def whole(self) -> bool:
        """Whether it sees whole models, or data of the tasks: then models are merged in memory."""
        return isinstance(self.made(), ModelMethod) or self.looks

    @property
    def looks(self) -> bool:
        """Whether it looks at data of the tasks."""
        from plait.line.data import need_of

        return need_of(self.made()) is not None


def parse(text: str) -> Spec:
    """`NAME KEY=VALUE …`. UsageError for a word without `=`, an unknown method or option, or a wrong value."""
    name, *words = text.split()
    given: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key or not value:
            raise UsageError(
                f"{word!r} in {text!r} is no option; expected KEY=VALUE, as in 'mdm_oc granularity=layer'"
            )
        given[key] = value
    given = dict(sorted(given.items()))
    spec = Spec(" ".join([name, *(f"{key}={value}" for key, value in given.items())]), name, given)
    spec.made()
    return spec
