"""`plait finetune`: make an expert from a base, or from a line's model, and a task."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from plait.cli.output import Answer, number, pairs, short
from plait.cli.parser import Parser, Verb, finite, natural, network, positive
from plait.errors import RefusedInput
from plait.words import plural, safe

if TYPE_CHECKING:
    from plait.engine import Progress


def _arguments(parser: Parser) -> None:
    from plait.training.recipe import Recipe

    usual = Recipe()
    parser.add_argument("task", metavar="TASK", help="name of a task in the tasks.yaml")
    parser.add_argument("out", metavar="OUT", help="folder to make; it must not exist")
    parser.add_argument(
        "--tasks", metavar="FILE", required=True, help="a tasks.yaml: the tasks and their data"
    )
    parser.add_argument("--base", metavar="DIR", help="the base: a Hugging Face folder")
    parser.add_argument(
        "--from",
        dest="line",
        metavar="LINE[@VERSION]",
        help="start from a version of this line instead, the current one by default; its base is the base",
    )
    for name, kind, words in (
        ("epochs", positive, "how often every example is seen"),
        ("rate", finite, "the highest learning rate"),
        ("batch", positive, "examples a step"),
        ("warmup", finite, "share of the steps in which the rate goes up"),
        ("examples", natural, "the most train examples; 0 takes all of them"),
        ("seed", natural, "of the order of the examples"),
        ("weight-decay", finite, "of AdamW"),
    ):
        value = number(getattr(usual, name.replace("-", "_")))
        parser.add_argument(
            f"--{name}",
            type=kind,
            default=getattr(usual, name.replace("-", "_")),
            metavar="N" if kind is not finite else "X",
            help=f"{words}, {value} by default",
        )
    for name, words in (
        ("train", "train only tensors of these names"),
        ("freeze", "leave these tensors as they are"),
    ):
        parser.add_argument(
            f"--{name}", metavar="PATTERN", action="append", default=[], help=f"{words}; may be repeated"
        )
    parser.add_argument("--device", metavar="DEVICE", default="cpu", help="cpu by default, or cuda")
    parser.add_argument(
        "--threads", type=positive, metavar="N", help="threads of torch; its own choice by default"
    )
    parser.add_argument(
        "--network",
        type=network,
        metavar="SPEC",
        help="python:module:function, where config.json does not describe the network",
    )


def _finetune(args: Namespace) -> Answer:
    from plait.training.recipe import Recipe
    from plait.training.start import check_start

    words = ("epochs", "rate", "batch", "warmup", "examples", "seed", "weight_decay", "train", "freeze")
    recipe = Recipe(**{word: getattr(args, word) for word in words})
    check_start(args.base, args.line)
    if os.path.lexists(args.out):
        raise RefusedInput(f"{args.out} exists; give another place, or remove it")
    from plait.line.planning import named
    from plait.training import finetune

    line, version = _line_and_version(args.line)
    done = finetune(
        args.base,
        named(args.tasks, [args.task])[args.task],
        args.out,
        recipe,
        line=line,
        version=version,
        network=args.network,
        device=args.device,
        threads=args.threads,
        progress=None if args.quiet else _progress(),
    )
    return Answer(done, _lines(done), notice=True)


def _line_and_version(words: str | None) -> tuple[str | None, str | None]:
    """LINE[@VERSION] taken apart. What is there as a whole is a line, whatever it is called."""
    if words is None or os.path.lexists(words) or "@" not in words:
        return words, None
    line, _, version = words.rpartition("@")
    return line, version


def _lines(done: Mapping[str, Any]) -> list[str]:
    data, start, curve, trained = done["data"], done["start"], done["loss"]["values"], done["trained"]
    rows: list[tuple[str, object]] = [
        ("base", f"{safe(done['base']['name'])}, {short(done['base']['digest'])}"),
        (
            "from",
            _start_words(start) if start["digest"] != done["base"]["digest"] or start["tasks"] else None,
        ),
        ("examples", f"{data['count']} of {data['of']}"),
        ("trained", f"{plural(trained['tensors'], 'tensor')}, {plural(trained['elements'], 'element')}"),
        ("loss", f"{curve[0]:.4g} at first, {curve[-1]:.4g} at last, steps: {done['steps']}"),
        ("digest", short(done["digest"])),
        ("time", f"{done['seconds']:.1f} s"),
    ]
    return [f"trained {safe(done['task'])} into {safe(done['out'])}", *pairs(rows)]


def _start_words(start: Mapping[str, Any]) -> str:
    tasks = ", ".join(map(safe, start["tasks"]))
    return f"{short(start['digest'])}, which holds {tasks}" if tasks else short(start["digest"])


def _progress() -> Progress:
    from plait.engine import Progress
    from plait.engine.progress import clock

    class Steps(Progress):
        """Counts steps, not bytes."""

        def text(self, seconds: float) -> str:
            left = (self._total - self._count) * seconds / max(self._count, 1)
            return f"{self._label}: step {self._count} of {self._total}  {clock(left)} left"

    return Steps()


_STOPPED = "nothing is kept of this training; run the command again, it begins anew"
VERBS = (
    Verb(
        "finetune",
        "make an expert: fine-tune a base, or a line's model, on a task",
        _arguments,
        _finetune,
        _STOPPED,
    ),
)
