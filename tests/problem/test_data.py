"""Readers: every format gives the same examples, torn and hostile files are refused in one line."""

from __future__ import annotations

import io
import json
import struct
import sys
import tracemalloc
import zipfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy
import pytest
from PIL import Image

from plait.errors import RefusedInput
from plait.problem.base import Examples, Split
from plait.problem.content import make_examples
from plait.problem.images import decode
from plait.problem.task import load_tasks
from tests.problem.tables import COLOURS, encoded, packed, pictures, refused, texts, write_table, write_tasks

TEXT = "tasks: {{t: {{kind: text-classification, data: {}, classes: [amber, blue, coral]{}}}}}\n"
IMAGE = "tasks: {{t: {{kind: image-classification, data: {}{}}}}}\n"
PARTS = ", splits: {train: {}, test: {}, calibration: {count: 7}, validation: {share: 0.2}}"
SPLITS: tuple[Split, ...] = ("train", "calibration", "validation", "test")


def all_splits(folder: Path, text: str) -> dict[Split, Examples]:
    task = load_tasks(write_tasks(folder, text))["t"]
    return {split: task.examples(split) for split in SPLITS}


def digests(found: dict[Split, Examples]) -> dict[Split, str]:
    return {split: examples.digest for split, examples in found.items()}


def digest_by_hand(inputs: Any, labels: list[int] | None) -> str:
    """The digest as the documents say it, written a second time."""
    data = b""
    for i, one in enumerate(inputs):
        if isinstance(one, str):
            data += b"t" + struct.pack("<q", len(one.encode())) + one.encode()
        else:
            data += b"i" + struct.pack("<qqq", *one.shape) + bytes(one.reshape(-1).tolist())
        data += b"" if labels is None else struct.pack("<q", labels[i])
    return sha256(data).hexdigest()


def test_digests_are_those_of_the_documents() -> None:
    said, seen = ["", "é", "two\nlines"], pictures(3, 2, 5)
    assert make_examples(said, [0, 1, -1]).digest == digest_by_hand(said, [0, 1, -1])
    assert make_examples(said).digest == digest_by_hand(said, None)
    assert make_examples(seen, [2, 0, 1]).digest == digest_by_hand(seen, [2, 0, 1])
    assert make_examples(said, [0, 1, -1]).digest == (
        "87586c14c6ed17ba012a0c836ade495d4e9b92a8132e204b285d99c45dafcb7c"
    )


@pytest.mark.parametrize("name", ["t.parquet", "t.jsonl", "t.csv"])
@pytest.mark.parametrize("spelled", ["numbers", "names"])
def test_tables_give_the_same_examples(tmp_path: Path, name: str, spelled: str) -> None:
    columns = texts()
    plain = [(text, label) for text, label in zip(columns["text"], columns["label"], strict=True)]
    if spelled == "names":
        columns["label"] = [COLOURS[label] for label in columns["label"]]
    write_table(tmp_path / name, columns)
    found = all_splits(tmp_path, TEXT.format(name, PARTS))
    assert {split: len(examples) for split, examples in found.items()} == {
        "train": 25, "calibration": 7, "validation": 8, "test": 10,
    }  # fmt: skip
    for examples in found.values():
        assert examples.labels is not None
        pairs = list(zip(examples.inputs, examples.labels.tolist(), strict=True))
        assert set(pairs) <= set(plain)
        assert examples.digest == digest_by_hand(*zip(*pairs, strict=True))  # type: ignore[arg-type]
    together = [text for examples in found.values() for text in examples.inputs]
    assert sorted(together) == sorted(columns["text"])
    assert digests(found) == {
        "train": "cf90b65b909616069c0c5ccc9a669f0cee16b5b5237e947e0525a0022052d722",
        "calibration": "9d25f5e5e7288db59d7edf2fec070f604de359ec0539b651f8a490b0a7270551",
        "validation": "87ba62f910201d2eb0a868d9baf357a9b25b3302fb8e892f16aa8709090d655b",
        "test": "b8e97b7c061f2aae346044e0db3c528715c58989a4c7532bf0a37ec2c5414095",
    }  # on every platform


def test_columns_have_names_of_their_own(tmp_path: Path) -> None:
    columns = texts()
    renamed = {"said": columns["text"], "class": columns["label"], "part": columns["split"]}
    write_table(tmp_path / "a.jsonl", columns)
    write_table(tmp_path / "b.jsonl", renamed)
    named = ", columns: {text: said, label: class, split: part}"
    one = all_splits(tmp_path, TEXT.format("a.jsonl", PARTS))
    assert digests(all_splits(tmp_path, TEXT.format("b.jsonl", named + PARTS))) == digests(one)


def test_labels_of_csv_are_numbers_unless_all_are_names(tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv", {"text": ["a", "b", "c"], "label": ["2", "1", "2"]})
    task = "tasks: {{t: {{kind: text-classification, data: t.csv, classes: {}, splits: {{test: {{}}}}}}}}\n"
    for classes, labels in (
        ("[x, y, z]", {"a": 2, "b": 1, "c": 2}),
        ("['1', '2']", {"a": 1, "b": 0, "c": 1}),
    ):
        found = load_tasks(write_tasks(tmp_path, task.format(classes)))["t"].examples("test")
        assert found.labels is not None
        assert dict(zip(found.inputs, found.labels.tolist(), strict=True)) == labels


@pytest.mark.parametrize("name", ["t.txt", "t.jsonl", "t.csv", "t.parquet"])
def test_texts_without_labels(tmp_path: Path, name: str) -> None:
    said = [f"line {i}" for i in range(9)]
    if name == "t.txt":
        (tmp_path / name).write_bytes("\r\n\n".join(said).encode())
    else:
        write_table(tmp_path / name, {"text": said})
    text = f"tasks: {{t: {{kind: causal-lm, data: {name}, splits: {{test: {{}}, calibration: {{count: 2}}}}}}}}\n"
    task = load_tasks(write_tasks(tmp_path, text))["t"]
    found = task.examples("test").inputs + task.examples("calibration").inputs
    assert (task.classes, task.head.kind, task.kind) == ((), "model", "causal-lm")
    assert task.examples("test").labels is None
    assert sorted(found) == said
    assert len(task.examples("calibration")) == 2
    assert task.examples("test").digest == digest_by_hand(task.examples("test").inputs, None)


def write_images(folder: Path, form: str, seen: Any, labels: list[int], splits: list[str]) -> str:
    """The same images in one of the forms; returns the tail of the task."""
    by_split = {s: [i for i, name in enumerate(splits) if name == s] for s in ("train", "test")}
    if form == "folder":
        for i, pixels in enumerate(seen):
            place = folder / splits[i] / COLOURS[labels[i]]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(place / f"{i:03}.png")
        return PARTS.replace("{}", "{data: test}", 2).replace("{data: test}", "{data: train}", 1).replace(
            "{count", "{data: train, count"
        ).replace("{share", "{data: train, share")  # fmt: skip
    arrays: dict[str, Any] = {"classes": numpy.array(COLOURS)}
    for split, rows in by_split.items():
        kind = numpy.int16 if form == "packed" else numpy.int64
        arrays[f"y_{split}"] = numpy.array([labels[i] for i in rows], dtype=kind)
        if form == "packed":
            arrays[f"jpeg_{split}"], arrays[f"off_{split}"] = packed([encoded(seen[i]) for i in rows])
        else:
            arrays[f"x_{split}"] = seen[rows]
    (numpy.savez_compressed if form == "compressed" else numpy.savez)(folder / "t.npz", **arrays)
    return PARTS


@pytest.mark.parametrize("form", ["pixels", "compressed", "packed", "folder"])
def test_images_give_the_same_examples(tmp_path: Path, form: str) -> None:
    seen = pictures(50)
    labels, splits = [i % 3 for i in range(50)], ["train"] * 40 + ["test"] * 10
    tail = write_images(tmp_path, form, seen, labels, splits)
    found = all_splits(tmp_path, IMAGE.format("train" if form == "folder" else "t.npz", tail))
    assert load_tasks(tmp_path / "tasks.yaml")["t"].classes == COLOURS
    by_pixels = {pixels.tobytes(): label for pixels, label in zip(seen, labels, strict=True)}
    for split, count in {"train": 25, "calibration": 7, "validation": 8, "test": 10}.items():
        examples = found[split]  # type: ignore[index]
        assert examples.labels is not None
        assert examples.inputs.shape == (count, 6, 8, 3)
        assert examples.inputs.dtype == numpy.uint8
        assert [by_pixels.pop(one.tobytes()) for one in examples.inputs] == examples.labels.tolist()
        assert examples.digest == digest_by_hand(examples.inputs, examples.labels.tolist())
    assert not by_pixels
    assert digests(found)["calibration"] == "524660846774f83bb8bb402edb9254be3777e5f105ad8228049534d24ea5734d"


def test_grey_images_are_repeated(tmp_path: Path) -> None:
    grey = pictures(6)[..., 0]
    for shape in ((6, 6, 8), (6, 6, 8, 1)):
        numpy.savez(tmp_path / "t.npz", x_test=grey.reshape(shape), y_test=numpy.arange(6) % 2)
        text = IMAGE.format("t.npz", ", classes: [a, b], splits: {test: {}}")
        found = load_tasks(write_tasks(tmp_path, text))["t"].examples("test")
        assert found.inputs.shape == (6, 6, 8, 3)
        assert {one[..., 2].tobytes() for one in found.inputs} == {one.tobytes() for one in grey}
        assert (found.inputs[..., 0] == found.inputs[..., 2]).all()


def test_arrays_have_names_of_their_own(tmp_path: Path) -> None:
    numpy.savez(
        tmp_path / "t.npz",
        images=pictures(6),
        labels=numpy.array(["b", "a"] * 3),
        names=numpy.array(["a", "b"]),
    )
    text = IMAGE.format(
        "t.npz",
        ", columns: {x_train: images, y_train: labels, classes: names}, "
        "splits: {test: {rows: train, share: 0.5}, train: {}}",
    )
    task = load_tasks(write_tasks(tmp_path, text))["t"]
    assert (task.classes, len(task.examples("test")), len(task.examples("train"))) == (("a", "b"), 3, 3)


def test_images_are_cropped_and_resized(tmp_path: Path) -> None:
    for i, (width, height) in enumerate(((40, 20), (20, 40), (10, 10))):
        (tmp_path / "x" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        pixels = numpy.full((height, width, 3), 40 * i, dtype=numpy.uint8)
        pixels[(height - 10) // 2 : (height + 10) // 2, (width - 10) // 2 : (width + 10) // 2] = 200
        Image.fromarray(pixels).save(tmp_path / "x" / "ab"[i % 2] / f"{i}.png")
    text = IMAGE.format("x", ", size: 10, splits: {test: {}}")
    found = load_tasks(write_tasks(tmp_path, text))["t"].examples("test")
    assert found.inputs.shape == (3, 10, 10, 3)
    corners = sorted(found.inputs[:, 0, 0, 0].tolist())
    assert corners == [0, 40, 200]  # of the first two a border is left, half as wide
    assert found.inputs[:, 4:6, 4:6].min() > 180  # the middle stays in the middle
    assert "write size: 224, for example" in refused(
        tmp_path, IMAGE.format("x", ", splits: {test: {}}"), "test"
    )


def test_only_the_split_that_is_asked_for_is_held(tmp_path: Path) -> None:
    """The check for overlaps looks at every image, one at a time."""
    flat = [numpy.full((256, 256, 3), i, dtype=numpy.uint8) for i in range(150)]
    arrays: dict[str, Any] = {}
    for split, held in (("train", flat[:140]), ("test", flat[140:])):
        arrays[f"jpeg_{split}"], arrays[f"off_{split}"] = packed([encoded(one) for one in held])
        arrays[f"y_{split}"] = numpy.arange(len(held)) % 2
    numpy.savez(tmp_path / "t.npz", **arrays)
    task = load_tasks(write_tasks(tmp_path, IMAGE.format("t.npz", ", classes: [a, b]")))["t"]
    tracemalloc.start()
    try:
        found = task.examples("test")
        peak = tracemalloc.get_traced_memory()[1]
        assert task.examples("test") is found  # read once
    finally:
        tracemalloc.stop()
    assert found.inputs.nbytes == 10 * 256 * 256 * 3
    assert peak < 2.5 * found.inputs.nbytes  # the train images together are 14 times as large
    assert len(task.examples("train")) == 140


def test_rows_of_several_splits_are_read_split_by_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from plait.problem import npz

    arrays: dict[str, Any] = {}
    for i, split in enumerate(("train", "validation", "test")):
        arrays[f"x_{split}"], arrays[f"y_{split}"] = pictures(20, first=i), numpy.arange(20) % 2
    numpy.savez(tmp_path / "t.npz", **arrays)
    text = IMAGE.format("t.npz", ", classes: [a, b], splits: {test: {}, train: {rows: [train, validation]}}")
    task = load_tasks(write_tasks(tmp_path, text))["t"]
    opened: list[str] = []
    read = npz._array

    def noted(path: Path, name: str) -> Any:
        opened.append(name)
        return read(path, name)

    monkeypatch.setattr(npz, "_array", noted)
    found = task.examples("train")
    assert opened.count("x_train") == opened.count("x_validation") == 2  # once for the keys, once to keep
    want = {one.tobytes() for split in ("train", "validation") for one in arrays[f"x_{split}"]}
    assert {one.tobytes() for one in found.inputs} == want


def test_splits_that_share_rows_walk_through_them_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from plait.problem import npz

    jpeg, off = packed([encoded(one) for one in pictures(30)])
    numpy.savez(tmp_path / "t.npz", jpeg_train=jpeg, off_train=off, y_train=numpy.arange(30) % 2)
    splits = "{train: {}, calibration: {count: 5}, validation: {count: 5}}"
    text = IMAGE.format("t.npz", f", classes: [a, b], splits: {splits}")
    task = load_tasks(write_tasks(tmp_path, text))["t"]
    seen: list[str] = []

    def noted(data: bytes, where: str, size: int | None) -> Any:
        seen.append(where)
        return decode(data, where, size)

    monkeypatch.setattr(npz, "decode", noted)
    assert len(task.examples("calibration")) == 5
    assert len(seen) == 30 + 5
    assert len(task.examples("validation")) == 5
    assert len(seen) == 30 + 5 + 5


def tear(path: Path, keep: float = 0.6) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])


@pytest.mark.parametrize(
    ("name", "keep", "message"),
    [
        ("t.parquet", 0.6, "DIR/t.parquet: is no whole parquet file ("),
        ("t.parquet", 0, "DIR/t.parquet: is no whole parquet file ("),
        ("t.jsonl", 0.6, "DIR/t.jsonl: line 30 is not JSON ("),
        (
            "t.csv",
            0.604,
            "DIR/t.csv: line 62 is not CSV (unexpected end of data); expected fields between commas: is the",
        ),
    ],
)
def test_torn_tables(tmp_path: Path, name: str, keep: float, message: str) -> None:
    write_table(tmp_path / name, texts())
    tear(tmp_path / name, keep)
    assert refused(tmp_path, TEXT.format(name, ""), "test").startswith(message)


def test_every_torn_parquet_is_refused_or_whole(tmp_path: Path) -> None:
    """Bytes changed anywhere: readable text, or the error that says so; no other error."""
    path = write_table(tmp_path / "t.parquet", texts())
    whole = path.read_bytes()
    for at in range(4, len(whole), 37):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        with suppress(RefusedInput):
            load_tasks(write_tasks(tmp_path, TEXT.format("t.parquet", "")))["t"].examples("test")


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9, 0.99])
def test_torn_npz(tmp_path: Path, keep: float) -> None:
    numpy.savez(tmp_path / "t.npz", x_test=pictures(9), y_test=numpy.zeros(9, dtype=int))
    tear(tmp_path / "t.npz", keep)
    message = refused(tmp_path, IMAGE.format("t.npz", ", classes: [a, b], splits: {test: {}}"), "test")
    assert message.startswith("DIR/t.npz: is no whole npz file (")
    assert message.endswith("); is it cut off? get it again")


def test_torn_array_in_a_whole_npz(tmp_path: Path) -> None:
    numpy.savez(tmp_path / "t.npz", x_test=pictures(9), y_test=numpy.zeros(9, dtype=int))
    data = bytearray((tmp_path / "t.npz").read_bytes())
    data[400] ^= 1
    (tmp_path / "t.npz").write_bytes(data)
    message = refused(tmp_path, IMAGE.format("t.npz", ", classes: [a, b], splits: {test: {}}"), "test")
    assert message.startswith(
        "DIR/t.npz: is no whole npz file (Bad CRC-32 for file 'x_test.npy'); is it cut off?"
    )


def test_an_array_whose_header_is_no_header(tmp_path: Path) -> None:
    numpy.savez(tmp_path / "t.npz", x_test=pictures(9))
    with zipfile.ZipFile(tmp_path / "t.npz", "a") as file:
        file.writestr("y_test.npy", b"\x93NUMPY\x01\x00\x05\x00{'a':")
        file.writestr("huge.npy", npy_header((1 << 50,)))
    message = refused(tmp_path, IMAGE.format("t.npz", ", classes: [a, b], splits: {test: {}}"), "test")
    assert message.startswith("DIR/t.npz: is no whole npz file (")
    text = IMAGE.format("t.npz", ", columns: {y_test: huge}, classes: [a, b], splits: {test: {}}")
    assert refused(tmp_path, text, "test").startswith(
        "DIR/t.npz: is no whole npz file (Unable to allocate 1.00 PiB"
    )


def npy_header(shape: tuple[int, ...]) -> bytes:
    """The header of an array of bytes, without the array."""
    out = io.BytesIO()
    numpy.lib.format.write_array_header_1_0(out, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return out.getvalue()


@pytest.mark.parametrize("what", ["x", "y", "classes", "bare"])
def test_pickles_are_refused(tmp_path: Path, what: str) -> None:
    bomb: Any = numpy.array([{"a": 1}, None, 3], dtype=object)
    arrays: dict[str, Any] = {
        "x_test": pictures(3),
        "y_test": numpy.arange(3),
        "classes": numpy.array(COLOURS),
    }
    arrays["classes" if what == "classes" else f"{what}_test"] = bomb
    if what == "bare":
        (tmp_path / "t.npz").write_bytes(__import__("pickle").dumps(arrays))
    else:
        numpy.savez(tmp_path / "t.npz", **arrays)
    assert refused(tmp_path, IMAGE.format("t.npz", ", splits: {test: {}}"), "test") == (
        "DIR/t.npz: holds pickled objects, which can run code and are never read; save it with arrays of numbers and "
        "texts alone"
    )


NPZ: dict[str, tuple[dict[str, Any], str]] = {
    "off": ({"off_test": [0, 3, 2, 9]}, "DIR/t.npz: off_test leads out of jpeg_test; expected rising places from"),
    "end": ({"off_test": [0, 3, 6, 10]}, "DIR/t.npz: off_test leads out of jpeg_test; expected rising places"),
    "few": ({"off_test": [0, 9]}, "DIR/t.npz: off_test holds 1 images and y_test 3 labels; expected as many"),
    "int": ({"off_test": [0.0, 1, 2, 3]}, "DIR/t.npz: jpeg_test is uint8 (9,) and off_test is float64 (4,);"),
    "label": ({"y_test": [0.0, 1, 0]}, "DIR/t.npz: y_test is float64 (3,); expected one whole number or name"),
    "names": ({"classes": [0, 1]}, "DIR/t.npz: classes is int64 (2,); expected the names of the classes"),
    "jpeg": ({}, "test image 0 of DIR/t.npz: is no whole image (cannot identify image file these bytes); is it"),
    "x": ({"x_test": numpy.zeros((3, 4, 4, 2))}, "DIR/t.npz: x_test is float64 (3, 4, 4, 2); expected uint8 (n,"),
    "float": ({"x_test": pictures(3) / 255.0}, "DIR/t.npz: x_test is float64 (3, 6, 8, 3); expected uint8 (n,"),
    "rows": ({"x_test": pictures(2)}, "DIR/t.npz: x_test holds 2 images and y_test 3 labels; expected as many"),
}  # fmt: skip


@pytest.mark.parametrize("what", NPZ)
def test_arrays_that_do_not_fit(tmp_path: Path, what: str) -> None:
    arrays: dict[str, Any] = {
        "jpeg_test": numpy.zeros(9, numpy.uint8),
        "off_test": [0, 3, 6, 9],
        "y_test": [0, 1, 0],
    }
    numpy.savez(tmp_path / "t.npz", **{"classes": ["a", "b"]} | arrays | NPZ[what][0])
    assert refused(tmp_path, IMAGE.format("t.npz", ", splits: {test: {}}"), "test").startswith(NPZ[what][1])


def test_torn_image_files(tmp_path: Path) -> None:
    (tmp_path / "x" / "a").mkdir(parents=True)
    (tmp_path / "x" / "b").mkdir()
    for name in ("a/1", "a/2", "b/1"):
        (tmp_path / "x" / f"{name}.jpg").write_bytes(encoded(pictures(1, 90, 90)[0], "JPEG"))
    tear(tmp_path / "x" / "a" / "2.jpg")
    message = refused(tmp_path, IMAGE.format("x", ", splits: {test: {}}"), "test")
    assert message.startswith("DIR/x/a/2.jpg: is no whole image (image file is truncated (")
    assert message.endswith("); is it cut off? get it again")
    files = [encoded(pictures(1, 90, 90, i)[0], "JPEG") for i in range(3)]
    torn, places = packed([files[0], files[1][:2000], files[2]])
    numpy.savez(tmp_path / "t.npz", jpeg_test=torn, off_test=places, y_test=[0, 1, 0])
    message = refused(tmp_path, IMAGE.format("t.npz", ", classes: [a, b], splits: {test: {}}"), "test")
    assert message.startswith("test image 1 of DIR/t.npz: is no whole image (image file is truncated")


def test_deep_images_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x" / "a").mkdir(parents=True)
    (tmp_path / "x" / "b").mkdir()
    Image.fromarray(numpy.zeros((4, 4), dtype=numpy.uint16)).save(tmp_path / "x" / "a" / "1.png")
    assert refused(tmp_path, IMAGE.format("x", ", splits: {test: {}}"), "test") == (
        "DIR/x/a/1.png: its pixels have more than 8 bits (mode I;16); convert it first"
    )
    assert decode(encoded(pictures(1)[0]), "here").shape == (6, 8, 3)


def test_folders_that_do_not_fit(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "README.txt").write_text("not looked at")
    test = ", splits: {test: {}}"
    assert refused(tmp_path, IMAGE.format("x", test), "test") == (
        "DIR/x: holds no folders; expected one for each class, with its images in it"
    )
    (tmp_path / "x" / "a").mkdir()
    (tmp_path / "x" / "b").mkdir()
    (tmp_path / "x" / ".cache").mkdir()
    assert refused(tmp_path, IMAGE.format("x", test), "test") == (
        "t: test is empty: DIR/x has no rows; it is empty: correct splits.test or remove it"
    )
    (tmp_path / "x" / "a" / "notes.txt").write_text("hm")
    assert refused(tmp_path, IMAGE.format("x", test), "test").startswith(
        "DIR/x/a/notes.txt: is no image; expected files ending in .jpg, .jpeg, .png,"
    )


ROWS = {
    "missing column": ('{"txt": "a", "label": 0}', "DIR/t.jsonl: there is no column 'text'; it has txt, label:"),
    "no text": ('{"text": "a", "label": 0}\n\n{"label": 0}', "row 2 of DIR/t.jsonl: text is None; expected text"),
    "numbers": ('{"text": 3, "label": 0}', "row 1 of DIR/t.jsonl: text is 3; expected text"),
    "half": ('{"text": "\\ud83d", "label": 0}', "row 1 of DIR/t.jsonl: text holds half a character (a surrogate);"),
    "no label": ('{"text": "a"}', "DIR/t.jsonl: there is no column 'label'; it has text: name the right one"),
    "truth": ('{"text": "a", "label": true}', "row 1 of DIR/t.jsonl: the label is True; expected a whole number"),
    "high": ('{"text": "a", "label": 3}', "t: row 1 of DIR/t.jsonl: the label 3 is outside 0 .. 2; there are 3"),
    "low": ('{"text": "a", "label": "-1"}', "t: row 1 of DIR/t.jsonl: the label -1 is outside 0 .. 2;"),
    "name": ('{"text": "a", "label": "red"}', "t: row 1 of DIR/t.jsonl: the label 'red' is no class; expected amber"),
    "list": ("[1]", "DIR/t.jsonl: line 1 is [1]; expected an object such as {text: …}"),
    "deep": ("[" * 100000, "DIR/t.jsonl: line 1 is not JSON (it is nested too deeply); expected one object a line"),
    "bytes": ("\udcff", "DIR/t.jsonl: is not UTF-8 text (byte 0); expected jsonl in UTF-8"),
    "nothing": ("", "DIR/t.jsonl: is empty; expected rows with the columns text, label"),
}  # fmt: skip


@pytest.mark.parametrize("what", ROWS)
def test_rows_that_do_not_fit(tmp_path: Path, what: str) -> None:
    data, message = ROWS[what]
    (tmp_path / "t.jsonl").write_bytes(data.encode("utf-8", "surrogateescape"))
    assert refused(tmp_path, TEXT.format("t.jsonl", ", splits: {test: {}}"), "test").startswith(message)


def test_split_columns_that_do_not_fit(tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv", texts())
    write_table(tmp_path / "u.csv", {"text": ["a"], "label": [0]})

    def message(data: str, tail: str) -> str:
        return refused(tmp_path, TEXT.format(data, tail), "test")

    assert message("t.csv", ", columns: {split: part}") == (
        "DIR/t.csv: there is no column 'part'; it has text, label, split: name the right one in columns"
    )
    assert message("t.csv", ", splits: {test: {rows: dev}}") == (
        "t: test is empty: DIR/t.csv has no rows of the split dev; it has test, train: correct splits.test or "
        "remove it"
    )
    assert message("u.csv", ", splits: {test: {rows: dev}}") == (
        "t: splits.test takes rows dev, but DIR/u.csv says of no row which split it is of; expected a column for "
        "that: name it in columns.split, or remove rows"
    )
    assert message("u.csv", "") == (
        "t: test and train take the same rows of DIR/u.csv; expected at most one split that takes all: give the "
        "other a count, a share or rows of its own in splits.train"
    )


CSV = {
    "fields": ("text,label\na,0\nb\n", "DIR/t.csv: row 2 has 1 fields; expected 2, as the header has: is the file"),
    "quotes": ('text,label\n"a"b,0\n', "DIR/t.csv: line 2 is not CSV (',' expected after '\"'); expected fields"),
    "twice": ("text,label,text\na,0,b\n", "DIR/t.csv: has 2 columns 'text'; expected one"),
}  # fmt: skip


@pytest.mark.parametrize("what", CSV)
def test_csv_that_does_not_fit(tmp_path: Path, what: str) -> None:
    (tmp_path / "t.csv").write_text(CSV[what][0])
    assert refused(tmp_path, TEXT.format("t.csv", ", splits: {test: {}}"), "test").startswith(CSV[what][1])


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"\xef\xbb\xbftext,label\na,0\n")
    found = load_tasks(write_tasks(tmp_path, TEXT.format("t.csv", ", splits: {test: {}}")))["t"].examples(
        "test"
    )
    assert found.inputs == ["a"]


@pytest.mark.parametrize(
    ("library", "data", "message"),
    [
        (
            "pyarrow.parquet",
            "t.parquet",
            "reading parquet needs pyarrow; install it with: pip install 'plait[data]'",
        ),
        ("PIL", "t.npz", "images need pillow; install it with: pip install 'plait[data]'"),
    ],
)
def test_libraries_that_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, data: str, message: str
) -> None:
    write_table(tmp_path / "t.parquet", texts())
    jpeg, off = packed([encoded(one) for one in pictures(2)])
    numpy.savez(tmp_path / "t.npz", jpeg_test=jpeg, off_test=off, y_test=[0, 1])
    monkeypatch.setitem(sys.modules, library, None)
    text = (
        TEXT.format(data, "")
        if library != "PIL"
        else IMAGE.format(data, ", classes: [a, b], splits: {test: {}}")
    )
    assert refused(tmp_path, text, "test").endswith(message)


def test_class_lists(tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv", texts())
    text = "tasks: {{t: {{kind: text-classification, data: t.csv{}}}}}\n"
    assert refused(tmp_path, text.format(""), "test") == (
        "t: the classes have no names; expected t.classes in tasks.yaml, or t.classes.json beside DIR/t.csv"
    )
    for data, message in (
        ("{", 'is not JSON; expected a list of class names such as ["ham", "spam"]'),
        ('["a"]', "is ['a']; expected a list of at least two class names"),
        ('["a", "b", "a"]', "lists a class twice; expected different names"),
    ):
        (tmp_path / "t.classes.json").write_text(data)
        assert refused(tmp_path, text.format(""), "test") == f"DIR/t.classes.json: {message}"
    (tmp_path / "t.classes.json").write_text(json.dumps(COLOURS))
    assert load_tasks(write_tasks(tmp_path, text.format("")))["t"].classes == COLOURS
    (tmp_path / "names.json").write_text(json.dumps(["x", "y", "z"]))
    assert load_tasks(write_tasks(tmp_path, text.format(", classes: names.json")))["t"].classes == (
        "x",
        "y",
        "z",
    )
    assert refused(tmp_path, text.format(", classes: [x, y]"), "test") == (
        "t: classes has 2 names, but the data has 3 classes (amber, blue, coral); expected one name for each, in the "
        "same order"
    )


def test_names_for_people_and_names_in_the_data(tmp_path: Path) -> None:
    columns = texts()
    columns["label"] = [("NEG", "NEU", "POS")[label] for label in columns["label"]]
    write_table(tmp_path / "t.csv", columns)
    text = TEXT.format("t.csv", ", labels: [NEG, NEU, POS]")
    task = load_tasks(write_tasks(tmp_path, text))["t"]
    plain = dict(zip(columns["text"], texts()["label"], strict=True))
    found = task.examples("test")
    assert task.classes == COLOURS
    assert found.labels is not None
    assert [plain[said] for said in found.inputs] == found.labels.tolist()


def test_class_names_of_several_files_must_agree(tmp_path: Path) -> None:
    for name, classes in (("a", ["x", "y", "z"]), ("b", ["x", "z", "y"])):
        write_table(tmp_path / f"{name}.csv", texts())
        (tmp_path / f"{name}.classes.json").write_text(json.dumps(classes))
    text = "tasks: {t: {kind: text-classification, data: a.csv, splits: {train: {}, test: {data: b.csv}}}}\n"
    assert refused(tmp_path, text, "test") == (
        "t: the classes of DIR/a.csv are x, y, z, of DIR/b.csv x, z, y; expected the same: give t.labels "
        "in tasks.yaml"
    )
