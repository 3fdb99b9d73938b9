"""The file of results: written whole, taken up again, refused where it is of another run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plait.bench import results
from plait.bench.results import Score
from plait.bench.writing import write_json
from plait.errors import RefusedInput
from plait.evaluation.bootstrap import interval
from tests.bench import made


def written(path: Path, found: dict[str, Any]) -> Path:
    write_json(path, found)
    return path


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    found = made.results(made.cell())
    path = written(tmp_path / "new" / "r.json", found)
    assert results.read(path) == found
    assert [p.name for p in path.parent.iterdir()] == ["r.json"], "a temporary file is left"


def test_a_run_goes_on_with_the_same_words(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    assert results.go_on(path, made.same()) == results.empty(**made.same())
    written(path, made.results(made.cell()))
    assert results.go_on(path, made.same())["cells"] == [made.cell()]


@pytest.mark.parametrize(
    ("change", "where", "then", "now"),
    [
        ({"setting": {**made.same()["setting"], "budget": 3}}, "setting.budget", "5", "3"),
        (
            {"setting": {**made.same()["setting"], "recipe": {"rate": 0.1}}},
            "setting.recipe.rate",
            "0.0001",
            "0.1",
        ),
        (
            {"experts": {**made.same()["experts"], "two": {"digest": "x"}}},
            "experts.two.digest",
            '"bbb',
            '"x"',
        ),
        ({"tasks": {"one": made.task("one")}}, "tasks.two", '{"name": "two"', "null"),
        ({"suite": "text8"}, "suite", '"tiny"', '"text8"'),
    ],
)
def test_other_words_do_not_go_on(
    tmp_path: Path, change: dict[str, Any], where: str, then: str, now: str
) -> None:
    path = written(tmp_path / "r.json", made.results(made.cell()))
    before = path.read_bytes()
    with pytest.raises(RefusedInput) as caught:
        results.go_on(path, made.same(**change))
    said = str(caught.value)
    assert said.startswith(f"{path}: holds results with {where} {then}")
    assert f", this run has {now}" in said
    assert "--out" in said
    assert len(said) < 400 + len(str(path))
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no JSON"),
        ("[1]", "is no file of suite results (schema 'plait bench')"),
        ('{"schema": "other"}', "is no file of suite results"),
        ('{"schema": "plait bench", "format": 99}', "has format 99, this plait reads 1"),
        ('{"schema": "plait bench", "format": 1, "suite": "x"}', "lacks setting, tasks, experts"),
        ("[" * 100_000, "is no JSON"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(RefusedInput) as caught:
        results.read(path)
    assert str(caught.value).startswith(f"{path}: {said}")
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(RefusedInput, match=r"there are no results; make some with `plait bench run SUITE`"):
        results.read(tmp_path / "none.json")
    with pytest.raises(RefusedInput, match="is a folder, expected a file of results"):
        results.read(tmp_path)


def test_results_of_another_suite_are_refused_at_once(tmp_path: Path) -> None:
    path = written(tmp_path / "r.json", made.results(made.cell()))
    results.check_suite(path, "tiny")
    results.check_suite(tmp_path / "none.json", "text8")
    with pytest.raises(RefusedInput, match=r"holds results of suite tiny, expected text8; give another file"):
        results.check_suite(path, "text8")


def test_scores_that_are_known() -> None:
    assert results.scores(made.results(made.cell())) == {
        (made.BASE, "one"): Score(5, 10),
        (made.BASE, "two"): Score(8, 20),
        (made.A, "one"): Score(9, 10),
        (made.B, "two"): Score(15, 20),
        (made.BOTH, "one"): Score(8, 10, 1),
        (made.BOTH, "two"): Score(12, 20),
    }


def test_figures_by_hand() -> None:
    rows = {"base": {"one": made.score(5), "two": made.score(8, 20)}}
    rows["experts"] = {"one": made.score(9), "two": made.score(15, 20)}
    found = results.figures(["two", "one"], [[0.75, None], [0.55, 0.8]], rows)
    # two: 0.75 -> 0.55 and expert 0.75; one: 0.8 and expert 0.9
    assert found == pytest.approx(
        {
            "acc": 0.675,
            "normalised": (0.55 / 0.75 + 0.8 / 0.9) / 2,
            "base": 0.45,
            "experts": 0.825,
            "backward": -0.2,
            "backward_over_t": -0.1,
            "forgetting": 0.2,
            "plasticity_gap": 0.05,
        }
    )


def test_a_score_in_plain_values() -> None:
    low, high = interval([True] * 9 + [False], level=results.LEVEL)[1:]
    found = Score(9, 10, 1).plain()
    assert found == {"right": 9, "count": 10, "undefined": 1, "value": 0.9, "low": low, "high": high}
    json.dumps(found)


def test_cells_are_found_by_method_and_order() -> None:
    found = made.results(made.cell(42), made.cell(43))
    assert results.cell_of(found, "average", 43) == made.cell(43)
    assert results.cell_of(found, "average", 44) is None
    assert results.cell_of(found, "ties", 42) is None
