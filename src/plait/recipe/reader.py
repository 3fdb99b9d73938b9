"""From a file to a Recipe, and strict YAML for other files that people write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from plait.errors import RefusedInput, shown
from plait.recipe.findings import Findings
from plait.recipe.merge import Recipe

_LARGEST = 1 << 20  # bytes of a recipe; a longer file is no recipe


def read_recipe(path: str | Path) -> Recipe:
    """Read a recipe of either kind. RefusedInput lists all that is wrong or cannot be honoured."""
    source = Path(path)
    return parse_recipe(read_text(source), str(source), source.parent)


def read_text(source: Path, what: str = "recipe") -> str:
    """The text of a YAML file of at most 1 MB. what: the word for it in refusals."""
    if not source.exists():
        raise RefusedInput(f"{source}: there is no such {what}; expected a YAML file")
    if not source.is_file():
        raise RefusedInput(f"{source}: is no file; expected a YAML file")
    if source.stat().st_size > _LARGEST:
        raise RefusedInput(f"{source}: is larger than 1 MB; expected a {what} in YAML")
    try:
        return source.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise RefusedInput(f"{source}: is not UTF-8 text; expected a {what} in YAML") from None


def parse_recipe(text: str, source: str = "recipe", folder: Path | None = None) -> Recipe:
    """The recipe in a text. folder: where relative paths of plait's own recipes start."""
    data = load_yaml(text, source)
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise RefusedInput(
            f"{source}: is {'empty' if data is None else shown(data)}; expected the keys of a recipe, such as base, "
            "method, members"
        )
    findings = Findings(source)
    if "merge_method" in data:
        from plait.recipe.mergekit import translate

        made = translate(data, findings, Path())
    else:
        from plait.recipe.own import read_own

        made = read_own(data, findings, folder if folder is not None else Path())
    findings.settle()
    assert made is not None
    return made


def load_yaml(text: str, source: str, what: str = "recipe") -> Any:
    """YAML without objects and without repeated keys (the last would win in silence)."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key, _ in node.value:
                line = key.start_mark.line + 1
                if key.tag == "tag:yaml.org,2002:merge":
                    raise RefusedInput(
                        f"{source}, line {line}: << (merging keys) is not read; write the keys out"
                    )
                if str(key.value) in seen:
                    raise RefusedInput(
                        f"{source}, line {line}: {shown(key.value)} is given twice; give it once"
                    )
                seen.add(str(key.value))
            return super().construct_mapping(node, deep=deep)

    try:
        return yaml.load(text, Loader)  # a subclass of SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        what = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise RefusedInput(f"{source}{line}: is not YAML: {what}") from None
    except (RecursionError, TypeError, ValueError) as error:
        raise RefusedInput(f"{source}: is not a {what}: {str(error).splitlines()[0]}") from None
