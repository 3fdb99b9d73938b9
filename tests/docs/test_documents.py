"""The documents agree with the product: links lead somewhere, commands exist, Python examples run."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from tests.line.models import base_tensors, expert_tensors, write_folder

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")]
)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        place = (page.parent / file).resolve() if file else page
        assert place.exists(), f"{page.name} links to {target}"
        if anchor and place.suffix == ".md":
            headings = re.findall(r"^#+ (.+)$", place.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
            assert anchor in slugs, f"{page.name} links to {target}; there is {sorted(slugs)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for name in re.findall(r"`?make ([a-z]+)`?(?=[\s`.,:;)]|$)", page.read_text(encoding="utf-8")):
        if f"`make {name}" in page.read_text(encoding="utf-8") or f"    make {name}" in page.read_text():
            assert name in targets, f"{page.name}: make {name}"


def shell_lines(page: Path) -> list[str]:
    """`plait …` lines of console blocks, without comments."""
    blocks = re.findall(
        r"```(?:console|sh|bash|shell)\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL
    )
    lines = [row.strip().removeprefix("$ ") for b in blocks for row in b.replace("\\\n", " ").splitlines()]
    return [re.sub(r"\s+#.*", "", row) for row in lines if row.startswith("plait ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_parse(page: Path) -> None:
    import shlex

    from plait.cli.entry import VERBS
    from plait.cli.parser import build

    for row in shell_lines(page):
        words = shlex.split(row.split(" > ")[0].split(" | ")[0])[1:]
        top, _ = build(VERBS, chosen=[next((w for w in words if not w.startswith("-")), "")])
        _, rest = top.parse_known_args(words)
        assert not rest, f"{page.name}: {row}"


def test_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    base = base_tensors()
    write_folder(tmp_path / "base", base)
    for i, name in enumerate(("spam", "toxic", "billing")):
        write_folder(tmp_path / name, expert_tensors(base, i))
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {}
    for block in blocks:
        exec(block, space)
    shutil.rmtree(tmp_path)
