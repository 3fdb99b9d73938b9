"""The format on disk, written and read without the store."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from plait.errors import PlaitError, RefusedInput, VerificationError
from plait.store import Ledger, Store, verify
from tests.store.stores import SETTINGS, merge, model_digest, new_store, sha


def sealed(body: str) -> bytes:
    """The document's rule for the checksum, on text: the field goes where the alphabet wants it."""
    checksum = sha(body.encode() + b"\n")
    keys = sorted([*json.loads(body), "checksum"])
    rest = json.loads(body)
    parts = [
        f'"{key}":' + (f'"{checksum}"' if key == "checksum" else json.dumps(rest[key], separators=(",", ":")))
        for key in keys
    ]
    return ("{" + ",".join(parts) + "}\n").encode()


def test_settings_file(tmp_path: Path) -> None:
    Store.create(tmp_path / "line", {"seed": 0, "method": "average", "scale": 0.1})
    body = '{"format":1,"method":"average","scale":0.1,"seed":0}'
    assert (tmp_path / "line" / "plait.json").read_bytes() == sealed(body)
    assert sorted(os.listdir(tmp_path / "line")) == [
        "ledger",
        "lock",
        "objects",
        "plait.json",
        "tmp",
        "versions",
    ]
    assert os.listdir(tmp_path) == ["line"]


def test_entries_follow_the_document(tmp_path: Path) -> None:
    store = new_store(tmp_path / "line", "a", "ä")
    before = "0" * 64
    for number in range(3):
        data = (tmp_path / "line" / "ledger" / f"{number:08d}.json").read_bytes()
        entry = json.loads(data)
        assert (entry["sequence"], entry["previous"]) == (number, before)
        checksum = entry.pop("checksum")
        text = json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n"
        assert sha(text.encode()) == checksum
        assert data.endswith(b"}\n")
        assert b": " not in data
        before = sha(data)
    assert "ä".encode() in data
    assert store.ledger.tip() == before


def test_hand_made_store_is_read(tmp_path: Path) -> None:
    line = tmp_path / "line"
    for name in ("ledger", "objects", "versions", "tmp"):
        (line / name).mkdir(parents=True)
    (line / "plait.json").write_bytes(sealed('{"format":1,"method":"ties"}'))
    (line / "lock").touch()
    stored, model = sha(b"bytes"), sha(b"weights")
    (line / "objects" / stored[:2]).mkdir()
    (line / "objects" / stored[:2] / stored).write_bytes(b"bytes")
    (line / "versions" / model).mkdir()
    (line / "versions" / model / "weights").write_bytes(b"weights")
    listed = f'{{"files":{{"weights":{{"sha256":"{model}","size":7}}}}}}'
    (line / "versions" / f"{model}.json").write_bytes(sealed(listed))
    first = sealed(f'{{"members":[],"previous":"{"0" * 64}","sequence":0,"time":"t","version":"{model}"}}')
    (line / "ledger" / "00000000.json").write_bytes(first)
    second = f'{{"members":[{{"object":"{stored}"}}],"previous":"{sha(first)}","sequence":1,"weight":1e-05}}'
    (line / "ledger" / "00000001.json").write_bytes(sealed(second))
    (line / "ledger" / ".00000002.tmp").write_bytes(b"half an en")

    store = Store.open(line)
    assert store.settings == {"method": "ties"}
    assert [entry["sequence"] for entry in store.ledger.entries()] == [0, 1]
    assert store.objects.get(stored) == b"bytes"
    report = verify(store, model_digest)
    assert report.problems == []
    assert report.counted == {"entries": 2, "objects": 1, "versions": 1}
    assert report.bytes == 12
    assert store.ledger.append({})["previous"] == sha(sealed(second))


def test_stored_files_are_read_only(tmp_path: Path) -> None:
    new_store(tmp_path / "line", "a")
    for folder, _, names in os.walk(tmp_path / "line"):
        for name in names:
            mode = stat.S_IMODE(os.stat(Path(folder) / name).st_mode)
            assert mode == (0o644 if name == "lock" else 0o444), name


def test_numbers_come_back_exactly(tmp_path: Path) -> None:
    ledger = new_store(tmp_path / "line").ledger
    body = {"weights": [0.1, 1e-300, -0.0, 2.0**-1074, 1 / 3], "big": 2**70, "text": "\u2028 \U0001f642 \x00"}
    entry = ledger.append(body)
    assert {key: entry[key] for key in body} == body
    assert str(entry["weights"][2]) == "-0.0"
    assert ledger.entries()[-1] == entry


@pytest.mark.parametrize(
    "body",
    [
        {"weight": float("nan")},
        {"weight": float("inf")},
        {"members": {1: "a"}},
        {"x": object()},
        {"x": "\ud800"},
    ],
    ids=["nan", "infinity", "number as key", "object", "surrogate"],
)
def test_what_json_cannot_say_is_refused(tmp_path: Path, body: dict[str, object]) -> None:
    store = new_store(tmp_path / "line")
    with pytest.raises(PlaitError, match=r"record for the ledger"):
        store.ledger.append(body)
    assert len(store.ledger.entries()) == 1


@pytest.mark.parametrize("field", ["sequence", "previous", "time", "checksum"])
def test_fields_of_the_ledger_are_its_own(tmp_path: Path, field: str) -> None:
    with pytest.raises(PlaitError, match=f"holds the field '{field}', which the ledger itself writes"):
        new_store(tmp_path / "line").ledger.append({field: 1})


def test_newer_format_is_refused(tmp_path: Path) -> None:
    store = new_store(tmp_path / "line")
    rewrite(store.path / "plait.json", b'{"format": 2, "anything": "else"}')
    with pytest.raises(RefusedInput, match=r"store format 2, this plait reads 1: upgrade plait$"):
        Store.open(store.path)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "broken JSON"),
        (b"{", "broken JSON"),
        (b"\xff\xfe", "broken JSON"),
        (b"[" * 100_000, "broken JSON"),
        (b"[]", "a JSON list, expected an object"),
        (b"{}", "format None, expected 1; is this folder a line?"),
        (b'{"format": "1"}', "format '1', expected 1"),
        (b'{"format": true}', "format True, expected 1"),
        (b'{"format": 0}', "format 0, expected 1"),
    ],
)
def test_broken_settings_are_refused(tmp_path: Path, data: bytes, words: str) -> None:
    store = new_store(tmp_path / "line")
    rewrite(store.path / "plait.json", data)
    with pytest.raises(RefusedInput) as caught:
        Store.open(store.path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_edited_settings_are_noticed(tmp_path: Path) -> None:
    store = new_store(tmp_path / "line")
    file = store.path / "plait.json"
    rewrite(file, file.read_bytes().replace(b"0.3", b"0.5"))
    with pytest.raises(VerificationError, match=r"plait\.json: its bytes are not those that were written"):
        Store.open(store.path)


@pytest.mark.parametrize("kind", ["missing", "folder", "file"])
def test_not_a_line(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "x"
    if kind == "folder":
        place.mkdir()
    elif kind == "file":
        place.write_text("hello")
    with pytest.raises(
        RefusedInput, match=r"not a line \(it has no plait\.json\); make one with `plait init`"
    ):
        Store.open(place)


def test_settings_come_back(tmp_path: Path) -> None:
    new_store(tmp_path / "line")
    assert Store.open(tmp_path / "line").settings == SETTINGS


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("00000001.json.bak", "not a ledger entry"),
        ("1.json", "not a ledger entry"),
        ("000000001.json", "not a ledger entry"),
        ("٠٠٠٠٠٠٠٣.json", "not a ledger entry"),
        ("00000005.json", "00000003.json: missing, later entries are there"),
    ],
)
def test_stray_names_in_the_ledger(tmp_path: Path, name: str, words: str) -> None:
    store = new_store(tmp_path / "line", "a", "b")
    (store.ledger.folder / name).write_bytes((store.ledger.path(2)).read_bytes())
    for read in (store.ledger.entries, store.ledger.head, lambda: merge(store, "c")):
        with pytest.raises(VerificationError) as caught:
            read()
        assert words in str(caught.value)
        assert name in str(caught.value) or "00000003" in str(caught.value)


def test_swapped_removed_and_foreign_entries(tmp_path: Path) -> None:
    store = new_store(tmp_path / "line", "a", "b", "c")
    ledger = store.ledger
    files = [ledger.path(n).read_bytes() for n in range(4)]

    rewrite(ledger.path(2), files[1])
    with pytest.raises(VerificationError, match=r"00000002\.json: holds entry 1, expected 2"):
        ledger.entries()
    rewrite(ledger.path(2), files[2])
    ledger.path(1).unlink()
    with pytest.raises(VerificationError, match=r"00000001\.json: missing"):
        ledger.entries()
    rewrite(ledger.path(1), files[1])
    assert len(ledger.entries()) == 4
    # Another history's entry of the right number, intact in itself.
    other = new_store(tmp_path / "other", "a", "x", "c").ledger
    rewrite(ledger.path(2), other.path(2).read_bytes())
    with pytest.raises(VerificationError, match=r"00000002\.json: the entry before it is not the one"):
        ledger.entries()
    (tmp_path / "aside").write_bytes(files[2])
    for make in (os.mkfifo, lambda path: os.symlink(tmp_path / "aside", path), os.mkdir):
        os.unlink(ledger.path(2))
        make(ledger.path(2))
        with pytest.raises(VerificationError, match=r"00000002\.json: not a regular file"):
            ledger.entries()


def test_nothing_is_appended_to_a_damaged_entry(tmp_path: Path) -> None:
    ledger = new_store(tmp_path / "line", "a").ledger
    rewrite(ledger.path(1), ledger.path(1).read_bytes().replace(b"1.5", b"2.5"))
    with pytest.raises(VerificationError, match=r"00000001\.json: its bytes are not those that were written"):
        ledger.append({})
    assert not ledger.path(2).exists()


def test_missing_ledger_folder(tmp_path: Path) -> None:
    with pytest.raises(VerificationError, match="cannot be read"):
        Ledger(tmp_path / "nowhere").entries()


def rewrite(file: Path, data: bytes) -> None:
    if file.exists():
        file.unlink()
    file.write_bytes(data)
