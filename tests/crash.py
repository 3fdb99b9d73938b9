"""Kill a command, or let the disk fail, at every n-th file-system call; see that nothing is half-done.

    kill_at_every(argv, prepare, check, root=tmp_path)     SIGKILL just before the n-th call
    fail_at_every(argv, prepare, check, root=tmp_path, error="ENOSPC")     the n-th call fails instead

argv: the command, in which "{folder}" is replaced by the folder of the trial. prepare(folder) fills that
folder; check(folder) looks at what is left, and raises AssertionError if it is not as it must be.

Calls are counted in one full run under strace and only those that touch the trial's folder are tried.
strace counts each kind of call by itself, and each thread by itself. Where strace is missing or may not trace,
the kill comes at random moments instead; a failing disk cannot be imitated then: `fail_at_every` tries nothing.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

CHANGES = (
    *("write", "pwrite64", "pwritev", "writev", "ftruncate", "fallocate", "copy_file_range", "sendfile"),
    *("fsync", "fdatasync", "rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat"),
    *("unlink", "unlinkat", "rmdir", "mkdir", "mkdirat", "chmod", "fchmod", "fchmodat", "utimensat"),
)
"""The calls that change files and folders."""

WRITES = ("write", "pwrite64", "pwritev", "writev", "fsync", "fdatasync", "link", "linkat", "rename", "mkdir")
"""The calls that a failing disk refuses."""

SECONDS = 120.0  # a run that takes longer hangs

_LINE = re.compile(r"(\d+)\s+(\w+)\(")


class Trial(NamedTuple):
    """One run that was disturbed."""

    call: str  # the call, or "random"
    number: int  # which of its calls, counted from 1; milliseconds for "random"
    code: int  # exit status; -9 for killed
    error: str  # what the command wrote to stderr


Check = Callable[[Path], None]


def kill_at_every(
    argv: Sequence[str],
    prepare: Callable[[Path], None],
    check: Check,
    *,
    root: Path,
    calls: Sequence[str] = CHANGES,
    limit: int = 100,
    env: dict[str, str] | None = None,
) -> list[Trial]:
    """Run the command again and again, killing it before the n-th call, for every n. Returns the trials.

    limit: the most trials; where there are more calls, evenly spread ones are taken.
    """
    if not has_strace():
        return _kill_at_random(argv, prepare, check, root, limit, env)
    trials = []
    for call, number in _points(argv, prepare, check, root, calls, limit, env):
        with _folder(root, prepare) as folder:
            done = _traced(argv, folder, env, f"{call}:signal=SIGKILL:when={number}")
            trial = Trial(call, number, done.returncode, done.stderr)
            _checked(trial, lambda folder=folder: check(folder))  # type: ignore[misc]
            trials.append(trial)
    return trials


def fail_at_every(
    argv: Sequence[str],
    prepare: Callable[[Path], None],
    check: Callable[[Path, Trial], None],
    *,
    root: Path,
    error: str = "ENOSPC",
    calls: Sequence[str] = WRITES,
    limit: int = 100,
    env: dict[str, str] | None = None,
) -> list[Trial]:
    """Run the command again and again, the n-th call failing with `error`, for every n. Returns the trials.

    check: also gets the trial, to look at the exit status and the message. Without strace nothing is tried.
    """
    trials: list[Trial] = []
    if not has_strace():
        return trials
    for call, number in _points(argv, prepare, lambda folder: None, root, calls, limit, env):
        with _folder(root, prepare) as folder:
            done = _traced(argv, folder, env, f"{call}:error={error}:when={number}")
            trial = Trial(call, number, done.returncode, done.stderr)
            _checked(trial, lambda folder=folder, trial=trial: check(folder, trial))  # type: ignore[misc]
            trials.append(trial)
    return trials


@cache
def has_strace() -> bool:
    """Is strace here, may it trace, and can it inject?"""
    if shutil.which("strace") is None:
        return False
    argv = ["strace", "-f", "-o", os.devnull, "-e", "inject=?mkdir,?mkdirat:signal=SIGKILL"]
    try:
        done = subprocess.run([*argv, "mkdir", os.devnull], capture_output=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)


def _points(
    argv: Sequence[str],
    prepare: Callable[[Path], None],
    check: Check,
    root: Path,
    calls: Sequence[str],
    limit: int,
    env: dict[str, str] | None,
) -> list[tuple[str, int]]:
    """(call, number) of every call of an undisturbed run that touches its folder, in order of time."""
    seen: dict[tuple[str, str], int] = {}
    points: dict[tuple[str, int], None] = {}
    with _folder(root, prepare) as folder:
        log = folder.parent / "strace.log"
        done = _traced(argv, folder, env, None, calls=calls, log=log)
        if done.returncode != 0:
            raise AssertionError(f"the undisturbed run failed ({done.returncode}): {done.stderr}")
        check(folder)
        for line in log.read_text(errors="replace").splitlines():
            found = _LINE.match(line)
            if found:
                thread, call = found.groups()
                seen[thread, call] = seen.get((thread, call), 0) + 1
                if str(folder) in line:
                    points[call, seen[thread, call]] = None
    if not points:
        raise AssertionError("the command changes nothing in its folder; does argv hold {folder}?")
    return _spread(list(points), limit)


def _spread(points: list[tuple[str, int]], limit: int) -> list[tuple[str, int]]:
    if len(points) <= limit:
        return points
    return [points[i * len(points) // limit] for i in range(limit)]


def _traced(
    argv: Sequence[str],
    folder: Path,
    env: dict[str, str] | None,
    inject: str | None,
    *,
    calls: Sequence[str] = (),
    log: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run under strace (without --seccomp-bpf: faster, but it loses injected signals)."""
    names = [inject.split(":")[0]] if inject else list(calls)
    watch = ",".join(f"?{name}" for name in names)
    command = ["strace", "-f", "-y", "-s", "0", "-e", "signal=none", "-e", f"trace={watch}"]
    command += ["-o", str(log) if log else os.devnull]
    if inject:
        command += ["-e", f"inject={inject}"]
    return _run([*command, "--", *_filled(argv, folder)], env)


def _filled(argv: Sequence[str], folder: Path) -> list[str]:
    return [word.replace("{folder}", str(folder)) for word in argv]


def _run(
    argv: Sequence[str], env: dict[str, str] | None, kill_after: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run in a process group of its own, which is gone when this returns. kill_after: seconds until SIGKILL."""
    quiet = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        list(argv),
        env={**os.environ, **quiet, **(env or {})},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        _, error = process.communicate(timeout=SECONDS if kill_after is None else kill_after)
    except subprocess.TimeoutExpired:
        _kill_group(process)
        _, error = process.communicate()
        if kill_after is None:
            raise AssertionError(f"hangs for more than {SECONDS:.0f} s: {error}") from None
    finally:
        _kill_group(process)
    return subprocess.CompletedProcess(argv, _status(process.returncode), None, error)


def _status(code: int) -> int:
    """strace ends as its command did: by the signal, or with 128 + its number."""
    return -signal.SIGKILL if code == 128 + signal.SIGKILL else code


def _kill_group(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _kill_at_random(
    argv: Sequence[str],
    prepare: Callable[[Path], None],
    check: Check,
    root: Path,
    limit: int,
    env: dict[str, str] | None,
) -> list[Trial]:
    with _folder(root, prepare) as folder:
        began = time.monotonic()
        done = _run(_filled(argv, folder), env)
        whole = time.monotonic() - began
        if done.returncode != 0:
            raise AssertionError(f"the undisturbed run failed ({done.returncode}): {done.stderr}")
        check(folder)
    chance, trials = random.Random(0), []
    for _ in range(limit):
        with _folder(root, prepare) as folder:
            wait = chance.uniform(0, whole)
            done = _run(_filled(argv, folder), env, kill_after=wait)
            trial = Trial("random", round(wait * 1000), done.returncode, done.stderr)
            _checked(trial, lambda folder=folder: check(folder))  # type: ignore[misc]
            trials.append(trial)
    return trials


@contextmanager
def _folder(root: Path, prepare: Callable[[Path], None]) -> Iterator[Path]:
    """A fresh folder of always the same name, so that runs differ in nothing; removed when the trial is over."""
    place = root / "crash"
    folder = place / "folder"
    folder.mkdir(parents=True)
    try:
        prepare(folder)
        yield folder
    finally:
        shutil.rmtree(place)


def _checked(trial: Trial, check: Callable[[], None]) -> None:
    try:
        check()
    except Exception as error:
        where = f"{trial.call} number {trial.number} (exit {trial.code})"
        raise AssertionError(
            f"disturbed at {where}: {type(error).__name__}: {error}; stderr: {trial.error}"
        ) from error
