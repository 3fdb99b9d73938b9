"""What was measured, kept with the line: rows/<digest>.json, one file for each model that was evaluated.

A row is one model on one task. Its model is a version of the line (the base is one of them), named by its root
digest, or a member's own checkpoint (the expert), named by the digest in the ledger. Files are canonical JSON with a
checksum, replaced in one step: a reader finds all rows of before or all of after. Rows are no part of what the line
is: they can be deleted and measured again.
"""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any, Literal

from plait.errors import PlaitError, VerificationError
from plait.store import Store
from plait.store.canonical import seal, unseal
from plait.store.files import failing, is_temporary, make_folder, read_file, replace, sync_folder
from plait.store.objects import is_digest

FOLDER = "rows"

Role = Literal["version", "base", "expert"]

Key = tuple[str, ...]


@dataclass(frozen=True)
class Condition:
    """How a task was measured. Two accuracies can be compared where these are equal.

    data: digest of the examples. head: digest of all that makes the head, beside a member's own tensors. network:
    which network ran, in which dtype.
    """

    task: str
    split: str
    metric: str
    data: str
    head: str
    network: str


@dataclass(frozen=True)
class Row:
    """One model on one task.

    member: whose expert it is; None for versions. own: digest of the member whose private tensors were put in the
    model's place (a head of its own); None where there were none. value: right / count. low, high: ends of the
    interval of `level`, drawn with `seed`. bits: right or wrong for each answer, see `pack`; groups: how many answers
    each example has (the tokens of a text), None for one. undefined: answers with NaN, counted as wrong. device:
    where it ran. software: versions that were used.
    """

    digest: str
    role: Role
    task: str
    member: str | None
    own: str | None
    split: str
    metric: str
    data: str
    head: str
    network: str
    value: float
    right: int
    count: int
    low: float
    high: float
    level: float
    seed: int
    device: str
    time: str
    software: dict[str, str]
    bits: str
    groups: tuple[int, ...] | None = None
    undefined: int = 0

    @property
    def condition(self) -> Condition:
        return Condition(self.task, self.split, self.metric, self.data, self.head, self.network)

    @property
    def key(self) -> Key:
        """What must be equal for a row to stand for another measurement."""
        return key_of(self.condition, self.digest, self.role, self.member, self.own)

    @property
    def answers(self) -> list[bool]:
        """Right or wrong, answer by answer, in the order of the examples."""
        return unpack(self.bits, self.count)

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Row:
        """The row that `plain` gave. Fields of a later plait are dropped; TypeError where one is missing."""
        fields = {name: value for name, value in row.items() if name in cls.__dataclass_fields__}
        groups = fields.get("groups")
        return cls(**{**fields, "groups": None if groups is None else tuple(groups)})


def key_of(condition: Condition, digest: str, role: Role, member: str | None, own: str | None) -> Key:
    """The key of the row that such a measurement has."""
    return (digest, role, member or "", own or "", *astuple(condition))


def pack(answers: Sequence[bool]) -> str:
    """Truth values as base64 of their bits: the first is the highest bit of the first byte, zeros at the end."""
    count = len(answers)
    size = (count + 7) // 8
    number = int("".join("1" if a else "0" for a in answers) or "0", 2) << (size * 8 - count)
    return base64.b64encode(number.to_bytes(size, "big")).decode("ascii")


def unpack(bits: str, count: int) -> list[bool]:
    """What `pack` was given. ValueError where the text does not hold `count` values."""
    data = base64.b64decode(bits, validate=True)
    text = "".join(f"{byte:08b}" for byte in data)
    if len(data) != (count + 7) // 8 or "1" in text[count:]:
        raise ValueError(f"{len(data)} bytes of bits for {count} examples")
    return [letter == "1" for letter in text[:count]]


class Rows:
    """The rows of a line. Reading needs no lock; who writes holds the line's."""

    def __init__(self, store: Store) -> None:
        self.folder = store.path / FOLDER

    def all(self) -> list[Row]:
        """Every row, by model. VerificationError at the first damaged file."""
        return [row for digest in self.digests() for row in self.of(digest)]

    def of(self, digest: str) -> list[Row]:
        """The rows of one model; none where it was never evaluated. VerificationError where the file is damaged."""
        path = self._path(digest)
        try:
            data = read_file(path)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise VerificationError(f"{path}: cannot be read ({error.strerror}); {_ADVICE}") from error
        try:
            found = [Row.of(row) for row in unseal(data, path)["rows"]]
            wrong = next(
                (row for row in found if row.digest != digest or sum(row.answers) != row.right), None
            )
        except (VerificationError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise VerificationError(f"{path}: is not what plait eval wrote; {_ADVICE}") from error
        if wrong is not None:
            raise VerificationError(f"{path}: a row on {wrong.task} contradicts itself; {_ADVICE}")
        return found

    def digests(self) -> list[str]:
        """The models that have rows, sorted."""
        return [name[:-5] for name in self._names() if name.endswith(".json") and is_digest(name[:-5])]

    def put(self, rows: Iterable[Row]) -> None:
        """Add rows, each in the place of one with its key. Whole files are replaced, in one step each."""
        by_digest: dict[str, list[Row]] = {}
        for row in rows:
            by_digest.setdefault(row.digest, []).append(row)
        for digest, fresh in by_digest.items():
            kept = {row.key: row for row in self.of(digest)} | {row.key: row for row in fresh}
            self._write(digest, list(kept.values()))

    def forget(self, digest: str, gone: Callable[[Row], bool]) -> int:
        """Remove the rows of one model that `gone` names; returns how many. A damaged file goes as a whole."""
        try:
            rows = self.of(digest)
        except VerificationError:
            self._delete(self._path(digest))
            return 1
        kept = [row for row in rows if not gone(row)]
        if not kept and self._path(digest).exists():
            self._delete(self._path(digest))
        elif len(kept) < len(rows):
            self._write(digest, kept)
        return len(rows) - len(kept)

    def collect(self, known: Collection[str], *, dry_run: bool, grace_seconds: float) -> dict[str, int]:
        """Remove files of models that are not `known` and what killed commands left, older than the grace; returns
        names and bytes."""
        limit = time.time() - grace_seconds
        found: dict[str, int] = {}
        for name in self._names(temporary=True):
            left = is_temporary(name) and name.endswith(".tmp")
            strange = name.endswith(".json") and is_digest(name[:-5]) and name[:-5] not in known
            path = self.folder / name
            status = os.lstat(path)
            if (left or strange) and status.st_mtime <= limit:
                found[name.removesuffix(".json")] = status.st_size
                if not dry_run:
                    self._delete(path)
        return found

    def problems(self) -> list[str]:
        """One line for every file that is damaged or does not belong there."""
        own = {f"{digest}.json" for digest in self.digests()}
        found = [f"{self.folder / n}: not a file of rows; move it out" for n in self._names() if n not in own]
        for digest in self.digests():
            try:
                self.of(digest)
            except PlaitError as error:
                found.append(str(error))
        return found

    def _names(self, *, temporary: bool = False) -> list[str]:
        try:
            return sorted(n for n in os.listdir(self.folder) if temporary or not is_temporary(n))
        except FileNotFoundError:
            return []

    def _path(self, digest: str) -> Path:
        return self.folder / f"{digest}.json"

    def _write(self, digest: str, rows: Sequence[Row]) -> None:
        path = self._path(digest)
        data = seal({"rows": [row.plain() for row in sorted(rows, key=lambda row: row.key)]})
        with failing("writing rows", path):
            make_folder(self.folder)
            replace(path, data)

    def _delete(self, path: Path) -> None:
        with failing("removing", path):
            path.unlink(missing_ok=True)
            sync_folder(self.folder)


_ADVICE = "delete it and run plait eval again"
