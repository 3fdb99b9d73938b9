"""One parser for all verbs. Errors of argparse become UsageError and are printed like all others."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import NoReturn

from plait.cli.output import Answer
from plait.errors import UsageError


@dataclass(frozen=True)
class Verb:
    """One command: its word, one line of help, its arguments, what it does, and what is true after Ctrl-C."""

    name: str
    summary: str
    arguments: Callable[[Parser], None]
    run: Callable[[argparse.Namespace], Answer]
    stopped: str = "nothing was changed; run the command again"


GOES_ON = "run the command again to go on where it was; `plait status LINE` shows what is deployed"
ANEW = "nothing was left half written; run the command again, it begins anew"


class Parser(argparse.ArgumentParser):
    """An argument parser that raises instead of leaving, and takes no abbreviated flags: a flag that is added
    later must not change what a script means."""

    def __init__(self, **words: object) -> None:
        words.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**words, allow_abbrev=False)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; `{self.prog} --help` lists the arguments")

    def flags(self) -> list[str]:
        """Every flag of this parser."""
        return list(self._option_string_actions)


class _Keep(argparse.Action):
    """Store a text under its own name in a dictionary: the options of a method."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        word = str(values)
        key = (option_string or "").removeprefix("--").replace("-", "_")
        if option_string == "--set":
            key, sign, word = word.partition("=")
            if not sign or not key:
                raise UsageError(f"--set {key}: expected NAME=VALUE, for example --set scale=0.3")
        chosen: dict[str, str] = dict(getattr(namespace, self.dest, None) or {})
        if key in chosen:
            raise UsageError(f"option {key} is given twice ({chosen[key]} and {word}); give it once")
        chosen[key] = word
        setattr(namespace, self.dest, chosen)


KEEP = _Keep


def finite(text: str) -> float:
    """A finite number."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number")
    return value


def weight(text: str) -> float | str:
    """A finite number, or rules that give one for each tensor."""
    return text if ":" in text or ".." in text else finite(text)


def shares(text: str) -> tuple[float, ...]:
    """Numbers from 0 to 1 between commas."""
    found = tuple(finite(part) for part in text.split(","))
    if not all(0 <= value <= 1 for value in found):
        raise argparse.ArgumentTypeError(f"{text!r}: numbers from 0 to 1 are expected, such as 0,0.25,0.5")
    return found


def positive(text: str) -> int:
    """A whole number of at least 1."""
    return _whole(text, 1)


def natural(text: str) -> int:
    """A whole number of at least 0."""
    return _whole(text, 0)


def network(text: str) -> str:
    """A network as a function of the user: python:module:function, with options behind `?`."""
    if not text.startswith("python:"):
        raise argparse.ArgumentTypeError(
            f"{text!r} does not begin with python:, python:module:function is expected"
        )
    return text


def hours(text: str) -> float:
    """A number of hours, 0 or more."""
    value = finite(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is negative, 0 or more hours are expected")
    return value


def _whole(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if value < least:
        raise argparse.ArgumentTypeError(f"{text!r} is too small, {least} or more is expected")
    return value


def add_global_flags(parser: Parser) -> None:
    """The flags that stand before or after the verb."""
    group = parser.add_argument_group("for every command")
    for flag, words in (
        ("--json", "print exactly one JSON object on stdout"),
        ("--quiet", "no progress and no report of what was done; answers to questions are still printed"),
        ("--yes", "do not ask before deleting"),
        ("--debug", "show the traceback of an error"),
    ):
        group.add_argument(flag, action="store_true", default=argparse.SUPPRESS, help=words)


def build(verbs: Sequence[Verb], chosen: Sequence[str]) -> tuple[Parser, dict[str, Parser]]:
    """The parser of `plait` and the parsers of its verbs. Only verbs in `chosen` get their arguments: those
    of `init` are read from all methods, which would slow the others down."""
    top = Parser(
        prog="plait",
        description="One model made of many: merge fine-tuned checkpoints in a stream, take any out again.",
        epilog="Exit codes: 0 ok, 1 failed, 2 usage, 3 verification failed, 4 locked, 5 refused input.",
    )
    top.add_argument("--version", action="store_true", help="print the version and leave")
    add_global_flags(top)
    group = top.add_subparsers(dest="verb", metavar="COMMAND", title="commands", parser_class=Parser)
    parsers: dict[str, Parser] = {}
    for verb in verbs:
        full = verb.name in chosen
        parser: Parser = group.add_parser(verb.name, help=verb.summary, description=sentence(verb.summary))
        if full:
            verb.arguments(parser)
        add_global_flags(parser)
        parsers[verb.name] = parser
    return top, parsers


def sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def nearest(word: str, known: Sequence[str]) -> str:
    """`; did you mean X?` where something known is close to the word, else nothing."""
    from difflib import get_close_matches

    bare = {name.lstrip("-"): name for name in known}  # flags have their dashes in common
    begun = [name for name in bare if len(word.lstrip("-")) > 2 and name.startswith(word.lstrip("-"))]
    close = begun if len(begun) == 1 else get_close_matches(word.lstrip("-"), bare, n=1, cutoff=0.6)
    return f"; did you mean {bare[close[0]]}?" if close else ""
