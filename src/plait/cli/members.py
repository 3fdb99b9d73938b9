"""`plait merge`, `unmerge`, `reweight`, `replace`: the commands that change what is deployed."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plait.cli.opening import accounting_words, add_line, deployed, open_line
from plait.cli.output import Answer, number, one_line, pairs, short
from plait.cli.parser import GOES_ON, Parser, Verb, shares, weight
from plait.words import plural, safe

if TYPE_CHECKING:
    from plait.line import Line


def _checkpoint_flags(parser: Parser) -> None:
    parser.add_argument(
        "--private",
        metavar="PATTERN",
        action="append",
        default=[],
        help="more tensor names that are the task's own",
    )
    parser.add_argument(
        "--allow-nonfinite",
        action="store_true",
        help="take the base's value where the checkpoint has NaN or infinity",
    )
    parser.add_argument(
        "--allow-distant", action="store_true", help="merge it although it is far from the base"
    )
    parser.add_argument("--allow-pickle", action="store_true", help="read .bin and .pt files, weights only")
    parser.add_argument(
        "--from",
        dest="descends_from",
        metavar="VERSION",
        help="the version of the line that it was fine-tuned from, where that is not the base",
    )


def _data_flags(parser: Parser) -> None:
    parser.add_argument(
        "--tasks",
        metavar="FILE",
        help="a tasks.yaml with the member's task, for methods that look at data",
    )
    parser.add_argument(
        "--device",
        metavar="DEVICE",
        help="cpu or cuda, where networks run; where the line says by default",
    )


def _open(args: Namespace) -> Line:
    line = open_line(args)
    line.device = args.device
    return line


def _merge_arguments(parser: Parser) -> None:
    add_line(parser)
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="a Hugging Face folder or a safetensors file"
    )
    parser.add_argument(
        "--task", metavar="NAME", help="name of the task; the folder's name where it is left out"
    )
    parser.add_argument(
        "--weight",
        type=weight,
        default=1.0,
        metavar="W",
        help="weight of the task, 1 by default; another for each tensor as in '*.mlp.*:0.5; 1'",
    )
    _checkpoint_flags(parser)
    _data_flags(parser)
    parser.add_argument(
        "--path-points",
        metavar="DIR",
        help="write points of the path that ode_m follows, a checkpoint each, into this new folder",
    )
    parser.add_argument(
        "--path-at",
        type=shares,
        metavar="LIST",
        help="t of these points, such as 0,0.25,0.5; the end of each step by default",
    )


def _merge(args: Namespace) -> Answer:
    line = _open(args)
    asked = {"path_points": args.path_points, "path_at": args.path_at}
    more = {key: value for key, value in asked.items() if value is not None}
    done = line.merge(args.checkpoint, args.task, weight=args.weight, **_checkpoint_words(args), **more)
    return _changed(line, args, {"points": None, **done}, "merged {task} (weight {weight})")


def _checkpoint_words(args: Namespace) -> dict[str, Any]:
    return {
        "private": args.private,
        "allow_nonfinite": args.allow_nonfinite,
        "allow_distant": args.allow_distant,
        "allow_pickle": args.allow_pickle,
        "descends_from": args.descends_from,
        "tasks": args.tasks,
    }


def _unmerge_arguments(parser: Parser) -> None:
    add_line(parser)
    parser.add_argument("task", metavar="TASK", help="the member to take out")
    parser.add_argument(
        "--algebraic",
        action="store_true",
        help="subtract its direction only (mdm_oc): not exact, for comparison",
    )
    _own_checkpoint(parser)


def _own_checkpoint(parser: Parser) -> None:
    parser.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="the member's own checkpoint, where the line keeps statistics only",
    )
    parser.add_argument("--allow-pickle", action="store_true", help="read .bin and .pt files, weights only")
    _data_flags(parser)


def _own_words(args: Namespace) -> dict[str, Any]:
    return {"checkpoint": args.checkpoint, "allow_pickle": args.allow_pickle, "tasks": args.tasks}


def _unmerge(args: Namespace) -> Answer:
    line = _open(args)
    how: dict[str, Any] = {"how": "algebraic"} if args.algebraic else {}
    return _changed(line, args, line.unmerge(args.task, **_own_words(args), **how), "unmerged {task}")


def _reweight_arguments(parser: Parser) -> None:
    add_line(parser)
    parser.add_argument("task", metavar="TASK", help="the member whose weight changes")
    parser.add_argument(
        "weight", type=weight, metavar="WEIGHT", help="its new weight, or rules as in merge --weight"
    )
    _own_checkpoint(parser)


def _reweight(args: Namespace) -> Answer:
    line = _open(args)
    done = line.reweight(args.task, args.weight, **_own_words(args))
    return _changed(line, args, done, "reweighted {task} to {weight}")


def _replace_arguments(parser: Parser) -> None:
    add_line(parser)
    parser.add_argument("task", metavar="TASK", help="the member whose checkpoint is replaced")
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="its new checkpoint")
    parser.add_argument(
        "--weight",
        type=weight,
        default=None,
        metavar="W",
        help="its new weight or rules; as it was by default",
    )
    parser.add_argument(
        "--old-checkpoint", metavar="DIR", help="its old checkpoint, where the line keeps statistics only"
    )
    parser.add_argument(
        "--old-tasks",
        metavar="FILE",
        help="the tasks.yaml that it was merged with, where the line keeps statistics only; FILE of --tasks by "
        "default",
    )
    _checkpoint_flags(parser)
    _data_flags(parser)


def _replace(args: Namespace) -> Answer:
    line = _open(args)
    done = line.replace(
        args.task,
        args.checkpoint,
        weight=args.weight,
        old_checkpoint=args.old_checkpoint,
        old_tasks=args.old_tasks,
        **_checkpoint_words(args),
    )
    return _changed(line, args, done, "replaced {task} (weight {weight})")


def _changed(line: Line, args: Namespace, done: Mapping[str, Any], words: str) -> Answer:
    """The answer of all four: what was done, what is deployed now, where, and how tensors were classed."""
    members = done["members"]
    task = str(done["task"])
    now = next((m["weight"] for m in members if m["task"] == task), None)
    result = {**done, "line": str(args.line), "model": done["path"]}
    title = words.format(task=safe(task), weight=number(now))
    rows: list[tuple[str, object]] = [
        *deployed(result),
        ("tensors", accounting_words(done.get("accounting"))),
        *_receipt_rows(done.get("receipt")),
        ("points", _points(args, done.get("points"))),
        ("time", f"{float(done['seconds']):.1f} s" if done.get("seconds") is not None else None),
    ]
    remarks = [*(done.get("notes") or []), *filter(None, [(done.get("receipt") or {}).get("note")])]
    notes = [f"  note: {one_line(remark)}" for remark in remarks]
    return Answer(result, [f"{title}, entry {done['sequence']}", *pairs(rows), *notes], notice=True)


_LABELS = {
    "how": "how",
    "exact": "exact",
    "never_merged": "never merged",
    "descends": "carried by",
    "weight_before": "weight before",
    "digest_before": "replaced",
    "digest_after": "by",
}


def _receipt_rows(receipt: Mapping[str, Any] | None) -> list[tuple[str, object]]:
    """What a receipt says that the other lines do not; --json has all of it."""
    return [(label, _value((receipt or {}).get(key))) for key, label in _LABELS.items()]


def _points(args: Namespace, points: Sequence[Mapping[str, Any]] | None) -> str | None:
    if not points:
        return None if points is None else "none: the path has not come so far, or there was none"
    ends = f"t = {number(points[0]['t'])} to {number(points[-1]['t'])}"
    return f"{plural(len(points), 'model')}, {ends}, in {safe(args.path_points)}"


def _value(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(safe, value))
    return short(value) if isinstance(value, str) and len(value) == 64 else number(value)


VERBS = (
    Verb("merge", "merge a fine-tuned checkpoint into the line", _merge_arguments, _merge, GOES_ON),
    Verb(
        "unmerge", "take a member out, as if it had never been merged", _unmerge_arguments, _unmerge, GOES_ON
    ),
    Verb("reweight", "change a member's weight", _reweight_arguments, _reweight, GOES_ON),
    Verb("replace", "put another checkpoint in a member's place", _replace_arguments, _replace, GOES_ON),
)
