"""`plait report`: where it writes, what it never replaces, and what it prints."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from plait.cli.schema import SCHEMA
from plait.errors import PlaitError
from plait.line import vectors
from plait.report import writing
from tests.cli.conftest import Plait
from tests.report.lines import make, measure

START = "<!doctype html>"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A line with two members in the working directory, in part measured."""
    monkeypatch.chdir(tmp_path)
    line = make(tmp_path, ["a", "b"])
    measure(line, ["a"])
    return tmp_path


def test_the_page_is_written(plait: Plait, world: Path) -> None:
    done = plait("report", "line", "-o", "sub/report.html")
    assert done.code == 0, done.err
    assert done.out.startswith("wrote sub/report.html, ")
    assert "2 members: a, b" in done.out
    assert "accuracy of the deployed version" in done.out
    text = (world / "sub" / "report.html").read_text(encoding="utf-8")
    assert text.startswith(START)
    assert os.listdir(world / "sub") == ["report.html"]
    mask = os.umask(0)
    os.umask(mask)
    assert (world / "sub" / "report.html").stat().st_mode & 0o777 == 0o666 & ~mask
    assert plait("report", "line", "-o", "again.html", "--quiet").out == ""
    assert (world / "again.html").read_text(encoding="utf-8") == text  # nothing but the line decides


@pytest.mark.usefixtures("world")
def test_the_object(plait: Plait) -> None:
    found = plait("report", "line", "--out", "r.html", "--json").json
    assert list(found) == ["command", *SCHEMA["report"]]
    assert found["line"] == "line"
    assert found["out"] == "r.html"
    assert found["bytes"] == Path("r.html").stat().st_size
    told = set(found["facts"])
    assert all(key in told for key in SCHEMA["report"]["facts"].split("{")[1].split("}")[0].split(", "))
    assert len(told) == SCHEMA["report"]["facts"].split("}")[0].count(",") + 1


@pytest.mark.usefixtures("world")
def test_facts_without_a_page(plait: Plait) -> None:
    found = plait("report", "line", "--json").json
    assert (found["out"], found["bytes"]) == (None, None)
    assert [m["task"] for m in found["facts"]["members"]] == ["a", "b"]
    assert not list(Path().glob("*.html"))


@pytest.mark.usefixtures("world")
def test_a_page_needs_a_place(plait: Plait) -> None:
    done = plait("report", "line")
    assert done.code == 2
    assert done.error == "--out FILE is needed to write a page, or --json for the facts alone"


@pytest.mark.usefixtures("world")
def test_quick_reads_no_tensors(plait: Plait, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(vectors, "_measure", lambda *_: pytest.fail("tensors were read"))
        assert plait("report", "line", "-o", "r.html", "--quick").code == 0
    assert "made with --quick" in Path("r.html").read_text(encoding="utf-8")
    assert plait("report", "line", "-o", "s.html").code == 0
    assert plait("report", "line", "-o", "r.html", "--quick", "--force").code == 0
    assert Path("r.html").read_bytes() == Path("s.html").read_bytes()  # kept from the report before


OTHERS = {
    "a page of another program": "<!doctype html>\n<html><head><title>mine</title></head></html>",
    "a page that speaks of plait": f"{START}<html><body>plait report &lt;meta name=generator&gt;</body></html>",
    "a card": "---\n---\nThis model was made by plait from base",
    "nothing": "",
}


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("name", OTHERS)
def test_what_plait_did_not_write_is_never_replaced(plait: Plait, name: str) -> None:
    Path("mine.html").write_text(OTHERS[name])
    for flags, words in (
        ((), "mine.html exists; give another place, or --force"),
        (("--force",), "is not a report"),
    ):
        done = plait("report", "line", "-o", "mine.html", *flags)
        assert done.code == 5
        assert words in done.error
        assert Path("mine.html").read_text() == OTHERS[name]


def test_a_report_is_replaced_with_force_only(plait: Plait, world: Path) -> None:
    assert plait("report", "line", "-o", "r.html").code == 0
    old = (world / "r.html").read_text(encoding="utf-8")
    assert plait("unmerge", "line", "b").code == 0
    assert plait("report", "line", "-o", "r.html").code == 5
    assert (world / "r.html").read_text(encoding="utf-8") == old
    assert plait("report", "line", "-o", "r.html", "--force").code == 0
    assert "unmerge b" in (world / "r.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("world")
def test_places_that_are_refused(plait: Plait) -> None:
    assert plait("report", "line", "-o", "good.html").code == 0
    Path("link.html").symlink_to("good.html")
    Path("dangling.html").symlink_to("nowhere.html")
    Path("into").symlink_to("line")
    Path("folder").mkdir()
    for out, words in (
        ("line/report.html", "lies inside the line"),
        ("into/report.html", "lies inside the line"),
        ("line", "lies inside the line"),
        ("folder", "is a folder, a report is one file"),
        ("link.html", "is not a report that plait wrote"),
        ("dangling.html", "is not a report that plait wrote"),
    ):
        done = plait("report", "line", "-o", out, "--force")
        assert done.code == 5, out
        assert words in done.error
    assert not Path("nowhere.html").exists()
    assert Path("link.html").is_symlink()
    assert plait("verify", "line").code == 0


@pytest.mark.usefixtures("world")
def test_refusals_come_before_the_work(plait: Plait, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mine.html").write_text("mine")
    monkeypatch.setattr(vectors, "compare", lambda *_, **__: pytest.fail("the line was measured first"))
    assert plait("report", "line", "-o", "mine.html").code == 5


@pytest.mark.usefixtures("world")
def test_a_failed_write_leaves_what_was_there(plait: Plait, monkeypatch: pytest.MonkeyPatch) -> None:
    assert plait("report", "line", "-o", "r.html").code == 0
    old = Path("r.html").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    done = plait("report", "line", "-o", "r.html", "--force")
    assert done.code == 1
    assert "r.html: writing the report failed: the disk is full" in done.error
    assert Path("r.html").read_bytes() == old
    assert not [p for p in os.listdir() if p.endswith(".tmp")]
    with pytest.raises(PlaitError, match="the disk is full"):
        writing.write("page", Path("new.html"))
    assert not Path("new.html").exists()


@pytest.mark.usefixtures("world")
def test_a_damaged_line(plait: Plait) -> None:
    entry = Path("line/ledger/00000001.json")
    entry.chmod(0o644)
    entry.write_text(entry.read_text().replace('"a"', '"x"'))
    done = plait("report", "line", "-o", "r.html", "--json")
    assert done.code == 3
    assert json.loads(done.out)["error"]["kind"] == "VerificationError"
    assert not Path("r.html").exists()
