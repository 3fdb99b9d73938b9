"""From words to an exit code: find the verb, run it, print its answer or its error."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from plait.cli import bench, care, evaluate, export, finetune, init, look, members, methods, once, report
from plait.cli.output import Answer, error_json, one_line, to_json
from plait.cli.parser import Parser, Verb, build, nearest
from plait.errors import PlaitError, UsageError

VERBS: tuple[Verb, ...] = (
    *init.VERBS,
    *members.VERBS,
    *look.VERBS,
    *export.VERBS,
    *evaluate.VERBS,
    *report.VERBS,
    *care.VERBS,
    *methods.VERBS,
    *once.VERBS,
    *finetune.VERBS,
    *bench.VERBS,
)
NAMES = [verb.name for verb in VERBS]
GLOBAL = ("--json", "--quiet", "--yes", "--debug")

BROKEN_PIPE = 141  # as if the signal SIGPIPE had ended the command
INTERRUPTED = 130


def run(argv: Sequence[str]) -> int:
    """Run the command `argv` and return its exit code. Nothing is raised."""
    words = list(argv[: argv.index("--")] if "--" in argv else argv)
    as_json, debug, quiet = ("--json" in words, "--debug" in words, "--quiet" in words)
    _never_fail_on_characters()
    try:
        answer = _answer(list(argv))
        if as_json:
            _say(to_json(str(answer.result.get("command", "")), answer.result))
        elif answer.lines and not (quiet and answer.notice):
            _say("\n".join(answer.lines))
        if answer.error:
            _complain(answer.error)
        return answer.code
    except BrokenPipeError:
        return _pipe_is_gone()
    except SystemExit as leave:  # argparse has printed help
        return leave.code if isinstance(leave.code, int) else 0
    except (Exception, KeyboardInterrupt) as error:
        verb = _verb(words)
        kind, message, code = describe(error, verb.stopped if verb else "")
        if debug:
            import traceback

            traceback.print_exc()
        if as_json:
            try:
                _say(error_json(kind, message, code, getattr(error, "problems", ())))
            except OSError:
                _pipe_is_gone()
        _complain(message)
        return code


def describe(error: BaseException, stopped: str = "") -> tuple[str, str, int]:
    """Kind, one line and exit code of an error. Errors that nobody foresaw are called bugs. stopped: what is true of
    the command after Ctrl-C."""
    name = type(error).__name__
    if isinstance(error, PlaitError):
        return name, one_line(error), error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return "Interrupted", f"interrupted; {stopped}" if stopped else "interrupted", INTERRUPTED
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename is not None else ""
        return "OSError", one_line(f"{place}{error.strerror or error}"), 1
    if isinstance(error, MemoryError):
        return "MemoryError", "not enough memory; close other programs or use fewer workers", 1
    words = f"{name}: {error}; this is a bug in plait, run the command again with --debug and report it"
    return "Bug", one_line(words), 1


def _answer(argv: list[str]) -> Answer:
    if argv[:1] == ["help"]:  # `plait help merge` is `plait merge --help`
        argv = [*argv[1:2], "--help"]
    named, verb = _first(argv), _verb(argv)
    if named and not named.startswith("-") and verb is None:
        close = nearest(named, NAMES) or f"; the commands are: {', '.join(NAMES)}"
        raise UsageError(f"{named!r} is not a plait command{close}")
    top, parsers = build(
        [verb] if verb else VERBS, chosen=[named]
    )  # where one is named, no other can be meant
    args, rest = top.parse_known_args(argv)
    if getattr(args, "version", False):
        return _version()
    if verb is None or not args.verb:
        if "--json" not in argv:
            _list_commands()
        raise UsageError("a command is needed; `plait COMMAND --help` tells more of each")
    if rest:
        raise UsageError(_unknown(rest, parsers[args.verb]))
    for flag in GLOBAL:
        name = flag[2:]
        setattr(args, name, getattr(args, name, False))
    answer = verb.run(args)
    answer.result = {**answer.result, "command": verb.name}
    return answer


def _first(words: Sequence[str]) -> str:
    """The first word that is not a flag for every command: the command's, or nothing."""
    return next((word for word in words if word not in GLOBAL), "")


def _verb(words: Sequence[str]) -> Verb | None:
    """The command that these words name, if they do."""
    named = _first(words)
    return next((verb for verb in VERBS if verb.name == named), None)


def _list_commands() -> None:
    rows = [f"  {verb.name:<10}{verb.summary}" for verb in VERBS]
    with contextlib.suppress(OSError, ValueError):
        print("usage: plait COMMAND ...", *rows, sep="\n", file=sys.stderr)


def _unknown(rest: Sequence[str], parser: Parser) -> str:
    """Words for arguments that the verb does not have."""
    word = rest[0].split("=")[0]
    close = nearest(word, parser.flags()) if word.startswith("-") else ""
    listing = ", ".join(repr(item) for item in rest)
    return f"{parser.prog} does not know {listing}{close}; `{parser.prog} --help` lists its arguments"


def _version() -> Answer:
    from plait import __version__

    result: dict[str, Any] = {"command": "version", "version": __version__}
    return Answer(result, [f"plait {__version__}"])


def _never_fail_on_characters() -> None:
    """A name that the terminal's encoding lacks is printed escaped; it does not end the command."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def _say(text: str) -> None:
    if sys.stdout is not None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def _complain(message: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(f"plait: error: {message}", file=sys.stderr, flush=True)


def _pipe_is_gone() -> int:
    """Point stdout at nothing, so that the interpreter does not stumble over it when it leaves."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)
    return BROKEN_PIPE
