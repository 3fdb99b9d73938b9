"""`plait init`: start a line. Every option of every registered method is a flag here."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, field, fields
from shlex import quote
from typing import Any

from plait.cli.output import Answer, listed, one_line, pairs, short
from plait.cli.parser import ANEW, KEEP, Parser, Verb, natural, positive
from plait.errors import PlaitError
from plait.words import safe, size


@dataclass
class Option:
    """An option of one or more methods: what it is by default in each of them."""

    name: str
    defaults: dict[str, Any] = field(default_factory=dict)

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


def method_options() -> list[Option]:
    """The options of all registered methods, by name. A method that cannot be loaded is left out here; naming
    it with --method tells why."""
    from plait.methods.registry import find, names

    found: dict[str, Option] = {}
    for name in names():
        try:
            kind = find(name)
            made = kind()
        except (PlaitError, ImportError, AttributeError, TypeError):
            continue
        for item in fields(kind):
            found.setdefault(item.name, Option(item.name)).defaults[name] = getattr(made, item.name)
    return [found[name] for name in sorted(found)]


def _arguments(parser: Parser) -> None:
    parser.add_argument("line", metavar="LINE", help="folder to make; it must not exist or be empty")
    parser.add_argument(
        "--base", required=True, metavar="DIR", help="the base: a Hugging Face folder or a file"
    )
    parser.add_argument(
        "--method",
        metavar="NAME",
        help="average by default; see `plait methods`, and docs/methods.md which to choose",
    )
    parser.add_argument(
        "--private",
        metavar="PATTERN",
        action="append",
        default=[],
        help="tensor names that are a task's own, such as 'classifier.*'; may be repeated",
    )
    parser.add_argument(
        "--retention",
        choices=("vectors", "statistics", "none"),
        default="vectors",
        help="what is kept of members: their changed tensors (default), sums only, or nothing",
    )
    parser.add_argument("--seed", type=natural, default=0, metavar="N", help="seed of the line, 0 by default")
    parser.add_argument(
        "--keep", type=positive, default=2, metavar="N", help="versions on disk, 2 by default"
    )
    parser.add_argument(
        "--snapshots",
        type=natural,
        default=0,
        metavar="N",
        help="for folds: keep the state after every N members too, so that a removal is faster; 0 by default",
    )
    parser.add_argument(
        "--descent",
        choices=("any", "last"),
        default="any",
        help="what an expert must have been trained from: anything (default), or the line's last model",
    )
    parser.add_argument(
        "--allow-nonfinite",
        action="store_true",
        help="take a base with NaN or infinity; these elements stay as they are",
    )
    parser.add_argument("--allow-pickle", action="store_true", help="read .bin and .pt files, weights only")
    parser.add_argument(
        "--network",
        metavar="SPEC",
        help="python:module:function, for methods that look at data, where config.json does not describe the network",
    )
    parser.add_argument(
        "--device", metavar="DEVICE", help="for methods that look at data: cpu (default) or cuda"
    )
    parser.add_argument(
        "--dtype",
        metavar="DTYPE",
        help="for methods that look at data: in which networks compute, float32 by default",
    )
    group = parser.add_argument_group("options of the method")
    group.add_argument(
        "--set",
        action=KEEP,
        dest="options",
        metavar="NAME=VALUE",
        help="any option, also a part of one, such as sparsify.density=0.1",
    )
    taken = set(parser.flags())
    for option in method_options():
        if option.flag not in taken:  # an option that is called like a flag of ours is given with --set
            group.add_argument(
                option.flag,
                action=KEEP,
                dest="options",
                metavar="VALUE",
                help=_defaults(option).replace("%", "%%"),
            )


def _defaults(option: Option) -> str:
    """`0.3 in task_arithmetic; 1 in ties`."""
    by_value: dict[str, list[str]] = {}
    for method, value in option.defaults.items():
        by_value.setdefault(_brief(value), []).append(method)
    return "; ".join(f"{value} in {', '.join(methods)}" for value, methods in by_value.items())


def _brief(value: Any, limit: int = 40) -> str:
    """A default for the help, cut where it is long."""
    text = listed({"": value}).strip() or "none"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _init(args: Namespace) -> Answer:
    from plait.methods.registry import make

    method = DEFAULT if args.method is None else args.method
    options = make(method, args.options).options()  # a wrong option is refused before any file is touched
    own = options.pop("seed", None)  # a line has one seed, which its method draws with too
    seed = args.seed if own is None or "seed" not in (args.options or {}) else own
    from plait.line import Line

    line = Line.create(
        args.line,
        args.base,
        method,
        private=args.private,
        retention=args.retention,
        seed=seed,
        keep=args.keep,
        snapshots=args.snapshots,
        descent=args.descent,
        allow_nonfinite=args.allow_nonfinite,
        allow_pickle=args.allow_pickle,
        network=args.network,
        device=args.device,
        dtype=args.dtype,
        **options,
    )
    state = line.status()
    notes = line.log()[0]["notes"]
    result = {**state, "line": str(args.line), "notes": notes}
    chosen = listed(state["options"])
    advice = [_ADVICE] if args.method is None else []
    tasks = "" if state["data"] == "none" else " --tasks tasks.yaml"
    rows: list[tuple[str, object]] = [
        ("method", f"{state['method']} ({chosen})" if chosen else state["method"]),
        ("retention", state["retention"]),
        ("data", _DATA.get(state["data"])),
        ("state", f"about {size(state['state_bytes'])}" if state["state_bytes"] else None),
        ("deployed", f"{short(state['version'])}, the base itself"),
        ("folder", state["model"]),
        ("next", f"plait merge {quote(str(args.line))} CHECKPOINT --task NAME{tasks}"),
    ]
    remarks = [f"  note: {one_line(note)}" for note in (*notes, *advice)]
    return Answer(result, [f"started the line {safe(args.line)}", *pairs(rows), *remarks], notice=True)


DEFAULT = "average"
_ADVICE = (
    f"no --method was given, so it is {DEFAULT}, which is cheap and gives a single member back bit for bit; for "
    "eight tasks of a text encoder covariance was far more accurate: see 'Which to choose' in docs/methods.md"
)

_DATA = {
    "unlabelled": "each merge needs unlabelled examples of its task",
    "labelled new": "each merge needs labelled examples of its task",
    "labelled all": "each merge needs labelled examples of its task; they are kept for later merges",
}
"""What a merge will need, for people; nothing for methods that look at no data."""


VERBS = (Verb("init", "start a line from a base and a method", _arguments, _init, ANEW),)
