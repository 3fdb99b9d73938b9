"""Facts of the machine and of the software, and how much memory a piece of work needed. No name of a host or user."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")


def machine() -> dict[str, Any]:
    """cores, memory in bytes, processor, system: what times depend on. None for what cannot be found out."""
    return {
        "cores": os.cpu_count(),
        "memory": _memory(),
        "processor": _processor(),
        "system": platform.system(),
        "architecture": platform.machine(),
    }


def software(packages: Iterable[str] = ()) -> dict[str, Any]:
    """Versions of plait, Python, torch and numpy, what torch found in the processor, and versions of `packages`."""
    from importlib.metadata import PackageNotFoundError, version

    from plait.line.build import software

    found: dict[str, Any] = dict(software())
    for name in ("numpy", *packages):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None


def _processor() -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or None
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.M)
    return found[1].strip() if found else None


def held() -> int | None:
    """Bytes of memory that this process holds now; None where the system does not say (it is not Linux)."""
    return _status("VmRSS")


def forget_peak() -> None:
    """From here on `peak` tells of what comes."""
    with suppress(OSError):
        CLEAR.write_text("5")


def peak() -> int | None:
    """The most bytes of memory that this process held since `forget_peak`; None where the system does not say."""
    return _status("VmHWM")


def _status(what: str) -> int | None:
    try:
        found = re.search(rf"^{what}:\s*(\d+) kB$", STATUS.read_text(encoding="ascii"), re.M)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
