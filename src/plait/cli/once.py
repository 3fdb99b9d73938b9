"""`plait once`: one merge from a recipe, without a line. Reads plait's recipes and mergekit's."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from plait.cli.opening import accounting_words
from plait.cli.output import Answer, listed, number, one_line, pairs, short
from plait.cli.parser import ANEW, Parser, Verb, natural, positive
from plait.errors import RefusedInput
from plait.words import plural, safe

if TYPE_CHECKING:
    from plait.recipe import Recipe


def _arguments(parser: Parser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", help="a YAML file: plait's own or mergekit's")
    parser.add_argument("out", metavar="OUT", help="where to write; it must not exist")
    parser.add_argument(
        "--private", metavar="PATTERN", action="append", default=[], help="more tensor names to leave out"
    )
    parser.add_argument(
        "--workers", type=positive, metavar="N", help="threads; one per core by default, at most 8"
    )
    parser.add_argument(
        "--seed", type=natural, metavar="N", help="seed of sparsifiers; the recipe's, or 0, by default"
    )
    parser.add_argument(
        "--allow-nonfinite",
        action="store_true",
        help="take the base's value for NaN or infinity, and say how often: one more read of all inputs",
    )
    parser.add_argument("--allow-pickle", action="store_true", help="read .bin and .pt files, weights only")
    parser.add_argument("--force", action="store_true", help="replace OUT where it exists")


def _once(args: Namespace) -> Answer:
    from plait.recipe import read_recipe

    recipe = read_recipe(args.recipe)
    if not args.force and os.path.lexists(args.out):
        raise RefusedInput(f"{args.out} exists; give another place, or --force to replace it")
    from plait.methods.registry import make

    make(recipe.method, recipe.options)  # a wrong option is refused before torch is loaded
    from plait import engine
    from plait.line import merge_files

    seed = recipe.seed if args.seed is None else args.seed
    done = merge_files(
        recipe.base,
        [member.checkpoint for member in recipe.members],
        args.out,
        method=recipe.method,
        weights=[member.weight for member in recipe.members],
        names=[member.task for member in recipe.members],
        private=[*recipe.private, *args.private],
        dtype=recipe.dtype,
        seed=seed,
        workers=args.workers,
        allow_nonfinite=args.allow_nonfinite,
        allow_pickle=args.allow_pickle,
        force=args.force,
        progress=None if args.quiet else engine.Progress(),
        **recipe.options,
    )
    return _answer(args, recipe, seed, done)


def _answer(args: Namespace, recipe: Recipe, seed: int, done: Mapping[str, Any]) -> Answer:
    """What was made of what, with all remarks."""
    members = [
        {**member._asdict(), "private": row.get("private", []), "nonfinite": row.get("nonfinite", 0)}
        for member, row in zip(recipe.members, done["members"], strict=True)
    ]
    notes = [*recipe.notes, *done.get("notes", [])]
    for member, row in zip(recipe.members, done["members"], strict=True):
        notes += [f"{member.task}: {note}" for note in row.get("notes") or []]
        if row.get("nonfinite"):
            was = f"{plural(row['nonfinite'], 'element')} with NaN or infinity"
            notes.append(f"{member.task}: {was}; the base's value was taken there")
    told = {"recipe": str(args.recipe), "base": recipe.base, "seed": seed, "dtype": recipe.dtype}
    result = {**done, **told, "members": members, "notes": notes}
    chosen = listed(done["options"])
    rows: list[tuple[str, object]] = [
        ("method", f"{recipe.method} ({chosen})" if chosen else recipe.method),
        ("members", ", ".join(f"{safe(m.task)} (weight {number(m.weight)})" for m in recipe.members)),
        ("tensors", accounting_words(done.get("accounting"))),
        ("dtype", recipe.dtype),
        ("digest", short(done["version"])),
        ("time", f"{done['seconds']:.1f} s"),
    ]
    title = f"merged {plural(len(members), 'checkpoint')} into {safe(args.out)}"
    return Answer(result, [title, *pairs(rows), *(f"  note: {one_line(n)}" for n in notes)], notice=True)


VERBS = (
    Verb("once", "merge once from a recipe (YAML, also mergekit's), without a line", _arguments, _once, ANEW),
)
