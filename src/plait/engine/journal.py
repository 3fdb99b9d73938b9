"""What an interrupted plan had finished, so that it goes on at the first job whose bytes are not there.

The journal is a text file of JSON lines. The first line is a fingerprint of the plan; a journal of another
plan is emptied. Then comes one line for every finished job: the ranges of files that it wrote, their crc32,
and what the job returned. A job counts as done only if those bytes are still there: a line that was torn or
whose bytes never reached the disk is simply done again.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from plait.errors import PlaitError

Wrote = list[list[Any]]
"""[file, first byte, bytes, crc32] of each range that a job wrote."""

Sums = dict[str, list[list[int]]]
"""By the name of a file in some folder: [first byte, bytes, crc32] of ranges that fill the file without a gap."""


class Journal:
    """One journal file, open for the time of one plan. `close` keeps the file: the caller deletes it with the
    rest of its workspace once the result is published."""

    def __init__(self, path: Path, fingerprint: Any) -> None:
        self.path = path
        text = json.dumps(fingerprint, sort_keys=True, separators=(",", ":"), default=str)
        self.fingerprint = hashlib.sha256(text.encode()).hexdigest()
        self.jobs: dict[str, dict[int, tuple[Wrote, Any]]] = {}
        self.values: dict[str, Any] = {}
        kept = self._load()
        try:
            self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.ftruncate(self._handle, kept)
            os.lseek(self._handle, kept, os.SEEK_SET)
        except OSError as problem:
            raise PlaitError(
                f"{path}: cannot be written: {problem.strerror}; free space, then try again"
            ) from problem
        if not kept:
            self._append({"plan": self.fingerprint})

    def job(self, label: str, index: int, wrote: Wrote, result: Any) -> None:
        """Job `index` of the pass `label` is done. `result` survives JSON."""
        self.jobs.setdefault(label, {})[index] = (wrote, result)
        self._append({"pass": label, "job": index, "wrote": wrote, "result": result})

    def value(self, key: str, value: Any) -> None:
        """Remember a value of the plan that cost a pass to find."""
        self.values[key] = value
        self._append({"key": key, "value": value})

    def wrote(self, label: str) -> Wrote:
        """All ranges that the finished jobs of a pass wrote."""
        return [entry for wrote, _ in self.jobs.get(label, {}).values() for entry in wrote]

    def close(self) -> None:
        os.close(self._handle)

    def _append(self, line: dict[str, Any]) -> None:
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        try:
            if os.write(self._handle, data) != len(data):
                raise OSError(28, "no space left")
        except OSError as problem:
            raise PlaitError(
                f"{self.path}: cannot be written: {problem.strerror}; free space, then run again"
            ) from problem

    def _load(self) -> int:
        """Take in the whole lines of an earlier run of the same plan; the number of bytes that they fill."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return 0
        kept = 0
        for number, line in enumerate(data.splitlines(keepends=True)):
            try:
                entry = json.loads(line) if line.endswith(b"\n") else None
            except ValueError:
                entry = None
            if not isinstance(entry, dict) or (number == 0 and entry.get("plan") != self.fingerprint):
                break
            if "job" in entry:
                self.jobs.setdefault(entry["pass"], {})[entry["job"]] = (entry["wrote"], entry["result"])
            elif "key" in entry:
                self.values[entry["key"]] = entry["value"]
            kept += len(line)
        return kept
