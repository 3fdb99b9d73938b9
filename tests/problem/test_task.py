"""tasks.yaml: what it says is done or refused in one line; what it does not say has one meaning."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from plait.errors import RefusedInput
from plait.problem.base import Examples, HeadSpec, Split
from plait.problem.content import make_examples
from plait.problem.task import load_tasks
from tests.problem.tables import COLOURS, refused, texts, write_table, write_tasks

GOOD = """
tasks:
  t:
    kind: text-classification
    data: t.csv
    classes: [amber, blue, coral]
    splits:
      train: {}
      test: {}
      calibration: {count: 5}
    head: model
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_table(tmp_path / "t.csv", texts())
    return tmp_path


def test_a_task_has_what_the_file_says(folder: Path) -> None:
    task = load_tasks(write_tasks(folder, GOOD))["t"]
    assert (task.name, task.kind, task.classes, task.head) == (
        "t",
        "text-classification",
        COLOURS,
        HeadSpec(),
    )
    sizes = {split: len(task.examples(split)) for split in ("train", "test", "calibration")}
    assert sizes == {"train": 35, "test": 10, "calibration": 5}
    labels = task.examples("test").labels
    assert labels is not None
    assert labels.dtype == torch.int64
    assert task.examples("test") is task.examples("test")


def test_tasks_stand_in_the_order_of_the_file(folder: Path) -> None:
    rows = "".join(
        f"  - {{name: {name}, kind: text-classification, data: t.csv, classes: [a, b, c]}}\n"
        for name in ("z", "a", "m")
    )
    assert list(load_tasks(write_tasks(folder, f"tasks:\n{rows}"))) == ["z", "a", "m"]


def test_defaults_are_replaced_key_by_key(folder: Path) -> None:
    text = """
defaults: {kind: text-classification, data: t.csv, classes: [a, b, c], max_test: 4, head: {kind: zero-shot, scale: 5}}
tasks:
  one: {}
  two: {max_test: 3, head: {kind: zero-shot}}
"""
    tasks = load_tasks(write_tasks(folder, text))
    assert [len(tasks[name].examples("test")) for name in tasks] == [4, 3]
    assert [tasks[name].head.scale for name in tasks] == [5.0, 20.0]


def test_the_seed_draws(folder: Path) -> None:
    def drawn(words: str) -> tuple[list[str], str]:
        task = load_tasks(write_tasks(folder, GOOD.replace("head: model", words)))["t"]
        return task.examples("calibration").inputs, task.examples("test").digest

    assert drawn("seed: 0") == drawn("head: model")
    assert drawn("seed: 1")[0] != drawn("seed: 0")[0]
    assert drawn("seed: 1")[1] == drawn("seed: 0")[1]  # nothing is drawn there


def test_limits(folder: Path) -> None:
    task = load_tasks(write_tasks(folder, GOOD.replace("head: model", "max_test: 3\n    max_train: 20")))["t"]
    whole = load_tasks(write_tasks(folder, GOOD))["t"]
    for split, size in (("test", 3), ("train", 20), ("calibration", 5)):
        found = task.examples(split)  # type: ignore[arg-type]
        assert len(found) == size
        assert set(found.inputs) <= set(whole.examples(split).inputs)  # type: ignore[arg-type]


def test_another_process_reads_the_same(folder: Path) -> None:
    path = write_tasks(folder, GOOD)
    code = "import sys; from plait.problem.task import load_tasks; t = load_tasks(sys.argv[1])['t']; " + (
        "print(*[t.examples(s).digest for s in ('train', 'test', 'calibration')])"
    )
    digests = [
        subprocess.run(
            [sys.executable, "-c", code, str(path)],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout.split()
        for seed in ("1", "2")
    ]
    task = load_tasks(path)["t"]
    here = [task.examples(s).digest for s in ("train", "test", "calibration")]
    assert digests == [here, here]


def test_heads(folder: Path) -> None:
    def head(words: str) -> HeadSpec:
        return load_tasks(write_tasks(folder, GOOD.replace("head: model", f"head: {words}")))["t"].head

    assert head("zero-shot") == HeadSpec("zero-shot")
    assert head("{kind: zero-shot, templates: ['a {}', 'the {}'], scale: 1e2}") == HeadSpec(
        "zero-shot", ("a {}", "the {}"), 100.0
    )
    assert head("linear") == HeadSpec("linear")
    assert head("{kind: linear, weight: head.w, bias: head.b}") == HeadSpec(
        "linear", weight="head.w", bias="head.b"
    )


def test_places(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative to tasks.yaml, or through variables; `data` stands for PLAIT_DATA."""
    (folder / "deep").mkdir()
    want = load_tasks(write_tasks(folder, GOOD))["t"].examples("test").digest

    def digest(place: str, data: Path | None = None) -> str:
        path = write_tasks(folder / "deep", GOOD.replace("t.csv", place))
        return load_tasks(path, data)["t"].examples("test").digest

    monkeypatch.chdir("/")
    monkeypatch.setenv("PLAIT_DATA", "/nowhere")
    monkeypatch.setenv("HERE", str(folder))
    assert digest("../t.csv") == digest("$HERE/t.csv") == digest("${HERE}/t.csv") == want
    assert digest("$PLAIT_DATA/t.csv", folder) == want
    monkeypatch.setenv("PLAIT_DATA", str(folder))
    assert digest("$PLAIT_DATA/t.csv") == digest(str(folder / "t.csv")) == want


def test_a_variable_that_is_not_set_is_told_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLAIT_DATA", raising=False)
    rows = "".join(f"  {n}: {{kind: causal-lm, data: $PLAIT_DATA/t.csv}}\n" for n in "abc")
    assert refused(folder, f"tasks:\n{rows}") == (
        "DIR/tasks.yaml: $PLAIT_DATA is not set; set it to the folder that holds the data, or write the path"
    )


def test_explicit_files(folder: Path) -> None:
    columns = texts()
    write_table(folder / "dev.jsonl", {"text": ["new", "newer"], "label": [0, 1]})
    write_table(folder / "train.csv", {name: column[:40] for name, column in columns.items()})
    splits = """
    splits:
      test: {data: t.csv, rows: test}
      train: {data: train.csv}
      validation: {data: dev.jsonl}
"""
    text = GOOD[: GOOD.index("    splits")].replace("    data: t.csv\n", "") + splits
    task = load_tasks(write_tasks(folder, text))["t"]
    assert sorted(task.examples("validation").inputs) == ["new", "newer"]
    assert (len(task.examples("test")), len(task.examples("train"))) == (10, 40)


def test_a_split_that_does_not_draw_takes_the_rows_of_its_name(folder: Path) -> None:
    columns = texts()
    columns["split"][:4] = ["validation"] * 4
    write_table(folder / "t.csv", columns)
    task = load_tasks(write_tasks(folder, GOOD.replace("train: {}", "train: {}\n      validation: {}")))["t"]
    assert sorted(task.examples("validation").inputs) == sorted(columns["text"][:4])
    assert not set(task.examples("calibration").inputs) & set(columns["text"][:4])


def test_overlaps(folder: Path) -> None:
    """The same text in another file, in capitals; the same row by another road."""
    write_table(folder / "new.jsonl", {"text": ["new", texts()["text"][42].upper()], "label": [0, 0]})
    text = GOOD.replace("{count: 5}", "{data: new.jsonl}")
    assert refused(folder, text, "test") == (
        "t: calibration and test overlap: row 43 of DIR/t.csv and row 2 of DIR/new.jsonl are equal; expected splits "
        "that share no example: change splits, or write overlap: drop to take it out of one of them"
    )
    dropped = load_tasks(write_tasks(folder, text.replace("head: model", "overlap: drop")))["t"]
    assert dropped.examples("calibration").inputs == ["new"]
    assert len(dropped.examples("test")) == 10
    text = GOOD.replace("train: {}", "train: {rows: [train, test]}")
    assert refused(folder, text, "test").startswith(
        "t: train and test overlap: both take row 41 of DIR/t.csv (10 such"
    )
    (folder / "same.csv").symlink_to(folder / "t.csv")
    text = GOOD.replace("train: {}", "train: {data: same.csv}")
    assert refused(folder, text, "test").startswith(
        "t: train and test overlap: both take row 41 of DIR/same.csv (10"
    )


ONE = "DIR/tasks.yaml: "


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("data: t.csv", "date: t.csv", "t.'date' is not known; expected kind, data, columns, splits, head, max_te"),
        ("data: t.csv", "date: t.csv", "classes, labels: remove it or correct it to data; (2) t.splits.train: the"),
        ("count: 5", "cuont: 5", "t.splits.calibration.'cuont' is not known; expected data, rows, count, share: r"),
        ("count: 5", "cuont: 5", " or correct it to count"),
        ("train: {}", "trian: {}", "t.splits.'trian' is not known; expected train, calibration, validation, test:"),
        ("tasks:", "x: 1\ntasks:", "'x' is not known; expected tasks, defaults: remove it or correct it"),
        ("kind: text-classification", "kind: text", "t.kind is 'text', expected text-classification, image-classi"),
        ("kind: text-classification", "kind: text", " causal-lm, or python: module:function in its stead"),
        ("data: t.csv", "data: u.csv", "t.data: DIR/u.csv does not exist (relative paths start at the folder of t"),
        ("data: t.csv", "data: tasks.yaml", "t.data: DIR/tasks.yaml cannot be read for text-classification; expec"),
        ("data: t.csv", "data: .", "cannot be read for text-classification; expected a file ending in .parquet, ."),
        ("data: t.csv", "data: 3", "t.data is 3, expected text"),
        ("[amber, blue, coral]", "[amber]", "t.classes is ['amber'], expected a list of at least two names"),
        ("[amber, blue, coral]", "[yes, no]", "t.classes[0] is True, expected text: put numbers and words like ye"),
        ("[amber, blue, coral]", "[a, b, a]", "t.classes lists 'a' twice; expected different names"),
        ("[amber, blue, coral]", "c.json", "t.classes: DIR/c.json does not exist (relative paths start at the fol"),
        ("head: model", "labels: [x, y]", "t.classes has 3 names and t.labels 2; expected one class for each labe"),
        ("head: model", "columns: {txt: x}", "t.columns.'txt' is not known; expected text, label, split: remove i"),
        ("head: model", "columns: {text: 1}", "t.columns.text is 1, expected text"),
        ("head: model", "head: linaer", "t.head is 'linaer', expected zero-shot, linear, model for text-classific"),
        ("head: model", "head: {kind: linear, scale: 3}", "t.head.'scale' is not known; expected kind, weight, bi"),
        ("head: model", "head: {kind: zero-shot, templates: [a]}", "t.head.templates is ['a'], expected a list of"),
        ("head: model", "head: {kind: zero-shot, scale: -1}", "t.head.scale is -1, expected a number above 0"),
        ("head: model", "head: {kind: linear, bias: b}", "t.head.bias is given without t.head.weight; expected bo"),
        ("head: model", "max_test: 0", "t.max_test is 0, expected a whole number of at least 1"),
        ("head: model", "max_train: many", "t.max_train is 'many', expected a whole number of at least 1"),
        ("head: model", "seed: -1", "t.seed is -1, expected a whole number of at least 0"),
        ("head: model", "overlap: allow", "t.overlap is 'allow', expected refuse or drop"),
        ("head: model", "size: 32", "t.'size' is not known; expected kind, data, columns,"),
        ("{count: 5}", "{count: 0}", "t.splits.calibration.count is 0, expected a whole number of at least 1"),
        ("{count: 5}", "{share: 1}", "t.splits.calibration.share is 1, expected a number between 0 and 1"),
        ("{count: 5}", "{share: 0.5, count: 5}", "t.splits.calibration has both a count and a share; expected one"),
        ("{count: 5}", "{rows: []}", "t.splits.calibration.rows is [], expected a value of the split column, or a"),
        ("{count: 5}", "5", "t.splits.calibration is 5, expected names and values"),
        ("  t:\n", "  a/b:\n", "the task name 'a/b' cannot be used; expected letters, digits, '.', '_' or '-', st"),
        ("  t:\n", "  base:\n", "the task name 'base' cannot be used; expected letters, digits"),
        ("  t:\n", "  3:\n", "the task name 3 cannot be used; expected letters, digits"),
        ("  t:\n", "  t: {}\n  t:\n", ", line 4: 't' is given twice; give it once"),
    ],
)  # fmt: skip
def test_refusals(folder: Path, old: str, new: str, message: str) -> None:
    assert GOOD.count(old) == 1
    load_tasks(write_tasks(folder, GOOD))
    assert message in refused(folder, GOOD.replace(old, new)).removeprefix(ONE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "DIR/tasks.yaml: is empty; expected the key tasks, and defaults where they have any"),
        ("[a]", "DIR/tasks.yaml: is ['a']; expected the key tasks, and defaults where they have any"),
        ("tasks: {}", "DIR/tasks.yaml: tasks is {}, expected tasks by name, or a list of tasks with a name in eac"),
        ("tasks: [3]", "DIR/tasks.yaml: tasks[0] is 3, expected names and values, name among them"),
        ("defaults: {seed: 0}", "DIR/tasks.yaml: tasks is missing, expected tasks by name, or a list of tasks"),
        ("tasks: [{kind: causal-lm}]", "DIR/tasks.yaml: the task name None cannot be used; expected letters, digi"),
        ("tasks: [{name: a, kind: x}, {name: a}]", "two tasks are called 'a'; expected a name of its own for each"),
        ("tasks: {t: {kind: causal-lm, data: t.csv, splits: {}}}", "t.splits is empty, expected at least one of t"),
        ("tasks: {t: {kind: causal-lm, data: t.csv, head: linear}}", "t.head is 'linear', expected model for caus"),
        ("tasks: {t: {kind: causal-lm, data: t.csv, classes: [a, b]}}", "t.'classes' is not known; expected kind,"),
        ("tasks: {t: {kind: image-classification, data: t.csv}}", "expected .npz, or a folder with a subfolder a "),
        ("tasks: [", "DIR/tasks.yaml, line 1: is not YAML: "),
        ("[" * 2000, "is not a list of tasks: "),
    ],
)  # fmt: skip
def test_files_that_are_no_tasks(folder: Path, text: str, message: str) -> None:
    assert message in refused(folder, text)


def test_all_faults_are_listed_at_once(folder: Path) -> None:
    message = refused(
        folder, GOOD.replace("count: 5", "count: -5").replace("head: model", "seed: x\n    sede: 3")
    )
    assert message.startswith("DIR/tasks.yaml: 3 things cannot be honoured: (1) t.'sede' is not known")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RefusedInput, match="there is no such list of tasks; expected a YAML file"):
        load_tasks(tmp_path / "none.yaml")


def test_a_split_that_the_file_does_not_have(folder: Path) -> None:
    assert refused(folder, GOOD, "validation") == (
        "t: has no validation examples; expected splits.validation in tasks.yaml, where it has train, calibration, "
        "test"
    )


class Made:
    """A task that a test made."""

    kind = "text-classification"
    classes = ("a", "b")
    head = HeadSpec()

    def __init__(self, words: dict[str, Any]) -> None:
        self.name = words.get("called", words["name"])
        self.words = words
        self.calls: list[str] = []

    def examples(self, split: Split) -> Examples:
        self.calls.append(split)
        found: Examples = self.words["splits"][split]
        return found


SPLITS: dict[str, Any] = {
    "train": make_examples(["x", "y"], [0, 1]),
    "test": make_examples(["z", "X"], [0, 1]),
    "validation": make_examples(["v"], [2]),
    "calibration": make_examples([]),
}


def make(words: dict[str, Any]) -> Made:
    return Made({**words, "splits": SPLITS})


def breaks(words: dict[str, Any]) -> Made:
    raise ValueError("no such thing\nat all")


def refuses(words: dict[str, Any]) -> Made:
    raise RefusedInput("words of its own")


def nothing(words: dict[str, Any]) -> None:
    return None


HERE = __name__


def test_a_python_task_gets_its_words(folder: Path) -> None:
    text = f"tasks: {{t: {{python: '{HERE}:Made', data: t.csv, depth: 3}}}}"
    task: Any = load_tasks(write_tasks(folder, text))["t"]
    assert task.made.words == {"name": "t", "folder": str(folder), "data": str(folder / "t.csv"), "depth": 3}
    assert (task.name, task.kind, task.classes, task.head) == ("t", Made.kind, Made.classes, Made.head)


def test_a_python_task_is_read_once_and_looked_over(folder: Path) -> None:
    task: Any = load_tasks(write_tasks(folder, f"tasks: {{t: {{python: '{HERE}:make'}}}}"))["t"]
    assert task.examples("train") is task.examples("train") is SPLITS["train"]
    assert task.made.calls == ["train"]
    for split, message in (
        ("test", "t: test and train overlap: train example 1 and test example 2 are equal; expected splits that "
         "share no example: change what the function returns"),
        ("validation", "t: validation: the labels go from 2 to 2; expected int64 (1,), one number from 0 to 1 for"),
        ("calibration", "t: calibration is empty or no Examples ("),
    ):  # fmt: skip
        with pytest.raises(RefusedInput) as caught:
            task.examples(split)
        assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("python: module", "DIR/tasks.yaml: t.python is 'module', expected module:function"),
        ("python: 'no.such:thing'", "DIR/tasks.yaml: t: no.such:thing failed (ModuleNotFoundError: No module name"),
        (f"python: '{HERE}:none'", f"failed (AttributeError: module '{HERE}' has no attribute 'none'); expected a"),
        (f"python: '{HERE}:breaks'", f"t: {HERE}:breaks failed (ValueError: no such thing); expected a function t"),
        (f"python: '{HERE}:refuses'", "words of its own"),
        (f"python: '{HERE}:nothing'", f"t: {HERE}:nothing returned None, without name, kind, classes, head, examp"),
        (f"python: '{HERE}:Made', called: u", "called 'u'; expected a Task called 't'"),
        (f"python: '{HERE}:Made', kind: causal-lm", "t has a kind and python; expected one of them: remove the ot"),
        (f"python: '{HERE}:Made', data: u.csv", "t.data: DIR/u.csv does not exist"),
    ],
)  # fmt: skip
def test_python_tasks_that_cannot_be_made(folder: Path, words: str, message: str) -> None:
    found = refused(folder, f"tasks: {{t: {{{words}}}}}")
    assert message in found
    assert "refuses" not in words or found == message
